"""The chart of a profile, as places on a canvas for the page's template."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedoptax.report.searches import Profile
from fedoptax.report.style import LIGHT
from fedoptax.report.words import in_sentence, metric_name, number, setting

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 300, 64, 600, 16, 244
LABEL_GAP = 16


@dataclass(frozen=True)
class Scale:
    """From values to places: `log` for a logarithmic one."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        share = 0.5 if high == low else (at - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)


def drawn(profile: Profile, colors: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The chart: lines, dots, ticks and labels in units of the canvas; `colors` are those of algorithms elsewhere."""
    taken = colors or {}
    xs = sorted({at for line in profile.lines.values() for at, _ in line})
    ys = [value for line in profile.lines.values() for _, value in line]
    x, y = Scale(xs[0], xs[-1], LEFT + 16, RIGHT - 8, xs[0] > 0), _y_scale(ys)
    ends = [y(line[-1][1]) for line in profile.lines.values()]
    labels = spread_out(ends)
    lines = [
        _line(profile, name, line, taken.get(name, i % len(LIGHT)), x, y, labels[i])
        for i, (name, line) in enumerate(profile.lines.items())
    ]
    better = "higher" if profile.higher_is_better else "lower"
    best = "best " if profile.joined else ""
    return {
        "caption": f"{metric_name(best + in_sentence(profile.metric))} against {profile.name}; {better} is better",
        "width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "bottom": BOTTOM,
        "x_title": f"{profile.name} (log scale)" if x.log else profile.name,
        "x_ticks": [{"at": x(value), "text": setting(float(f"{value:.3g}"))} for value in _some(xs, x)],
        "y_ticks": [{"at": y(value), "text": number(value, 3)} for value in ticks(y.low, y.high)],
        "lines": lines,
    }  # fmt: skip


def _line(
    profile: Profile, name: str, line: Sequence[tuple[float, float]], color: int, x: Scale, y: Scale, label: float
) -> dict[str, Any]:
    places = [(x(at), y(value)) for at, value in line]
    dots = [
        {"x": place[0], "y": place[1], "text": f"{name}: {profile.name} {setting(at)}, {number(value)}"}
        for place, (at, value) in zip(places, line)
    ]
    path = "M" + "L".join(f"{a},{b}" for a, b in places) if profile.joined else ""
    return {
        "label": name, "color": color, "dots": dots, "path": path, "label_y": label,
        "leader": places[-1] if abs(label - places[-1][1]) > 3 else None,
    }  # fmt: skip


def _y_scale(values: Sequence[float]) -> Scale:
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return Scale(low - margin, high + margin, BOTTOM, TOP)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two ends, about `most` of them."""
    step = 10 ** math.floor(math.log10((high - low) / most))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= most)
    return [round(i * step, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def spread_out(places: Sequence[float], gap: float = LABEL_GAP) -> list[float]:
    """The places moved apart so that labels there do not overlap, in the same order."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [0.0] * len(places)
    before = -math.inf
    for i in order:
        moved[i] = before = max(places[i], before + gap)
    over = max(0.0, before - (BOTTOM + 8))
    return [round(place - over, 1) for place in moved]


def _some(values: Sequence[float], x: Scale) -> list[float]:
    """Those of the values whose labels have room beside each other."""
    kept: list[float] = []
    for value in values:
        if not kept or x(value) - x(kept[-1]) >= 46:
            kept.append(value)
    return kept
