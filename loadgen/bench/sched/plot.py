"""plot.py - line charts as SVG, standard library only: lines with points, linear or logarithmic
axes, a legend, level lines.

    chart = Chart("Mean latency", "arrival rate (requests/s)", "latency (s/token)", log_y=True)
    chart.line("fcfs", [(1, 0.04), (2, 0.13)])
    chart.level(0.3, "SLO")
    Path("a.svg").write_text(page([chart]))

A point at or below 0 on a logarithmic axis is left out. A point outside given limits is cut off at
the frame.
"""
from __future__ import annotations

import math
from html import escape

# Colours that colour-blind readers can tell apart; dashes and markers do it in a black print.
COLOURS = ("#0b62a4", "#d1495b", "#2e8b57", "#e08e0b", "#6a4c93", "#4d4d4d", "#17a2b8", "#8c564b")
MARKERS = ("circle", "square", "diamond", "triangle", "cross", "circle", "square", "diamond")
WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 74, 20, 48, 56
LEGEND_ROW = 18
FONT = 'font-family="DejaVu Sans, Helvetica, Arial, sans-serif"'


def number(x: float) -> str:
    """A number in few characters: 0.03, 1.5, 200, 10k."""
    if abs(x) >= 10000:
        return f"{x / 1000:g}k"
    return f"{x:.6g}"


def linear_ticks(low: float, high: float) -> list[float]:
    """About six round numbers."""
    rough = (high - low) / 6
    power = 10 ** math.floor(math.log10(rough))
    step = next(k * power for k in (1, 2, 2.5, 5, 10) if k * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    decades = math.log10(high / low)
    marks = (1, 2, 5) if decades <= 3.2 else (1,)
    return [m * 10.0 ** e for e in range(math.floor(math.log10(low)) - 1,
                                         math.ceil(math.log10(high)) + 1)
            for m in marks if low * 0.999 <= m * 10.0 ** e <= high * 1.001]


class Axis:
    """Values between low and high on pixels between a and b."""

    def __init__(self, values: list[float], log: bool, limits: tuple[float, float] | None,
                 a: float, b: float, from_zero: bool) -> None:
        self.log, self.a, self.b = log, a, b
        if limits:
            self.low, self.high = limits
        else:
            self.low, self.high = self.room(values, from_zero)
        self.ticks = (log_ticks if log else linear_ticks)(self.low, self.high)

    def room(self, values: list[float], from_zero: bool) -> tuple[float, float]:
        low, high = (min(values), max(values)) if values else (1.0, 2.0)
        if self.log:
            return (low / 1.15, high * 1.15) if high > low else (low / 2, high * 2)
        if from_zero:
            low = min(low, 0.0)
        room = 0.04 * (high - low) or 0.5 * abs(high) or 1
        return (low if low == 0 else low - room), high + room

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.a + (value - low) / (high - low) * (self.b - self.a)

    def can_show(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self.log)


class Line:
    def __init__(self, name: str, points: list[tuple[float, float]], **style: object) -> None:
        self.name, self.points = name, points
        self.colour = str(style["colour"])
        self.marker = style["marker"]      # None: a line alone
        self.dash = style["dash"]          # None: solid
        self.ranges = style["ranges"]      # (x, low, high): thin bars


class Chart:
    def __init__(self, title: str, x_title: str, y_title: str, *, log_x: bool = False,
                 log_y: bool = False, x_limits: tuple[float, float] | None = None,
                 y_limits: tuple[float, float] | None = None) -> None:
        self.title, self.x_title, self.y_title = title, x_title, y_title
        self.log_x, self.log_y, self.x_limits, self.y_limits = log_x, log_y, x_limits, y_limits
        self.lines: list[Line] = []
        self.levels: list[tuple[float, str, bool]] = []

    def line(self, name: str, points: list[tuple[float, float]], *, like: int | None = None,
             dash: str | None = None, marker: bool = True,
             ranges: list[tuple[float, float, float]] | None = None) -> None:
        """like: the number of the colour, shared by lines that belong together."""
        i = (len(self.lines) if like is None else like) % len(COLOURS)
        self.lines.append(Line(name, points, colour=COLOURS[i], dash=dash, ranges=ranges or [],
                               marker=MARKERS[i] if marker else None))

    def level(self, y: float, name: str, at_left: bool = False) -> None:
        self.levels.append((y, name, at_left))

    def draw(self, x0: float, y0: float, ident: str) -> str:
        left, right = x0 + LEFT, x0 + WIDTH - RIGHT
        top, bottom = y0 + TOP + self.legend_height(), y0 + HEIGHT - BOTTOM + self.legend_height()
        xs = [p[0] for line in self.lines for p in line.points if p[0] > 0 or not self.log_x]
        ys = [p[1] for line in self.lines for p in line.points if p[1] > 0 or not self.log_y]
        ys += [level[0] for level in self.levels]
        x = Axis(xs, self.log_x, self.x_limits, left, right, True)
        y = Axis(ys, self.log_y, self.y_limits, bottom, top, True)
        out = [f'<clipPath id="{ident}"><rect x="{left}" y="{top}" width="{right - left}" '
               f'height="{bottom - top}"/></clipPath>',
               text(x0 + WIDTH / 2, y0 + 24, self.title, 15, "middle", weight="bold")]
        out += self.grid(x, y, left, right, top, bottom)
        out += [f'<g clip-path="url(#{ident})">' + draw_line(line, x, y) + "</g>"
                for line in self.lines]
        out += [level_line(y, left, right, top, *level) for level in self.levels]
        out += self.legend(x0 + LEFT, y0 + 44)
        return "\n".join(out)

    def grid(self, x: Axis, y: Axis, left: float, right: float, top: float,
             bottom: float) -> list[str]:
        out = []
        for v in x.ticks:
            out.append(path(f"M{x.at(v):.1f} {top:.1f}V{bottom + 4:.1f}", "#e3e3e3"))
            out.append(text(x.at(v), bottom + 19, number(v), 12, "middle"))
        for v in y.ticks:
            out.append(path(f"M{left - 4:.1f} {y.at(v):.1f}H{right:.1f}", "#e3e3e3"))
            out.append(text(left - 8, y.at(v) + 4, number(v), 12, "end"))
        out.append(path(f"M{left} {top}V{bottom}H{right}", "#333", 1.3))
        out.append(text((left + right) / 2, bottom + 42, self.x_title, 13, "middle"))
        middle = (top + bottom) / 2
        out.append(f'<g transform="rotate(-90 {left - 56} {middle})">'
                   + text(left - 56, middle, self.y_title, 13, "middle") + "</g>")
        return out

    def legend_rows(self) -> list[list[Line]]:
        """Entries from left to right, as many in a row as fit."""
        rows: list[list[Line]] = [[]]
        used = 0.0
        for line in self.lines:
            wide = 50 + 7.2 * len(line.name)
            if rows[-1] and used + wide > WIDTH - LEFT - RIGHT:
                rows.append([])
                used = 0
            rows[-1].append(line)
            used += wide
        return rows

    def legend_height(self) -> int:
        return LEGEND_ROW * (len(self.legend_rows()) - 1) + 6

    def height(self) -> int:
        return HEIGHT + self.legend_height()

    def legend(self, left: float, top: float) -> list[str]:
        out = []
        for k, row in enumerate(self.legend_rows()):
            at, y = left, top + k * LEGEND_ROW
            for line in row:
                out.append(path(f"M{at} {y - 4}h28", line.colour, 2, line.dash))
                if line.marker:
                    out.append(marker(line.marker, at + 14, y - 4, line.colour))
                out.append(text(at + 34, y, line.name, 12, "start"))
                at += 50 + 7.2 * len(line.name)
        return out


def draw_line(line: Line, x: Axis, y: Axis) -> str:
    points = [(x.at(a), y.at(b)) for a, b in sorted(line.points)
              if x.can_show(a) and y.can_show(b)]
    out = []
    for at, low, high in line.ranges:
        if x.can_show(at) and y.can_show(low) and y.can_show(high):
            out.append(path(f"M{x.at(at):.1f} {y.at(low):.1f}V{y.at(high):.1f}", line.colour, 1.2,
                            opacity=0.55))
    if len(points) > 1:
        d = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        out.append(path(d, line.colour, 2, line.dash))
    if line.marker:
        out += [marker(line.marker, a, b, line.colour) for a, b in points]
    return "".join(out)


def level_line(y: Axis, left: float, right: float, top: float, value: float, name: str,
               at_left: bool) -> str:
    if not y.can_show(value) or not y.low <= value <= y.high:
        return ""
    at = y.at(value)
    below = 14 if at - top < 20 else -5
    x, anchor = (left + 6, "start") if at_left else (right - 4, "end")
    return (path(f"M{left} {at:.1f}H{right}", "#777", 1.2, "2 3")
            + text(x, at + below, name, 11, anchor, colour="#555", halo=True))


def path(d: str, colour: str, width: float = 1, dash: str | None = None,
         opacity: float = 1) -> str:
    extra = f' stroke-dasharray="{dash}"' if dash else ""
    extra += f' stroke-opacity="{opacity}"' if opacity < 1 else ""
    return (f'<path d="{d}" fill="none" stroke="{colour}" stroke-width="{width}"'
            f' stroke-linejoin="round"{extra}/>')


def text(x: float, y: float, words: str, size: int, anchor: str, weight: str = "normal",
         colour: str = "#222", halo: bool = False) -> str:
    at = (f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" {FONT} '
          f'text-anchor="{anchor}"')
    words = escape(words)
    white = f'<text {at} stroke="#fff" stroke-width="4">{words}</text>' if halo else ""
    return f'{white}<text {at} fill="{colour}">{words}</text>'


def marker(kind: object, x: float, y: float, colour: str) -> str:
    r = 3.6
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" fill="{colour}"/>'
    shapes = {"square": [(-r, -r), (r, -r), (r, r), (-r, r)],
              "diamond": [(0, -r - 1.2), (r + 1.2, 0), (0, r + 1.2), (-r - 1.2, 0)],
              "triangle": [(0, -r - 1), (r + 0.8, r), (-r - 0.8, r)]}
    if kind in shapes:
        corners = " ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in shapes[str(kind)])
        return f'<polygon points="{corners}" fill="{colour}"/>'
    return path(f"M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}", colour, 2)


def page(charts: list[Chart], columns: int = 2) -> str:
    """One SVG document with the charts side by side."""
    columns = min(columns, len(charts))
    rows = [charts[i:i + columns] for i in range(0, len(charts), columns)]
    body, y = [], 0
    for k, row in enumerate(rows):
        body += [chart.draw(i * WIDTH, y, f"c{k}-{i}") for i, chart in enumerate(row)]
        y += max(chart.height() for chart in row)
    width = columns * WIDTH
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" '
            f'viewBox="0 0 {width} {y}">\n<rect width="{width}" height="{y}" fill="#fff"/>\n'
            + "\n".join(body) + "\n</svg>\n")
