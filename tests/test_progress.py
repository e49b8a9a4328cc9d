"""The lines that stand for a bar in a log."""

from fedoptax import _progress


def test_time_left_in_a_log_leaves_out_runs_that_were_done_before(monkeypatch, capsys):
    """Ten runs of 100 rounds, resumed: four were done, and a round takes a second."""
    now = 0.0
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now)
    with _progress.bar("comparison", 1000, enabled=None, each=100) as update:
        for rounds in range(401, 501):
            now += 1
            update(rounds, f"round {rounds}")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "comparison: round 431, 569 s left"
    assert lines[-1] == "comparison: round 500"
