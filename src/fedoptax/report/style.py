"""The colour, marker and line of each algorithm, in figures and on the page; unique up to 21 algorithms.

The seven colours stay apart in deuteranopia, protanopia and tritanopia; of dashed lines that coincide both are seen.
"""

from typing import NamedTuple

LIGHT = ("#0068b0", "#cf5300", "#00997a", "#a8327f", "#d99a00", "#4aa8e0", "#2b2f36")
DARK = ("#3d8fe0", "#ef6c2f", "#17b58b", "#d670bd", "#f3c552", "#8fd0ff", "#f4f5f7")
MARKERS = (
    ("o", "circle", "M-3.6,0a3.6,3.6 0 1,0 7.2,0a3.6,3.6 0 1,0 -7.2,0Z"),
    ("s", "square", "M-3.3,-3.3H3.3V3.3H-3.3Z"),
    ("^", "triangle-up", "M0,-4.4L4.3,3.4H-4.3Z"),
    ("D", "diamond", "M0,-4.7L4.7,0L0,4.7L-4.7,0Z"),
    ("v", "triangle-down", "M0,4.4L4.3,-3.4H-4.3Z"),
    ("P", "cross", "M-1.5,-4.4H1.5V-1.5H4.4V1.5H1.5V4.4H-1.5V1.5H-4.4V-1.5H-1.5Z"),
    ("X", "x", "M-4.3,-2.3L-2.3,-4.3L0,-2L2.3,-4.3L4.3,-2.3L2,0L4.3,2.3L2.3,4.3L0,2L-2.3,4.3L-4.3,2.3L-2,0Z"),
)
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 2), (1.5, 1.8))


class Look(NamedTuple):
    """How an algorithm is drawn."""

    color: int  # place in `LIGHT` and `DARK`
    matplotlib_marker: str
    plotly_marker: str
    marker_path: str  # of an SVG, around (0, 0)
    dash: tuple[float, ...]  # lengths of line and gap in line widths; () is a solid line

    @property
    def light(self) -> str:
        """The colour on paper."""
        return LIGHT[self.color]

    @property
    def dash_pixels(self) -> str:
        """The dash of a line two pixels wide, for SVG."""
        return " ".join(f"{2 * length:g}" for length in self.dash)


def style_of(index: int) -> Look:
    """Choose the look of the algorithm at a place in the report."""
    size = len(LIGHT)
    return Look(index % size, *MARKERS[(index + index // size) % size], DASHES[index % len(DASHES)])


def palette_css() -> str:
    """Write the colours as CSS variables `--c0`, `--c1`, … for light and dark."""
    light = "".join(f"--c{i}:{color};" for i, color in enumerate(LIGHT))
    dark = "".join(f"--c{i}:{color};" for i, color in enumerate(DARK))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
