"""Parse the --help of Tarn's programs, from which manuals, completions and tarn.conf are made.

A --help consists of paragraphs and of groups. A group is a heading and rows: a name in column 2,
and its description beside or below it. `Help.options()` returns all options, `Help.commands()` the
commands, such as `cache reset` of tarnctl.
"""
from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROW = re.compile(r"^  (\S.*?)(?:\s{2,}(\S.*))?$")
FLAG = re.compile(r"^--?[\w\[]")
DEFAULT = re.compile(r"\s*\[([^\[\]]*)\]$")
CHOICES = re.compile(r"^[\w.-]+(\|[\w.-]+)+$")


@dataclass
class Row:
    """One line of a group: an option, a command, or a remark (then `help` is empty)."""
    tag: str                # as printed: "--dtype auto|f32", "-h, --help", "cache erase KEY"
    help: str
    default: str = ""       # the text in [ ] at the end of the help
    flags: list[str] = field(default_factory=list)  # "--x", "--no-x"; empty for a command
    value: str = ""         # "FILE", "auto|f32"; "" for a switch

    @property
    def is_option(self) -> bool:
        return bool(self.flags)

    @property
    def is_switch(self) -> bool:
        return "--[no-]" in self.tag

    def choices(self) -> list[str]:
        return self.value.split("|") if CHOICES.match(self.value) else []


@dataclass
class Group:
    title: str
    rows: list[Row]


@dataclass
class Help:
    program: str
    usage: list[str] = field(default_factory=list)       # "tarn-bench limits [--json]"
    paragraphs: list[list[str]] = field(default_factory=list)  # lines; indented ones are examples
    exit_status: str = ""
    groups: list[Group] = field(default_factory=list)

    def options(self) -> list[Row]:
        return [row for group in self.groups for row in group.rows if row.is_option]

    def commands(self) -> list[list[str]]:
        """The commands, as lists of words: [["cache", "reset"], ["compare"], ...]."""
        lines = [line.split()[1:] for line in self.usage]
        lines += [row.tag.split() for group in self.groups for row in group.rows
                  if not row.is_option and row.help]
        found: list[list[str]] = []
        for words in lines:
            plain = []
            for word in words:
                if not re.fullmatch(r"[a-z]+", word):
                    break
                plain.append(word)
            if plain and plain not in found:
                found.append(plain)
        return found


def split_tag(tag: str) -> tuple[list[str], str]:
    """"--dtype auto|f32" -> ["--dtype"], "auto|f32"; "-h, --help" -> both, ""."""
    flags, rest = [], tag
    while FLAG.match(rest):
        flag, _, rest = rest.partition(" ")
        name = flag.rstrip(",")
        flags += ([name.replace("[no-]", ""), name.replace("[no-]", "no-")] if "[no-]" in name
                  else [name])
        if not flag.endswith(","):
            break
        rest = rest.lstrip()
    return flags, rest.strip()


def make_row(tag: str, words: list[str]) -> Row:
    flags, value = split_tag(tag)
    text = " ".join(words)
    found = DEFAULT.search(text)
    default = found.group(1) if found else ""
    return Row(tag, DEFAULT.sub("", text) if found else text, default, flags,
               value if flags else "")


def is_heading(lines: list[str], i: int) -> bool:
    line = lines[i]
    return (bool(line) and not line[0].isspace() and line[-1] not in ".:," and i > 0
            and not lines[i - 1] and i + 1 < len(lines) and bool(ROW.match(lines[i + 1])))


def read_group(lines: list[str], i: int) -> tuple[Group, int]:
    """The group whose heading is lines[i], and the index of the line after it."""
    title, rows = lines[i], []
    i += 1
    while i < len(lines) and lines[i].startswith("  "):
        match = ROW.match(lines[i])
        if not match:
            raise ValueError(f"no row: {lines[i]!r}")
        tag, words = match.group(1), [match.group(2)] if match.group(2) else []
        i += 1
        while i < len(lines) and lines[i].startswith("      "):
            words.append(lines[i].strip())
            i += 1
        rows.append(make_row(tag, words))
    return Group(title, rows), i


def parse(program: str, text: str) -> Help:
    lines = text.rstrip("\n").split("\n")
    help_ = Help(program)
    i = 0
    while i < len(lines):
        if not lines[i]:
            i += 1
        elif is_heading(lines, i):
            group, i = read_group(lines, i)
            help_.groups.append(group)
        else:
            end = i
            while end < len(lines) and lines[end]:
                end += 1
            add_paragraph(help_, lines[i:end])
            i = end
    if not help_.usage or not help_.options():
        raise ValueError(f"{program} --help has no usage line or no option")
    return help_


def add_paragraph(help_: Help, lines: list[str]) -> None:
    if not help_.usage:
        help_.usage = [line.removeprefix("usage: ").strip() for line in lines]
        return
    for i, line in enumerate(lines):
        if re.match(r"Exit (status|code):", line):
            help_.exit_status = " ".join(lines[i:]).partition(":")[2].strip()
            lines = lines[:i]
            break
    if lines:
        help_.paragraphs.append(lines)


def read(program: Path) -> Help:
    """The help of a built program, run in an empty environment: variables would change the help."""
    done = subprocess.run([str(program), "--help"], capture_output=True, text=True, env={},
                          timeout=60, check=True)
    return parse(program.name, done.stdout)
