"""Without PyTorch: one line that names the extra. This file needs no PyTorch."""

from __future__ import annotations

import pytest

import fedoptax.torch as ft
from fedoptax.errors import UsageError


def test_every_name_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedoptax.torch.find_spec", lambda name: None)
    assert len(ft.__all__) > 10
    for name in ft.__all__:
        with pytest.raises(UsageError, match=r"^torch: not installed; .*pip install 'fedoptax\[torch\]'\)$"):
            getattr(ft, name)


def test_an_unknown_name_is_pythons_own_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Adam'"):
        ft.Adam  # noqa: B018
