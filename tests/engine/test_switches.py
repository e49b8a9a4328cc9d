"""Switches for debugging, of JAX, NumPy and Python: a healthy run stays healthy, and its numbers stay the same."""

import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from small import line, small_task

OPTIONS: dict[str, Any] = {"rounds": 3, "cohort_size": 3, "batch_size": 4, "eval_every": 2, "seed": 2}
RUNS: dict[str, dict[str, Any]] = {
    "evaluated": {"algorithm": fx.fedadam(0.1, 0.05)},
    "with faults": {"algorithm": fx.scaffold(0.1), "faults": {"dropout": 0.9}},
}
SWITCHES: dict[str, Any] = {
    "debug_nans": lambda: jax.debug_nans(True), "debug_infs": lambda: jax.debug_infs(True),
    "disable_jit": jax.disable_jit, "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "x64": lambda: jax.enable_x64(True), "NumPy's errors": lambda: np.errstate(all="raise"),
}  # fmt: skip
FEDAVG = fx.fedavg(0.1)
TASK = small_task(test_owners=np.arange(11) % 3)


CASES = [(switch, run, engine) for switch in SWITCHES for run in RUNS for engine in ("compiled", "eager")]
CASES.remove(("disable_jit", "evaluated", "eager"))
CASES.remove(("disable_jit", "with faults", "eager"))
QUICK = {("debug_nans", "with faults", "compiled"), ("x64", "evaluated", "compiled")}


@pytest.mark.parametrize(
    ("switch", "run", "engine"),
    [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.long) for case in CASES],
)
def test_a_healthy_run_stays_healthy(switch, run, engine):
    options = OPTIONS | ({"rounds": 1} if switch == "disable_jit" else {})  # which is slow
    want = fx.run(TASK, **RUNS[run], **options)
    with SWITCHES[switch]():
        got = fx.run(TASK, **RUNS[run], **options, engine=engine)
        for a, b in zip(jax.tree.leaves(got.params), jax.tree.leaves(want.params), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        for column in ("train_loss", "test_nll"):
            one, other = (np.array([row[column] for row in r.history], float) for r in (got, want))
            np.testing.assert_allclose(one, other, rtol=1e-4)


def test_a_diverged_run_says_so_under_debug_nans():
    loss: Any = lambda params, batch, key: jnp.sum(params) / 0  # noqa: E731
    with ExitStack() as stack:
        stack.enter_context(jax.debug_nans(True))
        diverged = stack.enter_context(pytest.raises(fx.RunError, match="diverged in round 1"))
        task = small_task(loss, init=lambda key: jnp.zeros(3), metrics=lambda p, b: {"nll": b["x"][:, 0]})
        fx.run(task, fx.fedavg(0.1), **OPTIONS)
    assert diverged.value.result.params.tolist() == [0, 0, 0]


@pytest.mark.long
@pytest.mark.parametrize("flags", [["-W", "error", "-X", "dev"], ["-OO"]], ids=" ".join)
def test_pythons_switches_change_nothing(flags, tmp_path):
    load = "import fedoptax as fx; r = fx.run(fx.load_task('digits'), fx.fedavg(0.1), rounds=2, cohort_size=3, out="
    programs = [f"{load}{str(tmp_path / name)!r}); print(r.history[-1]['train_loss'])" for name in "ab"]
    plain, switched = (
        subprocess.run([sys.executable, *more, "-c", program], capture_output=True, text=True)
        for more, program in zip(([], flags), programs)
    )
    assert (switched.returncode, switched.stderr, switched.stdout) == (0, "", plain.stdout)


@pytest.mark.parametrize(
    ("name", "value"), [("jax_default_prng_impl", "rbg"),
     *(pytest.param(*case, marks=pytest.mark.long)
       for case in (("jax_enable_x64", True), ("jax_threefry_partitionable", False), ("jax_random_seed_offset", 7)))],
)  # fmt: skip
def test_a_run_is_not_continued_with_other_random_numbers(name, value, tmp_path):
    def run(rounds: int) -> fx.RunResult:
        source = tmp_path if (tmp_path / "config.json").exists() else None
        return fx.run(line(), FEDAVG, **(OPTIONS | {"rounds": rounds}), out=tmp_path, resume_from=source)

    run(1)
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        with pytest.raises(fx.RunError, match=f"{name}={before!r}, got {value!r}"):
            run(2)
        other = fx.run(line(), FEDAVG, **OPTIONS)  # compiled anew, not taken from the run before
    finally:
        jax.config.update(name, before)
    if name != "jax_enable_x64":
        assert not np.array_equal(other.params, fx.run(line(), FEDAVG, **OPTIONS).params)
