"""One device a core of the CPU, so that clients train side by side.

A client's operations are small: shared out over cores they wait for each other and for each other's caches. Clients on
cores of their own do not (LOG.md has the numbers).
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import jax

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def use_cores() -> None:
    """Has JAX see every core as a device of the CPU, for meshes of them.

    Nothing is changed where JAX has been told a number (`JAX_NUM_CPU_DEVICES`, or the flag
    `--xla_force_host_platform_device_count`), where it has begun already, and in one of several processes.
    """
    told = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if told or jax.config.values["jax_num_cpu_devices"] != -1 or jax.distributed.is_initialized():
        return
    try:
        jax.config.update("jax_num_cpu_devices", cores())
    except RuntimeError:  # a program that called JAX before us keeps the devices that it has
        return


def cores() -> int:
    """The cores that this process may use: those it is bound to, at most its container's share."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CPU_QUOTA.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return bound
    return min(bound, math.ceil(int(quota) / int(period))) if quota.isdigit() else bound


def cores_a_device() -> int:
    """How many cores work on one program of one device, at least 1; on an accelerator too, of which it says nothing."""
    return max(1, cores() // jax.local_device_count())
