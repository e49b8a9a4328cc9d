"""The report as one HTML page that needs nothing else: no network and no other file."""

import base64
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fedoptax.engine.options import RunOptions, options_of
from fedoptax.names import ALGORITHMS, BASELINES
from fedoptax.report.clients import tabulate_clients
from fedoptax.report.curves import POINTS, Axis, Curve, axis_limits, find_axes
from fedoptax.report.groups import Group, title_of
from fedoptax.report.load import Run
from fedoptax.report.partition import task_title
from fedoptax.report.report import Report
from fedoptax.report.searches import describe_search, edge_warnings, tabulate_points
from fedoptax.report.style import palette_css, style_of
from fedoptax.report.tables import FIRST, shown_columns, table_rows
from fedoptax.report.words import describe_faults, format_count, format_setting, join_values, join_words, metric_title

_FACT_NAMES = {"aggregate": "Aggregation", "num_params": "Parameters"}
SCRIPTS = ("curves.js", "page.js")  # the page's script, in the order of use, in one function scope


def render(report: Report, figures: Mapping[str, bytes], folder: Path) -> str:
    """Write a report with the `figures` of `draw_figures` as one self-contained page; links lead from `folder`.

    Every text from the runs is escaped; the page's policy forbids other scripts and all network access.
    """
    environment = Environment(
        loader=PackageLoader("fedoptax.report", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    filters = (
        style_of, format_setting, metric_title, describe_search, edge_warnings, tabulate_points, table_rows,
        shown_columns, find_axes, introduce, list_facts, list_incomplete, list_environment, caution_about_times,
        sort_key, title_of, tabulate_clients,
    )  # fmt: skip
    environment.filters |= {function.__name__: function for function in filters}
    environment.filters["link"] = lambda path: relative_link(path, folder)
    environment.filters["figure"] = lambda name, text: _image(figures.get(f"{name}.svg", b""), text)
    text = "\n".join(map(_template, SCRIPTS))
    scripts = [get_plotlyjs(), f'(() => {{\n"use strict";\n{text}\n}})();\n']
    return environment.get_template("report.html").render(
        report=report,
        policy=make_policy(scripts),
        style=Markup(palette_css() + _template("report.css")),
        scripts=[Markup(text) for text in scripts],
        data=chart_data(report),
        points=POINTS if any(len(run.rows) > POINTS for run in report.runs) else None,
        winners=[verdict.leader for verdict in report.verdicts if verdict.is_clear],
        first=FIRST,
        commands=list(dict.fromkeys(run.command or describe_call(of) for of in report.groups for run in of.runs)),
    )


def make_policy(scripts: Sequence[str]) -> str:
    """A content security policy that allows only these scripts, nothing from elsewhere, and all styles, for Plotly."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{text}'" for text in hashes)
    others = "img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; {others}"


def relative_link(target: Path, folder: Path) -> str:
    """A link to a file in or below a folder; nothing for files elsewhere or missing ones."""
    path = os.path.relpath(target.resolve(), folder.resolve())
    if path.startswith("..") or not target.is_file():
        return ""
    return "./" + quote(Path(path).as_posix().encode("utf-8", "surrogateescape"))  # `javascript:x` is no scheme


def _template(name: str) -> str:
    return (resources.files("fedoptax.report") / "templates" / name).read_text(encoding="utf-8")


def _image(svg: bytes, text: str) -> Markup:
    """A figure within the page; as an image, an SVG can neither run scripts nor load anything."""
    image = Markup('<div class="scroll"><img class="figure" alt="{}" src="data:image/svg+xml;base64,{}"></div>')
    return image.format(text, base64.b64encode(svg).decode()) if svg else Markup()


def sort_key(value: Any) -> str:
    """A cell's value for sorting; nothing for a missing number, which is sorted last."""
    return "" if isinstance(value, float) and math.isnan(value) else str(value)


def chart_data(report: Report) -> dict[str, Any]:
    """The numbers that the page's scripts draw."""
    groups, metrics, axes = [], [], find_axes(report.metrics)
    for group in report.groups:
        style = style_of(group.index)
        dash = ",".join(f"{length}px" for length in style.dash_pixels.split()) or "solid"
        look = {"color": style.color, "marker": style.plotly_marker, "dash": dash}
        groups.append({"label": group.label, **look, "diverged": group.is_diverged})
    for metric in report.metrics:
        about = {"name": metric.name, "label": metric_title(metric.name), "higher": metric.higher_is_better}
        limits = {"limits": axis_limits(metric.curves), "logLimits": axis_limits(metric.curves, log=True)}
        curves = [_curve_data(curve.thinned(POINTS), axes) for curve in metric.curves]
        metrics.append({**about, **limits, "curves": curves})
    return {"groups": groups, "axes": [axis._asdict() for axis in axes], "metrics": metrics}


def _curve_data(curve: Curve, axes: Sequence[Axis]) -> dict[str, Any]:
    along = {axis.name: _rounded(curve.along(axis.name)) for axis in axes}
    seeds = [_rounded(values) for values in curve.seeds] if len(curve.seeds) > 1 else []
    over_seeds = {"mean": _rounded(curve.mean), "std": _rounded(curve.std)}
    return {"group": curve.group.index, "along": along, **over_seeds, "seeds": seeds}


def _rounded(values: np.ndarray) -> list[float | None]:
    """Round to six significant digits, finer than a screen."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]


def introduce(report: Report) -> str:
    """Describe in two sentences the algorithms, models and tasks."""
    groups = report.groups
    tasks = list(dict.fromkeys(task_title(group.config) for group in groups))
    models = [group.config["task"]["model"] for group in groups if group.config["task"].get("model")]
    is_repeated = len({group.algorithm for group in groups}) < len(groups)
    who = format_count(len(groups), "configuration" if is_repeated else "algorithm")
    who = f"The {format_count(len(groups), 'best point')}" if report.is_of_search else who
    seeds = join_values(len(group.runs) for group in groups)
    text = f"{who} trained {f'the {join_values(models)} model' if models else 'a model'} on {join_words(tasks[:4])}"
    text += f"{' and more' if len(tasks) > 4 else ''}, with {seeds} seed{'' if seeds == '1' else 's'}."
    descriptions = {(group.config["task"].get("description") or "").rstrip(".") for group in groups}
    return f"{text} The task: {descriptions.pop()}." if len(descriptions) == 1 and descriptions != {""} else text


def list_facts(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The settings that all groups share, or their values."""
    configs = []
    for group in groups:
        sizes = (group.config.get("partition") or {}).get("sizes") or ()
        config = {**group.config, "clients": len(sizes) or group.config["task"].get("num_clients")}
        config["seeds"] = len(group.runs)
        config["faults"] = describe_faults(group.config.get("faults") or {})
        configs.append(config | {"aggregate": group.config.get("aggregate") or "mean"})
    names = ("clients", "cohort_size", "rounds", "batch_size", "local_epochs", "local_steps", "weighting", "faults")
    facts = {}
    for name in (*names, "aggregate", "secure_aggregation", "seeds", "num_params"):
        facts[name] = join_values(config[name] for config in configs if config.get(name) is not None)
    defaults = ("none", "mean", "")
    return [(_FACT_NAMES.get(name) or metric_title(name), text) for name, text in facts.items() if text not in defaults]


def describe_call(group: Group) -> str:
    """Write the Python call of a group's runs; the config has the rest."""
    config, algorithm = group.config, group.config["algorithm"]
    names = [name for name, about in options_of(RunOptions).items() if about.in_config == "always" and name != "seed"]
    options = {name: config[name] for name in names if config.get(name) is not None}
    values, run = (", ".join(f"{k}={v!r}" for k, v in of.items()) for of in (algorithm["hyperparameters"], options))
    seeds = ", ".join(str(one.config["seed"]) for one in group.runs)
    task = {name: value for name, value in config["task"].items() if name != "description"}
    made = f"fedoptax.{algorithm['name']}({values})" if algorithm["name"] in ALGORITHMS else algorithm["name"]
    call = f"fedoptax.run(task, {made}, {run}, seed=...)"  # of an object of the user's, its name
    if algorithm["name"] in BASELINES or ":" in algorithm["name"]:
        of = {algorithm["name"]: algorithm["hyperparameters"]}
        call = f"fedoptax.compare(task, {list(of)}, out, hyperparameters={of}, {run}, seeds=...)"
    return f"# task: {task}, seeds: {seeds}\n{call}"


def list_incomplete(groups: Sequence[Group]) -> list[str]:
    """A line for every run that did not complete."""
    lines = []
    for label, run in [(group.label, run) for group in groups for run in group.runs if not run.is_complete]:
        state = "still running, or killed," if run.status == "running" else run.status
        after = f"after {run.summary.get('rounds_done')} of {run.config['rounds']} rounds"
        message = f": {run.summary['message']}" if run.summary.get("message") else "."
        lines.append(f"{label}, seed {run.config['seed']}: {state} {after}{message}")
    return lines


def caution_about_times(runs: Sequence[Run]) -> str:
    """Say why times of runs do not compare, if they do not."""
    reasons = []
    if len({str([run.config.get("environment"), run.config.get("mesh")]) for run in runs}) > 1:
        reasons.append("runs differ in hardware or versions")
    spans = sorted((end - run.summary["seconds"], end) for run in runs if (end := run.summary.get("ended")))
    if any(later[0] < earlier[1] for earlier, later in pairwise(spans)):
        reasons.append("some ran at the same time, perhaps on one machine")
    return f"Times do not compare: {join_words(reasons)}." if reasons else ""


def list_environment(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Versions and devices of all runs."""
    records = [{"fedoptax": run.config.get("fedoptax")} | (run.config.get("environment") or {}) for run in runs]
    names = dict.fromkeys(name for record in records for name in record)
    values = {name: join_values(record[name] for record in records if record.get(name)) for name in names}
    return [(name, text) for name, text in values.items() if text]
