"""Commands in tests see nothing of the user's."""

import pytest


@pytest.fixture(autouse=True)
def clean(clean_home: None) -> None:
    """Every test of this folder starts in a clean home."""
