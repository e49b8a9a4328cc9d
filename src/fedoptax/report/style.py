"""One look for every algorithm, the same in figures and on the page.

Seven colours that stay apart in deuteranopia, protanopia and tritanopia, each with its own marker; from the eighth
algorithm on the colours come again with another line. Colour, marker and line together are unique up to 21.
"""

from __future__ import annotations

from dataclasses import dataclass

LIGHT = ("#0068b0", "#cf5300", "#00997a", "#a8327f", "#d99a00", "#4aa8e0", "#2b2f36")
DARK = ("#3d8fe0", "#ef6c2f", "#17b58b", "#d670bd", "#f3c552", "#8fd0ff", "#f4f5f7")
MARKERS = ("circle", "square", "triangle", "diamond", "down", "plus", "cross")
MATPLOTLIB_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 2), (1.5, 1.8))


@dataclass(frozen=True)
class Look:
    """How one algorithm is drawn.

    Attributes:
      color: its place in `LIGHT` and `DARK`.
      marker: its place in `MARKERS`.
      dash: lengths of line and gap in line widths; () is a solid line.
    """

    color: int
    marker: int
    dash: tuple[float, ...]


def look(index: int) -> Look:
    """The look of the algorithm at a place in the order."""
    size = len(LIGHT)
    return Look(index % size, (index + index // size) % size, DASHES[(index // size) % len(DASHES)])


SHADES = 12
_RAMP = ((0xF2, 0xF6, 0xFB), (0x7F, 0xB5, 0xDD), (0x08, 0x45, 0x84))  # pale to deep blue, as in Matplotlib's "Blues"


def shade_color(share: float) -> str:
    """The colour of a heat map at a share from 0 (pale) to 1 (deep)."""
    place = 2 * min(max(share, 0.0), 1.0)
    low = _RAMP[min(int(place), 1)]
    high, part = _RAMP[min(int(place), 1) + 1], place - min(int(place), 1)
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(low, high, strict=True))


def css() -> str:
    """Rules that give a class `c0`, `c1`, … its colour in light and dark, and `s0`, …, `s11` those of heat maps."""
    shades = "".join(
        f".s{i}{{background:{shade_color(i / (SHADES - 1))};color:{'#10151b' if i < 0.6 * SHADES else '#fff'}}}"
        for i in range(SHADES)
    )
    light = "".join(f".c{i}{{--c:{color}}}" for i, color in enumerate(LIGHT))
    dark = "".join(f".c{i}{{--c:{color}}}" for i, color in enumerate(DARK))
    return f"{light}\n{shades}\n@media screen and (prefers-color-scheme:dark){{{dark}}}\n"
