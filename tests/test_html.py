"""Results, tables and tasks as notebooks show them."""

import fedoptax as fx
from fedoptax._progress import html_table

TASK = fx.load_task("quadratic", num_clients=8)


def test_text_is_escaped_and_what_is_missing_is_a_dash():
    html = html_table([{"<a>": "<b>", "x": None}, {"x": float("nan")}, {"x": 1 / 3}], "<c>")
    assert "&lt;a&gt;" in html and "&lt;b&gt;" in html and html.startswith("<p>&lt;c&gt;</p>")
    assert html.count("<td>–</td>") == 4 and "<td>0.3333</td>" in html


def test_notebooks_show_tasks_and_results(tmp_path):
    shown = TASK._repr_html_()
    assert "quadratic" in shown and "<td>8</td>" in shown and "10×10" in shown
    small = {"rounds": 2, "cohort_size": 3}
    assert "quadratic, completed: the last of 2 rounds" in fx.run(TASK, fx.fedavg(1e-3), **small)._repr_html_()
    grid = {"client_lr": [1e-3, 1e30]}
    swept = fx.sweep(TASK, fx.fedavg, grid, **small)._repr_html_()
    assert swept.count("completed") == swept.count("diverged") == 1
    tuned = fx.tune(TASK, "fedavg", grid, tmp_path / "tune", **small)._repr_html_()
    assert tuned.index("completed") < tuned.index("diverged")  # best first
    compared = fx.compare(TASK, ["fedavg"], tmp_path / "compare", seeds=2, **small)
    losses = [history.last("train_loss") for history in compared.histories["fedavg"]]
    assert f"<td>{sum(losses) / 2:.4g} ± " in compared._repr_html_() and "2 of 2" in compared._repr_html_()
