"""PNG figures of searches: heat maps (Reddi et al. 2021, Figure 2) and profiles (Figure 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedoptax.report.figures import png, styled, visible
from fedoptax.report.searches import HeatMap, Profile, Search, heat_map, profiles
from fedoptax.report.style import LIGHT, MATPLOTLIB_MARKERS, shade_color
from fedoptax.report.words import metric_name, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def search_figures(searches: Sequence[Search]) -> dict[str, bytes]:
    """A heat map for each search that has one, and a figure for each profile, by file name."""
    drawn: dict[str, bytes] = {}
    if not searches:
        return drawn
    with styled():
        for place, search in enumerate(searches, start=1):
            found = heat_map(search)
            if found is not None:
                drawn["heat-map.png" if len(searches) == 1 else f"heat-map-{place}.png"] = png(heat_figure(found))
        for place, profile in enumerate(profiles(searches), start=1):
            drawn[f"profile-{place}.png"] = png(profile_figure(profile))
    return drawn


def heat_figure(found: HeatMap) -> Figure:
    """The map with a number in each cell, a frame around the chosen one and a cross where all diverged."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    values = np.array([[math.nan if cell is None else cell.shade for cell in row] for row in found.cells], float)
    known = np.array([[cell is not None and math.isfinite(cell.value) for cell in row] for row in found.cells])
    colors = LinearSegmentedColormap.from_list("shades", [shade_color(i / 10) for i in range(11)])
    figure = Figure(figsize=(1.6 + 0.62 * len(found.columns), 1.5 + 0.42 * len(found.rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(np.where(known, values, math.nan), cmap=colors, vmin=0, vmax=1, aspect="auto")
    axes.grid(visible=False)
    for i, row in enumerate(found.cells):
        for j, cell in enumerate(row):
            if cell is None:
                continue
            dark = known[i, j] and cell.shade > 0.6
            text = number(cell.value, 3) if known[i, j] else "×"
            axes.text(j, i, text, ha="center", va="center", fontsize=7.5, color="white" if dark else "#24292f")
            if cell.best:
                axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor="#cf5300", linewidth=2))
    axes.set_xticks(range(len(found.columns)), [_short(name) for name in found.columns], rotation=45)
    axes.set_yticks(range(len(found.rows)), [_short(name) for name in found.rows])
    axes.set_xlabel(_short(found.x))
    axes.set_ylabel(_short(found.y))
    axes.set_title(f"{_short(found.algorithm)}: {_short(metric_name(found.metric).lower())}", fontsize=9)
    return figure


def _short(label: str) -> str:
    """A label that leaves room for the map."""
    text = visible(label)
    return text if len(text) <= 20 else text[:19] + "…"


def profile_figure(profile: Profile) -> Figure:
    """Lines (or dots, for a search without a grid) of the metric against one hyper-parameter."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for i, (name, line) in enumerate(profile.lines.items()):
        x, y = zip(*line, strict=True)
        axes.plot(
            x, y, color=LIGHT[i % len(LIGHT)], marker=MATPLOTLIB_MARKERS[i % len(MATPLOTLIB_MARKERS)], markersize=4.5,
            linewidth=1.5, linestyle="-" if profile.joined else "none", label=visible(name),
        )  # fmt: skip
    if min(at for line in profile.lines.values() for at, _ in line) > 0:
        axes.set_xscale("log")
    axes.set_xlabel(visible(profile.name))
    axes.set_ylabel(("Best " if profile.joined else "") + metric_name(profile.metric).lower())
    axes.legend()
    return figure
