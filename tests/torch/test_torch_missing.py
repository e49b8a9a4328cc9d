"""Without PyTorch: one line that names the extra. This file needs no PyTorch."""

import importlib.util
import sys

import pytest

from fedoptax.errors import UsageError


def test_the_import_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "fedoptax.torch", raising=False)
    with pytest.raises(UsageError, match=r"^PyTorch is not installed \(pip install 'fedoptax\[torch\]'\)$"):
        import fedoptax.torch  # noqa: F401
