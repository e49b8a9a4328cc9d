"""Personalization against gradient descent by hand, client by client."""

from typing import Any

import jax
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.storage.folder import read_json
from small import small_task

LR, STEPS = 0.3, 3
TASK = fx.with_validation(small_task(), 0.3)
OPTIONS: dict[str, Any] = {"rounds": 6, "cohort_size": 3, "batch_size": 16, "eval_every": 2, "mesh": 1}


def by_hand(params: Any, steps: int) -> dict[str, float]:
    """Descend on all of each client's training examples, and summarize nll on its held-out examples."""
    values, gradient, metrics = [], jax.jit(jax.grad(TASK.loss)), jax.jit(TASK.metrics)
    for i in np.unique(TASK.validation_owners):
        own, key = TASK.clients.client(i), jax.random.key(0)
        batch = own | {"mask": np.ones(len(own["y"]), bool)}
        model = params
        for _ in range(steps):
            model = jax.tree.map(lambda p, g: p - LR * g, model, gradient(model, batch, key))
        held_out = {name: array[TASK.validation_owners == i] for name, array in TASK.validation.items()}
        values.append(np.mean(metrics(model, held_out)["nll"]))
    return {"mean": np.mean(values), "spread": np.std(values), "worst_decile": np.max(values)}


@pytest.mark.parametrize(
    ("client_loop", "keep"),
    [
        ("loop", None),
        ("vmap", "best"),
        *(pytest.param(*p, marks=pytest.mark.long) for p in (("loop", "best"), ("vmap", None))),
    ],
)
def test_each_client_takes_its_steps_from_the_model_in_use(client_loop, keep, tmp_path):
    options = {"client_loop": client_loop, "keep": keep, "hyperparameters": {"client_lr": f"constant({LR})"}}
    result = fx.run(TASK, fx.fedavg(1.5), personalize=STEPS, out=tmp_path, **OPTIONS, **options)
    params = result.params if keep is None else result.best_params
    found = result.personalized
    assert found is not None and found == read_json(tmp_path / "summary.json")["personalized"]
    assert (found["steps"], found["client_lr"], found["metric"]) == (STEPS, LR, "val_nll")
    assert found["clients"] == len(np.unique(TASK.validation_owners))
    assert found["before"] == pytest.approx(by_hand(params, 0), rel=1e-5)
    assert found["after"] == pytest.approx(by_hand(params, STEPS), rel=1e-4)
    assert result.best is not None and result.best.round < OPTIONS["rounds"]
    row = result.history[(OPTIONS["rounds"] if keep is None else result.best.round) - 1]
    assert found["before"]["mean"] == pytest.approx(row["client_nll_mean"], rel=1e-5)


def test_the_rate_is_that_of_the_last_round_also_after_resuming(tmp_path):
    options = {"personalize": STEPS, "hyperparameters": {"client_lr": f"cosine({LR}, 20)"}, "engine": "eager"}
    whole = fx.run(TASK, fx.fedavg(0.1), out=tmp_path / "whole", **OPTIONS, **options)
    for rounds, source in ((2, None), (OPTIONS["rounds"], tmp_path / "part")):
        part = {**OPTIONS, **options, "rounds": rounds, "resume_from": source}
        resumed = fx.run(TASK, fx.fedavg(0.1), out=tmp_path / "part", **part)
    assert whole.personalized and whole.personalized["client_lr"] == pytest.approx(LR * (1 + np.cos(np.pi / 4)) / 2)
    assert resumed.personalized == whole.personalized and read_json(tmp_path / "part/config.json")["engine"] == "eager"
    of_two = fx.run(TASK, fx.mime(0.1), **OPTIONS, **options).personalized  # exchanges per step
    assert of_two and of_two["client_lr"] == pytest.approx(LR * (1 + np.cos(np.pi * (5 // 2) / 20)) / 2)
