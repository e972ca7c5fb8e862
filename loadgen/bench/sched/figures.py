"""figures.py - the points of the figures of FastServe's authors (shared
data/fastserve-figures.txt, whose head explains the format), and the rate at which a latency curve
crosses a level."""
from __future__ import annotations

import math
import re
from pathlib import Path

FILE = "fastserve-figures.txt"  # in the shared data
Points = list[tuple[float, float]]

# Line colours of the file.
BLUE, ORANGE = (0.12, 0.47, 0.71), (1.0, 0.5, 0.05)
GREEN, RED = (0.17, 0.63, 0.17), (0.84, 0.15, 0.16)
# Where lines leave a plot, a little above the last tick of its axis.
CLIPPED = (0.264, 0.33, 0.492, 0.659, 0.791, 1.38, 1.45)


class Curve:
    def __init__(self, colour: tuple[float, ...], points: Points) -> None:
        self.colour, self.points = colour, points


def read(path: Path) -> dict[str, list[list[Curve]]]:
    """Figure name -> panels -> curves. Clipped values are left out."""
    figures: dict[str, list[list[Curve]]] = {}
    panels: list[list[Curve]] = []
    top = math.inf
    for line in path.read_text().splitlines():
        head = re.match(r"## (\S+)\.pdf labels:", line)
        curve = re.match(r"\s+\(([\d., ]+)\) (\S.*)", line)
        if head:
            panels = figures.setdefault(head[1], [])
        elif line.strip().startswith("axes "):
            panels.append([])
            top = float(line.split()[-1])
        elif curve and panels:
            colour = tuple(float(x) for x in curve[1].split(","))
            panels[-1].append(Curve(colour, measured(curve[2], top)))
    return figures


def measured(text: str, top: float) -> Points:
    pairs = [tuple(map(float, pair.split(":"))) for pair in text.split()]
    return [(x, y) for x, y in pairs if y <= top or y not in CLIPPED]


def curve(figures: dict[str, list[list[Curve]]], name: str, panel: int,
          colour: tuple[float, ...]) -> Points:
    """All pieces of one colour, in the order of the rate; [] if it is missing."""
    panels = figures.get(name, [])
    if panel >= len(panels):
        return []
    return sorted(p for c in panels[panel] if c.colour == colour for p in c.points)


def first_crossing(points: Points, level: float) -> float | None:
    """The rate at which the curve first rises to `level`, interpolated linearly; None if it never
    does, or begins above it."""
    points = sorted(points)
    if not points or points[0][1] >= level:
        return None
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if y1 >= level:
            return x0 + (x1 - x0) * (level - y0) / (y1 - y0)
    return None


def percentile(values: list[float], p: float) -> float:
    """Linear interpolation, as numpy's and so tarn-loadgen's."""
    v = sorted(values)
    rank = p / 100 * (len(v) - 1)
    below = math.floor(rank)
    return v[below] + (v[min(below + 1, len(v) - 1)] - v[below]) * (rank - below)


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
