"""Federated Shakespeare: the next character of what a role of a play says; one client a role.

TensorFlow Federated's files: 715 roles, 16,068 + 2,356 snippets. Characters, special ids and chunks are those of the
released code of Reddi et al., "Adaptive Federated Optimization", 2021 (google-research/federated,
`utils/datasets/shakespeare_dataset.py`); the task is that of McMahan et al., 2017.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from fedoptax.data.cache import cached
from fedoptax.data.datasets.source import ClientRows, Source, next_token, open_clients, rows_of_clients, special_tokens
from fedoptax.data.files import require_file

CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
"""The 86 characters with ids 1 … 86, in the order of TensorFlow Federated's text generation tutorial."""

SPECIAL = special_tokens(len(CHARACTERS))
"""The other ids: padding 0, out of vocabulary 87, beginning 88 and end of a snippet 89; 90 ids in all."""

LENGTH = 80  # characters of an input and of its target

_IDS = np.full(256, SPECIAL.oov, np.uint8)  # of each byte
_IDS[np.frombuffer(CHARACTERS.encode(), np.uint8)] = np.arange(1, len(CHARACTERS) + 1)
_VERSION = 1  # of the cached arrays


def load(data_dir: str | Path | None = None) -> Source:
    """Read `shakespeare/shakespeare_{train,test}.h5`.

    Each snippet, between its beginning and end ids, is padded to a multiple of 81 and cut into chunks of 81; an example
    is a chunk without its last id (x) and without its first (y). x and y are uint8 of shape (n, 80), where id 0 is
    padding, which counts for nothing in loss and metrics; the groups are roles; `counts` has the number of snippets,
    `train_snippets` and `test_snippets`.
    """
    paths = [require_file(data_dir, "shakespeare", f"shakespeare_{part}.h5") for part in ("train", "test")]
    arrays = cached("shakespeare", paths, _VERSION, partial(rows_of_clients, paths, *map(_roles, paths)))
    train, test = (next_token(arrays[f"{part}_chunks"]) for part in ("train", "test"))
    counts = {f"{part}_snippets": int((arrays[f"{part}_chunks"] == SPECIAL.bos).sum()) for part in ("train", "test")}
    groups, vocabulary = (arrays["train_groups"], arrays["test_groups"]), np.array(list(CHARACTERS))
    return Source(train, test, len(CHARACTERS) + 4, (LENGTH,), *groups, vocabulary=vocabulary, counts=counts)


def encode(snippet: bytes) -> np.ndarray:
    """Return the chunks of one snippet, uint8 (m, 81); bytes not in `CHARACTERS` are out of vocabulary."""
    ids = np.full(-(-(len(snippet) + 2) // (LENGTH + 1)) * (LENGTH + 1), SPECIAL.pad, np.uint8)
    ids[0], ids[len(snippet) + 1] = SPECIAL.bos, SPECIAL.eos
    ids[1 : len(snippet) + 1] = _IDS[np.frombuffer(snippet, np.uint8)]
    return ids.reshape(-1, LENGTH + 1)


def _roles(path: Path) -> Iterator[ClientRows]:
    with open_clients(path) as file:
        for role in file.names:
            chunks = [encode(snippet) for snippet in file.text(role, "snippets")]
            yield role, {"chunks": np.concatenate(chunks) if chunks else np.empty((0, LENGTH + 1), np.uint8)}
