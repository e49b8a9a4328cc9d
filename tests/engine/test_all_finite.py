"""The check that stops a run: whether every number of a tree is finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedoptax.engine.round import all_finite

MIXED = {
    "large": np.full((300, 200), 3e38, np.float32), "small": np.full(7, -3e38, np.float32),
    "half": np.ones(5, jnp.bfloat16), "whole": np.arange(3), "none": np.zeros((0, 3), np.float32),
    "scalar": np.float32(1e-45).reshape(1), "complex": np.full(3, 3e38 + 3e38j, np.complex64),
}  # fmt: skip


def test_large_numbers_are_finite_although_their_sums_are_not() -> None:
    for tree in (MIXED, {}, {"whole": MIXED["whole"]}):
        assert bool(all_finite(tree))
        assert bool(jax.jit(all_finite)(tree))
    with jax.enable_x64(True):
        assert bool(all_finite({"double": jnp.array([1e300, -1e308])}))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, complex(0, np.inf), complex(1, np.nan)])
def test_one_number_that_is_not_finite_is_found(value: complex) -> None:
    for leaf in ["complex"] if isinstance(value, complex) else ["large", "small", "half", "scalar", "complex"]:
        array = np.array(MIXED[leaf])
        array.flat[-1] = value
        assert not bool(all_finite(MIXED | {leaf: array}))
