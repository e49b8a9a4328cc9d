"""WikiText-2: articles or contiguous parts as clients, words as ids, windows of tokens."""

import gzip

import numpy as np
import pytest

from fedoptax.data.sources import wikitext
from fedoptax.data.sources.wikitext import decode
from fedoptax.errors import DataError, UsageError
from files import assert_one_line, nothing_is_kept, real_data, write

ONE = " \n = One = \n \n a b c d \n \n = = Section = = \n \n e = f = \n = not a title = \n a b \n \n"
TWO = " = Two = \n \n a <unk> g \n"
TRAIN = ONE + TWO
TEST = " \n = One = \n \n a z b \n \n = Three words here = \n \n a b c d e f g \n"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDOPTAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tiny(root, train=TRAIN, test=TEST):
    write(root / "wikitext-2" / "train.txt", train.encode())
    write(root / "wikitext-2" / "test.txt", test.encode())
    return root


def tokens(text):
    return [word for line in text.removesuffix("\n").split("\n") for word in (*line.split(), "<eos>")]


def test_articles_are_clients_and_start_at_their_titles(tmp_path):
    source = wikitext.load(tiny(tmp_path), length=1)
    words = source.vocabulary[source.train["x"][:, 0]]
    assert list(words[source.train_groups == 0]) == tokens(ONE)[:-1]  # the last has no target
    assert list(words[source.train_groups == 1]) == tokens(TWO)[:-1]
    assert list(source.vocabulary[source.train["y"][:, 0]][source.train_groups == 1]) == tokens(TWO)[1:]
    assert list(source.client_names) == ["One", "Two", "One (2)", "Three words here"]
    assert set(source.test_groups) == {2, 3}


def test_ids_are_numbered_by_first_appearance_in_the_training_text(tmp_path):
    source = wikitext.load(tiny(tmp_path), length=1)
    assert list(source.vocabulary) == list(dict.fromkeys(tokens(TRAIN)))
    assert source.num_classes == len(source.vocabulary)
    words = list(source.vocabulary[source.test["x"][:, 0]][source.test_groups == 2])
    assert words == ["<eos>", "=", "One", "=", "<eos>", "<eos>", "a", "<unk>", "b", "<eos>"]  # z is unknown


@pytest.mark.parametrize("length", [1, 2, 3, 7, 11, 12])
def test_windows_follow_each_other_and_the_rest_is_dropped(tmp_path, length):
    source = wikitext.load(tiny(tmp_path), length=length)
    sizes = {name: len(tokens(text)) for name, text in (("train", TRAIN), ("test", TEST))}
    counts = [(len(tokens(text)) - 1) // length for text in (ONE, TWO)]
    assert np.array_equal(np.bincount(source.train_groups), [count for count in counts if count])
    x, y = (np.asarray(source.train[name])[: counts[0]].ravel() for name in "xy")
    assert list(source.vocabulary[x]) == tokens(ONE)[: len(x)]
    assert list(source.vocabulary[y]) == tokens(ONE)[1 : len(x) + 1]
    assert source.counts == {
        **{f"{part}_tokens": size for part, size in sizes.items()},
        **{f"{part}_targets": source._asdict()[part]["y"].size for part in sizes},
    }
    assert source.train["x"].dtype == np.uint16 and source.input_shape == (length,)


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_parts_are_contiguous_and_of_equal_length(tmp_path, clients):
    source = wikitext.load(tiny(tmp_path), clients=clients, length=1)
    words = source.vocabulary[source.train["x"][:, 0]]
    parts = np.array_split(tokens(TRAIN), clients)
    assert list(words) == [word for part in parts for word in part[:-1]]
    np.testing.assert_array_equal(np.bincount(source.train_groups), [len(part) - 1 for part in parts])
    assert list(source.client_names)[: clients + 1] == [*(f"part {i}" for i in range(clients)), "One"]


def test_decoding_gives_lines_back(tmp_path):
    source = wikitext.load(tiny(tmp_path), length=11)
    assert decode(source.train["x"][0], source.vocabulary) == "\n= One =\n\na b c d\n"
    assert decode([], source.vocabulary) == ""


def test_other_names_and_packed_files_are_found(tmp_path):
    expected = wikitext.load(tiny(tmp_path / "plain"), length=2)
    write(tmp_path / "other" / "wikitext-2" / "wiki.train.tokens", TRAIN.encode())
    write(tmp_path / "other" / "wikitext-2" / "wiki.test.tokens.gz", TEST.encode())
    np.testing.assert_array_equal(wikitext.load(tmp_path / "other", length=2).train["x"], expected.train["x"])


def test_the_validation_text_may_stand_for_the_test_text(tmp_path):
    write(tiny(tmp_path) / "wikitext-2" / "valid.txt", b" \n = Four = \n \n a b c \n")
    source = wikitext.load(tmp_path, length=1, part="valid")
    assert list(source.client_names) == ["One", "Two", "Four"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"", "no article"),
        (b"a b c\n", "no article"),
        (b"\n = One = \nno empty line\n", "no article"),
        (b"before\n = One = \n \n", "no article"),
        (b"\n = = One = = \n \n", "no article"),
        (b"\n = One = \n \n \xff \n", "UTF-8"),
        (b"\n = One = \n \n" + b"x" * 999, "256 characters"),
        (b"\n = One = \n \n" + b" ".join(b"%d" % i for i in range(2**16)), "65536 words"),
        (b"\n = One = \n \n" + bytes(2**25), "bytes"),
        (b"\n = \x07 = \n \n" + b"<unk> " * 99, "printable"),
        (b" \n = Short <unk> = \n", "no examples"),
    ],
)
def test_broken_texts_are_refused_in_one_line(tmp_path, text, word, cache):
    path = write(tiny(tmp_path) / "wikitext-2" / "train.txt", text)
    with pytest.raises(DataError) as error:
        wikitext.load(tmp_path)
    assert_one_line(error, path, word)
    assert len(str(error.value)) < 999
    assert nothing_is_kept(cache)


def test_a_word_that_is_not_even_unknown_is_refused(tmp_path):
    tiny(tmp_path, train=TRAIN.replace("<unk>", "c"))
    with pytest.raises(DataError) as error:
        wikitext.load(tmp_path, length=2)
    assert_one_line(error, tmp_path / "test.txt", "'z' is not in the training text")


def test_a_gzip_bomb_is_not_unpacked(tmp_path):
    folder = tiny(tmp_path) / "wikitext-2"
    (folder / "train.txt").unlink()
    (folder / "train.txt.gz").write_bytes(gzip.compress(bytes(2**26), 1))
    with pytest.raises(DataError) as error:
        wikitext.load(tmp_path)
    assert_one_line(error, folder / "train.txt.gz", "more than")


@pytest.mark.parametrize("part", ["train", "test"])
def test_missing_files_come_with_a_remedy(tmp_path, part):
    (tiny(tmp_path) / "wikitext-2" / f"{part}.txt").unlink()
    with pytest.raises(DataError, match=rf"{part}\.txt: not found \(nor wiki\.{part}\.tokens\).*FEDOPTAX_DATA"):
        wikitext.load(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": "writers"}, "clients: 'writers' given"),
        ({"clients": 0}, "clients: 0 given"),
        ({"clients": 10**12}, "clients: 10{12} given; 'articles' or 1 to 43"),
        ({"length": 0}, "length: 0 given"),
        ({"part": "train"}, "part: 'train' given"),
    ],
)
def test_arguments_out_of_range_are_usage_errors(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        wikitext.load(tiny(tmp_path), **options)


@pytest.mark.long
def test_the_real_files_have_the_published_counts():
    root = real_data("wikitext-2")
    source = wikitext.load(root)
    assert (source.counts["train_tokens"], source.counts["test_tokens"]) == (2_088_628, 245_569)
    assert source.num_classes == 33_278
    assert source.train_groups.max() + 1 == 600
    assert len(np.unique(source.test_groups)) == 60 and source.test_groups.min() == 600
    assert source.counts["train_targets"] > 0.99 * 2_088_628
    valid = wikitext.load(root, clients=16, part="valid")
    assert (valid.counts["test_tokens"], valid.train_groups.max()) == (217_646, 15)
    assert len(np.unique(valid.test_groups)) == 60
    counts = np.bincount(source.train["y"].ravel())
    assert list(source.vocabulary[np.argsort(-counts)[:3]]) == ["the", ",", "."]
