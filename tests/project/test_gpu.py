"""The GPU recipe, which runs on a CPU with little work."""

import os
import zipfile
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


def test_folders_of_data_are_merged_and_pieces_joined(tmp_path: Path) -> None:
    for name, content in {"a/cifar/one": "1", "b/cifar/two": "2", "b/big.part-aa": "x", "a/big.part-ab": "y"}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    merged = gpu.merge_folders([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    found = [(merged / name).read_text(encoding="utf-8") for name in ("cifar/one", "cifar/two", "big")]
    assert found == ["1", "2", "xy"]


def test_wheels_are_installed_for_what_is_missing(tmp_path: Path) -> None:
    for name in ("numpy", "not_there"):
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", "")
            wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")
    gpu.install_wheels(tmp_path, tmp_path / "site")
    assert (tmp_path / "site" / "not_there.py").is_file() and not (tmp_path / "site" / "numpy.py").exists()


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


@pytest.mark.long
def test_a_queue_stops_in_time_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_queue, "GRACE", 15.0)
    queue = {"rounds": 10**5, "algorithms": '["fedavg"]', "minutes": 10}
    first, page = work_queue(tmp_path, "first", 1, **queue)
    assert set(first["status"]) == {"stopped"} and "| stopped |" in page
    second, _ = work_queue(tmp_path, "second", 1, **queue)
    assert second["round"].max() > first["round"].max()
    assert second["train_loss"][: len(first)].equals(first["train_loss"])


@pytest.mark.long
def test_the_gpu_recipe_writes_tests_and_rounds(tmp_path: Path) -> None:
    options = ["--minutes", "8", "--only", "tests,rounds", "--tests", "tests/test_errors.py", "--shapes", "tiny"]
    gpu.main([*options, "--peers", "", "--out", str(tmp_path)])
    (page,) = tmp_path.iterdir()
    text = page.read_text(encoding="utf-8")
    assert " passed" in text and "FAILED" not in text
    assert "| fedoptax |" in text
