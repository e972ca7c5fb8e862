#!/usr/bin/env python3
"""Draw docs/quickstart.svg, the picture of README.md, from a real run of deploy/quickstart.

    quickstart_picture.py [--log FILE] [--out docs/quickstart.svg]

Run `deploy/quickstart --once --no-install` and draw what it printed from the start of the server
to the end of the demonstration, unchanged. --log draws an output that was saved before.
"""
from __future__ import annotations

import argparse
import html
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
COMMAND = ["deploy/quickstart", "--once", "--no-install"]
FIRST, LAST = "==> server", "    demonstration:"
CHAR_WIDTH, LINE_HEIGHT, MARGIN, FONT_SIZE = 7.3, 17, 14, 12
COLORS = {"plain": "#d6deeb", "dim": "#7f8fa6", "heading": "#82aaff", "answer": "#addb67"}


def shown_lines(output: str) -> list[str]:
    """The lines from FIRST to LAST; an error where the run did not come so far."""
    lines = output.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith(FIRST)]
    ends = [i for i, line in enumerate(lines) if line.startswith(LAST)]
    if not starts or not ends:
        raise SystemExit(f"the output has no line that begins with {FIRST!r} or {LAST!r}")
    return lines[starts[0]:ends[-1] + 1]


def color_of(line: str) -> str:
    if line.startswith("==>"):
        return COLORS["heading"]
    if line.startswith("  tarn"):
        return COLORS["answer"]
    if line.lstrip().startswith("[") or (line.startswith("    ") and line.rstrip().endswith(" s")):
        return COLORS["dim"]
    return COLORS["plain"]


def svg(lines: list[str]) -> str:
    width = round(max(map(len, lines)) * CHAR_WIDTH + 2 * MARGIN)
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           f'width="{width}" height="{height}">',
           "<title>deploy/quickstart starts a server and asks it questions</title>",
           f'<rect width="{width}" height="{height}" rx="8" fill="#011627"/>',
           f'<g font-family="Menlo, Consolas, monospace" font-size="{FONT_SIZE}" '
           'xml:space="preserve">']
    for i, line in enumerate(lines):
        if line.strip():
            y = MARGIN + (i + 1) * LINE_HEIGHT - 5
            length = f'textLength="{len(line) * CHAR_WIDTH:.0f}" lengthAdjust="spacingAndGlyphs"'
            out.append(f'<text x="{MARGIN}" y="{y}" fill="{color_of(line)}" {length}>'
                       f"{html.escape(line.rstrip())}</text>")
    return "\n".join([*out, "</g>", "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log", type=Path, help="a saved output instead of a new run")
    parser.add_argument("--out", type=Path, default=REPO / "docs" / "quickstart.svg")
    args = parser.parse_args()
    if args.log:
        output = args.log.read_text()
    else:
        output = subprocess.run(COMMAND, cwd=REPO, stdout=subprocess.PIPE, text=True,
                                check=True).stdout
    command = f"$ {' '.join(COMMAND)}"
    args.out.write_text(svg([command, "...", *shown_lines(output)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
