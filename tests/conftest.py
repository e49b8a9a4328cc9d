"""What all tests share."""

import gc
import os

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 1)  # whatever test comes first


def pytest_collection_finish():
    """Let Python look for cycles seldom, and never among the modules: it took 6 % of the tests' processor time."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """A new cache of compiled programs for all workers of pytest: their tests, and processes they start, share many."""
    base = tmp_path_factory.getbasetemp()
    settings = {
        "jax_compilation_cache_dir": str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name.upper(), str(value))
            jax.config.update(name, value)
        patch.setenv("JAX_NUM_CPU_DEVICES", "1")  # processes that tests start compute what the test itself does
        yield


@pytest.fixture
def clean_home(tmp_path, monkeypatch):
    """Nothing of the user's: a new current folder, a new cache, no data folder."""
    monkeypatch.delenv("FEDOPTAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
