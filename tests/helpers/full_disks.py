"""A disk that is full, for tests."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import jax

LEAST_SECONDS = "jax_persistent_cache_min_compile_time_secs"


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files cannot grow beyond `size`, as on a disk that is full; JAX keeps no compiled program meanwhile."""
    before, least_seconds = resource.getrlimit(resource.RLIMIT_FSIZE), getattr(jax.config, LEAST_SECONDS)
    jax.config.update(LEAST_SECONDS, float("inf"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        jax.config.update(LEAST_SECONDS, least_seconds)
