"""PNG figures for papers and README files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from fedoptax.report.curves import Curve, curve, higher_is_better, limits, thin
from fedoptax.report.groups import Group, group_runs
from fedoptax.report.load import Run
from fedoptax.report.partition import SHOWN, Partition, partitions
from fedoptax.report.style import LIGHT, MATPLOTLIB_MARKERS, look
from fedoptax.report.words import count, metric_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Points a curve has at most in a figure.
POINTS = 1000
GREY = "#6a7079"
_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.labelsize": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa1aa",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8eb",
    "grid.linewidth": 0.7,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "axes.labelcolor": "#24292f",
    "text.color": "#24292f",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": "sans-serif",
    "figure.dpi": 100.0,
    "savefig.dpi": 180.0,
}


def figures(runs: Sequence[Run]) -> dict[str, bytes]:
    """All figures of a report as PNG, by file name; those without data are left out."""
    groups = group_runs(runs)
    metric = groups[0].metric
    with styled():
        drawn: dict[str, Figure | None] = {
            "metric-rounds.png": curve_figure(groups, metric, x="rounds"),
            "metric-megabytes.png": curve_figure(groups, metric, x="megabytes"),
            "train-loss-rounds.png": curve_figure(groups, "train_loss", x="rounds"),
        }
        for place, item in enumerate(partitions(groups), start=1):
            drawn["partition.png" if place == 1 else f"partition-{place}.png"] = partition_figure(item)
        return {name: png(figure) for name, figure in drawn.items() if figure is not None}


def partition_png(item: Partition) -> bytes:
    """The picture of a partition as PNG."""
    with styled():
        return png(partition_figure(item))


def curve_figure(groups: Sequence[Group], metric: str, x: str = "rounds") -> Figure | None:
    """A metric of all groups: the mean over seeds as a line, ± standard deviation as a band.

    Args:
      groups: from `group_runs`.
      metric: a history column.
      x: `"rounds"`, or `"megabytes"` for all that was sent both ways.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    found = [(group, curve(group, metric)) for group in groups]
    curves = [(group, thin(c, POINTS)) for group, c in found if c is not None]
    if not curves:
        return None
    rows = len(curves) if max(len(group.label) for group, _ in curves) <= 34 else 0
    beside = 0 < rows <= 21
    figure = Figure(figsize=(7.6, max(4.0, 0.19 * rows + 0.9) if beside else 4.2), layout="constrained")
    axes = figure.add_subplot()
    for group, c in curves:
        _draw_curve(axes, group, c, c.rounds if x == "rounds" else c.megabytes)
    _scale(axes, metric, curves, higher_is_better(groups, metric))
    axes.set_xlabel("Round" if x == "rounds" else "Sent by and to all clients (MB)")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=x == "rounds"))
    axes.margins(x=0.015)
    several = max(len(c.seeds) for _, c in curves)
    if several > 1:
        note = f"mean of {several} seeds, band ± 1 standard deviation"
        axes.set_title(note, loc="right", color=GREY, fontsize=8.5, fontweight="normal", pad=6)
    handles = [axes.lines[place] for place in _main_lines(axes)]
    labels = [visible(group.label) for group, _ in curves]
    if beside:
        figure.legend(handles, labels, loc="outside right upper", handlelength=3.2)
    else:
        figure.legend(handles, labels, loc="outside lower left", handlelength=3.2)
    return figure


def partition_figure(item: Partition) -> Figure:
    """Who holds which data: the first clients' classes and sizes, and how all sizes are distributed."""
    from matplotlib.figure import Figure

    rows = 0 if item.counts is None else item.counts.shape[1]
    height = 3.4 if rows == 0 else min(6.5, 2.6 + 0.13 * max(rows, 8))
    figure = Figure(figsize=(7.6, height), layout="constrained")
    histogram = len(item.sizes) > 2
    ratio = [2.6, 1] if histogram else [1]
    if item.counts is None:
        top, *side = figure.subplots(1, len(ratio), width_ratios=ratio, squeeze=False)[0]
    else:
        grid = figure.add_gridspec(2, len(ratio), width_ratios=ratio, height_ratios=[1, max(1.6, rows * 0.14)])
        top = figure.add_subplot(grid[0, 0])
        below = figure.add_subplot(grid[1, 0], sharex=top)
        side = [figure.add_subplot(grid[:, 1])] if histogram else []
        _draw_classes(figure, below, item)
        top.tick_params(labelbottom=False, bottom=False)
    _draw_sizes(top, item, is_last=item.counts is None)
    for axes in side:
        _draw_histogram(axes, item)
    top.set_title(visible(item.title), fontsize=9, fontweight="normal")
    return figure


def _draw_curve(axes: Axes, group: Group, c: Curve, x: np.ndarray) -> None:
    style = look(group.index)
    color = LIGHT[style.color]
    shown = np.isfinite(c.mean) & np.isfinite(x)
    size = max(1, int(shown.sum()))
    axes.fill_between(x, c.mean - c.std, c.mean + c.std, color=color, alpha=0.15, linewidth=0)
    axes.plot(
        x[shown], c.mean[shown], color=color, linewidth=1.5, label=visible(group.label),
        linestyle=(0, style.dash) if style.dash else "-",
        marker=MATPLOTLIB_MARKERS[style.marker], markersize=4.2, markeredgecolor="white", markeredgewidth=0.5,
        markevery=(min(size - 1, (group.index * 3) % max(1, size // 8)), max(1, size // 8)),
    )  # fmt: skip
    if group.diverged and shown.any():
        axes.plot(x[shown][-1:], c.mean[shown][-1:], marker="x", color=color, markersize=8, markeredgewidth=2)


def _main_lines(axes: Axes) -> Iterator[int]:
    """The places of the labelled lines: the crosses at the end of diverged curves have no label."""
    for place, line in enumerate(axes.lines):
        if not str(line.get_label()).startswith("_child"):
            yield place


def _scale(axes: Axes, metric: str, curves: Sequence[tuple[Group, Curve]], higher: bool) -> None:
    """A logarithmic axis for losses over more than a factor of 20, else a linear one."""
    from matplotlib.ticker import LogLocator, NullFormatter

    values = np.concatenate([c.mean for _, c in curves])
    values = values[np.isfinite(values)]
    log = bool(not higher and values.size and values.min() > 0 and values.max() > 20 * values.min())
    if log:
        axes.set_yscale("log", subs=(2, 3, 5))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    bounds = limits(curves, log)
    if bounds is not None:
        axes.set_ylim(*bounds)
    axes.set_ylabel(metric_name(metric) + (" (log scale)" if log else ""))


def _draw_sizes(axes: Axes, item: Partition, is_last: bool) -> None:
    shown = item.sizes[:SHOWN]
    axes.bar(np.arange(len(shown)), shown, width=0.82, color="#8d98a7", linewidth=0)
    axes.set_ylabel("Examples")
    axes.grid(axis="x", visible=False)
    axes.set_xlim(-0.6, len(shown) - 0.4)
    if is_last:
        _label_clients(axes, item)


def _draw_classes(figure: Figure, axes: Axes, item: Partition) -> None:
    assert item.counts is not None
    share = item.counts / np.maximum(1, item.counts.sum(1, keepdims=True))
    image = axes.imshow(share.T, aspect="auto", cmap="Blues", vmin=0, vmax=item.top_share, interpolation="nearest")
    axes.grid(visible=False)
    axes.set_ylabel("Class")
    classes = share.shape[1]
    axes.set_yticks(np.arange(0, classes, max(1, -(-classes // 12))))
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    _label_clients(axes, item)
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.5, aspect=36, pad=0.02)
    bar.set_label("Share of the client's examples", fontsize=8.5)
    ticks = [0, item.top_share / 2, item.top_share]
    bar.set_ticks(ticks, labels=[f"{100 * tick:.0f} %" for tick in ticks])
    bar.outline.set_visible(False)


def _label_clients(axes: Axes, item: Partition) -> None:
    total = len(item.sizes)
    axes.set_xlabel("Client" if total <= SHOWN else f"Client (the first {SHOWN} of {total:,})")
    if total <= 12:
        axes.set_xticks(np.arange(total))


def _draw_histogram(axes: Axes, item: Partition) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.bar(item.edges[:-1] - 0.5, item.bins, width=np.diff(item.edges) * 0.9, align="edge", color="#8d98a7")
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("Examples of a client")
    axes.set_ylabel("Clients")
    axes.set_title(f"Sizes of all {count(len(item.sizes), 'client')}", fontsize=9, fontweight="normal")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10], integer=True))


def visible(label: str) -> str:
    """A label that Matplotlib shows: one line, and no leading underscore, which it takes for a hidden artist."""
    text = " ".join(label.split()) or "–"
    text = text if len(text) <= 72 else text[:71] + "…"
    return f" {text}" if text.startswith("_") else text


def png(figure: Figure) -> bytes:
    """The figure as a file."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(buffer, format="png", metadata={"Software": "fedoptax"})
    return buffer.getvalue()


@contextmanager
def styled() -> Iterator[None]:
    """Our look, whatever the user's matplotlibrc says."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield
