"""The readers of a user's own files, and the stores that cache what was read."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.data_targets import check_source
from fuzzing.target import Target, check, refusal


def _read(name: str, data: bytes, folder: Path, **options: Any) -> None:
    from fedoptax.data.own import load_file
    from fedoptax.errors import DataError

    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    root = path if len(Path(name).parts) == 1 else folder / Path(name).parts[0]
    with refusal(DataError, root.name):
        check_source(load_file(root, test_fraction=0, **options))


_COLUMNS = {
    "x": np.arange(12, dtype=np.float32).reshape(4, 3),
    "y": np.array(["a", "b", "a", "b"]),
    "client": np.array([1, 1, 2, 2]),
}


def _npz() -> Target:
    seeds = []
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, **_COLUMNS)
        seeds.append(buffer.getvalue())
    words = (b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"x.npy", b"y.npy", b"client.npy", b"x_test.npy", b"NUMPY")
    return Target("npz", tuple(seeds), partial(_read, "data.npz"), words)


def _npz_member(compression: int) -> Target:
    """The bytes of an array in a sound archive, which a change of the whole never reaches for its checksums."""

    def read(data: bytes, folder: Path) -> None:
        _read("data.npz", _zip([("x.npy", data), *rest], compression), folder)

    rest = [(f"{name}.npy", _npy(array)) for name, array in _COLUMNS.items() if name != "x"]
    seeds = [
        _npy(array) for array in (_COLUMNS["x"], np.arange(4), np.ones((4, 2, 2), bool), np.asfortranarray(np.eye(4)))
    ]
    words = (
        b"\x93NUMPY\x01\x00", b"\x93NUMPY\x02\x00", b"\x93NUMPY\x03\x00", b"'descr': ", b"'<f4'", b"'|O'",
        b"'<U9999999'",
        b"'<M8[ns]'", b"'shape': (4, 3)", b"(4294967296, 4294967296)", b"(-1,)", b"('a',)", b"True", b"[('a', '<f4')]",
        b"(9" + b"9" * 400 + b",)", b"'V8'", b"(((((((", b"1e400",
    )  # fmt: skip
    return Target("npz-member", tuple(seeds), read, words)


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _zip(members: Sequence[tuple[str, bytes]], compression: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def _csv() -> Target:
    seeds = (
        b"f0,f1,client,label\n1,2.5,a,x\n-3,4e2,b,y\n5,6,a,x\n",
        b'\xef\xbb\xbff0,label\r\n1,x\r\n2,"y,z"\r\n',
        b"f0,f1,client,label\n" + b"1,2,7,3\n" * 20,
    )
    words = (b",", b"\n", b"\r", b'"', b'""', b"label", b"client", b"f0", b"nan", b"inf", b"1e39", b"NA", b"True",
             b"2020-01-01", b"1_0", b"0x10", b"\x00", b"+", b"=1+1", b" ", b"1,2,7,3\n" * 50)  # fmt: skip
    return Target("csv", seeds, partial(_read, "data.csv"), words)


def _parquet() -> Target:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"f0": [1.0, 2.0, 3.0], "f1": [1, 2, 3], "client": ["a", "b", "a"], "label": ["x", "y", "x"]})
    seeds = []
    for options in ({}, {"compression": "none", "use_dictionary": False}, {"compression": "gzip"}):
        buffer = io.BytesIO()
        pq.write_table(table, buffer, **options)
        seeds.append(buffer.getvalue())
    return Target("parquet", tuple(seeds), partial(_read, "data.parquet"), (b"PAR1", b"label", b"client", b"schema"))


def _images(suffix: str, **options: Any) -> Target:
    from PIL import Image

    seeds = []
    for mode in ("L", "RGB"):
        buffer = io.BytesIO()
        image = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).convert(mode)
        image.save(
            buffer, {".png": "PNG", ".jpg": "JPEG", ".bmp": "BMP", ".gif": "GIF", ".tif": "TIFF"}.get(suffix, "PPM")
        )
        seeds.append(buffer.getvalue())
    words = (b"IHDR", b"IDAT", b"IEND", b"\x89PNG\r\n\x1a\n", b"\xff\xd8", b"\xff\xda", b"\xff\xc0", b"GIF89a", b"BM",
             b"II*\0", b"P5\n9999999 9999999\n255\n", b"zTXt", b"eXIf")  # fmt: skip
    return Target(f"images{suffix}", tuple(seeds), partial(_read, f"root/client/class/a{suffix}", **options), words)


def _store() -> Target:
    """The list of a cache's arrays."""
    from fedoptax.data.store import write_arrays
    from fedoptax.errors import DataError

    def read(data: bytes, folder: Path) -> None:
        from fedoptax.data.store import open_store

        write_arrays(folder / "store", {"x": np.arange(6.0).reshape(2, 3)})
        (folder / "store" / "meta.json").write_bytes(data)
        with refusal(DataError, "store"):
            for array in open_store(folder / "store").values():
                check(not array.dtype.hasobject, "objects")
                check(array.size == 0 or array.nbytes <= 10**6, "more than the file has")

    meta = json.dumps({"x": {"dtype": "<f8", "shape": [2, 3]}}).encode()
    words = (b'"x"', b'"../x"', b'"dtype"', b'"shape"', b"[2, 3]", b"[0]", b'"|O"', b'"<U99"', b"2", b"null")
    return Target("store", (meta,), read, words)


TARGETS: dict[str, Callable[[], Target]] = {
    "npz": _npz,
    "npz-member": partial(_npz_member, zipfile.ZIP_DEFLATED),
    "csv": _csv,
    "parquet": _parquet,
    **{f"images{suffix}": partial(_images, suffix) for suffix in (".png", ".jpg", ".bmp", ".gif", ".tif", ".ppm")},
    "store": _store,
}
