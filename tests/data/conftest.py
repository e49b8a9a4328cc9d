"""A cache of decoded data of its own for each test."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDOPTAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
