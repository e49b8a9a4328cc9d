"""What a client keeps between rounds: its state after each round that the server may still come back to.

The server says in every message after which round (`base`) it last used this client's reply, and after which (`kept`;
from which on: `keep`) it might ask again after being restored from a checkpoint. So a state whose upload was lost on
the way is not built upon, and a round that is repeated begins from where it began before: the network computes what
the simulation does.

Flower keeps a client's context in the memory of its SuperNode. A copy on the node's disk outlives that process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import jax
import numpy as np

from fedoptax._files import sync_folder
from fedoptax.algorithm import Tree
from fedoptax.deploy.wire import WireError, expected_of
from fedoptax.errors import RunError

INITIAL = -1  # the "round" after which a client has its initial state
_EXPERIMENT = re.compile(r"[0-9a-f]{32}")
_DIGEST = 32
LEFT_AFTER = 3600.0  # seconds after which an unfinished file is of a killed process; two may write at a time


def checked_experiment(given: object) -> str:
    """The id of an experiment: 32 hexadecimal digits, so that it can name a folder.

    Raises:
      WireError: it is none.
    """
    if not isinstance(given, str) or not _EXPERIMENT.fullmatch(given):
        raise WireError("experiment: not an id of 32 hexadecimal digits")
    return given


def to_blob(tree: Tree) -> bytes:
    """A state as bytes: a digest of its form and content, then the arrays one after another."""
    content = b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))
    return _digest(tree, content) + content


def from_blob(blob: bytes, like: Tree) -> Tree:
    """The state that `to_blob` took, in the structure, shapes and dtypes of `like`.

    Raises:
      WireError: it is damaged, or a state of another form.
    """
    structs = list(expected_of(like).values())
    sizes = [int(np.prod(s.shape, dtype=np.int64)) * np.dtype(s.dtype).itemsize for s in structs]
    content = blob[_DIGEST:]
    if len(content) != sum(sizes) or blob[:_DIGEST] != _digest(like, content):
        raise WireError("client state: damaged, or of another form")
    ends = np.cumsum(sizes, dtype=np.int64)
    leaves = [
        np.frombuffer(content[end - size : end], np.dtype(s.dtype)).reshape(s.shape)
        for s, size, end in zip(structs, sizes, ends)
    ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


class StateFolder:
    """The states of one client in one experiment as files named by their round, for their owner's eyes only.

    Args:
      root: the node's folder for states.
      experiment: the experiment's id.
      partition: the client.
    """

    def __init__(self, root: Path, experiment: str, partition: int) -> None:
        self.folder = root / checked_experiment(experiment) / str(int(partition))

    def rounds(self) -> list[int]:
        """The rounds of which there is a state."""
        return sorted(int(path.stem) for path in self.folder.glob("*.state") if path.stem.isdecimal())

    def write(self, round: int, blob: bytes) -> None:
        """Writes the state after `round`, whole or not at all, with mode 600; it is on the disk when this returns.

        Raises:
          RunError: it cannot be written.
        """
        try:
            new = not self.folder.is_dir()
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if new:
                sync_folder(self.folder.parent)
                sync_folder(self.folder.parent.parent)
            self._clean()
            handle, temporary = tempfile.mkstemp(prefix=".", dir=self.folder)  # mode 600
        except OSError as error:
            raise RunError(f"'{self.folder}' cannot be written: {error.strerror}") from error
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(blob)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path(round))
            sync_folder(self.folder)  # else a power cut may take the state back, after the server heard of it
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise RunError(f"'{self._path(round)}' cannot be written: {error.strerror}") from error

    def read(self, round: int, limit: int) -> bytes | None:
        """The state after `round`; None if there is none of at most `limit` bytes."""
        try:
            path = self._path(round)
            return path.read_bytes() if path.stat().st_size <= limit else None
        except OSError:
            return None

    def drop(self, rounds: Iterable[int]) -> None:
        """Removes states."""
        for round in rounds:
            self._path(round).unlink(missing_ok=True)

    def _clean(self) -> None:
        """Removes what killed processes did not finish."""
        for path in self.folder.glob(".*"):
            with contextlib.suppress(OSError):  # another process may have removed it
                if time.time() - path.stat().st_mtime > LEFT_AFTER:
                    path.unlink()

    def _path(self, round: int) -> Path:
        return self.folder / f"{round}.state"


def blob_size(like: Tree) -> int:
    """Bytes of a state of the form of `like`."""
    structs = expected_of(like).values()
    return _DIGEST + sum(int(np.prod(s.shape, dtype=np.int64)) * np.dtype(s.dtype).itemsize for s in structs)


def stale(rounds: Iterable[int], base: int, keep: int, kept: Iterable[int] | None = None) -> list[int]:
    """Of the rounds whose states a client has, those that no message can ask for again.

    Args:
      rounds: of which there is a state.
      base: the round after which the server last used this client's reply.
      keep: the earliest of the same in the server's last two checkpoints.
      kept: each of them; None where the server does not tell: then all from `keep` to `base` are wanted.
    """
    if kept is not None:
        wanted = {base, *kept}
        return [round for round in rounds if round not in wanted]
    return [round for round in rounds if round < min(base, keep) or round > base]


def _digest(tree: Tree, content: bytes) -> bytes:
    form = repr([(name, s.shape, np.dtype(s.dtype).name) for name, s in expected_of(tree).items()])
    return hashlib.sha256(form.encode() + b"\0" + content).digest()
