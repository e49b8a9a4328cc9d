"""Handwritten characters by writer: LEAF's JSON and TensorFlow Federated's HDF5 make the same data set."""

import gzip
import json

import numpy as np
import pytest

from fedoptax.data.sources import emnist, femnist, leaf_json
from fedoptax.errors import DataError, UsageError
from files import assert_one_line, nothing_is_kept, real_data, write, write_leaf, write_tff

RNG = np.random.default_rng(0)
TRAIN = {f"f{i}": (RNG.integers(0, 256, (n, 784), np.uint8), RNG.integers(0, 62, n)) for i, n in enumerate([2, 5, 1])}
TEST = {f"f{i}": (RNG.integers(0, 256, (n, 784), np.uint8), RNG.integers(0, 62, n)) for i, n in enumerate([1, 2, 3])}
UNSEEN = {"f9": (RNG.integers(0, 256, (2, 784), np.uint8), RNG.integers(0, 62, 2))}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDOPTAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def some(users, *names):
    return {name: users[name] for name in names}


def tiny_leaf(root):
    """Two files a part, one of them unpacked."""
    for part, users in (("train", TRAIN), ("test", TEST)):
        write_leaf(root / "femnist" / part / f"all_data_0_{part}.json.gz", some(users, "f0", "f1"))
        write_leaf(root / "femnist" / part / f"all_data_1_{part}.json", some(users, "f2"))
    write_leaf(root / "femnist" / "test_unseen" / "all_data_0.json.gz", UNSEEN)
    return root


def tiny_tff(root, **changes):
    for part, users in (("train", TRAIN), ("test", TEST)):
        clients = {
            name: {"pixels": (x / 255).astype(np.float32).reshape(-1, 28, 28), "label": y.astype(np.int32)} | changes
            for name, (x, y) in users.items()
        }
        write_tff(root / "emnist" / f"fed_emnist_{part}.h5", clients, compression="gzip")
    return root


def assert_holds(part, groups, users):
    np.testing.assert_array_equal(part["x"], np.concatenate([x for x, _ in users.values()]).reshape(-1, 28, 28, 1))
    np.testing.assert_array_equal(part["y"], np.concatenate([y for _, y in users.values()]))
    assert part["x"].dtype == np.uint8 and part["y"].dtype == np.int32 and groups.dtype == np.int32
    assert len(groups) == len(part["y"])


@pytest.mark.parametrize("load", [lambda root: femnist.load(tiny_leaf(root)), lambda root: emnist.load(tiny_tff(root))])
def test_both_forms_give_the_images_writer_after_writer(tmp_path, load):
    source = load(tmp_path)
    assert_holds(source.train, source.train_groups, TRAIN)
    assert_holds(source.test, source.test_groups, TEST)
    np.testing.assert_array_equal(source.train_groups, [0, 0, 1, 1, 1, 1, 1, 2])
    np.testing.assert_array_equal(source.test_groups, [0, 1, 1, 2, 2, 2])
    assert list(source.client_names) == ["f0", "f1", "f2"]
    assert (source.num_classes, source.input_shape) == (62, (28, 28, 1))
    assert [source.class_names[i] for i in (9, 10, 35, 36, 61)] == ["9", "A", "Z", "a", "z"]


def test_further_writers_have_the_groups_behind_those_that_train(tmp_path):
    source = femnist.load(tiny_leaf(tmp_path), unseen=True)
    assert_holds(source.test, source.test_groups, TEST | UNSEEN)
    np.testing.assert_array_equal(source.test_groups, [0, 1, 1, 2, 2, 2, 3, 3])
    assert list(source.client_names) == ["f0", "f1", "f2", "f9"]


def test_the_second_start_reads_the_cache_and_a_changed_file_does_not(tmp_path, monkeypatch):
    tiny_leaf(tmp_path)
    first = femnist.load(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(femnist, "read_users", lambda *args: pytest.fail("read again"))
        np.testing.assert_array_equal(femnist.load(tmp_path).train["x"], first.train["x"])
    write_leaf(tmp_path / "femnist" / "train" / "all_data_1_train.json", {"f2": UNSEEN["f9"]})
    assert len(femnist.load(tmp_path).train["y"]) == 9


def test_the_form_is_the_one_asked_for_else_the_one_that_is_there(tmp_path):
    tiny_leaf(tmp_path)
    assert len(emnist.load(tmp_path).train["y"]) == 8
    tiny_tff(tmp_path, label=np.zeros(0, np.int32), pixels=np.zeros((0, 28, 28), np.float32))
    assert len(emnist.load(tmp_path, form="leaf").train["y"]) == 8
    with pytest.raises(DataError, match="no examples"):
        emnist.load(tmp_path)
    with pytest.raises(UsageError, match="form: unknown name 'hdf5'"):
        emnist.load(tmp_path, form="hdf5")


@pytest.mark.parametrize("form", ["auto", "tff", "leaf"])
def test_missing_files_come_with_a_remedy(tmp_path, form, cache):
    with pytest.raises(DataError, match=r"not found.*name the folder that holds '.*emnist'.*FEDOPTAX_DATA") as error:
        emnist.load(tmp_path, form)
    assert "\n" not in str(error.value)
    assert nothing_is_kept(cache)


def test_half_of_the_pair_is_not_enough(tmp_path):
    (tiny_tff(tmp_path) / "emnist" / "fed_emnist_test.h5").unlink()
    with pytest.raises(DataError, match=r"fed_emnist_test\.h5: not found"):
        emnist.load(tiny_leaf(tmp_path))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"label": np.zeros(9, np.int32)}, "9 labels"),
        ({"label": np.zeros(2, np.float32)}, "integers"),
        ({"label": np.full(2, 62, np.int32)}, "label 62"),
        ({"label": np.full(2, -1, np.int32)}, "label -1"),
        ({"pixels": np.zeros((2, 28, 27), np.float32)}, "28 × 27"),
        ({"pixels": np.full((2, 28, 28), np.nan, np.float32)}, "outside [0, 1]"),
        ({"pixels": np.full((2, 28, 28), 255, np.float32)}, "outside [0, 1]"),
    ],
)
def test_hdf5_files_that_hold_something_else_are_refused(tmp_path, changes, word, cache):
    base = {"label": np.zeros(2, np.int32), "pixels": np.zeros((2, 28, 28), np.float32)}
    tiny_tff(tmp_path, **(base | changes))
    with pytest.raises(DataError) as error:
        emnist.load(tmp_path)
    assert_one_line(error, tmp_path / "fed_emnist_train.h5", "'f0'", word)
    assert nothing_is_kept(cache)


def image(value="1.0", count=784):
    return f"[{', '.join([value] * count)}]"


def document(x=None, y="[3]", users='["a"]', sizes="[1]", name='"a"', rest=""):
    x = f"[{image()}]" if x is None else x
    return f'{{"users": {users}, "num_samples": {sizes}, "user_data": {{{name}: {{"x": {x}, "y": {y}}}}}{rest}}}'


BROKEN = {
    "empty": ("", "Expecting value"),
    "no JSON": ("[1, 2", "cannot be read"),
    "a list": ("[1, 2]", "not a LEAF file"),
    "another document": ('{"users": []}', "not a LEAF file"),
    "cut": (document()[:-9], "cannot be read"),
    "not UTF-8": (b'{"\xff": 1}', "decode"),
    "nested objects": ('{"a":' * 10**5, "too deeply"),
    "nested lists": ("[" * 10**5, "too deeply"),
    "many lists": ("[]," * (2**20 + 1), "lists"),
    "a large outline": ("1234567," * 2**21 + "1", "outside lists"),
    "a user twice": (document(users='["a", "a"]', sizes="[1, 1]"), "each once"),
    "a user twice in user_data": (document(rest="}").replace("}}}", '}, "a": {"x": [], "y": []}}}', 1)[:-1], "twice"),
    "a user without data": (document(users='["a", "b"]', sizes="[1, 1]"), "same users"),
    "data without a user": (document(users="[]", sizes="[]"), "same users"),
    "users that are no names": (document(users="[1]"), "list of str"),
    "no list of users": (document(users='"a"'), "flat list"),
    "a bracket in a name": (document(users='["[a]"]', name='"[a]"'), "LEAF"),
    "another number of samples": (document(sizes="[2]"), "'num_samples' says 2"),
    "samples that are no number": (document(sizes="[true]"), "list of int"),
    "no labels": (document(y="3"), "flat list"),
    "more labels": (document(y="[3, 4]"), "2 labels"),
    "a label beyond the classes": (document(y="[62]"), "label 62"),
    "a huge label": (document(y=f"[{10**400}]"), "label beyond"),
    "a label of many digits": (document(y=f"[{'9' * 5000}]"), "limit"),
    "a fraction as label": (document(y="[3.5]"), "list of int"),
    "nested labels": (document(y="[[3]]"), "flat list"),
    "a flat x": (document(x="[1.0]"), "flat images"),
    "a small image": (document(x=f"[{image(count=783)}]"), "783 pixels"),
    "an image in an image": (document(x=f"[[{image()}]]"), "flat images"),
    "NaN": (document(x=f"[{image('NaN')}]"), "'NaN'"),
    "NaN for a list": (document(x="NaN"), "flat images"),
    "infinity": (document(x=f"[{image('1e999')}]"), "'1e999'"),
    "a string": (document(x=f"[{image('true')}]"), "'true'"),
    "an object": (document(x=f"[{image('{}')}]"), "'{}'"),
    "a pixel of 255": (document(x=f"[{image('255')}]"), "'255'"),
    "a negative pixel": (document(x=f"[{image('-1.0')}]"), "'-1.0'"),
    "a pixel between the levels": (document(x=f"[{image('0.5')}]"), "'0.5'"),
    "a number of many digits": (document(x=f"[{image('0.' + '3' * 10**4)}]"), "pixel"),
}


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_json_is_refused_in_one_line(tmp_path, kind, suffix, cache):
    text, word = BROKEN[kind]
    path = write(tmp_path / "femnist" / "train" / f"a{suffix}", text if isinstance(text, bytes) else text.encode())
    write_leaf(tmp_path / "femnist" / "test" / "a.json", some(TEST, "f0"))
    with pytest.raises(DataError) as error:
        femnist.load(tmp_path)
    assert_one_line(error, path, word)
    assert len(str(error.value)) < 999
    assert nothing_is_kept(cache)


@pytest.mark.parametrize("name", ["", "line\nbreak", "\ud800", 257 * "a"])
def test_a_name_that_is_not_fit_for_print_is_refused(tmp_path, name, cache):
    for part in ("train", "test"):
        write_leaf(tmp_path / "femnist" / part / "a.json", {name: TRAIN["f0"]})
    with pytest.raises(DataError, match=r"femnist/train: client .*: 1 to 256 printable characters") as error:
        femnist.load(tmp_path)
    assert "\n" not in str(error.value)
    assert nothing_is_kept(cache)


def test_other_spellings_of_the_same_json_are_read(tmp_path):
    pixels = np.arange(784) % 256
    text = "[" + ",\n ".join("0" if k == 0 else "1" if k == 255 else f"{k / 255:.9e}" for k in pixels) + " ]"
    write(tmp_path / "a.json", document(x=f"[ {text}\n]", rest=', "hierarchies": []').encode())
    [(name, x, y)] = leaf_json.read_users(tmp_path / "a.json", 784)
    np.testing.assert_array_equal(x, pixels[None])
    assert (name, y.tolist()) == ("a", [3])


def test_a_user_without_images_is_no_client(tmp_path):
    empty = {"e": (np.zeros((0, 784), np.uint8), np.zeros(0, int))}
    for part, users in (("train", TRAIN), ("test", TEST)):
        write_leaf(tmp_path / "femnist" / part / "a.json", empty | users)
    assert list(femnist.load(tmp_path).client_names) == ["f0", "f1", "f2"]


def test_truncated_gzip_and_a_bomb(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(leaf_json, "MAX_BYTES", 2**16)
    folder = tiny_leaf(tmp_path) / "femnist" / "train"
    good = gzip.compress(json.dumps({"users": []}).encode())
    for data, word in ((good[:-9], "truncated"), (gzip.compress(bytes(2**24)), "holds more")):
        (folder / "all_data_0_train.json.gz").write_bytes(data)
        with pytest.raises(DataError) as error:
            femnist.load(tmp_path)
        assert_one_line(error, folder / "all_data_0_train.json.gz", word)
    assert nothing_is_kept(cache)


@pytest.mark.parametrize(
    ("part", "users", "word"),
    [
        ("train", some(TRAIN, "f0"), "'f0' is also in another file"),
        ("train", UNSEEN, "femnist/test: writer 'f9' of 'train' is missing"),
        ("test", UNSEEN, "femnist/train: writer 'f9' of 'test' is missing"),
        ("test", some(TEST, "f1"), "'f1' is also in another file"),
        ("test_unseen", some(TRAIN, "f0"), "'f0' is also in another file"),
    ],
)
def test_writers_that_do_not_fit_together_are_refused(tmp_path, part, users, word):
    tiny_leaf(tmp_path)
    write_leaf(tmp_path / "femnist" / part / "all_data_7.json", users)
    with pytest.raises(DataError, match=word) as error:
        femnist.load(tmp_path, unseen=True)
    assert "\n" not in str(error.value)


def test_a_split_by_writer_is_another_division_and_not_an_error(tmp_path):
    write_leaf(tmp_path / "femnist" / "train" / "a.json", some(TRAIN, "f0", "f1"))
    write_leaf(tmp_path / "femnist" / "test" / "a.json", some(TEST, "f2"))
    np.testing.assert_array_equal(femnist.load(tmp_path).test_groups, [2, 2, 2])


@pytest.mark.long
@pytest.mark.slow
def test_the_real_files_have_the_published_counts():
    source = femnist.load(real_data("femnist"), unseen=True)
    sizes = np.bincount(source.train_groups)
    assert (len(source.train["y"]), len(sizes)) == (54_503, 396)
    known = source.test_groups < len(sizes)
    sizes = sizes + np.bincount(source.test_groups[known])
    assert (sizes.min(), sizes.max(), np.median(sizes)) == (3, 356, 167)
    assert (known.sum(), (~known).sum(), len(source.client_names)) == (6_254, 9_259, 396 + 314)
    assert np.all(np.diff(source.train_groups) >= 0)
    y = np.bincount(source.train["y"], minlength=62)
    assert (y[:10].sum(), y[10:36].sum(), y[36:].sum(), y.min()) == (38_560, 8_100, 7_843, 185)
    assert np.median(source.train["x"]) == 255  # the background
    assert source.train["x"].min() == 0
