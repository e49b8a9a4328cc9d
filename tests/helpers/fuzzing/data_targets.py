"""The readers of the publishers' data sets."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.target import Target, check, refusal


def check_source(source: Any) -> None:
    """What every reader promises of what it returns."""
    for part, groups in ((source.train, source.train_groups), (source.test, source.test_groups)):
        sizes = {len(array) for array in part.values()} | ({len(groups)} if groups is not None else set())
        check(len(sizes) == 1, f"arrays of the lengths {sizes}")
        for name, array in part.items():
            check(array.dtype.kind in "biuf", f"{name} is of {array.dtype}")
            check(array.dtype.kind != "f" or bool(np.isfinite(array).all()), f"{name} is not finite")
    check(tuple(source.train["x"].shape[1:]) == tuple(source.input_shape), "x has not the input's shape")
    check(len(source.train["x"]) > 0, "nothing to train on")
    labels = np.concatenate([np.asarray(part["y"]).ravel() for part in (source.train, source.test)])
    check(bool((labels >= 0).all()) and int(labels.max()) < max(source.num_classes, 1), "a label is no class")


def _loads(folder: Path, load: Callable[[Path], Any], words: tuple[str, ...] = ()) -> None:
    from fedoptax.errors import DataError

    with refusal(DataError, *words):
        check_source(load(folder))


def _read_file(
    load: Callable[[Path], Any], names: tuple[str, ...], others: Mapping[str, bytes], data: bytes, folder: Path
) -> None:
    """The bytes in place of the first of `names`; the others are sound."""
    for name, content in {**others, names[0]: data}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    _loads(folder, load, (Path(names[0]).name.split(".")[0][:4],) if names[1:] == ("named",) else ())


# --- IDX: MNIST and QMNIST


def idx(array: np.ndarray) -> bytes:
    """An IDX file of an array of bytes or of int32."""
    code = {"uint8": 8, "int32": 12}[array.dtype.name]
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def _mnist_files() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    files = {}
    for part, rows in (("train", 5), ("t10k", 3)):
        files[f"mnist/{part}-images-idx3-ubyte"] = idx(rng.integers(0, 256, (rows, 28, 28), np.uint8))
        files[f"mnist/{part}-labels-idx1-ubyte"] = idx(np.arange(rows, dtype=np.uint8))
        writers = np.zeros((rows, 8), np.int32)
        writers[:, 0], writers[:, 2] = np.arange(rows), 7
        name = "train" if part == "train" else "test"
        files[f"qmnist/qmnist-{name}-labels-idx2-int"] = idx(writers)
    return files


def _mnist(name: str) -> Target:
    from fedoptax.data.sources import mnist

    files = _mnist_files()
    sound = files[name]
    read = partial(_read_file, partial(mnist.load, writers=True), (name, "named"), files)
    words = (*(struct.pack(">I", n) for n in (0, 1, 2**31, 2**32 - 1)), b"\0\0\x08\x03", b"\0\0\x0c\x02")
    return Target(name, (sound, gzip.compress(sound, mtime=0)), read, words)


# --- CIFAR: pickles, packed and in an archive


def _cifar_pickle(rows: int, **labels: list[int]) -> bytes:
    pixels = np.zeros((rows, 3072), np.uint8)
    return pickle.dumps({"data": pixels, "filenames": ["a.png"] * rows, "batch_label": "b", **labels}, 2)


_PICKLE_WORDS = (
    b"data", b"labels", b"fine_labels", b"cnumpy\nndarray\n", b"cnumpy.core.multiarray\n_reconstruct\n",
    b"cnumpy\ndtype\n", b"cos\nsystem\n", b"(", b"t", b"R", b"b", b".", b"]", b"}", b"u1", b"O8", b"h\0", b"q\0",
    b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", b"T\xff\xff\xff\x7f", b"B\xff\xff\xff\x7f", b"\x85", b"\x93", b"\x94",
)  # fmt: skip


def _cifar(hundred: bool) -> Target:
    from fedoptax.data.sources import cifar

    for form in ("_CIFAR10", "_CIFAR100"):
        setattr(cifar, form, getattr(cifar, form)._replace(rows=2, test_rows=2))
    if hundred:
        sound = _cifar_pickle(2, fine_labels=[0, 99], coarse_labels=[19, 0])
        files = {f"cifar100/cifar-100-python/{name}": sound for name in ("train", "test")}
        name, load = "cifar100/cifar-100-python/train", cifar.load100
    else:
        sound = _cifar_pickle(2, labels=[9, 0])
        batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        files = {f"cifar10/cifar-10-batches-py/{name}": sound for name in batches}
        name, load = "cifar10/cifar-10-batches-py/data_batch_1", cifar.load10
    seeds = (sound, lzma.compress(sound), gzip.compress(sound, mtime=0))
    return Target(name, seeds, partial(_read_file, load, (name,), files), _PICKLE_WORDS)


def _archive() -> Target:
    from fedoptax.data.sources import cifar

    cifar._CIFAR100 = cifar._CIFAR100._replace(rows=2, test_rows=2)
    sound = _cifar_pickle(2, fine_labels=[0, 99], coarse_labels=[19, 0])
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("train", "test"):
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(sound)
            tar.addfile(member, io.BytesIO(sound))
    plain = buffer.getvalue()
    read = partial(_read_file, cifar.load100, ("cifar100/cifar-100-python.tar.gz",), {})
    words = (b"ustar", b"\x000000644", b"././@PaxHeader", b"size=99999999999\n", b"../../x", b"\0" * 512)
    return Target("archive", (plain, gzip.compress(plain, mtime=0)), read, words)


# --- LEAF's JSON


def _leaf(users: Mapping[str, tuple[int, ...]]) -> bytes:
    data = {name: {"x": [[0.0] * 784] * len(y), "y": list(y)} for name, y in users.items()}
    return json.dumps(
        {"users": list(users), "num_samples": [len(y) for y in users.values()], "user_data": data}
    ).encode()


_JSON_WORDS = (
    b'"users"', b'"num_samples"', b'"user_data"', b'"x"', b'"y"', b"[", b"]", b"{", b"}", b":", b",", b"NaN", b"1e5",
    b"0.0", b"1.0", b"-1", b'"f0"', b'"snippets"', b"[[", b"[]", b"9" * 5000,
)  # fmt: skip


def _femnist() -> Target:
    from fedoptax.data.sources import femnist

    sound = _leaf({"f0": (0, 61), "f1": (3,)})
    files = {"femnist/train/all.json": sound, "femnist/test/all.json": sound}
    small = json.dumps(json.loads(sound), separators=(",", ":")).encode()
    seeds = (sound, small, gzip.compress(sound, mtime=0))
    return Target("femnist", seeds, partial(_read_file, femnist.load, ("femnist/train/all.json",), files), _JSON_WORDS)


def _shakespeare_json() -> Target:
    from fedoptax.data.sources import shakespeare

    roles = {"HAMLET": ["To be", "or not"], "GHOST": ["Mark me", "é"]}
    sound = json.dumps(
        {"users": list(roles), "num_samples": [2, 2], "user_data": {r: {"snippets": s} for r, s in roles.items()}}
    ).encode()
    packed = gzip.compress(sound, mtime=0)
    name, test = "shakespeare/shakespeare_train.json.gz", "shakespeare/shakespeare_test.json.gz"
    read = partial(_read_file, shakespeare.load, (name,), {name: packed, test: packed})
    return Target("shakespeare-json", (sound, packed), read, _JSON_WORDS)


# --- TensorFlow Federated's HDF5

_HDF5_WORDS = (
    b"OHDR", b"OCHK", b"FRHP", b"FSHD", b"BTHD", b"BTLF", b"TREE", b"HEAP", b"SNOD", b"GCOL", b"examples",
    b"\x89HDF\r\n\x1a\n", struct.pack("<Q", 2**64 - 1), struct.pack("<Q", 2**40), struct.pack("<Q", 96),
)  # fmt: skip


def hdf5(clients: Mapping[str, Mapping[str, Any]], **storage: Any) -> bytes:
    """TensorFlow Federated's layout; strings of variable length where a field is a list of bytes."""
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for client, fields in clients.items():
            for field, value in fields.items():
                kind = h5py.string_dtype() if isinstance(value, list) else None
                file.create_dataset(f"examples/{client}/{field}", data=value, dtype=kind, **storage)
    return buffer.getvalue()


def _emnist() -> Target:
    from fedoptax.data.sources import emnist

    def users(n: int) -> dict[str, Any]:
        pixels = np.zeros((n, 28, 28), np.float32)
        return {"pixels": pixels, "label": np.arange(n, dtype=np.int32)}

    clients = {"f0": users(2), "f1": users(1)}
    packed = hdf5(clients, compression="gzip")
    seeds = (packed, hdf5(clients))
    files = {f"emnist/fed_emnist_{part}.h5": packed for part in ("train", "test")}
    read = partial(_read_file, emnist.load, ("emnist/fed_emnist_train.h5",), files)
    return Target("emnist-hdf5", seeds, read, _HDF5_WORDS)


def _shakespeare_hdf5() -> Target:
    from fedoptax.data.sources import shakespeare

    text = [b"To be or not", b"to be", b""]
    variable = hdf5({"HAMLET": {"snippets": text}, "GHOST": {"snippets": text[:1]}})
    chunked = hdf5({"HAMLET": {"snippets": text}}, chunks=(2,), compression="gzip")
    fixed = hdf5({"HAMLET": {"snippets": np.array(text)}})
    name, test = "shakespeare/shakespeare_train.h5", "shakespeare/shakespeare_test.h5"
    read = partial(_read_file, shakespeare.load, (name,), {name: variable, test: fixed})
    return Target("shakespeare-hdf5", (variable, variable, chunked, fixed), read, _HDF5_WORDS)


def _stackoverflow(which: str) -> Target:
    from fedoptax.data.sources import stackoverflow

    text = [b"the list", b"a list of code"]
    user = {"tokens": text, "title": text, "tags": [b"python|c#", b"numpy"]}
    h5 = hdf5({"1": user, "2": user})
    files = {
        "stackoverflow/stackoverflow_train.h5": h5,
        "stackoverflow/stackoverflow_test.h5": h5,
        "stackoverflow/stackoverflow.word_count": b"the 9\na 8\nlist 7\nof 6\n",
        "stackoverflow/stackoverflow.tag_count": b'{"python": 9, "c#": 30, "numpy": 9}',
    }
    name = f"stackoverflow/stackoverflow{which}"
    load = partial(stackoverflow.load_tags, vocabulary=3, tags=2, max_words=3)
    read = partial(_read_tags, load, name, files)
    words = _HDF5_WORDS if which.endswith(".h5") else (*_JSON_WORDS, b"the 9\n", b" ", b"\n", b"a -1\n", b"a x\n")
    return Target(name, (files[name],), read, words)


def _read_tags(load: Callable[[Path], Any], name: str, files: Mapping[str, bytes], data: bytes, folder: Path) -> None:
    from fedoptax.errors import DataError

    for path, content in {**files, name: data}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    with refusal(DataError):
        source = load(folder)
        check(int(source.train["x"].max(initial=0)) <= 3 and int(source.train["y"].max(initial=0)) <= 2, "an id")


# --- text


def _wikitext() -> Target:
    from fedoptax.data.sources import wikitext

    sound = b" \n = One = \n \n a b c d <unk> \n \n = = Section = = \n \n e f \n \n = Two = \n \n a g \n"
    files = {"wikitext-2/train.txt": sound, "wikitext-2/test.txt": sound}
    read = partial(_read_file, partial(wikitext.load, length=2), ("wikitext-2/train.txt",), files)
    words = (b" \n = One = \n \n", b"=", b" ", b"\n", b"<unk>", b"<eos>", "\u2028\x85\u00a0".encode(), b"\xff")
    return Target("wikitext", (sound, gzip.compress(sound, mtime=0), lzma.compress(sound)), read, words)


TARGETS: dict[str, Callable[[], Target]] = {
    "mnist-images": partial(_mnist, "mnist/train-images-idx3-ubyte"),
    "mnist-labels": partial(_mnist, "mnist/train-labels-idx1-ubyte"),
    "qmnist": partial(_mnist, "qmnist/qmnist-train-labels-idx2-int"),
    "cifar10": partial(_cifar, False),
    "cifar100": partial(_cifar, True),
    "archive": _archive,
    "femnist-json": _femnist,
    "shakespeare-json": _shakespeare_json,
    "emnist-hdf5": _emnist,
    "shakespeare-hdf5": _shakespeare_hdf5,
    "stackoverflow-hdf5": partial(_stackoverflow, "_train.h5"),
    "word-count": partial(_stackoverflow, ".word_count"),
    "tag-count": partial(_stackoverflow, ".tag_count"),
    "wikitext": _wikitext,
}
