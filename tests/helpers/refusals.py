"""Examples that readers refuse or read, and the check of a refusal."""

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from fedoptax.errors import DataError, UsageError

DAYS = [datetime.datetime(2020, 1, day) for day in (1, 2)]
SPANS = [datetime.timedelta(days) for days in (1, 2)]
NUMBERS = {"f": [1.0, 2.0], "label": ["a", "b"], "client": ["u", "v"]}


def refused(call: Callable[[], Any], *words: str) -> None:
    """The call is refused in one line with these words."""
    with pytest.raises((DataError, UsageError)) as error:
        call()
    message = str(error.value)
    assert all(word in message for word in words) and "\n" not in message, message
