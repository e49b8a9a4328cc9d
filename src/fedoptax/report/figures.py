"""PNG, SVG and PDF figures for papers and README files, by Matplotlib."""

import io
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from fedoptax.report.clients import ClientBands
from fedoptax.report.curves import AXES, POINTS, Curve, MetricCurves, axis_limits
from fedoptax.report.load import Run
from fedoptax.report.partition import SHOWN, Partition
from fedoptax.report.report import Report
from fedoptax.report.searches import HeatMap, Profile
from fedoptax.report.style import style_of
from fedoptax.report.words import format_count, format_number, join_values, metric_title, metric_words
from fedoptax.storage.history import read_lines

NAMED = 40  # clients at most whose names are written
GREY, INK, BARS = "#6a7079", "#24292f", "#8d98a7"
LOOK: Any = "default", {  # whatever the user's matplotlibrc says
    "font.size": 9.0, "font.family": "sans-serif", "text.color": INK, "text.parse_math": False, "text.usetex": False,
    "axes.titlesize": 9.0, "axes.titlelocation": "left", "axes.labelcolor": INK, "axes.edgecolor": "#9aa1aa",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#e6e8eb", "xtick.color": GREY, "ytick.color": GREY, "lines.linewidth": 1.5, "lines.markersize": 4.3,
    "lines.markeredgecolor": "white", "lines.markeredgewidth": 0.5, "legend.frameon": False, "legend.fontsize": 8.5,
    "savefig.dpi": 180.0, "pdf.fonttype": 42, "svg.hashsalt": "fedoptax",
}  # fmt: skip


def draw_figures(report: Report) -> dict[str, bytes]:
    """Draw all figures of a report, by file name; those without data are left out."""
    metrics = {metric.name: metric for metric in report.metrics}
    primary = metrics.get(report.groups[0].metric)
    places = {} if report.is_of_search else {group.algorithm: group.index for group in report.groups}
    drawn: dict[str, Figure] = {}
    with matplotlib.style.context(LOOK):
        if primary is not None:
            drawn |= {"metric-rounds": draw_curves(primary), "metric-megabytes": draw_curves(primary, "megabytes")}
        if "train_loss" in metrics:
            drawn["train-loss-rounds"] = draw_curves(metrics["train_loss"])
        if bands := report.client_bands:
            drawn |= {"clients": draw_client_bands(bands), "clients-end": draw_clients(bands)}
        for place, partition in enumerate(report.partitions, start=1):
            drawn["partition" if place == 1 else f"partition-{place}"] = draw_partition(partition)
        for place, (_, heat_map) in enumerate(report.searches, start=1):
            if heat_map is not None:
                drawn["heat-map" if len(report.searches) == 1 else f"heat-map-{place}"] = draw_heat_map(heat_map)
        if phases := next(filter(None, map(draw_phases, report.runs)), None):
            drawn["network-seconds"] = phases
        for place, profile in enumerate(report.profiles, start=1):
            drawn[f"profile-{place}"] = draw_profile(profile, places)
        return {f"{name}.{kind}": _save(one, kind) for name, one in drawn.items() for kind in ("png", "svg", "pdf")}


def partition_png(partition: Partition) -> bytes:
    """Draw a partition as PNG."""
    with matplotlib.style.context(LOOK):
        return _save(draw_partition(partition), "png")


def draw_curves(metric: MetricCurves, x: str = "round") -> Figure:
    """Draw a metric against an axis for all groups: mean over seeds as a line, ± standard deviation as a band."""
    curves = [curve.thinned(POINTS) for curve in metric.curves]
    labels = [visible(curve.group.label, 90) for curve in curves]
    is_beside = max(map(len, labels)) <= 34
    columns = -(-len(curves) // 21) if is_beside else 1
    height = max(4.0, 0.19 * -(-len(curves) // columns) + 0.9) if is_beside else max(4.2, 0.19 * len(curves) + 3)
    figure = Figure(figsize=(6.0 + 1.6 * columns, height), layout="constrained")
    axes = figure.add_subplot()
    lines = [_draw_curve(axes, curve, curve.along(x)) for curve in curves]
    _scale_values(axes, metric, curves)
    axes.set_xlabel(next(axis.title for axis in AXES if axis.name == x))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=x == "round"))
    axes.margins(x=0.015)
    n = sorted({len(curve.seeds) for curve in curves})
    if n[-1] > 1:
        title = f"mean of {join_values(n)} seeds, band ± 1 standard deviation"
        axes.set_title(title, loc="right", color=GREY, fontsize=8.5)
    figure.legend(
        lines, labels, loc="outside right upper" if is_beside else "outside lower left", handlelength=3.2, ncols=columns
    )
    return figure


def _draw_curve(axes: Axes, curve: Curve, x: np.ndarray) -> Line2D:
    style, index = style_of(curve.group.index), curve.group.index
    color = style.light
    shown = np.isfinite(curve.mean) & np.isfinite(x)
    size = max(1, int(shown.sum()))
    axes.fill_between(x, curve.mean - curve.std, curve.mean + curve.std, color=color, alpha=0.15, linewidth=0)
    every = (min(size - 1, (index * 3) % max(1, size // 8)), max(1, size // 8))
    (line,) = axes.plot(x[shown], curve.mean[shown], color=color, marker=style.matplotlib_marker, markevery=every)
    line.set(linestyle=(0, style.dash) if style.dash else "-", zorder=2.1 if style.dash else 2)  # a gap shows others
    if curve.group.is_diverged and shown.any():
        axes.plot(x[shown][-1:], curve.mean[shown][-1:], marker="x", color=color, mec=color, markersize=8, mew=2)
    return line


def _scale_values(axes: Axes, metric: MetricCurves, curves: Sequence[Curve]) -> None:
    """Choose a logarithmic axis for losses that need one, else a linear one."""
    is_log = not metric.higher_is_better and _needs_log(np.concatenate([curve.mean for curve in curves]))
    if is_log:
        axes.set_yscale("log", subs=(2, 3, 5))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    limits = axis_limits(curves, is_log)
    if limits is not None:
        axes.set_ylim(*limits)
    axes.set_ylabel(visible(metric_title(metric.name)) + (" (log scale)" if is_log else ""))


def _needs_log(values: np.ndarray) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size and finite.min() > 0 and finite.max() > 20 * finite.min())


def draw_client_bands(bands: Sequence[ClientBands]) -> Figure:
    """Draw the median over clients as a line, the middle half and the middle 80 % of them as bands, group by group."""
    columns = min(3, len(bands))
    rows = -(-len(bands) // columns)
    figure = Figure(figsize=(7.6 if columns > 1 else 5.4, 0.4 + 2.4 * rows), layout="constrained")
    plots = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, band in zip(plots.flat, bands):
        color, values = style_of(band.group.index).light, band.values.T
        for low, high, alpha in ((0, 4, 0.15), (1, 3, 0.3)):
            axes.fill_between(band.rounds, values[low], values[high], color=color, alpha=alpha, lw=0)
        axes.plot(band.rounds, values[2], color=color)
        axes.set_title(visible(band.group.label, 34))
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in list(plots.flat)[len(bands) :]:
        axes.set_visible(False)
    figure.supxlabel("Round", fontsize=9, color=INK)
    figure.supylabel(visible(f"{metric_title(bands[0].metric)} of the clients"), fontsize=9, color=INK)
    return figure


def draw_phases(run: Run) -> Figure | None:
    """Draw the seconds of a deployment's rounds by phase, from its network.jsonl; None if there are none."""
    rows = [json.loads(line) for line in read_lines(run.path, "network.jsonl")]
    table = pd.DataFrame([row.get("seconds", {}) for row in rows], [row["round"] for row in rows]).fillna(0.0)
    if not table.size:
        return None
    figure = Figure(figsize=(7.6, 3.0), layout="constrained")
    title = visible(f"{run.config['algorithm']['name']}, seed {run.config['seed']}")
    axes = figure.add_subplot(xlabel="Round", ylabel="Seconds", title=title)
    edges, tops = np.append(table.index, table.index[-1] + 1) - 0.5, table.cumsum(axis=1)
    for place, phase in enumerate(table):
        color, base = style_of(place).light, tops[phase] - table[phase]
        axes.stairs(tops[phase], edges, baseline=base, fill=True, color=color, label=phase)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside right upper")
    return figure


def draw_clients(bands: Sequence[ClientBands]) -> Figure:
    """Draw each client's metric at the end, one line per group, by increasing mean over groups, with clients' names."""
    table = pd.DataFrame({place: band.end for place, band in enumerate(bands)})
    table = table.loc[table.mean(axis=1).sort_values().index]
    columns = -(-len(bands) // 16)
    figure = Figure(figsize=(6.0 + 1.6 * columns, 3.4), layout="constrained")
    axes = figure.add_subplot(ylabel=visible(metric_title(bands[0].metric)))
    for place, band in enumerate(bands):
        style, values = style_of(band.group.index), table[place].to_numpy()
        axes.plot(values, color=style.light, marker=style.matplotlib_marker, label=visible(band.group.label, 34))
    is_named = table.index.name != "client" and len(table) <= NAMED
    names = [visible(str(name), 20) for name in table.index] if is_named else []
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_xlabel("" if names else "Clients, in increasing order")
    figure.legend(loc="outside right upper", ncols=columns)
    return figure


def draw_partition(partition: Partition) -> Figure:
    """Draw how data are divided: the first clients' sizes and classes, and the distribution of all sizes."""
    classes = 0 if partition.counts is None else partition.counts.shape[1]
    height = 3.4 if classes == 0 else min(6.5, 2.6 + 0.13 * max(classes, 8))
    figure = Figure(figsize=(7.6, height), layout="constrained")
    ratio = [2.6, 1] if len(partition.sizes) > 2 else [1]
    heights = [1, max(1.6, classes * 0.14)] if classes else [1]
    grid = figure.add_gridspec(len(heights), len(ratio), width_ratios=ratio, height_ratios=heights)
    top = figure.add_subplot(grid[0, 0])
    below = figure.add_subplot(grid[1, 0], sharex=top) if classes else top
    if partition.counts is not None and classes:
        _draw_classes(figure, below, partition.counts)
        top.tick_params(labelbottom=False, bottom=False)
    sizes = partition.sizes[:SHOWN]
    top.bar(np.arange(len(sizes)), sizes, width=0.82, color=BARS, linewidth=0)
    top.set(ylabel="Examples", xlim=(-0.6, len(sizes) - 0.4))
    top.grid(axis="x", visible=False)
    total = len(partition.sizes)
    below.set_xlabel("Client" if total <= SHOWN else f"Client (the first {SHOWN} of {total:,})")
    if total <= 12:
        below.set_xticks(np.arange(total))
    if len(ratio) > 1:
        _draw_histogram(figure.add_subplot(grid[:, 1]), partition)
    top.set_title(visible(partition.title))
    return figure


def _draw_classes(figure: Figure, axes: Axes, counts: np.ndarray) -> None:
    shares, classes = counts / np.maximum(1, counts.sum(1, keepdims=True)), counts.shape[1]
    top = max(1.0, np.ceil(10 * float(shares.max()) - 1e-9)) / 10  # the largest, rounded up to a tenth
    image = axes.imshow(shares.T, aspect="auto", cmap="Blues", vmin=0, vmax=top, interpolation="nearest")
    axes.grid(visible=False)
    axes.set(ylabel="Class", yticks=np.arange(0, classes, max(1, -(-classes // 12))))
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.5, aspect=36, pad=0.02)
    bar.set_label("Share of the client's examples", fontsize=8.5)
    bar.set_ticks([0, top / 2, top], labels=[f"{100 * tick:.0f} %" for tick in (0, top / 2, top)])
    bar.outline.set_visible(False)


def _draw_histogram(axes: Axes, partition: Partition) -> None:
    low, high = int(partition.sizes.min()), int(partition.sizes.max())
    width = -(-(high - low + 1) // 24)
    bins = [edge - 0.5 for edge in range(low, high + width + 1, width)]
    axes.hist(partition.sizes, bins, rwidth=0.9, color=BARS)
    axes.grid(axis="x", visible=False)
    axes.set(xlabel="Examples per client", ylabel="Clients")
    axes.set_title(f"Sizes of all {format_count(len(partition.sizes), 'client')}")
    for axis, ticks in ((axes.yaxis, 5), (axes.xaxis, 4)):
        axis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 5, 10], integer=True))


def draw_heat_map(heat_map: HeatMap) -> Figure:
    """Draw a number in each cell, a frame around the chosen one and a cross where a run diverged."""
    values = np.array([[math.nan if cell is None else cell.score for cell in row] for row in heat_map.cells], float)
    columns, rows = heat_map.columns, heat_map.rows
    figure = Figure(figsize=(1.6 + 0.62 * len(columns), 1.5 + 0.42 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    rule = heat_map.result.search.rule
    worth = values if rule.higher_is_better else -np.log(values) if _needs_log(values) else -values
    image = axes.imshow(worth, cmap="Blues", aspect="auto")
    depths = np.ma.filled(image.norm(worth), 0.0)
    axes.grid(visible=False)
    for i, row in enumerate(heat_map.cells):
        for j, cell in enumerate(row):
            if cell is None:
                continue
            text = format_number(cell.score, 3) if math.isfinite(cell.score) else "×"
            color = "white" if depths[i, j] > 0.72 else "black"
            axes.text(j, i, text, ha="center", va="center", fontsize=7.5, color=color)
            if cell is heat_map.result.best_or_none:
                axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor="#cf5300", linewidth=2))
    axes.set_xticks(range(len(columns)), [visible(name, 20) for name in columns], rotation=45)
    axes.set_yticks(range(len(rows)), [visible(name, 20) for name in rows])
    axes.set(xlabel=visible(heat_map.x, 20), ylabel=visible(heat_map.y, 20))
    title = visible(f"{heat_map.result.search.algorithm}: {metric_words(rule.metric)}", 60)
    figure.suptitle(title, x=0.02, ha="left", fontsize=9, wrap=True)
    return figure


def draw_profile(profile: Profile, places: Mapping[str, int]) -> Figure:
    """Draw lines (or dots, without a grid) of the metric against one hyper-parameter; `places` are of the curves."""
    columns, line_style = -(-len(profile.lines) // 16), "-" if profile.is_grid else ""
    figure = Figure(figsize=(4.2 + 1.6 * columns, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for place, (name, line) in enumerate(profile.lines.items()):
        style, label = style_of(places.get(name, place)), visible(name)
        axes.plot(*zip(*line), linestyle=line_style, color=style.light, marker=style.matplotlib_marker, label=label)
    if min(x for line in profile.lines.values() for x, _ in line) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    if not profile.higher_is_better and _needs_log(np.array([y for line in profile.lines.values() for _, y in line])):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel=visible(profile.name), ylabel=visible(profile.metric_title))
    figure.legend(loc="outside right upper", ncols=columns)
    return figure


def visible(label: str, length: int = 72) -> str:
    """Make a label one short line that Matplotlib shows: it hides `_a`, and control characters break an SVG."""
    text = "".join(letter if letter.isprintable() else "?" for letter in " ".join(label.split())) or "–"
    text = text if len(text) <= length else text[: length - 1] + "…"
    return f" {text}" if text.startswith("_") else text


def _save(figure: Figure, kind: str) -> bytes:
    """Write the figure as a PNG, SVG or PDF file that depends on nothing but the data."""
    buffer = io.BytesIO()
    dates: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    metadata = {"Software": "fedoptax"} if kind == "png" else {"Creator": "fedoptax", **dates[kind]}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(buffer, format=kind, metadata=metadata, transparent=kind != "png")
    return buffer.getvalue()
