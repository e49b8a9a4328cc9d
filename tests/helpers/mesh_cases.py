"""Run with 8 host devices: rounds on meshes of them against one device. Prints what was found as JSON.

Arguments: cases, each ALGORITHM:LOOP:COHORT:DEVICES; or `steps`, which counts local steps; or `places:FOLDER`.
"""

import json
import sys
from functools import lru_cache
from typing import Any

import jax
import numpy as np

import fedoptax as fx
from fedoptax.tasks.task import Frozen
from small import SIZES, masked_loss, ragged_clients, small_task

ALGORITHMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "fedadam": (fx.fedadam(0.3, 0.1), {}), "scaffold": (fx.scaffold(0.3), {"personalize": "2:0.1"}),
    "fafed": (fx.fafed(0.1), {}), "dropout": (fx.scaffold(0.3), {"faults": {"dropout": 0.3}}),
    "secure": (fx.fafed(0.1), {"secure_aggregation": 4.0}),
    "asynchronous": (fx.fedadam(0.3, 0.1), {"asynchronous": 6, "speeds": "lognormal:1"}),
    "median": (fx.scaffold(0.3), {"aggregate": "median", "faults": {"dropout": 0.3}}),
}  # fmt: skip
FROZEN = Frozen({"scale": np.float32(2)})
TASK = small_task(
    test=ragged_clients(dtype="float32").examples,
    test_owners=np.repeat(np.arange(len(SIZES)), SIZES),
    eval_batch=3,
    predict=lambda params, batch: jax.nn.softmax(
        FROZEN.arrays["scale"] * jax.numpy.tanh(batch["x"] @ params["hidden"]["kernel"])[:, :3]
    ),
    frozen=FROZEN,
    classes=(),
)
TASK = fx.with_metrics(TASK, "auroc,f1")
assert -(-sum(SIZES) // 3) % 4  # of four devices some evaluate a batch more than others


@lru_cache
def result(name: str, loop: str, cohort: int, devices: int) -> Any:
    """Everything that a run leaves, as float64 arrays: parameters, states, and the columns of the history."""
    algorithm, options = ALGORITHMS[name]
    shared = {"cohort_size": cohort, "batch_size": 4, "seed": 3, "client_loop": loop, "mesh": devices}
    done = fx.run(TASK, algorithm, rounds=4, **shared, **options)
    columns = {name: done.history.column(name) for name in done.history[-1] if name != "seconds"}
    if done.personalized is not None:
        columns |= {f"client_{name}_after": [value] for name, value in done.personalized["after"].items()}
    return jax.tree.map(lambda a: np.asarray(a, np.float64), (done.params, done.state, done.clients.tree, columns))


def compare(case: str) -> dict[str, Any]:
    name, loop, cohort, devices = case.split(":")
    alone, many = (result(name, loop, int(cohort), d) for d in (1, int(devices)))
    worst = jax.tree.map(lambda a, b: float(np.max(np.abs(a - b) / (1 + np.abs(a)), initial=0)), alone, many)
    moved = float(np.max(np.abs(jax.tree.leaves(alone[0])[0] - np.asarray(jax.tree.leaves(TASK.init(None))[0]))))
    columns = {name: float(np.max(np.abs(np.subtract(a, many[3][name])))) for name, a in alone[3].items()}
    evaluated = {name: far for name, far in columns.items() if name.startswith(("test_", "client_"))}
    return {"worst": float(np.max(jax.tree.leaves(worst))), "moved": moved, "evaluated": evaluated}


def steps() -> dict[str, int]:
    """Local steps of a cohort of 3 on 2 devices: as counted, and as there should be."""
    counted: list[int] = []

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: counted.append(1))
        return masked_loss(params, batch, key)

    task = small_task(loss, sizes=(4, 9, 17), test=None)
    fx.run(task, fx.fedavg(0.1), rounds=1, cohort_size=3, batch_size=4, client_loop="loop", mesh=2)
    jax.effects_barrier()
    return {"counted": len(counted), "wanted": 1 + 3 + 5}


def places(folder: str) -> dict[str, float]:
    """How far runs on 4 devices are from each other: states on the host, examples streamed, resumed in between."""
    options: dict[str, Any] = {"cohort_size": 5, "batch_size": 4, "seed": 3, "mesh": 4}
    whole = fx.run(TASK, fx.scaffold(0.3), rounds=6, **options).state
    fx.run(TASK, fx.scaffold(0.3), rounds=3, out=f"{folder}/a", **options)
    others = {
        "resumed": fx.run(TASK, fx.scaffold(0.3), rounds=6, resume_from=f"{folder}/a", **options),
        "host": fx.run(TASK, fx.scaffold(0.3), rounds=6, client_states="host", **options),
        "stream": fx.run(TASK, fx.scaffold(0.3), rounds=6, examples="stream", **options),
    }

    def distance(a: Any, b: Any) -> float:
        return max(float(np.max(np.abs(np.asarray(x) - np.asarray(y)))) for x, y in zip(*map(jax.tree.leaves, (a, b))))

    return {name: distance(whole, other.state) for name, other in others.items()}


def found(case: str) -> dict[str, Any]:
    if case.startswith("places:"):
        return places(case.removeprefix("places:"))
    return steps() if case == "steps" else compare(case)


if __name__ == "__main__":
    assert jax.device_count() == 8
    print(json.dumps({case: found(case) for case in sys.argv[1:]}))
