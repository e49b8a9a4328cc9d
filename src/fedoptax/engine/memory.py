"""How much memory there is, to choose where things live."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def host_bytes() -> int:
    """Memory of this machine, or of the container (control group) that the process is confined to, in bytes."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdigit() else physical


def device_bytes(devices: int = 1) -> int:
    """Memory of the first device, in bytes; where it has none of its own, of the host, shared by so many devices."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", host_bytes() // devices)
