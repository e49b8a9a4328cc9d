"""The persistent cache of compiled programs, for processes that live a few seconds."""

from __future__ import annotations


def use_cache() -> None:
    """Keeps every compiled program, however small, in the user's cache folder."""
    import jax
    import pooch

    jax.config.update("jax_compilation_cache_dir", str(pooch.os_cache("fedoptax") / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
