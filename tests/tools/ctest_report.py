#!/usr/bin/env python3
"""Add up ctest's JUnit files and print the closing line `N passed, N failed, N skipped`.

    ctest_report.py [--ci] [--failed N] [--skipped WORDS] [--allow-empty] STAGE=FILE.xml...

A test is skipped when it exits 77; it says why on a line `SKIP: reason`. With --ci only reasons
that contain "no GPU", "no nvcc" or "no ../shared" count as skipped, every other skip is a failure:
something that CI should have had is missing. A test that ctest could not start is a failure always,
and so is a stage that left no file or, without --allow-empty, ran no test. --failed N adds failures
from elsewhere (a build), --skipped WORDS a stage that could not run.
Exit status 1 when anything failed.
"""
from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ALLOWED_IN_CI = ("no GPU", "no nvcc", "no ../shared")
N_SLOWEST = 5


@dataclass
class Result:
    stage: str
    name: str
    verdict: str  # passed, failed, skipped
    seconds: float
    words: str


def skip_reason(case: ET.Element) -> str:
    output = case.findtext("system-out") or ""
    for line in output.splitlines():
        if "SKIP" in line:
            return line.strip()
    return output.strip().splitlines()[-1] if output.strip() else "no reason given"


def judge(stage: str, case: ET.Element, ci: bool) -> Result:
    name, seconds = case.get("name", "?"), float(case.get("time") or 0)
    skipped = case.find("skipped")
    if skipped is not None:
        message = skipped.get("message", "")
        if not message.startswith("SKIP_"):
            return Result(stage, name, "failed", seconds, message)
        reason = skip_reason(case)
        allowed = not ci or any(words in reason for words in ALLOWED_IN_CI)
        return Result(stage, name, "skipped" if allowed else "failed", seconds,
                      reason if allowed else f"skipped, which CI does not allow: {reason}")
    if case.get("status") == "disabled":
        return Result(stage, name, "failed" if ci else "skipped", seconds, "disabled")
    verdict = "passed" if case.get("status") == "run" else "failed"
    return Result(stage, name, verdict, seconds, "")


def read_stage(argument: str, ci: bool, allow_empty: bool) -> list[Result]:
    stage, _, path = argument.partition("=")
    if not Path(path).exists():
        return [Result(stage, "ctest", "failed", 0, "left no report")]
    cases = list(ET.parse(path).getroot().iter("testcase"))
    if not cases and not allow_empty:
        return [Result(stage, "ctest", "failed", 0, "ran no test")]
    return [judge(stage, case, ci) for case in cases]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("stages", nargs="*", metavar="STAGE=FILE.xml")
    p.add_argument("--ci", action="store_true")
    p.add_argument("--allow-empty", action="store_true")
    p.add_argument("--failed", type=int, default=0)
    p.add_argument("--skipped", action="append", default=[], metavar="STAGE: REASON")
    args = p.parse_args()
    results = [r for stage in args.stages for r in read_stage(stage, args.ci, args.allow_empty)]
    print(f"the {N_SLOWEST} slowest tests:")
    for r in sorted(results, key=lambda r: -r.seconds)[:N_SLOWEST]:
        print(f"  {r.seconds:7.1f} s  {r.stage}: {r.name}")
    for line in args.skipped:
        print(f"skipped: {line}")
    for verdict in ("skipped", "failed"):
        for r in results:
            if r.verdict == verdict:
                print(f"{verdict}: {r.stage}: {r.name}  {r.words}")
    count = Counter(r.verdict for r in results)
    n_failed = count["failed"] + args.failed
    print(f"{count['passed']} passed, {n_failed} failed, "
          f"{count['skipped'] + len(args.skipped)} skipped")
    sys.exit(1 if n_failed else 0)


if __name__ == "__main__":
    main()
