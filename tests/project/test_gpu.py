"""The GPU recipe, which runs on a CPU with little work."""

import os
from pathlib import Path

import pandas as pd
import pytest

import gpu
import gpu_queue
from command_line import parse
from fedoptax.experiments.presets import find_setting
from fedoptax.tasks import recipe_of
from gpu_queue import Job

ROOT = Path(__file__).parents[2]
QUEUE = """
options = "--task-set compute_dtype=bfloat16"

[[runs]]
name = "digits"
command = "run --task digits --cohort-size 2 --rounds {rounds}"
algorithms = {algorithms}
minutes = {minutes}
share = 0.5
"""


def test_the_queue_names_each_job_once_and_its_commands_exist() -> None:
    jobs = gpu_queue.read_queue(ROOT / "benchmarks" / "reproductions" / "queue.toml")
    assert len({job.name for job in jobs}) == len({job.command for job in jobs}) == len(jobs)
    for job in jobs:
        options = parse(f"fedoptax {job.command}").params
        assert "compute_dtype=bfloat16" in options["task_set"]
        find_setting(options["task"], options["preset"])
        assert recipe_of(options["task"]).defaults["rounds"] > 0 and 0 < job.share <= 1


@pytest.mark.parametrize(
    ("seconds", "free", "chosen"),
    [(600, 1, "long"), (200, 1, "short"), (200, 0.1, None), (30, 1, "long"), (600, 0.5, None)],
    ids=["first", "fits", "no share", "none fits", "first waits"],
)
def test_the_next_job_is_the_first_that_ends_in_time(seconds: float, free: float, chosen: str | None) -> None:
    jobs = [Job("long", "", minutes=5), Job("short", "", minutes=2, share=0.25)]
    job = gpu_queue.choose_next(jobs, seconds, free)
    assert (job and job.name) == chosen


def work_queue(folder: Path, out: str, time: float, **queue: object) -> tuple[pd.DataFrame, str]:
    """The histories and the page that the GPU recipe writes for a queue on the digits."""
    (folder / "queue.toml").write_text(QUEUE.format(**queue), encoding="utf-8")
    options = ["--minutes", str(time), "--only", "queue", "--queue", str(folder / "queue.toml")]
    gpu.main([*options, "--work", str(folder / "work"), "--out", str(folder / out)])
    (page,) = (folder / out).glob("*.md")
    return pd.read_parquet(folder / out / "queue.parquet"), page.read_text(encoding="utf-8")


@pytest.mark.long
def test_a_queue_runs_side_by_side_and_not_twice(tmp_path: Path) -> None:
    queue = {"rounds": 2, "algorithms": '["fedavg", "fedadam"]', "minutes": 0.1}
    histories, page = work_queue(tmp_path, "first", 5, **queue)
    assert histories.groupby("job")["round"].max().to_dict() == {f"digits/{a}/seed-0": 2 for a in ("fedadam", "fedavg")}
    assert set(histories["status"]) == {"completed"} and page.count("| completed | 2 |") == 2
    os.rename(tmp_path / "first" / "queue.parquet", tmp_path / "queue.parquet")  # as committed
    os.rename(tmp_path / "work", tmp_path / "elsewhere")
    again, page = work_queue(tmp_path, "second", 5, **queue)
    assert again.equals(histories) and "completed" not in page  # nothing was run
