"""Stack Overflow by user, from tiny files in TensorFlow Federated's form: words and tags become ids."""

import json

import h5py
import numpy as np
import pytest

from fedoptax.data.sources import stackoverflow
from fedoptax.data.sources.stackoverflow_text import read_tags, read_words, tag_encoder, word_encoder
from fedoptax.data.sources.tokens import special_tokens
from fedoptax.errors import DataError, UsageError
from files import assert_one_line, nothing_is_kept, write, write_tff

WORDS = ["the", "a", "list", "of", "code"]  # ids 1 … 5, then oov 6, bos 7, eos 8
TAGS = {"rare": 1, "python": 9, "c#": 30, "numpy": 9}


def user(*sentences, title=b"the title", tags=b"python|c#"):
    return {
        "tokens": list(sentences),
        "title": [title] * len(sentences),
        "tags": [tags] * len(sentences),
        "score": np.arange(len(sentences)),
    }


TRAIN = {
    "2": user(b"the list", b"a list of code of a list", b"unknown words"),
    "1": user(b"the", b"a", b"list"),
    "3": user(b"", tags=b"rare|vb . net"),
}
TEST = {str(i): user(*[b"the"] * 10) for i in range(1, 6)} | {"9": user(b"code")}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDOPTAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tiny(root, train=TRAIN, test=TEST, words=WORDS, tags=TAGS, **storage):
    folder = root / "stackoverflow"
    write_tff(folder / "stackoverflow_train.h5", train, **storage)
    write_tff(folder / "stackoverflow_test.h5", test, **storage)
    write(folder / "stackoverflow.word_count", "".join(f"{word} {99 - i}\n" for i, word in enumerate(words)).encode())
    write(folder / "stackoverflow.tag_count", json.dumps(tags).encode())
    return root


def load_nwp(root, **options):
    return stackoverflow.load_nwp(root, **{"vocabulary": 5, "length": 4, **options})


def load_tags(root, **options):
    return stackoverflow.load_tags(root, **{"vocabulary": 5, "tags": 3, "max_words": 4, **options})


def test_the_special_ids_come_after_the_words():
    assert special_tokens(10_000) == (0, 10_001, 10_002, 10_003)


@pytest.mark.parametrize(
    ("sentence", "ids"),
    [
        (b"the list", [7, 1, 3, 8, 0]),
        (b"the list of", [7, 1, 3, 4, 8]),
        (b"the list of code", [7, 1, 3, 4, 5]),  # no end: it is as long as can be
        (b"the list of code a a", [7, 1, 3, 4, 5]),
        (b"The tuple", [7, 6, 6, 8, 0]),
        (b"", [7, 6, 8, 0, 0]),  # one word, the empty one
        (b"the  list", [7, 1, 6, 3, 8]),
    ],
)
def test_sentences_of_words(sentence, ids):
    encoded = word_encoder(WORDS, 4)([sentence, b"a"])["ids"]
    np.testing.assert_array_equal(encoded, [ids, [7, 2, 8, 0, 0]])
    assert encoded.dtype == np.uint16


def test_next_words_are_the_inputs_shifted(tmp_path):
    source = load_nwp(tiny(tmp_path))
    rows = [[7, 1, 8, 0, 0], [7, 2, 8, 0, 0], [7, 3, 8, 0, 0]]  # user 1 comes first
    rows += [[7, 1, 3, 8, 0], [7, 2, 3, 4, 5], [7, 6, 6, 8, 0], [7, 6, 8, 0, 0]]
    np.testing.assert_array_equal(source.train["x"], np.array(rows)[:, :-1])
    np.testing.assert_array_equal(source.train["y"], np.array(rows)[:, 1:])
    np.testing.assert_array_equal(source.train_groups, [0, 0, 0, 1, 1, 1, 2])
    assert (source.num_classes, source.input_shape) == (9, (4,))
    assert list(source.vocabulary) == WORDS
    assert list(source.client_names) == ["1", "2", "3", "4", "5", "9"]
    np.testing.assert_array_equal(np.bincount(source.test_groups), [10] * 5 + [1])


def test_bags_of_words_and_tags():
    encode = tag_encoder(WORDS, ["c#", "python", "numpy"], 4)
    out = encode(
        [b"the list", b" of  of code code code", b"", b"unknown"],
        [b"a tuple", b"code the", b"", b""],
        [b"numpy|c#", b"rare|python|python", b"", b"vb . net"],
    )
    np.testing.assert_array_equal(out["x"], [[1, 3, 2, 0], [4, 4, 5, 5], [0] * 4, [0] * 4])
    np.testing.assert_array_equal(out["words"], [4, 7, 0, 1])  # all words, those that were cut too
    np.testing.assert_array_equal(out["y"], [[3, 1, 0, 0, 0], [2, 0, 0, 0, 0], [0] * 5, [0] * 5])
    assert {name: array.dtype.name for name, array in out.items()} == dict.fromkeys(("x", "words", "y"), "uint16")


def test_tags_of_users(tmp_path):
    source = load_tags(tiny(tmp_path))
    np.testing.assert_array_equal(source.train["x"][:4], [[1, 1, 0, 0], [2, 1, 0, 0], [3, 1, 0, 0], [1, 3, 1, 0]])
    np.testing.assert_array_equal(source.train["words"], [3, 3, 3, 4, 9, 4, 2])
    np.testing.assert_array_equal(source.train["y"], [[2, 1, 0, 0, 0]] * 6 + [[0] * 5])  # of 3, rare is the fourth
    np.testing.assert_array_equal(source.train_groups, [0, 0, 0, 1, 1, 1, 2])
    assert (source.num_classes, source.input_shape) == (3, (5,))
    assert source.class_names == ("c#", "python", "numpy")
    assert source.test["x"].shape == (51, 4)


def test_a_user_has_at_most_so_many_sentences_the_first_ones(tmp_path):
    tiny(tmp_path)
    few, every = load_nwp(tmp_path, max_sentences=2), load_nwp(tmp_path, max_sentences=None)
    np.testing.assert_array_equal(few.train_groups, [0, 0, 1, 1, 2])
    np.testing.assert_array_equal(few.train["x"], np.asarray(every.train["x"])[[0, 1, 3, 4, 6]])
    assert len(few.test["x"]) == 51
    np.testing.assert_array_equal(load_tags(tmp_path, max_sentences=1).train_groups, [0, 1, 2])


def test_only_the_first_users_train(tmp_path):
    source = load_nwp(tiny(tmp_path), max_clients=2)
    np.testing.assert_array_equal(np.bincount(source.train_groups), [3, 3])
    assert list(source.client_names) == ["1", "2", "3", "4", "5", "9"]


def test_test_examples_are_drawn_from_all_and_always_the_same(tmp_path, monkeypatch):
    sentences = [f"{WORDS[i % 5]} {WORDS[i // 5 % 5]} {WORDS[i // 25]}".encode() for i in range(125)]
    test = {f"{i:02d}": user(*sentences[5 * i : 5 * i + 5]) for i in range(25)}
    tiny(tmp_path, test=test)
    every, drawn = load_nwp(tmp_path, test_examples=None), load_nwp(tmp_path, test_examples=40)
    assert (len(every.test["x"]), len(drawn.test["x"])) == (125, 40)
    rows = {tuple(row): (i, group) for i, (row, group) in enumerate(zip(every.test["y"], every.test_groups))}
    places = [rows[tuple(row)][0] for row in drawn.test["y"]]
    assert places == sorted(set(places))  # none twice, user after user
    assert len({i // 5 for i in places}) > 12
    names, all_names = drawn.client_names[drawn.test_groups], every.client_names[every.test_groups]
    assert list(names) == [all_names[i] for i in places]
    monkeypatch.setenv("FEDOPTAX_CACHE", str(tmp_path / "other"))
    np.testing.assert_array_equal(load_nwp(tmp_path, test_examples=40).test["y"], drawn.test["y"])
    assert len(load_tags(tmp_path, test_examples=1).test["x"]) == 1


def test_strings_of_variable_length_and_packed_ones_are_the_same(tmp_path):
    packed = load_nwp(tiny(tmp_path / "packed", compression="gzip"))
    tiny(tmp_path / "variable")
    for part, users in (("train", TRAIN), ("test", TEST)):
        with h5py.File(tmp_path / "variable" / "stackoverflow" / f"stackoverflow_{part}.h5", "w") as file:
            for name, fields in users.items():
                file.create_dataset(f"examples/{name}/tokens", data=fields["tokens"], dtype=h5py.string_dtype())
    variable = load_nwp(tmp_path / "variable")
    np.testing.assert_array_equal(packed.train["x"], variable.train["x"])
    np.testing.assert_array_equal(packed.test["y"], variable.test["y"])


def test_the_held_out_users_are_not_read(tmp_path):
    write(tiny(tmp_path) / "stackoverflow" / "stackoverflow_held_out.h5", b"broken")
    assert len(load_nwp(tmp_path).train["x"]) == 7


def test_other_options_are_other_caches(tmp_path, cache):
    tiny(tmp_path)
    words = [{}, {"length": 3}, {"vocabulary": 4}, {"max_sentences": 1}, {"test_examples": 3}, {"max_clients": 1}]
    tags = [{}, {"max_words": 3}, {"tags": 2}]
    for _ in range(2):
        for options in words:
            load_nwp(tmp_path, **options)
        for options in tags:
            load_tags(tmp_path, **options)
        assert len(list(cache.iterdir())) == len(words) + len(tags)


# --- vocabularies


def test_words_are_taken_in_the_order_of_the_file(tmp_path):
    path = write(tmp_path / "w", b"the 9\n<URL> 12\nna\xc3\xafve 3\nbroken line here\n")
    assert read_words(path, 3) == ["the", "<URL>", "naïve"]


def test_tags_are_taken_by_their_counts(tmp_path):
    path = write(tmp_path / "t", json.dumps(TAGS).encode())
    assert read_tags(path, 3) == ["c#", "python", "numpy"]  # of two with one count, the first of the file


@pytest.mark.parametrize(
    ("name", "data", "word"),
    [
        ("word_count", b"the 9\na 8\n", "holds 2 words; 5 are wanted"),
        ("word_count", b"the 9\n\n", "line 2"),
        ("word_count", b"the 9\na\n", "line 2"),
        ("word_count", b"the many\n", "line 1"),
        ("word_count", b"the 9 9\n", "line 1"),
        ("word_count", b"\xff 9\n", "line 1"),
        ("word_count", b"x" * 10**6, "line 1"),
        ("word_count", b"the 9\n" * 5, "twice"),
        ("tag_count", b"{}", "holds 0 tags; 3 are wanted"),
        ("tag_count", b"[]", "an object of tags"),
        ("tag_count", b'{"a": "b"}', "an object of tags"),
        ("tag_count", b'{"a": 1, "a": 2}', "twice"),
        ("tag_count", b"the 9\n", "cannot be read"),
        ("tag_count", b'{"a":' * 10**5, "too deeply"),
    ],
)
def test_broken_vocabularies_are_refused_in_one_line(tmp_path, name, data, word, cache):
    path = write(tiny(tmp_path) / "stackoverflow" / f"stackoverflow.{name}", data)
    with pytest.raises(DataError) as error:
        load_tags(tmp_path)
    assert_one_line(error, path, word)
    assert nothing_is_kept(cache)


# --- what is refused


@pytest.mark.parametrize(
    ("train", "word"),
    [
        ({}, "no examples"),
        ({"1": {"tokens": [b"a"], "title": [b"a"]}}, "'tags': it is missing"),
        ({"1": user(b"a") | {"tags": [b"a", b"b"]}}, "unequal length {'tokens': 1, 'title': 1, 'tags': 2}"),
        ({"1": user(b"a") | {"tokens": np.zeros(1)}}, "one string an example"),
    ],
)
def test_broken_sentences_are_refused_in_one_line(tmp_path, train, word, cache):
    tiny(tmp_path, train=train)
    with pytest.raises(DataError) as error:
        load_tags(tmp_path)
    assert_one_line(error, tmp_path / "stackoverflow_train.h5", word)
    assert nothing_is_kept(cache)


@pytest.mark.parametrize("test", [{}, {"1": user() | {"tokens": np.empty(0, "S1")}}])
def test_a_test_part_without_sentences_is_refused(tmp_path, test):
    tiny(tmp_path, test=test)
    with pytest.raises(DataError) as error:
        load_nwp(tmp_path)
    assert_one_line(error, tmp_path / "stackoverflow_test.h5", "no examples")


@pytest.mark.parametrize("ending", ["_train.h5", "_test.h5", ".word_count", ".tag_count"])
def test_missing_files_come_with_a_remedy(tmp_path, ending):
    path = tiny(tmp_path) / "stackoverflow" / f"stackoverflow{ending}"
    path.unlink()
    with pytest.raises(DataError) as error:
        load_tags(tmp_path)
    assert_one_line(error, path, "not found", "--data-dir", "FEDOPTAX_DATA")


@pytest.mark.parametrize(
    ("load", "option", "given"),
    [
        *((load_nwp, name, 0) for name in ("vocabulary", "length", "max_sentences", "test_examples", "max_clients")),
        *((load_tags, name, -1) for name in ("tags", "max_words", "max_sentences")),
        (load_nwp, "vocabulary", 2**16),
        (load_tags, "tags", 2**16),
    ],
)
def test_numbers_out_of_range_are_usage_errors(tmp_path, load, option, given):
    with pytest.raises(UsageError, match=f"{option}: {given} given"):
        load(tiny(tmp_path), **{option: given})
