"""A cache of decoded data of its own for each test."""

import pytest


@pytest.fixture(autouse=True)
def cache(request, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDOPTAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
