"""Shakespeare by role: characters become ids, snippets become chunks, HDF5 and JSON hold the same."""

import json

import numpy as np
import pytest

from fedoptax.data.sources import shakespeare
from fedoptax.data.sources.shakespeare import CHARACTERS, LENGTH, SPECIAL, decode, encode
from fedoptax.errors import DataError
from files import assert_one_line, nothing_is_kept, real_data, write, write_tff

SHORT, LONG, FOREIGN = b"To be, or not\nto be", b"a" * 200, "naïve {}".encode()
TRAIN = {"HAMLET_B": [SHORT, LONG], "HAMLET_A": [b""], "MUTE": []}
TEST = {"HAMLET_B": [FOREIGN], "GHOST": [b"Mark me."]}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDOPTAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tiny_hdf5(root, storage=None):
    for part, roles in (("train", TRAIN), ("test", TEST)):
        fields = {role: {"snippets": np.array(snippets, "S300")} for role, snippets in roles.items()}
        write_tff(root / "shakespeare" / f"shakespeare_{part}.h5", fields, **(storage or {}))
    return root


def document(roles, **changes):
    members = {
        "users": list(roles),
        "num_samples": [len(snippets) for snippets in roles.values()],
        "user_data": {role: {"snippets": [s.decode() for s in snippets]} for role, snippets in roles.items()},
    }
    return json.dumps(members | changes).encode()


def tiny_json(root):
    for part, roles in (("train", TRAIN), ("test", TEST)):
        write(root / "shakespeare" / f"shakespeare_{part}.json.gz", document(roles))
    return root


def test_ninety_ids():
    assert len(set(CHARACTERS)) == len(CHARACTERS) == 86
    assert SPECIAL == (0, 87, 88, 89)


def test_a_snippet_is_begun_ended_padded_and_cut():
    np.testing.assert_array_equal(encode(b"dh\r~"), [[88, 1, 2, 86, 87, 89] + [0] * 75])
    chunks = encode(LONG)
    assert chunks.shape == (3, LENGTH + 1) and chunks.dtype == np.uint8
    letter = CHARACTERS.index("a") + 1
    np.testing.assert_array_equal(chunks.ravel(), [88] + [letter] * 200 + [89] + [0] * (3 * 81 - 202))


@pytest.mark.parametrize(("size", "chunks"), [(0, 1), (78, 1), (79, 1), (80, 2), (160, 2), (161, 3)])
def test_no_chunk_is_only_padding(size, chunks):
    assert len(encode(b"x" * size)) == chunks


def test_decoding_gives_the_text_back():
    assert decode(encode(SHORT)) == SHORT.decode()
    assert decode(encode(FOREIGN)) == "na��ve ��"
    assert decode([]) == ""


@pytest.mark.parametrize("tiny", [tiny_hdf5, tiny_json])
def test_both_forms_give_the_chunks_role_after_role(tmp_path, tiny):
    source = shakespeare.load(tiny(tmp_path))
    whole = np.concatenate([encode(b""), encode(SHORT), encode(LONG)])
    np.testing.assert_array_equal(source.train["x"], whole[:, :-1])
    np.testing.assert_array_equal(source.train["y"], whole[:, 1:])
    np.testing.assert_array_equal(source.train_groups, [0, 1, 1, 1, 1])
    np.testing.assert_array_equal(source.test_groups, [2, 1])
    assert list(source.client_names) == ["HAMLET_A", "HAMLET_B", "GHOST"]
    assert source.counts == {"train_snippets": 3, "test_snippets": 2}
    assert (source.num_classes, source.input_shape) == (90, (80,))
    assert source.train["x"].dtype == np.uint8


def test_hdf5_comes_before_json_and_only_as_a_pair(tmp_path):
    tiny_hdf5(tiny_json(tmp_path), {"compression": "gzip"})
    path = write(tmp_path / "shakespeare" / "shakespeare_train.json.gz", b"broken")
    assert shakespeare.load(tmp_path).counts == {"train_snippets": 3, "test_snippets": 2}
    (tmp_path / "shakespeare" / "shakespeare_train.h5").unlink()
    with pytest.raises(DataError, match=r"shakespeare_train\.h5: not found in .*--data-dir"):
        shakespeare.load(tmp_path)
    (tmp_path / "shakespeare" / "shakespeare_test.h5").unlink()
    with pytest.raises(DataError) as error:
        shakespeare.load(tmp_path)
    assert_one_line(error, path, "cannot be read")


def test_missing_files_come_with_a_remedy(tmp_path):
    with pytest.raises(DataError, match=r"shakespeare_train\.h5: not found \(nor .*json.gz\).*FEDOPTAX_DATA"):
        shakespeare.load(tmp_path)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "cannot be read"),
        (b'{"users": NaN}', "NaN is not JSON"),
        (b'{"users": [], "users": []}', "'users' is there twice"),
        (b"[]", "not of the expected form"),
        (b"{}", "users"),
        (b'{"a":' * 10**5, "too deeply"),
        (b'"' + bytes(2**25), "more than"),
        (document(TRAIN)[:-20], "cannot be read"),
        (document(TRAIN, users=["HAMLET_B"]), "zip"),
        (document(TRAIN, users=["HAMLET_B", "HAMLET_B", "MUTE"]), "each once"),
        (document(TRAIN, num_samples=[2, 2, 0]), "'num_samples' says 2"),
        (document(TRAIN, num_samples=3), "form"),
        (document(TRAIN, user_data=[]), "form"),
        (document(TRAIN, user_data={role: {} for role in TRAIN}), "snippets"),
        (document(TRAIN, user_data={role: {"snippets": "ab"} for role in TRAIN}), "no list of snippets"),
        (document(TRAIN, user_data={role: {"snippets": [1]} for role in TRAIN}), "no list of snippets"),
        (document({"A": [b"?"]}).replace(b"?", b"\\ud800"), "surrogates"),
        (document({"MUTE": []}), "no examples"),
    ],
)
def test_broken_json_is_refused_in_one_line(tmp_path, data, word, cache):
    path = write(tiny_json(tmp_path) / "shakespeare" / "shakespeare_train.json.gz", data)
    with pytest.raises(DataError) as error:
        shakespeare.load(tmp_path)
    assert_one_line(error, path, word)
    assert nothing_is_kept(cache)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"snippet": np.array([b"x"])}, "'snippets': it is missing"),
        ({"snippets": np.zeros(3)}, "one string an example"),
    ],
)
def test_broken_hdf5_is_refused_in_one_line(tmp_path, fields, word, cache):
    path = write_tff(tiny_hdf5(tmp_path) / "shakespeare" / "shakespeare_test.h5", {"A": fields})
    with pytest.raises(DataError) as error:
        shakespeare.load(tmp_path)
    assert_one_line(error, path, "'A'", word)
    assert nothing_is_kept(cache)


def test_the_real_files_have_the_published_counts_in_both_forms(tmp_path):
    root = real_data("shakespeare")
    source = shakespeare.load(root)
    assert source.counts == {"train_snippets": 16_068, "test_snippets": 2_356}
    assert len(source.client_names) == source.train_groups.max() + 1 == 715
    assert len(np.unique(source.test_groups)) == 715
    # Each target is a character or an end, but for the first character of every chunk that is not a snippet's first.
    assert np.sum(source.train["y"] > 0) == 2_359_315 + 16_068 - (len(source.train["y"]) - 16_068)
    assert np.sum(source.train["x"] == SPECIAL.bos) == 16_068
    (tmp_path / "shakespeare").mkdir()
    for part in ("train", "test"):
        name = f"shakespeare_{part}.json.gz"
        (tmp_path / "shakespeare" / name).symlink_to(root / "shakespeare" / name)
    derived = shakespeare.load(tmp_path)
    for one, other in ((source.train, derived.train), (source.test, derived.test)):
        np.testing.assert_array_equal(one["x"], other["x"])
        np.testing.assert_array_equal(one["y"], other["y"])
    np.testing.assert_array_equal(source.train_groups, derived.train_groups)
    np.testing.assert_array_equal(source.client_names, derived.client_names)
