"""The GPU recipe, which runs on a CPU with little work."""

from pathlib import Path

import pytest

import gpu_queue
import pages
from command_line import parse
from fedoptax.experiments.presets import find_setting
from fedoptax.tasks import recipe_of
from gpu_queue import Job

ROOT = Path(__file__).parents[2]
LARGE = ("cifar10", "cifar100", "wikitext-2", "text:llm/shakespeare.jsonl")  # tasks that the queue runs in bfloat16


def test_the_queue_names_each_job_once_and_its_commands_exist():
    jobs = gpu_queue.read_queue(ROOT / "benchmarks" / "reproductions" / "queue.toml")
    assert len({job.name for job in jobs}) == len({job.command for job in jobs}) == len(jobs)
    steps = {f"{name}/{step['name']}" for name in pages.names() for step in pages.read(name)["steps"]}
    for job in jobs:
        assert job.name.rsplit("/", 2)[0] in steps
        options = parse(f"fedoptax {job.command}").params
        is_narrow = options["task"] in LARGE and "float32" not in job.name
        assert ("compute_dtype=bfloat16" in options["task_set"]) == is_narrow
        find_setting(options["task"], options["preset"])
        assert recipe_of(options["task"]).defaults["rounds"] > 0 and 0 < job.share <= 1


@pytest.mark.parametrize(
    ("seconds", "free", "chosen"),
    [(600, 1, "long"), (200, 1, "short"), (200, 0.1, None), (30, 1, "long"), (600, 0.5, None)],
    ids=["first", "fits", "no share", "none fits", "first waits"],
)
def test_the_next_job_is_the_first_that_ends_in_time(seconds, free, chosen):
    jobs = [Job("long", "", minutes=5), Job("short", "", minutes=2, share=0.25)]
    job = gpu_queue.choose_next(jobs, seconds, free)
    assert (job and job.name) == chosen
