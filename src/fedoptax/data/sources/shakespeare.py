"""Federated Shakespeare: the next character of what a role of a play says; one client a role.

TensorFlow Federated's files: 715 roles, 16,068 + 2,356 snippets. Characters, special ids and chunks are those of the
released code of Reddi et al., "Adaptive Federated Optimization", 2021 (google-research/federated,
`utils/datasets/shakespeare_dataset.py`); the task is that of McMahan et al., 2017.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedoptax.data.cache import cached
from fedoptax.data.containers import read_packed
from fedoptax.data.location import find_data_dir, require
from fedoptax.data.sources import Source
from fedoptax.data.sources.hdf5 import ClientFile
from fedoptax.data.sources.natural import Client, Codes, write_clients, write_names
from fedoptax.data.sources.strict_json import parse_json
from fedoptax.data.sources.tokens import next_token, special_tokens
from fedoptax.data.sources.upstream import any_there, missing, require_all
from fedoptax.data.store import StoreWriter
from fedoptax.errors import DataError

CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
"""The 86 characters with ids 1 … 86, in the order of TensorFlow Federated's text generation tutorial."""

SPECIAL = special_tokens(len(CHARACTERS))
"""The other ids: padding 0, out of vocabulary 87, beginning 88 and end of a snippet 89; 90 ids in all."""

LENGTH = 80
"""Characters of an input and of its target."""

_IDS = np.full(256, SPECIAL.oov, np.uint8)  # of each byte
_IDS[np.frombuffer(CHARACTERS.encode(), np.uint8)] = np.arange(1, len(CHARACTERS) + 1)
_PARTS = ("train", "test")
_MAX_JSON = 2**25  # bytes: ten times the larger file
_VERSION = 1  # of the cached arrays


def load(data_dir: str | Path | None = None) -> Source:
    """Reads the pair `shakespeare_{train,test}.h5` of `shakespeare/`, or `.json.gz` with the same content.

    Each snippet, between its beginning and end ids, is padded to a multiple of 81 and cut in chunks of 81; an example
    is a chunk without its last id (x) and without its first (y). (A chunk that holds nothing but an end has no target.)

    Args:
      data_dir: as in `fedoptax.data.location.find_data_dir`.

    Returns:
      x and y uint8 of shape (n, 80), where id 0 is padding, which counts for nothing in loss and metrics; the groups
      are roles; `counts` has the number of snippets, `train_snippets` and `test_snippets`.

    Raises:
      DataError: a file is missing or broken.
    """
    paths = _paths(data_dir)

    def build(writer: StoreWriter) -> None:
        codes: Codes = {}
        for part, path in zip(_PARTS, paths):
            counted: list[int] = []
            write_clients(writer, part, path, _roles(path, counted), codes)
            writer.append("snippets", np.array([sum(counted)]))
        write_names(writer, codes)

    arrays = cached("shakespeare", paths, _VERSION, build)
    return Source(
        train=next_token(arrays["train_chunks"]),
        test=next_token(arrays["test_chunks"]),
        num_classes=len(CHARACTERS) + 4,
        input_shape=(LENGTH,),
        train_groups=arrays["train_groups"],
        test_groups=arrays["test_groups"],
        client_names=arrays["client_names"],
        counts={f"{part}_snippets": int(count) for part, count in zip(_PARTS, arrays["snippets"])},
    )


def encode(snippet: bytes) -> np.ndarray:
    """The chunks of one snippet, uint8 of shape (m, 81); bytes that are none of `CHARACTERS` are out of vocabulary."""
    ids = np.full(-(-(len(snippet) + 2) // (LENGTH + 1)) * (LENGTH + 1), SPECIAL.pad, np.uint8)
    ids[0], ids[len(snippet) + 1] = SPECIAL.bos, SPECIAL.eos
    ids[1 : len(snippet) + 1] = _IDS[np.frombuffer(snippet, np.uint8)]
    return ids.reshape(-1, LENGTH + 1)


def decode(ids: ArrayLike) -> str:
    """The characters of ids, for people: padding, beginning and end are left out, and `�` is out of vocabulary."""
    letters = dict(enumerate(CHARACTERS, start=1)) | {SPECIAL.oov: "�"}
    return "".join(letters.get(int(i), "") for i in np.ravel(ids))


def _paths(data_dir: str | Path | None) -> list[Path]:
    """The HDF5 pair, or where neither is there the JSON pair."""
    hdf5, packed = ([f"shakespeare_{part}.{form}" for part in _PARTS] for form in ("h5", "json.gz"))
    if any_there(data_dir, "shakespeare", hdf5):
        return require_all(data_dir, "shakespeare", hdf5)
    try:
        return [require(data_dir, "shakespeare", name) for name in packed]
    except DataError:
        raise missing(find_data_dir(data_dir) / "shakespeare", hdf5[0], " and ".join(packed)) from None


def _roles(path: Path, counted: list[int]) -> Iterator[Client]:
    """The roles of a file and their chunks; how many snippets each has is added to `counted`."""
    for role, snippets in _read_hdf5(path) if path.suffix == ".h5" else _read_json(path):
        counted.append(len(snippets))
        chunks = [encode(snippet) for snippet in snippets]
        yield role, {"chunks": np.concatenate(chunks) if chunks else np.empty((0, LENGTH + 1), np.uint8)}


def _read_hdf5(path: Path) -> Iterator[tuple[str, list[bytes]]]:
    with ClientFile(path) as file:
        for role in file.names:
            yield role, file.text(role, "snippets")


def _read_json(path: Path) -> Iterator[tuple[str, list[bytes]]]:
    """`{"users": [role, …], "num_samples": [n, …], "user_data": {role: {"snippets": [text, …]}}}`, sorted by role."""
    document = parse_json(path, read_packed(path, _MAX_JSON))
    try:
        sizes, roles = dict(zip(document["users"], document["num_samples"], strict=True)), document["user_data"]
        if len(sizes) != len(document["users"]) or sizes.keys() != roles.keys():
            raise ValueError("'users' and 'user_data' are not the same roles, each once")
        for role in sorted(roles):
            yield role, _snippets(role, roles[role]["snippets"], sizes[role])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: not of the expected form: {' '.join(str(error).split())}") from None


def _snippets(role: str, snippets: Any, size: Any) -> list[bytes]:
    if not isinstance(snippets, list) or not all(isinstance(snippet, str) for snippet in snippets):
        raise ValueError(f"role {role!r} has no list of snippets")
    if len(snippets) != size:
        raise ValueError(f"role {role!r} has {len(snippets)} snippets; 'num_samples' says {size}")
    return [snippet.encode() for snippet in snippets]
