"""Schedules by name, and their values."""

import math

import jax.numpy as jnp
import pytest

import fedoptax as fx
from fedoptax.algorithms.fedopt import FedOptUpload
from fedoptax.experiments.build import build
from fedoptax.schedules import SCHEDULES, is_schedule, parse_schedule, value_at

VALUES = {
    "constant(0.5)": {0: 0.5, 99: 0.5}, "staircase(1, 500)": {0: 1.0, 499: 1.0, 500: 0.1, 1499: 0.01},
    "staircase(2, every=10, factor=0.5)": {9: 2.0, 10: 1.0, 29: 0.5}, "inverse_sqrt(0.3)": {0: 0.3, 3: 0.15},
    "inverse_sqrt(0.3, offset=4)": {0: 0.3, 12: 0.15}, "warmup(0.4, 4)": {0: 0.1, 2: 0.3, 3: 0.4, 50: 0.4},
    "cosine(0.2, 100)": {0: 0.2, 50: 0.1, 100: 0.0, 200: 0.0}, "cosine(0.2, 100, floor=0.5)": {0: 0.2, 100: 0.1},
    "cube_root(20, w=1)": {0: 20.0, 7: 10.0, 26: 20 / 3},
}  # fmt: skip


@pytest.mark.parametrize("text", VALUES)
def test_values(text):
    schedule = parse_schedule(text)
    for t, value in VALUES[text].items():
        assert float(schedule(jnp.int32(t))) == pytest.approx(value, rel=1e-6, abs=1e-9)
        assert value_at(schedule, jnp.int32(t)) > 0  # some algorithms divide by it


def test_every_schedule_is_tried():
    assert {text.partition("(")[0] for text in VALUES} == set(SCHEDULES)


def test_a_hyperparameter_may_be_the_text_of_a_schedule():
    assert [is_schedule(value) for value in ("cosine(1, 2)", "adam", 0.1, "cosine")] == [True, False, False, False]
    algorithm = build("fedavg", {"client_lr": "staircase(0.1, 2)"})
    server = algorithm.init({"w": jnp.zeros(2)})
    sent = []
    for _ in range(4):
        message = algorithm.broadcast(server)
        sent.append(float(message.lr))
        server = algorithm.server_update(server, FedOptUpload({"w": jnp.zeros(2)}, ()), fx.Cohort(1, 1))
    assert [round(math.log10(value)) for value in sent] == [-1, -1, -2, -2]
