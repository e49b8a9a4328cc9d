"""The text data sets: Shakespeare, Stack Overflow and WikiText-2, from tiny files in their formats."""

import json

import numpy as np
import pytest

from fedoptax.data.datasets import shakespeare, stackoverflow, wikitext
from files import write, write_shakespeare, write_tff, write_wikitext
from refusals import refused


def test_snippets_become_chunks_of_81(tmp_path):
    long = b"To be, or not to be, that is the question: " * 4
    source = shakespeare.load(write_shakespeare(tmp_path, {"HAMLET": [long, b"Words"]}, {"HAMLET": [b"Words"]}))
    chunks = np.concatenate([source.train["x"], source.train["y"][:, -1:]], axis=1)
    np.testing.assert_array_equal(source.train["x"][:, 1:], source.train["y"][:, :-1])
    bos, eos = shakespeare.SPECIAL.bos, shakespeare.SPECIAL.eos
    ids = [int(i) for i in chunks[:-1].ravel() if i not in (0, bos, eos)]
    assert "".join(shakespeare.CHARACTERS[i - 1] for i in ids) == long.decode()
    assert (chunks[0, 0], chunks[-1, 0], chunks[-1, 6], chunks[-1, 7]) == (bos, bos, eos, 0)
    assert source.counts == {"train_snippets": 2, "test_snippets": 1}
    assert (source.num_classes, source.input_shape, source.train["x"].dtype) == (90, (80,), np.uint8)


def test_characters_have_the_published_ids():
    assert len(set(shakespeare.CHARACTERS)) == 86
    ids = shakespeare.encode(b"dh\xc3")[0]
    np.testing.assert_array_equal(ids[:5], [88, 1, 2, 87, 89])


WORDS = ["the", "a", "list", "of", "code"]  # ids 1 … 5, then oov 6, bos 7, eos 8
TAGS = {"rare": 1, "python": 9, "c#": 30, "numpy": 9}


def user(*sentences, title=b"the title", tags=b"python|c#"):
    n = len(sentences)
    return {"tokens": list(sentences), "title": [title] * n, "tags": [tags] * n, "score": np.arange(n)}


TRAIN = {
    "2": user(b"the list", b"a list of code of a list", b"unknown words"),
    "1": user(b"the", b"a", b"list"),
    "3": user(b"", tags=b"rare|vb . net"),
}
TEST = {str(i): user(*[b"the"] * 10) for i in range(1, 6)} | {"9": user(b"code")}


def write_stackoverflow(root, train=TRAIN, test=TEST, **storage):
    folder = root / "stackoverflow"
    write_tff(folder / "stackoverflow_train.h5", train, **storage)
    write_tff(folder / "stackoverflow_test.h5", test, **storage)
    write(folder / "stackoverflow.word_count", "".join(f"{word} {99 - i}\n" for i, word in enumerate(WORDS)).encode())
    write(folder / "stackoverflow.tag_count", json.dumps(TAGS).encode())
    return root


def load_nwp(root, **options):
    return stackoverflow.load_nwp(root, **{"vocabulary": 5, "length": 4, **options})


def load_tags(root, **options):
    return stackoverflow.load_tags(root, **{"vocabulary": 5, "tags": 3, "max_words": 4, **options})


@pytest.mark.parametrize(
    ("sentence", "ids"),
    [
        (b"the list", [7, 1, 3, 8, 0]), (b"the list of", [7, 1, 3, 4, 8]),
        (b"the list of code", [7, 1, 3, 4, 5]),  # of full length, so without an end
        (b"the list of code a a", [7, 1, 3, 4, 5]), (b"The tuple", [7, 6, 6, 8, 0]),
        (b"", [7, 6, 8, 0, 0]),  # one word, the empty one
        (b"the  list", [7, 1, 6, 3, 8]),
    ],
)  # fmt: skip
def test_sentences_become_ids_shifted_by_one(tmp_path, sentence, ids):
    source = load_nwp(write_stackoverflow(tmp_path, train={"1": user(sentence, b"a")}))
    np.testing.assert_array_equal(source.train["x"], [ids[:-1], [7, 2, 8, 0]])
    np.testing.assert_array_equal(source.train["y"], [ids[1:], [2, 8, 0, 0]])
    assert source.train["x"].dtype == np.uint16


def test_users_are_clients_in_the_order_of_their_names_and_may_be_limited(tmp_path):
    source = load_nwp(write_stackoverflow(tmp_path))
    np.testing.assert_array_equal(source.train_groups, [0, 0, 0, 1, 1, 1, 2])
    np.testing.assert_array_equal(np.bincount(source.test_groups), [10] * 5 + [1])
    assert (source.num_classes, source.input_shape, list(source.vocabulary)) == (9, (4,), WORDS)
    few, every = load_nwp(tmp_path, max_sentences=2), load_nwp(tmp_path, max_sentences=None)
    np.testing.assert_array_equal(few.train_groups, [0, 0, 1, 1, 2])
    np.testing.assert_array_equal(few.train["x"], np.asarray(every.train["x"])[[0, 1, 3, 4, 6]])
    np.testing.assert_array_equal(load_tags(tmp_path, max_sentences=1).train_groups, [0, 1, 2])
    np.testing.assert_array_equal(np.bincount(load_nwp(tmp_path, max_clients=2).train_groups), [3, 3])


def test_bags_of_words_and_tags(tmp_path):
    fields = {
        "tokens": [b"the list", b" of  of code code code", b"", b"unknown"],
        "title": [b"a tuple", b"code the", b"", b""],
        "tags": [b"numpy|c#", b"rare|python|python", b"", b"vb . net"],
    }
    source = load_tags(write_stackoverflow(tmp_path, train={"1": fields}))
    np.testing.assert_array_equal(source.train["x"], [[1, 3, 2, 0], [4, 4, 5, 5], [0] * 4, [0] * 4])
    np.testing.assert_array_equal(source.train["words"], [4, 7, 0, 1])  # all words, also those beyond max_words
    np.testing.assert_array_equal(source.train["y"], [[3, 1, 0, 0, 0], [2, 0, 0, 0, 0], [0] * 5, [0] * 5])
    assert (source.num_classes, source.input_shape) == (3, (5,))
    assert source.class_names == ("c#", "python", "numpy")


def test_test_examples_are_drawn_from_all_and_always_the_same(tmp_path, monkeypatch):
    sentences = [f"{WORDS[i % 5]} {WORDS[i // 5 % 5]} {WORDS[i // 25]}".encode() for i in range(125)]
    write_stackoverflow(tmp_path, test={f"{i:02d}": user(*sentences[5 * i : 5 * i + 5]) for i in range(25)})
    every, drawn = load_nwp(tmp_path, test_examples=None), load_nwp(tmp_path, test_examples=40)
    assert (len(every.test["x"]), len(drawn.test["x"])) == (125, 40)
    rows = {tuple(row): i for i, row in enumerate(every.test["y"])}
    places = [rows[tuple(row)] for row in drawn.test["y"]]
    assert places == sorted(set(places))  # none twice, user after user
    assert len({i // 5 for i in places}) > 12
    users = [np.unique(groups, return_inverse=True)[1] for groups in (drawn.test_groups, every.test_groups[places])]
    np.testing.assert_array_equal(*users)
    monkeypatch.setenv("FEDOPTAX_CACHE", str(tmp_path / "other"))
    np.testing.assert_array_equal(load_nwp(tmp_path, test_examples=40).test["y"], drawn.test["y"])


def test_other_options_are_cached_apart(tmp_path, cache):
    write_stackoverflow(tmp_path)
    words = [{}, {"length": 3}, {"vocabulary": 4}, {"max_sentences": 1}, {"test_examples": 3}, {"max_clients": 1}]
    for _ in range(2):
        for options in words:
            load_nwp(tmp_path, **options)
        load_tags(tmp_path, max_words=3)
        assert len(list(cache.iterdir())) == len(words) + 1


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("stackoverflow.word_count", b"the 9\na 8\n"), ("stackoverflow.word_count", b"the 9\na\n"),
        ("stackoverflow.word_count", b"\xff 9\n"), ("stackoverflow.word_count", b"the 9\n" * 5),
        ("stackoverflow.tag_count", b"{}"), ("stackoverflow.tag_count", b"[]"),
        ("stackoverflow.tag_count", b'{"a": "b"}'), ("stackoverflow.tag_count", b"the 9\n"),
        ("stackoverflow_train.h5", {}), ("stackoverflow_train.h5", {"1": {"tokens": [b"a"], "title": [b"a"]}}),
        ("stackoverflow_train.h5", {"1": user(b"a") | {"tokens": np.zeros(1)}}), ("stackoverflow_test.h5", {}),
        ("stackoverflow_test.h5", b"no HDF5"),
    ],
)  # fmt: skip
def test_broken_stackoverflow_is_refused_and_not_kept(tmp_path, cache, file, content):
    path = write_stackoverflow(tmp_path) / "stackoverflow" / file
    write(path, content) if isinstance(content, bytes) else write_tff(path, content)
    refused(lambda: load_tags(tmp_path), file)
    assert not list(cache.glob("*"))


ARTICLE = " \n = One = \n \n a b c d \n \n = = Section = = \n \n e = f = \n = not a title = \n a b \n \n"
OTHER = " = Two = \n \n a <unk> g \n"
TESTED = " \n = One = \n \n a z b \n \n = Three words here = \n \n a b c d e f g \n"


def write_articles(root, train=ARTICLE + OTHER, test=TESTED):
    return write_wikitext(root, train, test)


def tokens(text):
    return [word for line in text.removesuffix("\n").split("\n") for word in (*line.split(), "<eos>")]


def test_articles_are_clients_and_ids_are_numbered_by_first_appearance_in_the_training_text(tmp_path):
    source = wikitext.load(write_articles(tmp_path), length=1)
    words = source.vocabulary[source.train["x"][:, 0]]
    assert list(words[source.train_groups == 0]) == tokens(ARTICLE)[:-1]  # the last has no target
    assert list(words[source.train_groups == 1]) == tokens(OTHER)[:-1]
    assert list(source.vocabulary[source.train["y"][:, 0]][source.train_groups == 1]) == tokens(OTHER)[1:]
    assert set(source.test_groups) == {2, 3}  # an article of the same title is another client
    assert list(source.vocabulary) == list(dict.fromkeys(tokens(ARTICLE + OTHER)))
    assert source.num_classes == len(source.vocabulary)
    words = list(source.vocabulary[source.test["x"][:, 0]][source.test_groups == 2])
    assert words == ["<eos>", "=", "One", "=", "<eos>", "<eos>", "a", "<unk>", "b", "<eos>"]  # z is unknown


@pytest.mark.parametrize("length", [1, 2, 7, 12])
def test_windows_follow_each_other_and_the_rest_is_dropped(tmp_path, length):
    source = wikitext.load(write_articles(tmp_path), length=length)
    counts = [(len(tokens(text)) - 1) // length for text in (ARTICLE, OTHER)]
    assert np.array_equal(np.bincount(source.train_groups), [count for count in counts if count])
    x, y = (np.asarray(source.train[name])[: counts[0]].ravel() for name in "xy")
    assert list(source.vocabulary[x]) == tokens(ARTICLE)[: len(x)]
    assert list(source.vocabulary[y]) == tokens(ARTICLE)[1 : len(x) + 1]
    assert source.counts == {
        "train_tokens": len(tokens(ARTICLE + OTHER)), "test_tokens": len(tokens(TESTED)),
        "train_targets": source.train["y"].size, "test_targets": source.test["y"].size,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\n = One = \nno empty line\n", b"\n = = One = = \n \n", b"\n = One = \n \n \xff \n",
        b" \n = Short <unk> = \n",
    ],
)  # fmt: skip
def test_broken_wikitext_is_refused_and_not_kept(tmp_path, cache, text):
    write(write_articles(tmp_path) / "wikitext-2" / "train.txt", text)
    refused(lambda: wikitext.load(tmp_path), "train.txt")
    assert not list(cache.glob("*"))


def test_a_new_word_is_refused_where_there_is_no_unknown_word(tmp_path):
    write_articles(tmp_path, train=(ARTICLE + OTHER).replace("<unk>", "c"))
    refused(lambda: wikitext.load(tmp_path, length=2), "test.txt: 'z'")
