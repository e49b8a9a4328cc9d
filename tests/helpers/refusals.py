"""Examples that readers refuse or read, and the checks of refusals. (That a message is one line: test_errors.py.)"""

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from fedoptax.errors import RunError, UsageError

DAYS = [datetime.datetime(2020, 1, day) for day in (1, 2)]
SPANS = [datetime.timedelta(days) for days in (1, 2)]
NUMBERS = {"f": [1.0, 2.0], "label": ["a", "b"], "client": ["u", "v"]}


def refused(call: Callable[[], Any], *words: str) -> None:
    """The call is refused with these words."""
    with pytest.raises((RunError, UsageError)) as error:
        call()
    assert all(word in str(error.value) for word in words), error.value


def refusals(cases: Iterable[Any] | Mapping[str, Any]) -> Callable[..., None]:
    """Make the test that each `(call, pattern)` or `(call, error, pattern)` is refused, with a message of the pattern.

    The error is by default `UsageError`; the keys of a mapping name its cases.
    """
    named = cases.items() if isinstance(cases, Mapping) else ((None, case) for case in cases)

    @pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in named])
    def test(case: Any) -> None:
        call, *error, pattern = case
        with pytest.raises(error[0] if error else UsageError, match=pattern):
            call()

    return test
