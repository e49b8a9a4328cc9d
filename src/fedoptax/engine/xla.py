"""The persistent cache of compiled programs: the next process starts sooner."""

from __future__ import annotations


def use_cache(least_seconds: float = 0.3) -> None:
    """Keeps programs that took `least_seconds` to compile: in the user's cache folder, or where JAX has been told.

    Args:
      least_seconds: 0 keeps every program, however small, for processes that live a few seconds.
    """
    import jax
    import pooch

    if jax.config.values["jax_compilation_cache_dir"] is None:
        folder = pooch.os_cache("fedoptax") / "xla"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:  # a user without a home: every program is compiled anew
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least_seconds)
    if least_seconds == 0:
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
