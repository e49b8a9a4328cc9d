"""The orders of a client's examples over its local epochs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.engine.batches import LocalWork, client_batches


def test_an_epoch_has_its_own_permutation_whatever_the_number_of_epochs() -> None:
    data = {"x": jnp.arange(7)}

    def first_of(epochs: int) -> list[list[int]]:
        work = LocalWork(batch_size=7, epochs=epochs)
        batches = client_batches(data, jnp.int32(0), jnp.int32(7), jax.random.key(3), work, 7)
        return [np.asarray(batches.get(jnp.int32(k)).examples["x"]).tolist() for k in range(epochs)]

    three = first_of(3)
    assert first_of(1) == three[:1]
    assert first_of(2) == three[:2]
    assert len({tuple(one) for one in three}) == 3
    assert all(sorted(one) == list(range(7)) for one in three)
