"""The checks of arguments, and what an error's message may hold."""

import math

import jax
import numpy as np
import pytest

from fedoptax.errors import (
    RunError,
    UsageError,
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_positive,
    shorten,
)


@pytest.mark.parametrize("value", [1, 7, np.int32(7), 2**31 - 1])
def test_whole_numbers_of_python_and_numpy_come_back_as_ints(value):
    assert type(check_int("rounds", value)) is int and check_int("rounds", value) == value


@pytest.mark.parametrize("value", [0, -1, 2**31, 1.0, "1", True, None, np.ones(2)])
def test_whole_numbers_outside_their_range_are_refused(value):
    with pytest.raises(UsageError, match=r"^rounds must be "):
        check_int("rounds", value)
    with pytest.raises(UsageError, match=r"^bits must be <= 8, got 9$"):
        check_int("bits", 9, 2, 8)


@pytest.mark.parametrize("value", [0, 0.5, np.float32(0.5), 1e-30])
def test_numbers_within_their_bounds_pass(value):
    check_number("b1", value, 0, 1)


@pytest.mark.parametrize("value", [-0.1, 1, 1.5, math.nan, math.inf, "0.1", True, None, 10**400, 1e-40])
def test_numbers_outside_their_bounds_are_refused(value):
    with pytest.raises(UsageError, match=r"^b1 must be "):
        check_number("b1", value, 0, 1)


def test_bounds_are_open_or_closed_as_asked():
    check_number("alpha", 1, 0, 1, open_low=True, open_high=False)
    check_positive(tau=1e-3, eps=2)
    for low in (0, -1):
        with pytest.raises(UsageError, match=f"^tau must be > 0, got {low}"):
            check_positive(eps=1, tau=low)


def test_traced_numbers_pass_and_traced_flags_do_not():
    assert jax.jit(lambda x: (check_number("x", x, 0), x)[1])(-1.0) == -1.0
    with pytest.raises(UsageError, match=r"^debias must be "):
        jax.jit(lambda flag: (check_flag("debias", flag), flag)[1])(True)


@pytest.mark.parametrize("value", ["False", 1, None])
def test_only_true_and_false_are_flags(value):
    check_flag("debias", True)
    check_flag("debias", np.bool_(False))
    with pytest.raises(UsageError, match=r"^debias must be "):
        check_flag("debias", value)


def test_an_unknown_choice_is_refused_with_the_nearest_one():
    check_choice("task", "digits", ["digits", "mnist"])
    with pytest.raises(UsageError, match="did you mean 'digits'"):
        check_choice("task", "digit", ["digits", "mnist"])
    with pytest.raises(UsageError, match=r"^task must be "):
        check_choice("task", ["digits"], {"digits": 1})


def test_a_message_is_one_short_line_of_printable_characters():
    text = str(RunError("a\nb\x1b[31m\u202ec" + "d" * 5000 + "end"))
    assert len(text) <= 1000 and text.isprintable() and text.startswith("a b?[31m?c") and text.endswith("end")
    assert shorten("abcdefghij", 5) == "abc…j"
