"""Commands in tests see nothing of the user's."""

import pytest


@pytest.fixture(autouse=True)
def clean(clean_home):
    """Every test of this folder starts in a clean home."""


@pytest.fixture
def without_figures(monkeypatch):
    """Reports have no files of figures, which take most of their time."""
    monkeypatch.setattr("fedoptax.report.draw_figures", lambda report: {})
