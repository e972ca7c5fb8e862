#!/usr/bin/env python3
"""Fill the paragraphs and list items of Markdown files to 99 columns.

    fill_documents.py FILE...

Headings, tables, pictures and fenced blocks stay as they are. Code in backticks and the text of a
link are not cut over lines.
"""
from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

COLUMNS = 99
ITEM = re.compile(r"^(\s*)([-*]|\d+\.)\s+")
KEPT = ("|", "#", "<", "![")
MARKER = re.compile(r"([-+*#>]|\d+[.)])(\s|$)")  # would begin a list, heading or quote
KEPT_CHARS_MAX = 60  # longer code and links may be cut
GLUE = "\x01"


def glued(text: str) -> str:
    """The text with the blanks replaced that must not become ends of lines."""
    def glue(match: re.Match[str]) -> str:
        return match[0].replace(" ", GLUE) if len(match[0]) <= KEPT_CHARS_MAX else match[0]
    return re.sub(r"\[[^\]]+\]\(", glue, re.sub(r"`[^`]+`", glue, text))


def filled(words: str, first: str, rest: str) -> list[str]:
    out: list[str] = []
    for line in textwrap.wrap(glued(words), COLUMNS, initial_indent=first, subsequent_indent=rest,
                              break_long_words=False, break_on_hyphens=False):
        if out and MARKER.match(line.strip()):
            out[-1], _, last = out[-1].rpartition(" ")
            line = f"{rest}{last} {line.strip()}"
        out.append(line)
    return [line.replace(GLUE, " ") for line in out]


def fill(text: str) -> str:
    lines, out, i, fenced = text.split("\n"), [], 0, False
    while i < len(lines):
        line = lines[i]
        fence = line.lstrip().startswith("```")
        if fence or fenced or not line.strip() or line.lstrip().startswith(KEPT):
            fenced ^= fence
            out.append(line)
            i += 1
            continue
        item = ITEM.match(line)
        first = item[0] if item else re.match(r"\s*", line)[0]
        words = [line[len(first):].strip()]
        i += 1
        while (i < len(lines) and lines[i].strip() and not ITEM.match(lines[i])
               and not lines[i].lstrip().startswith(("|", "```", "#"))):
            words.append(lines[i].strip())
            i += 1
        out += filled(" ".join(words), first, " " * len(first))
    return "\n".join(out)


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__.strip())
        return 2
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(fill(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
