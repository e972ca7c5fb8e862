#!/usr/bin/env python3
"""Make docs/user/flags.md from `tarn-server --help`.

    flags_page.py            write docs/user/flags.md
    flags_page.py --check    exit 1 and name the first difference if the page is not up to date

The environment variable TARN_BUILD_DIR names the build folder (default: build).
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tarn_test import REPO, program

sys.path.insert(0, str(REPO / "deploy" / "packaging"))
from help_text import Group, Row, read  # noqa: E402

PAGE = REPO / "docs" / "user" / "flags.md"
COMMAND = "tests/tools/flags_page.py"
HEAD = f"""# Flags of tarn-server

This page is generated from `build/tarn-server --help` by `{COMMAND}`. The test
`flags_page` compares the two, so edit the table of options in the code, not this page.

An option can be given in three places, and the first one of these that sets it wins:

1. a flag: `--max-num-seqs 16` or `--max-num-seqs=16`;
2. an environment variable: `TARN_MAX_NUM_SEQS=16`;
3. a line of the file that `--config FILE` names: `max-num-seqs = 16`.

Sizes take the suffixes `K`, `M` and `G`, which are powers of 1024. A switch `--x` is turned off by
`--no-x`. An unknown flag or value is an error that names the nearest known one. The server
prints the configuration that is in effect when it starts, without keys.
"""


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def row_line(row: Row) -> str:
    flag = ", ".join(f"`{f}`" for f in row.flags if not f.startswith("--no-")) or f"`{row.tag}`"
    value = f" `{cell(row.value)}`" if row.value else ""
    default = f"`{row.default}`" if row.default else ""
    return f"| {flag}{value} | {default} | {cell(row.help)} |"


def section(group: Group) -> str:
    rows = [row_line(row) for row in group.rows if row.help]
    return "\n".join([f"\n## {group.title}\n", "| flag | default | meaning |", "|---|---|---|",
                      *rows, ""])


def page() -> str:
    return HEAD + "".join(section(group) for group in read(program("tarn-server")).groups)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args()
    made = page()
    if not args.check:
        PAGE.write_text(made)
        return 0
    found = PAGE.read_text()
    for number, (ours, theirs) in enumerate(zip(found.splitlines(), made.splitlines()), 1):
        if ours != theirs:
            print(f"{PAGE.relative_to(REPO)}:{number} is\n    {ours}\n"
                  f"and --help says\n    {theirs}")
            break
    if found != made:
        print(f"{PAGE.relative_to(REPO)} is out of date: run {COMMAND}")
        return 1
    print(f"{PAGE.relative_to(REPO)} agrees with --help: {made.count(chr(10) + '| `')} flags")
    return 0


if __name__ == "__main__":
    sys.exit(main())
