#!/usr/bin/env python3
"""Check every document of the repository; no program runs.

    test_documents.py

- Relative links lead to files of the repository, and anchors to headings.
- Paths in backticks, such as `engine/step.c`, exist. A path may leave out the ending of a file.
- Lines have at most 100 columns, except rows of tables and lines that a URL makes longer.
- docs/user/metrics.md names every metric of the code, and no other.
- README.md and ARCHITECTURE.md have fewer than 150 lines.
- Documents and scripts cite no design notes that are not in the repository.
- The checks themselves find planted mistakes.
"""
from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from tarn_test import REPO  # noqa: E402

COLUMNS_MAX = 100
LINES_MAX = 150
FOLDERS = ("base", "kernels", "cache", "engine", "server", "clients", "loadgen", "deploy", "docs",
           "tests")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./*-]+)`")
CITING = ("*.md", "*.py", "*.sh", "CMakeLists.txt", "*.c", "*.h", "*.cu", "*.cuh")
NOTES = re.compile(r"\b(?:papers|peers|field|style|design|INDEX)\.md\b")
METRIC_IN_CODE = re.compile(r'"((?:vllm:|tarn:|process_|http_request)\w+)"')
METRIC_IN_PAGE = re.compile(r"`((?:vllm:|tarn:|process_|http_request)\w+)")


def tracked(root: Path, *patterns: str) -> list[Path]:
    """The tracked files; where there is no git, all of them."""
    done = None
    if shutil.which("git"):
        done = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others",
                               "--exclude-standard", *patterns], capture_output=True, text=True,
                              check=False)
    if done and done.returncode == 0 and done.stdout:
        return [root / name for name in done.stdout.split("\0") if name and (root / name).is_file()]
    return [p for pattern in patterns for p in root.rglob(pattern)
            if "build" not in p.relative_to(root).parts]


def without_code(text: str) -> str:
    """The text with fenced blocks emptied; lines keep their numbers."""
    return re.sub(r"^( *)```.*?^ *```$", lambda m: "\n" * m.group(0).count("\n"), text,
                  flags=re.M | re.S)


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub and GitLab make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", without_code(path.read_text()), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        n = 0
        while (f"{anchor}-{n}" if n else anchor) in found:
            n += 1
        found.add(f"{anchor}-{n}" if n else anchor)
    return found


def broken_link(document: Path, target: str) -> str:
    """The mistake of a link; empty: the link is good, or leads to another site."""
    if re.match(r"[a-z]+:", target):
        return ""
    name, _, anchor = target.partition("#")
    path = (document.parent / name).resolve() if name else document
    if not path.exists():
        return f"there is no {name}"
    if anchor and anchor not in anchors(path):
        return f"{path.name} has no heading for #{anchor}"
    return ""


def line_of(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def mistakes_of(root: Path, document: Path) -> list[str]:
    name, text = document.relative_to(root), document.read_text()
    found = []
    prose = without_code(text)
    for match in LINK.finditer(prose):
        why = broken_link(document, match[1])
        found += [f"{name}:{line_of(prose, match)}: link {match[1]}: {why}"] if why else []
    for match in PATH.finditer(prose):
        path = match[1]
        if not (any(root.glob(path.rstrip("/"))) or any(root.glob(path + ".*"))):
            found.append(f"{name}:{line_of(prose, match)}: there is no {path}")
    for number, line in enumerate(text.splitlines(), 1):
        may_be_long = line.lstrip().startswith("|") or re.search(r"https?://\S{60}", line)
        if len(line) > COLUMNS_MAX and not may_be_long:
            found.append(f"{name}:{number}: {len(line)} columns, {COLUMNS_MAX} are allowed")
    return found


def metrics_of_code() -> set[str]:
    sources = "".join(p.read_text() for p in (REPO / "server" / "api").glob("metrics*.c"))
    return set(METRIC_IN_CODE.findall(sources))


def check_metrics() -> list[str]:
    named = set(METRIC_IN_PAGE.findall((REPO / "docs" / "user" / "metrics.md").read_text()))
    exported = metrics_of_code()
    assert len(exported) > 60, exported  # the pattern still finds them
    return ([f"docs/user/metrics.md does not name {m}" for m in sorted(exported - named)]
            + [f"docs/user/metrics.md names {m}, which the code does not export"
               for m in sorted(named - exported) if m != "tarn:kv_disk_"])


def check_citations() -> list[str]:
    return [f"{path.relative_to(REPO)} cites {match[0]}, which is not in the repository"
            for path in tracked(REPO, *CITING) if path != Path(__file__).resolve()
            for match in NOTES.finditer(path.read_text())]


def check_lengths() -> list[str]:
    return [f"{name} has {n} lines; fewer than {LINES_MAX} are allowed"
            for name in ("README.md", "ARCHITECTURE.md")
            if (n := len((REPO / name).read_text().splitlines())) >= LINES_MAX]


def planted_mistakes_are_found() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "docs").mkdir()
        (root / "docs" / "there.md").write_text("# A heading, *here*\n\n## A heading here\n")
        page = root / "page.md"
        page.write_text("[a](docs/there.md#a-heading-here-1) [b](#page) `docs/there` "
                        "[c](https://x) [two\nlines](docs/there.md)\n\n# Page\n\n"
                        "```\n[no](link)\n```\n")
        assert mistakes_of(root, page) == [], mistakes_of(root, page)
        for mistake in ("[a](docs/gone.md)", "[two\nlines](gone.md)", "[a](docs/there.md#gone)",
                        "[a](#gone)", "`docs/gone`", "x" * 101):
            page.write_text(f"# Page\n\n{mistake}\n")
            assert len(mistakes_of(root, page)) == 1, mistake


def main() -> int:
    planted_mistakes_are_found()
    pages = tracked(REPO, "*.md")
    assert len(pages) > 20, pages
    found = [m for page in pages for m in mistakes_of(REPO, page)]
    found += check_metrics() + check_citations() + check_lengths()
    print("\n".join(found) if found else f"{len(pages)} documents: no mistake")
    if any(m.endswith(" are allowed") for m in found):
        print("tests/tools/fill_documents.py FILE... fills paragraphs")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
