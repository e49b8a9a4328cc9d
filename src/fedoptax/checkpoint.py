"""Checkpoints of a run's states with Orbax: atomic, the last two kept, every byte checked before it is used.

    checkpoints/40/states/          the server's state, and the clients' where they live on the device
    checkpoints/40/clients/         the clients' states where they live on the host or on disk
    checkpoints/40/checkpoint.json  size and SHA-256 of every file, and of the history up to that round

A checkpoint is made beside its place and moved there as a whole. One that is damaged, or whose part of the history is,
counts for nothing, and the one before is taken.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedoptax import storage
from fedoptax.algorithm import Tree
from fedoptax.engine.states import ClientStates, OnHost
from fedoptax.errors import RunError
from fedoptax.history_file import check_mark

KEEP = 2
FORMAT = 1
MANIFEST = "checkpoint.json"


class Checkpoints:
    """The checkpoints of one run folder. Each holds the server's and all clients' states after some round.

    Everything else a run continues with follows from its config: keys and the order of data are functions of the seed
    and the round. Reading changes nothing in the folder. `sound` are rounds whose checkpoint was just read.
    """

    def __init__(self, folder: Path, sound: Iterable[int] = ()) -> None:
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._run, self._folder = folder, (folder / "checkpoints").absolute()
        self._ocp = ocp
        self._orbax = ocp.Checkpointer(ocp.StandardCheckpointHandler())
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
            states = _by_number(_device_states(server, clients))
            with _quiet_threads():
                self._orbax.save(temporary / "states", args=self._ocp.args.StandardSave(states))
            if isinstance(clients, OnHost):
                clients.save(temporary / "clients")
            files = {path.relative_to(temporary).as_posix(): _seal(path) for path in _files(temporary)}
            manifest = {"format": FORMAT, "round": round, "history": history, "files": files}
            storage.write_json(temporary / MANIFEST, manifest)
            os.replace(temporary, self._folder / str(round))
            storage.sync_folder(self._folder)
            self._sound.add(round)
            kept = self.rounds()[-KEEP:]
            self._clear(lambda old: old not in kept)
        except RunError:
            raise
        except (OSError, ValueError, RuntimeError) as error:  # Orbax has several for a disk that is full
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # what failed beside it is told at the end
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
                self._check(folder, round)
                if isinstance(clients, OnHost) != (folder / "clients").is_dir():
                    place = "device" if isinstance(clients, OnHost) else "host or disk"
                    raise ValueError(f"its client states were kept on {place}: give client_states so")
                states = self._read(folder / "states", _device_states(server, clients))
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

    def close(self) -> None:
        """Lets go of the folder."""
        self._orbax.close()

    def _check(self, folder: Path, round: int) -> None:
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

    def _read(self, folder: Path, like: Tree) -> Tree:
        wanted = _by_number(like)
        found = self._orbax.metadata(folder).item_metadata
        shapes = {name: (tuple(m.shape), np.dtype(m.dtype)) for name, m in dict(found or {}).items()}
        if shapes != {name: (tuple(a.shape), np.dtype(a.dtype)) for name, a in wanted.items()}:
            raise ValueError("its arrays are not those of this experiment")
        target = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in wanted.items()}
        leaves = self._orbax.restore(folder, args=self._ocp.args.StandardRestore(target))
        return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in wanted])

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


def _by_number(tree: Tree) -> Mapping[str, Any]:
    """The leaves by number: a stored form that does not depend on the classes of an algorithm's states."""
    return {f"{i:05d}": leaf for i, leaf in enumerate(jax.tree.leaves(tree))}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _seal(path: Path) -> list[Any]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return [file.tell(), digest]


@contextmanager
def _quiet_threads() -> Iterator[None]:
    """What fails in threads of Orbax and TensorStore is not printed: it is raised where the work is waited for."""
    of_threads, of_callbacks = threading.excepthook, sys.unraisablehook

    def thread_hook(args: threading.ExceptHookArgs) -> None:
        if not type(args.thread).__module__.startswith("orbax."):
            of_threads(args)

    def callback_hook(args: sys.UnraisableHookArgs) -> None:
        if str(args.exc_value) != "Event loop is closed":
            of_callbacks(args)

    threading.excepthook, sys.unraisablehook = thread_hook, callback_hook
    yield
    threading.excepthook, sys.unraisablehook = of_threads, of_callbacks  # after a failure more comes later


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{Path(error.filename).name}: {error.strerror}" if error.filename else error.strerror
    text = str(error)
    return "No space left on device" if "No space left" in text else (text.splitlines() or [type(error).__name__])[0]
