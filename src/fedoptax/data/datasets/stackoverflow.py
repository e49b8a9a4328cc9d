"""Stack Overflow: sentences of questions and answers; one client per user. Two tasks: the next word, and the tags.

TensorFlow Federated's files: 342,477 users with 135,818,730 sentences from before 2018 to train on, 204,088 users with
16,586,035 sentences from after to test on. The held-out users of `stackoverflow_held_out.h5` are not used, as in
Reddi et al., "Adaptive Federated Optimization" (AFO), 2021, whose released code says how sentences become ids
(google-research/federated, `utils/datasets/stackoverflow_word_prediction.py`, `stackoverflow_tag_prediction.py`).

A sentence has the fields `tokens` (its words, separated by single spaces), `title` (of the question) and `tags` (of
the question, separated by `|`), and `creation_date`, `score` and `type` (question or answer), which are not read.

The first reading holds one user at a time and takes 10 to 30 µs per sentence, so half an hour to an hour for all.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from pathlib import Path

import numpy as np

from fedoptax.data.cache import Rows, cached
from fedoptax.data.datasets import source
from fedoptax.data.datasets.source import ClientFile, ClientRows, Source, open_clients, special_tokens
from fedoptax.data.files import read_file, require_file
from fedoptax.data.readers import reading
from fedoptax.errors import DataError

Encoder = Callable[..., dict[str, np.ndarray]]
"""Makes a user's arrays of the user's texts, one list of byte strings per field."""

MAX_TAGS = 5  # of a sentence: Stack Overflow allows a question no more

_FILES = ("stackoverflow_train.h5", "stackoverflow_test.h5", "stackoverflow.word_count", "stackoverflow.tag_count")
_SAMPLE_SEED = 0  # of the test examples: a run's seed must not change what is measured
_VERSION = 1  # of the cached arrays


def load_nwp(
    data_dir: str | Path | None = None, vocabulary: int = 10_000, length: int = 20, max_sentences: int | None = 1_000,
    test_examples: int | None = 10_000, max_clients: int | None = None,
) -> Source:  # fmt: skip
    """Read the sentences for next-word prediction, and `stackoverflow.word_count`.

    A sentence is the id of its beginning, those of its first `length` words, and that of its end if it has fewer
    words; x is all of that but the last id and y all but the first, padded. Ids: 0 padding, 1 … V the most frequent
    words (V = `vocabulary`), V + 1 any other word, V + 2 beginning, V + 3 end (`special_tokens(V)`).

    Args:
      max_sentences: of a training user, the first ones; `None` for all. (AFO: 1,000.)
      test_examples: the number of test sentences, drawn from all by a fixed seed; `None` for all. AFO measures on
        10,000 during training (section 4, "Validation metrics"), and on all at the end (appendix E.2).
      max_clients: the number of training users, the first by name; `None` for all.

    x and y are uint16 of shape (n, length), of V + 4 classes; groups are users; the vocabulary is that of the V words.
    """
    counts = {"max_sentences": max_sentences, "test_examples": test_examples, "max_clients": max_clients}
    paths = [require_file(data_dir, "stackoverflow", name) for name in _FILES[:3]]
    words = _read_words(paths[2], vocabulary)
    arrays = _cached_users(f"nwp-{vocabulary}-{length}", paths, ("tokens",), _word_encoder(words, length), **counts)
    train, test = (source.next_token(arrays[f"{part}_ids"]) for part in ("train", "test"))
    groups = arrays["train_groups"], arrays["test_groups"]
    return Source(train, test, vocabulary + 4, (length,), *groups, vocabulary=np.array(words))


def load_tags(
    data_dir: str | Path | None = None, vocabulary: int = 10_000, tags: int = 500, max_words: int = 64,
    max_sentences: int | None = 1_000, test_examples: int | None = 10_000, max_clients: int | None = None,
) -> Source:  # fmt: skip
    """Read the sentences for tag prediction, `stackoverflow.word_count` and `.tag_count`.

    AFO's input is the mean over the words of sentence and title, in the vocabulary or not, of their one-hot vectors,
    of which the V in the vocabulary are kept. V floats per example would be 5 TB, so the source holds ids, from which a
    task builds the bag inside its program: entry i − 1 of it is the number of times that `x` holds i, divided by
    `words`. The target is 1 for the tags in `y` and 0 for the others.

    Of the `vocabulary` of V words the first `max_words` of an example are kept; `tags` are the T most frequent, others
    are dropped. All else as in `load_nwp`.

    x is uint16 (n, max_words), ids 1 … V padded by 0; words uint16 (n,), the number of all words (0 for an empty
    example); y uint16 (n, 5), tags 1 … T padded by 0; the groups are users; the vocabulary is that of the V words.
    """
    counts = {"max_sentences": max_sentences, "test_examples": test_examples, "max_clients": max_clients}
    paths = [require_file(data_dir, "stackoverflow", name) for name in _FILES]
    words, names = _read_words(paths[2], vocabulary), _read_tags(paths[3], tags)
    name, encode = f"tags-{vocabulary}-{tags}-{max_words}", _tag_encoder(words, names, max_words)
    arrays = _cached_users(name, paths, ("tokens", "title", "tags"), encode, **counts)
    train, test = ({name: arrays[f"{part}_{name}"] for name in ("x", "words", "y")} for part in ("train", "test"))
    groups = arrays["train_groups"], arrays["test_groups"]
    return Source(train, test, tags, (vocabulary,), *groups, vocabulary=np.array(words), class_names=tuple(names))


def _cached_users(
    name: str, paths: list[Path], fields: tuple[str, ...], encode: Encoder, max_sentences: int | None,
    test_examples: int | None, max_clients: int | None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Return what `encode` makes of these fields of the users of the first two files."""

    def decode() -> Rows:
        with open_clients(paths[0]) as train, open_clients(paths[1]) as test:
            users = ((user, encode(*_texts(train, user, fields, max_sentences))) for user in train.names[:max_clients])
            yield from source.rows_of_clients(paths, users, _test_users(test, fields, encode, test_examples))

    return cached(f"stackoverflow-{name}-{max_sentences}-{test_examples}-{max_clients}", paths, _VERSION, decode)


def _test_users(file: ClientFile, fields: tuple[str, ...], encode: Encoder, limit: int | None) -> Iterator[ClientRows]:
    """Read the users of the test examples that are drawn, with those of their sentences."""
    edges = np.cumsum([0, *(file.count(user, fields[0]) for user in file.names)])
    total = int(edges[-1])
    wanted = total if limit is None else min(limit, total)
    drawn = np.sort(np.random.default_rng(_SAMPLE_SEED).choice(total, wanted, replace=False)) if wanted else edges[:0]
    for user, start, rows in zip(file.names, edges, np.split(drawn, np.searchsorted(drawn, edges[1:-1]))):
        if len(rows):
            texts = _texts(file, user, fields, None)
            yield user, encode(*([text[row - start] for row in rows] for text in texts))


def _texts(file: ClientFile, user: str, fields: tuple[str, ...], limit: int | None) -> list[list[bytes]]:
    return [file.text(user, field, limit) for field in fields]


def _read_words(path: Path, count: int) -> list[str]:
    """Read the first `count` words of `stackoverflow.word_count`: lines `word count`, the most frequent word first."""
    with reading(path, "lines of words and counts"), path.open(encoding="utf-8", newline="\n") as file:
        words = [word for word, _ in map(str.split, islice(file, count))]
    return _require_count(path, "words", words, count)


def _read_tags(path: Path, count: int) -> list[str]:
    """Read the `count` most frequent tags of `stackoverflow.tag_count`: one JSON object, `{tag: count, …}`."""
    with reading(path, "a JSON object of tags and their counts"):
        counts = json.loads(read_file(path))
        tags = sorted(counts, key=lambda tag: -counts[tag])[:count]
    return _require_count(path, "tags", tags, count)


def _require_count(path: Path, what: str, names: list[str], count: int) -> list[str]:
    if len(set(names)) < count:
        raise DataError(f"{path} must hold {count} different {what}, got {len(set(names))}")
    return names


def _word_encoder(words: Sequence[str], length: int) -> Encoder:
    """Encode `tokens` as `ids` uint16 (n, length + 1), padded.

    Words are separated by single spaces, so an empty sentence has one word, the empty one, which is in no vocabulary.
    """
    special, ids = special_tokens(len(words)), _numbered(words)

    def encode(sentences: list[bytes]) -> dict[str, np.ndarray]:
        rows = [
            [special.bos, *map(ids.get, sentence.split(b" ", length)[:length], repeat(special.oov)), special.eos]
            for sentence in sentences
        ]
        return {"ids": _padded(rows, length + 1)}  # which cuts the end of the longest

    return encode


def _tag_encoder(words: Sequence[str], tags: Sequence[str], max_words: int) -> Encoder:
    """Encode `tokens`, `title` and `tags`, of words between white space of any length, as `load_tags` has them."""
    word_ids, tag_ids = _numbered(words), _numbered(tags)

    def encode(sentences: list[bytes], titles: list[bytes], tagged: list[bytes]) -> dict[str, np.ndarray]:
        split = [(b"%b %b" % pair).split() for pair in zip(sentences, titles)]
        different = [dict.fromkeys(line.split(b"|")) for line in tagged]
        return {
            "x": _padded([[word_ids[word] for word in text if word in word_ids] for text in split], max_words),
            "words": np.minimum([len(text) for text in split], np.iinfo(np.uint16).max).astype(np.uint16),
            "y": _padded([[tag_ids[tag] for tag in line if tag in tag_ids] for line in different], MAX_TAGS),
        }

    return encode


def _padded(rows: list[list[int]], length: int) -> np.ndarray:
    sizes = np.array([min(len(row), length) for row in rows], np.int64)
    ids = chain.from_iterable(row[:length] for row in rows)
    padded = np.zeros((len(rows), length), np.uint16)
    padded[np.arange(length) < sizes[:, None]] = np.fromiter(ids, np.uint16, int(sizes.sum()))
    return padded


def _numbered(words: Sequence[str]) -> dict[bytes, int]:
    return {word.encode(): i for i, word in enumerate(words, start=1)}
