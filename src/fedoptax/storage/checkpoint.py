"""Checkpoints of a run's states with Orbax: atomic, the last two kept, every byte checked before it is used.

    checkpoints/40/states/          the server's state, and the clients' where they live on the device
    checkpoints/40/clients/         the clients' states where they live on the host or on disk
    checkpoints/40/checkpoint.json  shapes and dtypes; size and SHA-256 of every file, and of the history until then

A checkpoint is made beside its place and moved there as a whole. One that is damaged, or whose part of the history is,
counts for nothing, and the one before is taken. Orbax writes the arrays; its `CheckpointManager` is not used, as it
kept 20 kB of memory a save and looks at no checksum (LOG.md).
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedoptax._files import sync_folder
from fedoptax._tree import on_device
from fedoptax.algorithm import Tree
from fedoptax.distributed import several
from fedoptax.engine.client_states import ClientStates, OnHost
from fedoptax.errors import RunError
from fedoptax.storage import folder as storage
from fedoptax.storage.history_file import check_mark

KEEP = 2
FORMAT = 1
STATES, MANIFEST = "states", "checkpoint.json"


class Checkpoints:
    """The checkpoints of one run folder. Each holds the server's and all clients' states after some round.

    Everything else a run continues with follows from its config: keys and the order of data are functions of the seed
    and the round. Reading changes nothing in the folder. `sound` are rounds whose checkpoint was just read.
    """

    def __init__(self, folder: Path, sound: Iterable[int] = ()) -> None:
        self._run, self._folder = folder, (folder / "checkpoints").absolute()
        self._sound = set(sound) & set(self.rounds())  # written or read by this process

    def save(self, round: int, server: Tree, clients: ClientStates, history: Mapping[str, Any] | None = None) -> None:
        """Saves the states after `round`, unless that was done or read before; those of later rounds go.

        Args:
          round: rounds done.
          server: the server's state.
          clients: all clients' states.
          history: the mark of the run's history (`HistoryFile.mark`); None if there is none.

        Raises:
          RunError: the folder cannot be written.
        """
        if round in self._sound:
            return
        temporary = self._folder / f".{round}.{os.getpid()}.tmp"
        try:
            self._clear(lambda old: old >= round)  # of a future that could not be used
            temporary.mkdir(parents=True)
            leaves = jax.tree.leaves(_device_states(server, clients))
            _write(temporary / STATES, leaves)
            if isinstance(clients, OnHost):
                clients.save(temporary / "clients")
            files = _seals(temporary)
            manifest = {"format": FORMAT, "round": round, "arrays": _form(leaves), "history": history, "files": files}
            storage.write_json(temporary / MANIFEST, manifest)
            os.replace(temporary, self._folder / str(round))
            sync_folder(self._folder)
            self._sound.add(round)
            kept = self.rounds()[-KEEP:]
            self._clear(lambda old: old not in kept)
        except (OSError, ValueError) as error:  # ValueError: Orbax's of a full disk
            raise RunError(
                f"checkpoint of round {round} cannot be written to '{self._folder}': {_reason(error)}"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def restore(self, server: Tree, clients: ClientStates, at_most: int) -> tuple[int, Tree]:
        """Restores the newest sound checkpoint of a round ≤ `at_most`: fills `clients`, gives the round and the server.

        Raises:
          RunError: there is none, or the newest belongs to another experiment.
        """
        reasons = []
        for round in reversed(self.rounds()):
            if round > at_most:
                continue
            try:
                folder = self._folder / str(round)
                form = self._check(folder, round)
                if isinstance(clients, OnHost) != (folder / "clients").is_dir():
                    place = "device" if isinstance(clients, OnHost) else "host or disk"
                    raise ValueError(f"its client states were kept on {place}: give client_states so")
                states = _read(folder / STATES, form, _device_states(server, clients))
                if isinstance(clients, OnHost):
                    clients.load(folder / "clients")
                else:
                    clients.put(states[1])
                self._sound.add(round)
                return round, states[0]
            except (ValueError, KeyError, OSError, TypeError, RunError) as error:
                reasons.append(f"round {round}: {_reason(error)}")
        found = "; ".join(reasons) or "there is none"
        raise RunError(f"no checkpoint in '{self._folder}' can be used ({found})")

    def rounds(self) -> list[int]:
        """The rounds of which there is a checkpoint, in order."""
        return rounds_of(self._run)

    def _check(self, folder: Path, round: int) -> Any:
        """Compares every byte with what was written; the form of the arrays."""
        if not (folder / MANIFEST).is_file():
            raise ValueError(f"it has no {MANIFEST} (damaged, or of a version of fedoptax that wrote no checksums)")
        manifest = storage.read_json(folder / MANIFEST)
        if (manifest.get("format"), manifest.get("round")) != (FORMAT, round):
            raise ValueError(f"its {MANIFEST} is not of format {FORMAT} and round {round}")
        for name, seal in manifest["files"].items():
            if _seal(folder / name) != seal:
                raise ValueError(f"{name} is damaged")
        if manifest["history"] is not None:
            check_mark(self._run, manifest["history"])
        return manifest["arrays"]

    def _clear(self, unwanted: Callable[[int], bool]) -> None:
        """Removes checkpoints, and what killed processes left of others; none is ever half there under its name."""
        if not self._folder.is_dir():
            return
        for path in sorted(self._folder.iterdir()):  # what was left comes first
            if path.name.isdecimal() and unwanted(int(path.name)):
                self._sound.discard(int(path.name))
                path = path.rename(self._folder / f".{path.name}.old.tmp")
            if path.name.endswith(".tmp"):
                shutil.rmtree(path)


def rounds_of(folder: Path) -> list[int]:
    """The rounds of which a run folder holds a checkpoint, in order."""
    place = folder / "checkpoints"
    return sorted(int(path.name) for path in place.iterdir() if path.name.isdecimal()) if place.is_dir() else []


def _device_states(server: Tree, clients: ClientStates) -> tuple[Tree, Tree]:
    return server, () if isinstance(clients, OnHost) else clients.tree


def _form(leaves: list[Any]) -> list[Any]:
    """Shapes and dtypes, in an order that does not depend on the classes of an algorithm's states."""
    return [[list(np.shape(leaf)), str(np.dtype(leaf.dtype))] for leaf in leaves]


def _write(folder: Path, leaves: list[Any]) -> None:
    """Writes the arrays. As NumPy's: of arrays on a device Orbax keeps some memory for ever; it takes no empty ones."""
    arrays = {_name(i): np.asarray(leaf) for i, leaf in enumerate(leaves) if leaf.size}
    if arrays:
        with _one_voice(), _orbax() as checkpointer:
            checkpointer.save(folder, arrays)


@contextmanager
def _one_voice() -> Iterator[None]:
    """Of arrays that cannot be written, all but the first report to an event loop that is closed by then.

    Their threads, and asyncio, would print tracebacks beside the one line that says what failed, also some time after
    it: hook and filter go back only where all was written.
    """
    before, logger = sys.unraisablehook, logging.getLogger("asyncio")

    def hook(told: Any) -> None:
        if not (isinstance(told.exc_value, RuntimeError) and "Event loop is closed" in str(told.exc_value)):
            before(told)

    def unheard(record: logging.LogRecord) -> bool:
        return "never retrieved" not in record.getMessage()

    sys.unraisablehook = hook
    logger.addFilter(unheard)
    yield
    sys.unraisablehook = before
    logger.removeFilter(unheard)


def _read(folder: Path, form: Any, like: Tree) -> Tree:
    leaves = jax.tree.leaves(like)
    if form != _form(leaves):
        raise ValueError("its arrays are not those of this experiment")
    stored = {}
    if any(leaf.size for leaf in leaves):
        with _orbax() as checkpointer:
            stored = checkpointer.restore(folder)
    arrays = on_device([stored[_name(i)] if a.size else np.zeros(a.shape, a.dtype) for i, a in enumerate(leaves)])
    if _form(arrays) != form:
        raise ValueError("its arrays are not those that it lists")
    return jax.tree.unflatten(jax.tree.structure(like), arrays)


def _orbax() -> Any:
    import orbax.checkpoint as ocp  # only here: it is slow to import

    logging.getLogger("absl").setLevel(logging.CRITICAL)  # what fails is said in one line, by us
    if not several():
        return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False))
    # of several processes one alone reads and writes: Orbax would have all of them meet
    alone = ocp.options.MultiprocessingOptions(0, active_processes={0}, barrier_sync_key_prefix="leader")
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _name(i: int) -> str:
    return f"{i:05d}"


def _seals(folder: Path) -> dict[str, list[Any]]:
    """Size and SHA-256 of every file below a folder, by its path there; each is on the disk then."""
    return {str(p.relative_to(folder)): _seal(p, sync=True) for p in sorted(folder.rglob("*")) if p.is_file()}


def _seal(path: Path, sync: bool = False) -> list[Any]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return [file.tell(), digest]


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{Path(error.filename).name}: {error.strerror}" if error.filename else error.strerror
    code = re.search(r"os_error_code='(\d+)'", str(error))  # in Orbax's texts, which are long
    return os.strerror(int(code[1])) if code else (str(error).splitlines() or [type(error).__name__])[0]
