"""The lines that stand for a bar in a log."""

from fedoptax import _progress


def test_time_left_in_a_log_leaves_out_runs_that_were_done_before(monkeypatch, capsys):
    now = 400  # ten runs of 100 rounds, of which four were done; a round takes a second
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now)
    with _progress.bar("comparison", 1000, enabled=None, each=100) as update:
        for now in range(401, 501):
            update(now, f"round {now}")
    first, *_, last = capsys.readouterr().err.splitlines()
    assert (first, last) == ("comparison: round 431, 569 s left", "comparison: round 500")
