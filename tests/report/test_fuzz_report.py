"""Names from data and runs stay text: a hostile report has the elements of a harmless one, its files their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedoptax.report import load_runs, write_report
from fedoptax.report.html import render
from fedoptax.report.titles import title_of
from fuzzing.command import tree_of
from fuzzing.page import Page, check_page
from fuzzing.run_targets import config, files, write
from fuzzing.target import Finding

HOSTILE = (
    "<script>alert(1)</script>", "</script><script>alert(1)//", '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)", "]]><svg onload=alert(1)>", "</style><style>*{background:url(//x)}", "<!--",
    "--><b>", "<![CDATA[",
    "&lt;script&gt;", "&#60;script&#62;", "{{ 7*7 }}", "{% include '/etc/passwd' %}", "{# #}", "${alert(1)}",
    "\\u003cscript",
    "\u202egnp.exe", "\u2066x\u2069", "\x00", "\x1b[2J", "\ud800", "a\u2028b\u2029c", "../../etc/passwd", "/etc/passwd",
    "..", "con", "a" * 5000, "=cmd|' /C calc'!A0", "</title><script>alert(1)</script>", "</noscript>", "`",
    "|", "[x](javascript:a)",
    "__proto__", "constructor", "toString", "</SCRIPT ", "<ScRiPt/x>", "\ufeff", "𝕏" * 50, "\n\n# x",
)  # fmt: skip


def folder_of(place: Path, text: str) -> Path:
    """A run in which everything that may be text is this text."""
    task = {"name": text, "description": text, "model": text, "partition": text, "alpha": text, text: text}
    write(
        place,
        files(
            task=task,
            algorithm={"name": text, "hyperparameters": {text: text, "lr": text}, "reference": text},
            environment={text: text, "python": text},
            weighting=text,
            command=text,
            fedoptax=text,
            primary_metric=f"test_{text}",
        ),
    )
    row = {"round": 1, f"test_{text}": 0.5, text: 1.5, "train_loss": 0.5}
    (place / "history.jsonl").write_text(json.dumps(row) + "\n")
    (place / "summary.json").write_text(json.dumps({"status": text, "rounds_done": 1, "message": text}))
    return place


def page_of(folder: Path) -> Page:
    runs = load_runs(folder)
    return check_page(render(runs, title_of(runs)))


def shape(page: Page) -> list[tuple[str, tuple[str, ...]]]:
    """The elements with the names of their attributes, in order, apart from what depends on the words of a text."""
    words = ("span", "b")  # a command is a row of words
    return [
        (tag, tuple(name for name, _ in attributes if name != "class"))
        for tag, attributes in page.elements
        if tag not in words
    ]


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(folder_of(tmp_path_factory.mktemp("harmless") / "run", "name"))


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_names_add_nothing_to_the_page(tmp_path: Path, text: str, harmless: Page) -> None:
    page = page_of(folder_of(tmp_path / "run", text))
    assert shape(page) == shape(harmless)
    assert page.scripts[1] == harmless.scripts[1]
    data = json.loads(page.scripts[0])
    assert data["groups"][0]["label"] == text.encode("utf-8", "replace").decode()


@given(st.text(min_size=1, max_size=30))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_name_adds_anything(tmp_path_factory: pytest.TempPathFactory, harmless: Page, text: str) -> None:
    assert shape(page_of(folder_of(tmp_path_factory.mktemp("any") / "run", text))) == shape(harmless)


def test_the_check_itself_finds_what_it_looks_for(tmp_path: Path) -> None:
    write(tmp_path / "run", files())
    runs = load_runs(tmp_path)
    html = render(runs, title_of(runs))
    check_page(html)
    for old, new in (
        ("<h1>", "<h1><img src=x>"),
        ("<h1>", "<h1 onclick=a()>"),
        ('href="data:,"', 'href="//x"'),
        ("<h1>", "<script>1</script><h1>"),
        ("<h1>", "<!-- x --><h1>"),
        ("Content-Security-Policy", "Other"),
    ):
        with pytest.raises(Finding):
            check_page(html.replace(old, new, 1))


@pytest.mark.parametrize("text", ["../../up", "/a/<b>\x00"], ids=ascii)
def test_files_have_their_own_names_whatever_the_runs_are_called(tmp_path: Path, text: str) -> None:
    folder_of(tmp_path / "runs" / "one", text)
    before = tree_of(tmp_path)
    write_report(tmp_path / "runs", tmp_path / "out")
    added = tree_of(tmp_path).keys() - before.keys()
    assert added == {"out"} | {
        f"out/{name}"
        for name in (
            "report.html", "table.csv", "table.md", "history.csv", "figures", "figures/metric-rounds.png",
            "figures/metric-megabytes.png", "figures/train-loss-rounds.png", "figures/partition.png",
        )
    }  # fmt: skip


def test_folders_with_hostile_names_are_reported_on(tmp_path: Path) -> None:
    for name in ("<script>alert(1)<", "' onload='", "\u202ex", "a\nb", "-rf", "$(x)"):
        write(tmp_path / name, files(algorithm={"name": "fedavg", "hyperparameters": {"x": name}}))
    page_of(tmp_path)
    (tmp_path / "<b>\x1b").mkdir()
    write(tmp_path / "<b>\x1b", {"config.json": b"{"})
    with pytest.raises(Exception, match="cannot be read") as error:
        load_runs(tmp_path)
    assert str(error.value).isprintable()


def test_client_ids_and_classes_of_a_file_stay_text(tmp_path: Path) -> None:
    """From a CSV file to the page: a column, a client, a class and the file itself have hostile names."""
    from fedoptax.storage.config import partition_record
    from fedoptax.tasks import load_task

    text = '<img src=x onerror="alert(1)">'
    path = tmp_path / f"{text.replace('/', '')}.csv"
    rows = "".join(
        f'{i},"{text.replace(chr(34), chr(34) * 2)}{i % 2}","{text.replace(chr(34), chr(34) * 2)}{i % 3}"\n'
        for i in range(12)
    )
    path.write_text(f'"{text.replace(chr(34), chr(34) * 2)}",client,label\n{rows}')
    task = load_task(f"file:{path}")
    content = config(
        task={"name": task.name, "description": task.description, **task.spec}, partition=partition_record(task)
    )
    write(tmp_path / "run", files() | {"config.json": json.dumps(content).encode()})
    page = page_of(tmp_path / "run")
    assert "img" not in {tag for tag, _ in page.elements}
