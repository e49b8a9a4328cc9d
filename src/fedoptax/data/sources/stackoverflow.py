"""Stack Overflow: sentences of questions and answers; one client a user. Two tasks: the next word, and the tags.

TensorFlow Federated's files: 342,477 users with 135,818,730 sentences from before 2018 to train on, 204,088 users with
16,586,035 sentences from after to test on. The held-out users of `stackoverflow_held_out.h5` are not used, as in
Reddi et al., "Adaptive Federated Optimization" (AFO), 2021, whose released code says how sentences become ids
(google-research/federated, `utils/datasets/stackoverflow_word_prediction.py`, `stackoverflow_tag_prediction.py`).

A sentence has the fields `tokens` (its words, separated by single spaces), `title` (of the question) and `tags` (of
the question, separated by `|`), and `creation_date`, `score` and `type` (question or answer), which are not read.

The first reading holds one user at a time and takes 10 to 30 µs a sentence, so half an hour to an hour for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedoptax.data.cache import cached
from fedoptax.data.sources import Source
from fedoptax.data.sources.hdf5 import ClientFile
from fedoptax.data.sources.natural import Client, Codes, write_clients, write_names
from fedoptax.data.sources.stackoverflow_text import Encoder, read_tags, read_words, tag_encoder, word_encoder
from fedoptax.data.sources.tokens import next_token
from fedoptax.data.sources.upstream import require_all
from fedoptax.data.store import StoreWriter
from fedoptax.errors import DataError, UsageError

_FILES = ("stackoverflow_train.h5", "stackoverflow_test.h5", "stackoverflow.word_count", "stackoverflow.tag_count")
_SAMPLE_SEED = 0  # of the test examples: a run's seed must not change what is measured
_MAX_VOCABULARY = 2**16 - 4  # so that every id fits in uint16
_VERSION = 1  # of the cached arrays


@dataclass(frozen=True)
class _Sizes:
    """How much is read; see `load_nwp`."""

    max_sentences: int | None
    test_examples: int | None
    max_clients: int | None


def load_nwp(
    data_dir: str | Path | None = None,
    vocabulary: int = 10_000,
    length: int = 20,
    max_sentences: int | None = 1_000,
    test_examples: int | None = 10_000,
    max_clients: int | None = None,
) -> Source:
    """Next-word prediction: reads `stackoverflow_{train,test}.h5` and `stackoverflow.word_count`.

    A sentence is the id of its beginning, those of its first `length` words, and that of its end if it has fewer
    words; x is all of that but the last id and y all but the first, padded. Ids: 0 padding, 1 … V the most frequent
    words, V + 1 any other word, V + 2 beginning, V + 3 end (`special_tokens(V)`).

    Args:
      data_dir: as in `fedoptax.data.location.find_data_dir`; the files lie in `stackoverflow/`.
      vocabulary: V.
      length: words.
      max_sentences: of a training user, the first ones; `None` for all. (AFO: 1,000.)
      test_examples: how many test sentences, drawn from all by a fixed seed; `None` for all. AFO measures on 10,000
        during training (section 4, "Validation metrics"), and on all at the end (appendix E.2).
      max_clients: the first so many training users by name; `None` for all.

    Returns:
      x and y uint16 of shape (n, length), V + 4 classes; the groups are users; the vocabulary is that of the V words.

    Raises:
      UsageError: a number is out of range.
      DataError: a file is missing or broken.
    """
    _check(vocabulary=vocabulary, length=length)
    paths = require_all(data_dir, "stackoverflow", _FILES[:3])

    def encoder() -> tuple[Encoder, dict[str, list[str]]]:
        words = read_words(paths[2], vocabulary)
        return word_encoder(words, length), {"vocabulary": words}

    sizes = _Sizes(max_sentences, test_examples, max_clients)
    arrays = _arrays(f"stackoverflow-nwp-{vocabulary}-{length}", paths, ("tokens",), encoder, sizes)
    return Source(
        train=next_token(arrays["train_ids"]),
        test=next_token(arrays["test_ids"]),
        num_classes=vocabulary + 4,
        input_shape=(length,),
        train_groups=arrays["train_groups"],
        test_groups=arrays["test_groups"],
        client_names=arrays["client_names"],
        vocabulary=arrays["vocabulary"],
    )


def load_tags(
    data_dir: str | Path | None = None,
    vocabulary: int = 10_000,
    tags: int = 500,
    max_words: int = 64,
    max_sentences: int | None = 1_000,
    test_examples: int | None = 10_000,
    max_clients: int | None = None,
) -> Source:
    """Tag prediction: reads `stackoverflow_{train,test}.h5`, `stackoverflow.word_count` and `stackoverflow.tag_count`.

    AFO's input is the mean over the words of sentence and title, in the vocabulary or not, of their one-hot vectors,
    of which the V in the vocabulary are kept. V floats an example would be 5 TB, so the source holds ids, from which a
    task builds the bag inside its program: entry i − 1 of it is the number of times that `x` holds i, divided by
    `words`. The target is 1 for the tags in `y` and 0 for the others.

    Args:
      data_dir: as in `fedoptax.data.location.find_data_dir`; the files lie in `stackoverflow/`.
      vocabulary: V, words.
      tags: T, the most frequent ones; others are dropped.
      max_words: words in the vocabulary that are kept of an example, the first ones.
      max_sentences: as in `load_nwp`.
      test_examples: as in `load_nwp`.
      max_clients: as in `load_nwp`.

    Returns:
      x uint16 (n, max_words), ids 1 … V padded by 0; words uint16 (n,), the number of all words (0 for an empty
      example); y uint16 (n, 5), tags 1 … T padded by 0; the groups are users; the vocabulary is that of the V words.

    Raises:
      UsageError: a number is out of range.
      DataError: a file is missing or broken.
    """
    _check(vocabulary=vocabulary, tags=tags, max_words=max_words)
    paths = require_all(data_dir, "stackoverflow", _FILES)

    def encoder() -> tuple[Encoder, dict[str, list[str]]]:
        words, names = read_words(paths[2], vocabulary), read_tags(paths[3], tags)
        return tag_encoder(words, names, max_words), {"vocabulary": words, "tags": names}

    sizes, fields = _Sizes(max_sentences, test_examples, max_clients), ("tokens", "title", "tags")
    arrays = _arrays(f"stackoverflow-tags-{vocabulary}-{tags}-{max_words}", paths, fields, encoder, sizes)
    return Source(
        train={name: arrays[f"train_{name}"] for name in ("x", "words", "y")},
        test={name: arrays[f"test_{name}"] for name in ("x", "words", "y")},
        num_classes=tags,
        input_shape=(vocabulary,),
        train_groups=arrays["train_groups"],
        test_groups=arrays["test_groups"],
        client_names=arrays["client_names"],
        vocabulary=arrays["vocabulary"],
        class_names=tuple(arrays["tags"].tolist()),
    )


def _arrays(
    name: str,
    paths: list[Path],
    fields: tuple[str, ...],
    encoder: Callable[[], tuple[Encoder, dict[str, list[str]]]],
    sizes: _Sizes,
) -> dict[str, np.ndarray]:
    """The arrays of a task: what `encoder()`, which also gives the lists it goes by, makes of these fields of users."""
    _check(**{size: given for size, given in vars(sizes).items() if given is not None})

    def build(writer: StoreWriter) -> None:
        encode, lists = encoder()
        codes: Codes = {}
        with ClientFile(paths[0]) as train, ClientFile(paths[1]) as test:
            write_clients(writer, "train", train.path, _train_users(train, fields, encode, sizes), codes)
            write_clients(writer, "test", test.path, _test_users(test, fields, encode, sizes), codes)
        write_names(writer, codes)
        for what, words in lists.items():
            writer.append(what, np.array(words))

    return cached("-".join([name, *map(str, vars(sizes).values())]), paths, _VERSION, build)


def _train_users(file: ClientFile, fields: tuple[str, ...], encode: Encoder, sizes: _Sizes) -> Iterator[Client]:
    for user in file.names[: sizes.max_clients]:
        yield user, encode(*_texts(file, user, fields, sizes.max_sentences))


def _test_users(file: ClientFile, fields: tuple[str, ...], encode: Encoder, sizes: _Sizes) -> Iterator[Client]:
    """The users of the test examples that are drawn, with those of their sentences."""
    edges = np.concatenate([[0], np.cumsum([file.rows(user, fields[0]) for user in file.names], dtype=np.int64)])
    total = int(edges[-1])
    wanted = total if sizes.test_examples is None else min(sizes.test_examples, total)
    drawn = np.sort(np.random.default_rng(_SAMPLE_SEED).choice(total, wanted, replace=False)) if wanted else edges[:0]
    for user, start, rows in zip(file.names, edges, np.split(drawn, np.searchsorted(drawn, edges[1:-1]))):
        if len(rows):
            texts = _texts(file, user, fields, None)
            yield user, encode(*([text[row - start] for row in rows] for text in texts))


def _texts(file: ClientFile, user: str, fields: tuple[str, ...], limit: int | None) -> list[list[bytes]]:
    texts = [file.text(user, field, limit) for field in fields]
    if len({len(text) for text in texts}) > 1:
        raise DataError(f"{file.path}: user {user!r} has fields of unequal length {dict(zip(fields, map(len, texts)))}")
    return texts


def _check(**numbers: int) -> None:
    for name, given in numbers.items():
        most = _MAX_VOCABULARY if name in ("vocabulary", "tags") else None
        if given < 1 or (most is not None and given > most):
            raise UsageError(f"{name}: {given} given; {f'1 to {most}' if most else '1 or more'} is allowed")
