"""Checkpoints of a run's states: atomic, the last two, checked before they are used.

    checkpoints/40/states.npz       the server's state, and the clients' if they are on the device
    checkpoints/40/clients/0/       the clients' states if they are on the host, a folder for each process
    checkpoints/40/checkpoint.json  shapes and dtypes, the history's length and SHA-256, and one digest of all files

A checkpoint is made beside its place and moved there as a whole. One that is damaged, or whose part of the history is,
is passed over, and the one before it is taken. Why the arrays are NumPy's and not Orbax's is in LOG.md.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedoptax._files import read_json, sync_folder, write_json
from fedoptax.algorithm import Tree
from fedoptax.distributed import broadcast, is_leader, run_on_all_or_fail
from fedoptax.engine.client_states import ClientStates, OnHost
from fedoptax.errors import RunError, UsageError, shorten
from fedoptax.storage.history import begins_with

KEEP = 2
FOLDER = "checkpoints"
FORMAT = 2
MANIFEST = "checkpoint.json"

Sync = Callable[[], Mapping[str, Any] | None]


def save_checkpoint(folder: Path, round: int, server: Tree, clients: ClientStates, sync: Sync = lambda: None) -> None:
    """Save the states after `round` rounds in a run folder, and remove those of later rounds.

    All else follows from the run's config: keys and the order of data are functions of the seed and the round. `sync`
    writes what must not be behind the states, and returns what `HistoryFile.sync` does, or None without a history.
    """
    place, temporary = folder / FOLDER / str(round), folder / FOLDER / f".{round}.{os.getpid()}.tmp"
    leaves = jax.tree.leaves(_states(server, clients))
    manifest: dict[str, Any] = {"format": FORMAT, "round": round, "arrays": _form(leaves)}

    def write_states() -> None:
        manifest["history"] = sync()
        _remove(folder, lambda old: old > round)  # damaged, or of rounds that are done again
        (temporary / "clients" if isinstance(clients, OnHost) else temporary).mkdir(parents=True)
        with (temporary / "states.npz").open("wb") as file:
            flat = [np.ascontiguousarray(leaf).reshape(-1) for leaf in leaves]  # as bytes: npz cannot hold every dtype
            np.savez(file, allow_pickle=False, **{f"{i:05d}": array.view(np.uint8) for i, array in enumerate(flat)})

    try:
        if isinstance(clients, OnHost):
            save_clients(clients, temporary.absolute() / "clients", write_states)
        else:
            write_states()
        write_json(temporary / MANIFEST, manifest | {"digest": _digest(temporary, sync=True)})
        if place.is_dir():  # damaged, or the same
            place.rename(place.with_name(f".{round}.old.tmp"))
        os.replace(temporary, place)
        sync_folder(place.parent)
        last = rounds_of(folder)[-KEEP:]
        _remove(folder, lambda old: old not in last)
    except OSError as error:
        raise RunError(f"checkpoint of round {round} cannot be written: {_reason(error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def save_clients(clients: OnHost, place: Any = None, prepare: Callable[[], None] = lambda: None) -> None:
    """Save the states of each process's clients, in a call of all; the leader knows the place, and prepares it."""
    place = broadcast(place)
    run_on_all_or_fail(prepare)
    run_on_all_or_fail(lambda: clients.save(place))


def load_clients(clients: OnHost, folder: Path | None, round: int) -> None:
    """Load in the other processes what the leader restored from its run folder, in a call of all."""
    place = broadcast(None if folder is None or not round else folder.absolute() / FOLDER / str(round) / "clients")
    run_on_all_or_fail(lambda: None if place is None or is_leader() else clients.load(place))


def restore_checkpoint(
    folder: Path, server: Tree, clients: ClientStates, at_most: int, at_least: int = 0
) -> tuple[int, Tree]:
    """Fill `clients` from a run folder's newest intact checkpoint between two rounds; return its round and server.

    `server` has the form of the one that is returned. Nothing changes in the folder.
    """
    reasons = []
    for round in reversed([round for round in rounds_of(folder) if at_least <= round <= at_most]):
        try:
            return round, _read(folder, round, server, clients)
        except (ValueError, KeyError, TypeError, OSError, RunError) as error:
            reasons.append(f"round {round}: {_reason(error)}")
    raise RunError(f"no checkpoint in '{folder / FOLDER}' can be used ({'; '.join(reasons) or 'none exists'})")


def rounds_of(folder: Path) -> list[int]:
    """Return the rounds after which a run folder holds a checkpoint, in order."""
    place = folder / FOLDER
    return sorted(int(path.name) for path in place.iterdir() if path.name.isdecimal()) if place.is_dir() else []


def least_total(folder: Path, resume_round: int | None = None) -> int:
    """Return the least total of rounds of a run that continues from its last checkpoint, or that of `resume_round`."""
    rounds = rounds_of(folder)
    if resume_round is not None and resume_round not in rounds:
        raise UsageError(f"resume_round must be that of a checkpoint, one of {rounds}, got {resume_round}")
    return max([1, *rounds]) if resume_round is None else max(1, resume_round)


def _read(folder: Path, round: int, server: Tree, clients: ClientStates) -> Tree:
    place = folder / FOLDER / str(round)
    manifest = read_json(place / MANIFEST)
    if manifest["format"] != FORMAT:
        raise ValueError("it belongs to another version of fedoptax")
    if manifest["round"] != round or _digest(place) != manifest["digest"]:
        raise ValueError("it is damaged")
    if manifest["history"] is not None and not begins_with(folder, manifest["history"]):
        raise ValueError("history.jsonl has changed")
    if isinstance(clients, OnHost) != (place / "clients").is_dir():
        place_of_states = "device" if isinstance(clients, OnHost) else "host"
        raise ValueError(f"its client states were on the {place_of_states}: use client_states={place_of_states!r}")
    like = _states(server, clients)
    form = _form(jax.tree.leaves(like))
    if manifest["arrays"] != form:
        raise ValueError("its arrays belong to another experiment")
    with np.load(place / "states.npz", allow_pickle=False) as stored:
        leaves = [stored[f"{i:05d}"].view(dtype).reshape(shape) for i, (shape, dtype) in enumerate(form)]
    server, states = jax.tree.unflatten(jax.tree.structure(like), jax.device_put(leaves))
    if isinstance(clients, OnHost):
        clients.load(place / "clients")
    else:
        clients.put(states)
    return server


def _remove(folder: Path, is_unwanted: Callable[[int], bool]) -> None:
    """Remove checkpoints, and what killed processes left of others; none is ever half there under its name."""
    for path in sorted((folder / FOLDER).glob("*")):  # leftovers come first
        if path.name.isdecimal() and is_unwanted(int(path.name)):
            path = path.rename(path.with_name(f".{path.name}.old.tmp"))
        if path.name.endswith(".tmp"):
            shutil.rmtree(path)


def _states(server: Tree, clients: ClientStates) -> tuple[Tree, Tree]:
    return server, () if isinstance(clients, OnHost) else clients.tree


def _form(leaves: list[Any]) -> list[Any]:
    return [[list(np.shape(leaf)), np.dtype(leaf.dtype).name] for leaf in leaves]


def _digest(folder: Path, sync: bool = False) -> str:
    """Return the SHA-256 of all files in a checkpoint but its manifest, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST):
        with path.open("r+b" if sync else "rb") as file:
            digest.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}\n".encode())
            while data := file.read(2**20):
                digest.update(data)
            if sync:
                os.fsync(file.fileno())
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{Path(error.filename).name}: {error.strerror}" if error.filename else error.strerror
    return shorten(error if " " in str(error) else repr(error))  # of a KeyError the key alone says little
