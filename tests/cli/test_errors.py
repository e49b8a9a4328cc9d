"""Wrong input: one line that names the argument, the exit status, and nothing written or lost."""

import pytest

from command_line import SMALL, fedoptax

RESULTS = '{"kind": "run"}'
TUNE = ["tune", "--algorithm", "fedavg", "--grid", "client_lr=0.1,1"]

WRONG = [
    (["run", "--task", "digit"], 2, "digits"), (["run", "--algorithm", "fedadm"], 2, "fedadam"),
    (["run", "--algoritm", "fedadam"], 2, "--algoritm"),
    (["run", "--algorithm", "fedavg,fedadam"], 2, "must be one of"),
    (["run", "--algorithm", "./own.py:make", "--preset", "none"], 2, "MODULE:FUNCTION"),
    (["run", "--algorithm", "math:pi", "--preset", "none"], 2, "it is no function"),
    (["run", "--task", "file:nothing.csv"], 2, "nothing.csv"), (["run", "--task-set", "seed=2"], 2, "--task-set"),
    (["run", "--lr", "0.1"], 2, "--set client_lr=VALUE"), (["run", "--set", "client_lr=fast"], 2, "number"),
    (["run", "--stop-after", "5:val_loss"], 2, "--validation-fraction"),
    (["run", "--task", "nothere.csv"], 2, "file:nothere.csv"),
    (["run", "--task", "fedoptax:load_task"], 2, "None"), (["tune", "--grid", "client_lr=1..0.1"], 2, "write 0.1..1"),
    (["tune", "--weighting", "paper", "--grid", "weighting=examples,uniform"], 2, "already has a value in --weighting"),
    (["compare", "--from", "nowhere"], 2, "nowhere"), (["compare", "--seeds", "1,x"], 2, "--seeds must be a whole"),
    (["run", "--preset", "none"], 2, "client_lr"), (["run", "--set", "client_lr"], 2, "--set"),
    (["run", "--cohort-size", "51"], 2, "--cohort-size must be <= 50"),
    (["run", "--algorithm", "local_amsgrad", "--personalize", "3"], 2, "--personalize needs a learning rate"),
    (["run", "--local-epochs", "2", "--local-steps", "3"], 2, "--local-epochs"),
    (["run", "--mesh", "99"], 2, "mesh"), (["compare", "--mesh", "99"], 2, "mesh"),
    (["run", "--checkpoint-every", "-1"], 2, "--checkpoint-every must"),
    (["run", "--process", "1"], 2, "--process"), (["compare", "--algorithms", "fedavg,fedavg"], 2, "--algorithms"),
    (["compare", "--tune", "--budget", "0"], 2, "--budget"), (["compare", "--grid", "client_lr=1,2"], 2, "--grid"),
    ([*TUNE, "--set", "client_lr=0.1"], 2, "client_lr"), ([*TUNE, "--select", "nonsense"], 2, "--select"),
    (["list", "models"], 2, "models"), (["report", "nowhere"], 2, "nowhere"),
    (["report", ".", "--target", "nan"], 2, "target"), (["resume", "nowhere"], 2, "nowhere"),
    (["compare", "--tune", "--grid", "client_lr=0.1,1", "--budget", "1"], 2, "2 points"),
    (["tune", "--grid", "client_lr=0.1", "--grid", "client_lr=1"], 2, "twice"),
    (["tune", "--search", "grid"], 2, "grid"), (["run", "--staleness-exponent", "1"], 2, "asynchronous"),
    (["run", "--algorithm", "centralized", "--mesh", "1", "--privacy", "clip=1,noise_multiplier=1,delta=1e-5"], 2,
     "privacy cannot be used with centralized"),
    (["data", "fetch", "nope"], 2, "data set must be one of"), (["data", "fetch", "femnist"], 1, "LEAF"),
    (["data", "partition", "--task", "mnist"], 1, "`fedoptax data fetch mnist` downloads it"),
    (["run", "--task", "mnist", "--preset", "paper:fafed"], 2, "did you mean 'paper:fafed-low'"),
    (["run", "--set", "client_lr=cosine(1)"], 2, "cosine(lr, rounds, floor)"),
    (["frobnicate"], 2, "frobnicate"), (["rnu"], 2, "No such command 'rnu'. Did you mean 'run'?\n"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "status", "name"), WRONG, ids=lambda a: " ".join(a) if isinstance(a, list) else ""
)
def test_wrong_input_is_one_line_and_leaves_nothing(arguments, status, name, tmp_path, capsys):
    """With --overwrite: what is refused must not cost earlier results."""
    out = tmp_path / "result"
    out.mkdir()
    (out / "config.json").write_text(RESULTS)
    writes = arguments[0] in ("run", "compare", "tune")
    given = [*arguments, "--out", out, "--overwrite"] if writes else arguments
    assert fedoptax(*given) == status
    printed = capsys.readouterr()
    *notes, error = printed.err.splitlines(keepends=True)
    assert printed.out == "" and error.startswith("fedoptax: ")
    assert all(note.startswith(("loaded ", "weighting: ")) for note in notes)
    assert name in error
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["config.json"]
    assert (out / "config.json").read_text() == RESULTS


def test_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert fedoptax("run", *SMALL, "--out", tmp_path / "file" / "a") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("fedoptax: ") and str(tmp_path / "file") in error


def test_loss_that_ends_above_its_start_is_told(capsys):
    rates = ["--algorithm", "fedavg", "--set", "server_lr=1", "--set", "client_lr=300"]
    assert fedoptax("run", *SMALL, *rates, "--out", "r") == 0
    assert "warning: fedavg ends with train_loss" in capsys.readouterr().err
