"""The checks of arguments, and what an error's message may hold."""

import math
from functools import partial

import jax
import numpy as np

from fedoptax.errors import RunError, check_choice, check_flag, check_int, check_number, check_positive, shorten
from refusals import refusals


def test_what_fits_passes():
    """Whole numbers of Python and NumPy come back as ints; a traced number passes, whatever it is."""
    for value in (1, 7, np.int32(7), 2**31 - 1):
        assert type(check_int("rounds", value)) is int and check_int("rounds", value) == value
    for number in (0, 0.5, np.float32(0.5), 1e-30):
        check_number("b1", number, 0, 1)
    check_number("alpha", 1, 0, 1, open_low=True, open_high=False)
    check_positive(tau=1e-3, eps=2)
    check_flag("debias", True)
    check_flag("debias", np.bool_(False))
    check_choice("task", "digits", ["digits", "mnist"])
    assert jax.jit(lambda x: (check_number("x", x, 0), x)[1])(-1.0) == -1.0


NOT_WHOLE = (0, -1, 2**31, 1.0, "1", True, None, np.ones(2))
OUTSIDE = (-0.1, 1, 1.5, math.nan, math.inf, "0.1", True, None, 10**400, 1e-40)
test_what_does_not_fit_is_refused_by_name = refusals(
    [
        *((partial(check_int, "rounds", value), "^rounds must be ") for value in NOT_WHOLE),
        (partial(check_int, "bits", 9, 2, 8), "^bits must be <= 8, got 9$"),
        *((partial(check_number, "b1", value, 0, 1), "^b1 must be ") for value in OUTSIDE),
        *((partial(check_positive, eps=1, tau=low), f"^tau must be > 0, got {low}") for low in (0, -1)),
        *((partial(check_flag, "debias", value), "^debias must be ") for value in ("False", 1, None)),
        (lambda: jax.jit(lambda flag: (check_flag("debias", flag), flag)[1])(True), "^debias must be "),
        (partial(check_choice, "task", "digit", ["digits", "mnist"]), "did you mean 'digits'"),
        (partial(check_choice, "task", ["digits"], {"digits": 1}), "^task must be "),
    ]
)


def test_a_message_is_one_short_line_of_printable_characters():
    text = str(RunError("a\nb\x1b[31m\u202ec" + "d" * 5000 + "end"))
    assert len(text) <= 1000 and text.isprintable() and text.startswith("a b?[31m?c") and text.endswith("end")
    assert shorten("abcdefghij", 5) == "abc…j"
