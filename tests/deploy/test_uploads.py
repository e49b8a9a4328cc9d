"""A deployment leaves out uploads that lie, and the rest is exact."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from federations import (
    InMemory,
    arrays_of,
    assert_params,
    expected_params,
    network_lines,
    replace_arrays,
    rounds_in,
    run_in_memory,
    small_deployment,
    task_of,
)
from fedoptax._files import read_json
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.server import RawReply, check_reply
from fedoptax.deploy.wire import WireError, pack
from fedoptax.errors import RunError
from fedoptax.storage.checkpoint import rounds_of
from fedoptax.wrappers.uploads import upload_form

Lie = Callable[[np.ndarray], np.ndarray]


class Lying(InMemory):
    """Clients of whom the `liars`, by default all, send what `lie` makes of each array of their uploads."""

    def __init__(self, given: Deployment, states: Path, lie: Lie, liars: Sequence[int] = (0, 1, 2)) -> None:
        super().__init__(given, states)
        self.lie, self.liars = lie, liars

    def change(self, partition: int, reply: RawReply) -> RawReply:
        if partition not in self.liars:
            return reply
        floats = {name: a for name, a in arrays_of(reply.arrays).items() if a.dtype == np.float32}
        false = {name: self.lie(array) for name, array in floats.items()}
        return RawReply(replace_arrays(reply.arrays, **false), reply.numbers)


def large(honest: np.ndarray) -> np.ndarray:
    return -30 * np.sign(honest)  # a norm of 770


@pytest.mark.parametrize(
    ("algorithm", "compress"), [("fedadam", ""), *(pytest.param(*case, marks=pytest.mark.long)
                        for case in (("fedadam", "topk:fraction=0.2"), ("fedlamb", ""), ("fafed", "")))],
)  # fmt: skip
def test_an_upload_of_1e30_is_left_out_and_the_rest_is_exact(tmp_path, algorithm, compress):
    given = small_deployment(tmp_path / "run", algorithm, compress=compress, cohort_size=3, quorum=0.5)
    run_in_memory(given, Lying(given, tmp_path / "nodes", lambda honest: np.full_like(honest, 1e30), [1]))
    assert [line["accepted"] for line in network_lines(tmp_path / "run")] == [[0, 2]] * 3
    assert_params(tmp_path / "run", expected_params(given, [[0, 2]] * 3))


@pytest.mark.parametrize(
    ("algorithm", "lie"), [pytest.param("fafed", np.negative, marks=pytest.mark.long), ("fedavg", large)]
)
def test_one_lie_of_ordinary_size_that_would_end_the_run_is_found_and_left_out(tmp_path, algorithm, lie):
    given = small_deployment(tmp_path / "run", algorithm, cohort_size=3, quorum=0.5, loss_bound=10.0, upload_bound=0.0)
    if algorithm == "fafed":  # with a v of every coordinate, of which some turn negative
        given = replace(given, hyperparameters={"lr": 0.02})
    run_in_memory(given, Lying(given, tmp_path / "nodes", lie, [1]))
    lines = network_lines(tmp_path / "run")
    faults = [fault for line in lines for fault in line["faults"]]
    assert faults and {fault["partition"] for fault in faults} == {1}
    assert all("reply left out: with it " in fault["reason"] for fault in faults)
    assert_params(tmp_path / "run", expected_params(given, [line["accepted"] for line in lines]))


def test_a_test_loss_that_explodes_is_no_checkpoint_and_names_the_largest_uploads(tmp_path):
    given = small_deployment(tmp_path / "run", "fedavg", eval_every=3, loss_bound=10.0)
    run_in_memory(replace(given, rounds=1))
    before = (tmp_path / "run" / "params.npz").read_bytes()
    again = replace(given, resume=True)
    with pytest.raises(RunError, match=r"diverged in round 2 .*test_loss is .*the bound is 24.* \(node node-\d\) with"):
        run_in_memory(again, Lying(given, tmp_path / "nodes", large))
    assert read_json(tmp_path / "run" / "summary.json")["status"] == "diverged" and rounds_of(tmp_path / "run") == [1]
    assert (tmp_path / "run" / "params.npz").read_bytes() == before
    run_in_memory(again)
    assert rounds_in(tmp_path / "run") == ([1, 2, 3], [1, 2, 3])


def test_codes_that_decode_to_infinity_are_refused(tmp_path):
    given = small_deployment(tmp_path / "run", compress="qsgd:bits=2")
    algorithm = given.build_algorithm()
    form = upload_form(algorithm, task_of().init(jax.random.key(0)))

    def largest(struct: Any) -> np.ndarray:
        return np.full(struct.shape, 3.4e38 if np.issubdtype(struct.dtype, np.floating) else 255, struct.dtype)

    raw = RawReply(pack(jax.tree.map(largest, form)), {"num-examples": 1, "train-loss": 0.5})
    with pytest.raises(WireError, match="decoded"):
        check_reply(raw, form, 10, algorithm.decode)
