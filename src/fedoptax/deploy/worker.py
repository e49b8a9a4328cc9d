"""A node's worker: the process that keeps data, model and compiled functions from one message to the next.

Flower starts a ClientApp process for every message. `worker_app` is a ClientApp that imports no JAX: it hands the
message to the node's worker, on a socket that only its user can open, and starts a worker where none answers. A worker
ends with its run (after the last round, or when another run's message comes), after `IDLE_TIMEOUT` seconds without a
message, and with the node. If it is killed, the message goes to a new one: a repeated round begins as it did before.
"""

import hashlib
import os
import pickle
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import psutil
from filelock import FileLock
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

IDLE_TIMEOUT = 900.0  # seconds without a message after which a worker ends
START_TIMEOUT = 60.0  # seconds that a worker may take until it listens
ATTEMPTS = 3  # workers that get a message, if each ends without an answer

_is_last_message = threading.Event()


def worker_app(app: str) -> ClientApp:
    """Return a ClientApp that passes its messages to another one, `app` (MODULE:NAME), in the node's worker."""

    def forward(message: Message, context: Context) -> Message:
        address = _address(context.node_id)
        for _ in range(ATTEMPTS):
            with suppress(EOFError, ConnectionError), _connect(address) as worker:
                worker.send((app, message, context))
                if not worker.poll(min(max(10.0, message.metadata.ttl), 1e6)):  # a stranger's ttl is any number, or NaN
                    raise TimeoutError(f"no answer within {message.metadata.ttl:.0f} s")
                is_sound, reply, context.state = worker.recv()
                break
        else:
            raise RuntimeError(f"{ATTEMPTS} workers ended without an answer, perhaps for lack of memory")
        if not is_sound:
            raise reply
        return reply

    thin = ClientApp()
    for handle in (thin.query, thin.train, thin.evaluate):
        handle()(forward)
    return thin


def end_after_reply() -> None:
    """Let the worker of this process, if it is one, end when it has replied to the message in hand."""
    _is_last_message.set()


def run_worker(address: str, node: int) -> None:
    """Handle messages on a socket, one after another, until the process `node` ends or the run is over."""
    Path(address).unlink(missing_ok=True)
    process, run = psutil.Process(node), None
    state: dict[str, Any] = {"since": time.monotonic(), "client": None}
    threading.Thread(target=_watch, args=(address, process, state), daemon=True).start()
    with Listener(address, "AF_UNIX") as listener:
        while not _is_last_message.is_set():
            with listener.accept() as client:
                try:
                    app, message, context = client.recv()
                except EOFError:
                    continue
                if run not in (None, context.run_id):
                    break
                run, state["client"] = context.run_id, client
                try:
                    answer = True, resolve_name(app)(message, context)
                except Exception as error:
                    answer = False, _portable(error)
                state |= {"since": time.monotonic(), "client": None}
                client.send((*answer, context.state))


def _watch(address: str, node: psutil.Process, state: dict[str, Any]) -> None:
    """End the process when the node has ended, no longer waits for an answer, or was idle for too long."""
    while node.is_running():
        client = state["client"]
        if client is None:
            if time.monotonic() - state["since"] > IDLE_TIMEOUT:
                break
            time.sleep(0.5)
        elif wait([client], 0.5) and state["client"] is client:  # a client sends nothing more: it is gone
            break
    Path(address).unlink(missing_ok=True)
    os._exit(0)


def _portable(error: Exception) -> Exception:
    """Return an error that can be sent, with the worker's traceback as a note."""
    error.add_note(f"in the node's worker:\n{''.join(traceback.format_exception(error))}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _address(node: int) -> str:
    """Return the path of a node's socket, in a folder that only this user may enter."""
    folder = Path(tempfile.gettempdir()) / f"fedoptax-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if (status := folder.lstat()).st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"'{folder}' must belong to this user alone")
    name = hashlib.sha256(f"{os.environ.get('FLWR_HOME', '')} {node}".encode()).hexdigest()[:16]
    return str(folder / name)


def _connect(address: str) -> Connection:
    """Connect to the worker at an address, started if none listens there."""
    with FileLock(f"{address}.lock"):
        pid, end = 0, time.monotonic() + START_TIMEOUT
        while time.monotonic() < end and (not pid or os.waitpid(pid, os.WNOHANG) == (0, 0)):
            with suppress(FileNotFoundError, ConnectionRefusedError):
                return Client(address, "AF_UNIX")
            if not pid:
                command = [sys.executable, "-m", "fedoptax.deploy.worker", address, str(os.getppid())]
                environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
                nothing = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
                pid = os.posix_spawn(sys.executable, command, environment, file_actions=nothing, setsid=True)
            time.sleep(0.05)
    raise RuntimeError("the node's worker did not start; the reason is above in the node's log")


if __name__ == "__main__":
    from fedoptax.deploy import worker  # the module that apps import, not a second one

    worker.run_worker(sys.argv[1], int(sys.argv[2]))
