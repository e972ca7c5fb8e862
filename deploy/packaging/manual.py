#!/usr/bin/env python3
"""Make the manual page, the completions and, for tarn-server, tarn.conf from a program's --help.

    manual.py --extra man/NAME.txt --version 0.1.0 --out DIR [--conf FILE] PROGRAM

The extra file has the sections that are not in --help. A section begins with `[TITLE]` and consists
of paragraphs. A line in column 0 followed by indented lines is a term with its explanation; a
paragraph that is indented as a whole is an example and is printed unchanged. The date of the page
is SOURCE_DATE_EPOCH, or today.
"""
from __future__ import annotations

import argparse
import datetime
import os
import re
import textwrap
from pathlib import Path

import completions
from help_text import Help, Row, read

COLUMNS = 98
AFTER = ["ENVIRONMENT", "FILES", "SIGNALS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]


def roff(text: str) -> str:
    """The text, with the characters escaped that roff or a terminal would change."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti")
    return text.replace("^", "\\(ha").replace("`", "\\(ga").replace("'", "\\(aq")


def roff_text(text: str) -> list[str]:
    """The text as lines for roff; a dot at the start of a line is escaped."""
    lines = textwrap.wrap(roff(text.strip()), 78, break_long_words=False, break_on_hyphens=False)
    return ["\\&" + line if line.startswith(".") else line for line in lines]


def read_extra(path: Path) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        title = re.fullmatch(r"\[([A-Z ]+)\]", line)
        if title:
            if title.group(1) not in ["NAME", "DESCRIPTION", *AFTER]:
                raise SystemExit(f"{path}: unknown section {line}")
            lines = sections[title.group(1)] = []
        else:
            lines.append(line)
    return sections


def paragraphs_of(lines: list[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for line in lines:
        if line:
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [paragraph for paragraph in found if paragraph]


def roff_lines(lines: list[str], first: bool) -> list[str]:
    """A paragraph: text, an example (indented as a whole), or terms with their explanations."""
    out: list[str] = [] if first else [".PP"]
    if lines[0].startswith(" "):
        indent = min(len(line) - len(line.lstrip()) for line in lines)
        text = ["\\&" + roff(line[indent:]) for line in lines]
        return [*out, ".RS 4", ".nf", *text, ".fi", ".RE"]
    if not any(line.startswith(" ") for line in lines):
        return out + roff_text(" ".join(lines))
    out, words = [], ""
    for line in [*lines, ""]:
        if line.startswith(" "):
            words += " " + line.strip()
            continue
        out += roff_text(words)
        if line:
            out += [".TP", f"\\fB{roff(line)}\\fR"]
        words = ""
    return out


def roff_section(title: str, lines: list[str]) -> list[str]:
    out = [f".SH {title}"]
    for i, paragraph in enumerate(paragraphs_of(lines)):
        out += roff_lines(paragraph, i == 0)
    return out


def roff_tag(row: Row) -> str:
    if not row.is_option:
        return f"\\fB{roff(row.tag)}\\fR"
    flags, _, _ = row.tag.partition(" " + row.value) if row.value else (row.tag, "", "")
    bold = f"\\fB{roff(flags)}\\fR"
    return f"{bold} \\fI{roff(row.value)}\\fR" if row.value else bold


def roff_options(help_: Help) -> list[str]:
    out = [".SH OPTIONS"]
    for group in help_.groups:
        out.append(f".SS {roff(group.title[:1].upper() + group.title[1:])}")
        for i, row in enumerate(group.rows):
            if not row.help:  # a remark
                out += ([".PP"] if i else []) + roff_text(row.tag)
                continue
            default = f" Default: {row.default}." if row.default else ""
            text = row.help if row.help.endswith(".") or not default else row.help + "."
            out += [".TP", roff_tag(row), *roff_text(text + default)]
    return out


def roff_synopsis(help_: Help) -> list[str]:
    out = [".SH SYNOPSIS"]
    for i, line in enumerate(help_.usage):
        program, _, rest = line.partition(" ")
        out += [".br"] if i else []
        out.append(f"\\fB{roff(program)}\\fR {roff(rest)}".rstrip())
    return out


def runs_of(lines: list[str]) -> list[list[str]]:
    """A paragraph of --help, split into text and examples. Indented lines are an example unless
    they continue a list."""
    runs: list[list[str]] = []
    for line in lines:
        goes_on = runs and (runs[-1][-1].endswith(",") or line[0] == " " == runs[-1][-1][0]
                            or line[0] != " " != runs[-1][-1][0])
        if goes_on and not runs[-1][0].startswith(" "):
            runs[-1].append(line.strip())
        elif goes_on:
            runs[-1].append(line)
        else:
            runs.append([line])
    return runs


def roff_description(help_: Help, more: list[str]) -> list[str]:
    out = [".SH DESCRIPTION"]
    for lines in help_.paragraphs:
        text = [line.replace(" Defaults are in [ ].", "").replace("Defaults are in [ ].", "")
                for line in lines]
        for run in runs_of([line for line in text if line.strip()]):
            out += roff_lines(run, len(out) == 1)
    for paragraph in paragraphs_of(more):
        out += roff_lines(paragraph, len(out) == 1)
    return out


def man_page(help_: Help, extra: dict[str, list[str]], version: str) -> str:
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    day = (datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc).date() if epoch
           else datetime.date.today())
    name = " ".join(extra["NAME"]).strip()
    out = [f'.TH {help_.program.upper()} 1 {day.isoformat()} "Tarn {version}" "User commands"',
           ".SH NAME", f"{roff(help_.program)} \\- {roff(name)}", *roff_synopsis(help_),
           *roff_description(help_, extra.get("DESCRIPTION", [])), *roff_options(help_)]
    if help_.exit_status:
        extra.setdefault("EXIT STATUS", []).insert(0, help_.exit_status)
    for title in AFTER:
        if title in extra:
            out += roff_section(title, extra[title])
    return "\n".join(out) + "\n"


# --- tarn.conf ---

def conf_option(row: Row) -> list[str]:
    name = row.flags[0].removeprefix("--")
    value = f" ({row.value})" if row.choices() else ""
    lines = textwrap.wrap(row.help + value, COLUMNS, initial_indent="# ", subsequent_indent="# ",
                          break_long_words=False, break_on_hyphens=False)
    return [*lines, f"#{name} = {row.default}".rstrip(), ""]


def conf(help_: Help, version: str) -> str:
    out = [f"# tarn.conf - every option of tarn-server {version}, each with its default.", "#",
           "# Remove the # in front of a name to set it. One `name = value` per line, no quotes.",
           "# A # begins a comment only at the start of a line. Sizes take K, M, G (powers of",
           "# 1024). Keys belong into a file of their own (api-key-file): this one all may read.",
           "# A flag, and a variable such as TARN_MAX_NUM_SEQS, wins over this file.",
           "# A name without a value has no default. `model` is the only one that must be set.", ""]
    for group in help_.groups:
        rows = [row for row in group.rows if row.is_option and (row.value or row.is_switch)
                and "--config" not in row.flags]
        if rows:
            out += [f"# --- {group.title} ---", ""]
            for row in rows:
                out += conf_option(row)
    return "\n".join(out)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("program", type=Path)
    p.add_argument("--extra", type=Path, required=True)
    p.add_argument("--version", required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--conf", type=Path)
    args = p.parse_args()
    help_ = read(args.program)
    name = help_.program
    page = man_page(help_, read_extra(args.extra), args.version)
    (args.out / f"{name}.1").write_text(page, encoding="utf-8")
    (args.out / f"{name}.bash").write_text(completions.bash(help_), encoding="utf-8")
    (args.out / f"_{name}").write_text(completions.zsh(help_), encoding="utf-8")
    if args.conf:
        args.conf.write_text(conf(help_, args.version), encoding="utf-8")


if __name__ == "__main__":
    main()
