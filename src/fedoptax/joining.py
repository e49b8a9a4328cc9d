"""How a process of `fedoptax run --distributed` joins the others, before JAX has touched a device."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import Any

import jax

from fedoptax.errors import RunError, UsageError, brief

SHUTDOWN_SECONDS = 30  # that a process waits for the others at its end


def join(options: Mapping[str, Any]) -> None:
    """Connects this process to the others, if `options["distributed"]`.

    Args:
      options: `coordinator`, `processes` and `process`, all given, or none: then JAX finds out from Slurm, Open MPI,
        Kubernetes or a cloud's TPUs. `heartbeat` and `connect` in seconds.

    Raises:
      UsageError: some of the three are missing or wrong, or no cluster is found.
      RunError: not all processes came within `connect` seconds.
    """
    names = ("coordinator", "processes", "process")
    given = [name for name in names if options.get(name) is not None]
    if not options.get("distributed"):
        if given:
            raise UsageError(f"--{given[0]}: given without --distributed, allowed is with it")
        return
    if given and len(given) < len(names):
        missing = next(name for name in names if name not in given)
        raise UsageError(
            f"--{missing}: missing beside --{given[0]}, allowed is all of --coordinator --processes --process"
        )
    for name, least in (("heartbeat", 5), ("connect", 1)):
        if options[name] < least:
            raise UsageError(f"--{name}: {options[name]} given, allowed is a whole number of seconds >= {least}")
    if given:
        _check(options["coordinator"], options["processes"], options["process"])
    coordinator = options["coordinator"]
    try:
        jax.distributed.initialize(
            coordinator,
            options["processes"],
            options["process"],
            cluster_detection_method="deactivate" if given else None,
            initialization_timeout=options["connect"],
            heartbeat_timeout_seconds=options["heartbeat"],
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
            coordinator_bind_address=_bound(coordinator) if given else None,
        )
    except ValueError as error:
        if given or "be defined" not in str(error):
            raise RunError(f"--distributed: {brief(error)}") from error
        raise UsageError(
            "--distributed: no Slurm, Open MPI, Kubernetes or TPU cluster found; "
            "give --coordinator HOST:PORT --processes N --process I"
        ) from None
    except RuntimeError as error:  # JAX's own is one
        where = coordinator or "the coordinator"
        raise RunError(
            f"--distributed: not all processes met at {where} within {options['connect']} seconds "
            f"({brief(str(error).splitlines()[0])})"
        ) from error


def _check(coordinator: str, processes: int, process: int) -> None:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UsageError(f"--coordinator: '{coordinator}' given, allowed is HOST:PORT")
    if processes < 1:
        raise UsageError(f"--processes: {processes} given, allowed is a whole number >= 1")
    if not 0 <= process < processes:
        raise UsageError(f"--process: {process} given, allowed is a whole number from 0 to {processes - 1}")


def _bound(coordinator: str) -> str | None:
    """Where process 0 listens: on this machine alone if that is what the address says, else as JAX does."""
    host = coordinator.rpartition(":")[0]
    try:
        own = host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        own = False
    return coordinator if own and "JAX_COORDINATOR_BIND_ADDRESS" not in os.environ else None
