#!/usr/bin/env python3
"""Times tarn-bench, llama-bench and OpenVINO on the same shape, interleaved, and prints ratios.

    bench_compare.py --tarn build/tarn-bench --model DIR --threads 2 --rounds 5
                     --llama-bench [LABEL=]PATH [--llama-bench [LABEL=]PATH ...] [--best]
                     --gguf bf16=FILE [--gguf int8=FILE --gguf int4=FILE]
                     [--openvino PYTHON]
                     [--case prefill:512 --case prefill:512@8192 --case decode:16:1024 ...]
                     [--json OUT]
    bench_compare.py --self-test

A case is prefill:TOKENS[@CONTEXT] or decode:BATCH:CONTEXT. dummy_gguf.py writes the files, and DIR
with --config-dir. In every round each case runs once with each program, short, the order turned by
one from round to round, because the machine's speed varies by a factor of two within the hour: only
ratios of the same round count. A ratio is tarn's tokens per second over the peer's, the geometric
mean over rounds, with a 95 % t interval of the logarithms.

A peer runs at its best: before the rounds every --variant (by default flash attention off and on,
and on with ik_llama.cpp's run-time repacking) is timed once in each case, and the fastest is kept.
LABEL is PEER or PEER:BUILD, by default from the path; each build is compared by itself. With --best
the builds of one PEER are compared as one: every build runs with every variant in every round, and
the fastest per case and round is the peer's figure. That is the highest of several samples against
tarn's only one, so the ratio leans to the peer's side.

--openvino names a Python that has the package openvino (PyPI). openvino_peer.py builds the graph of
the shape in --model; each type, case and inference precision is a process that waits for its turns.

Decode in batches needs llama-batched-bench, prefill behind a context llama-sweep-bench where
llama-bench has no -d: those beside llama-bench (or --llama-batched-bench, given as often and in the
same order). Each sequence has a KV cache of its own. A case that a peer cannot run stays empty, and
the reason is printed; a run that only failed is tried again in the next round, and three failures
in a row end it.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

CASES = ["prefill:512", "prefill:512@8192", "decode:1:0", "decode:16:1024"]
VARIANTS = ["-fa 0", "-fa 1", "-fa 1 -rtr 1"]
N_DECODE = 64         # tokens per sequence; N_DECODE_BATCH in a batch
N_DECODE_BATCH = 32
TIMEOUT_S = 900
TRIES = 3             # of one run in a batch, and rounds in a row that a run may fail
# Quantiles of Student's t at 97.5 %, by degrees of freedom from 1.
T_975 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
         2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060]


class Failed(Exception):
    """The program gave no figure this time; the text says why."""


class Refused(Failed):
    """The program can never give the figure."""


class Case:
    def __init__(self, text: str) -> None:
        prefill = re.fullmatch(r"prefill:(\d+)(?:@(\d+))?", text)
        decode = re.fullmatch(r"decode:(\d+):(\d+)", text)
        if not prefill and not decode:
            raise argparse.ArgumentTypeError(f"{text}: not PHASE:... as the help says")
        self.text = text
        self.phase = "prefill" if prefill else "decode"
        self.prompt = int(prefill[1]) if prefill else 0
        self.batch = 1 if prefill else int(decode[1])
        self.context = int(prefill[2] or 0) if prefill else int(decode[2])

    def is_of(self, row: dict) -> bool:
        return (row["phase"] == self.phase and row["context"] == self.context
                and (row["prompt"] == self.prompt if self.phase == "prefill"
                     else row["batch"] == self.batch))


def output_of(command: list[str], errors_too: bool = False) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise Refused(f"ran longer than {TIMEOUT_S} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise Failed(f"exit code {done.returncode}: {lines[-1]}")
    return done.stdout + (done.stderr if errors_too else "")


# ---- the programs ----

class Tarn:
    name = peer = "tarn"

    def __init__(self, a: argparse.Namespace) -> None:
        self.command = [a.tarn, "--model", a.model, "--load-format", "dummy", "--threads",
                        str(a.threads), "--repetitions", "1", "--json"]
        self.limits: list[dict] = []
        self.rows: dict[tuple[str, str], list[dict]] = {}

    def run(self, kind: str, case: Case) -> float:
        quantization = [] if kind == "bf16" else ["--quantization", kind]
        text = output_of(self.command + quantization + ["--case", case.text])
        result = json.loads(text)
        rows = [r for r in result["rows"] if case.is_of(r)]
        if not rows:
            raise Failed("no row for this case in the answer")
        self.limits.append(result["limits"])
        self.rows.setdefault((kind, case.text), []).append(rows[0])
        return rows[0]["tok_s"]

    def share(self, kind: str, case: Case) -> tuple[float | None, str | None]:
        """The median share of the limit, and which limit it was in most rounds."""
        rows = self.rows.get((kind, case.text))
        if not rows:
            return None, None
        return (statistics.median(r["limit_share"] for r in rows),
                Counter(r.get("limit") for r in rows).most_common(1)[0][0])

    def limit_lines(self) -> list[str]:
        """The medians of the machine's limits, and reasons to doubt them."""
        medians = ", ".join(f"{k} {v:.1f}" for k, v in self.limit_medians().items())
        lines = [f"limits, median: {medians}"] if medians else []
        why = Counter(x.get("void_why") or "no reason given" for x in self.limits if x.get("void"))
        if why:
            lines.append(f"limits void in {why.total()} of {len(self.limits)} runs, so their "
                         "shares do not count; the first reasons:")
            lines += [f"  {text}" for text, _ in why.most_common(3)]
        return lines

    def limit_medians(self) -> dict[str, float]:
        numbers = [{k: v for k, v in x.items() if isinstance(v, (int, float))
                    and k not in ("threads", "void")} for x in self.limits]
        return {k: statistics.median(x[k] for x in numbers if k in x)
                for k in dict.fromkeys(k for x in numbers for k in x)}


class Peer:
    """A program with variants, of which the fastest is kept for each type and case."""

    name = peer = ""

    def __init__(self, variants: list[list[str]]) -> None:
        self.variants = variants
        self.chosen: dict[tuple[str, str], list[str]] = {}

    def timed(self, kind: str, case: Case, variant: list[str]) -> float:
        raise NotImplementedError

    def choose(self, kind: str, case: Case) -> None:
        """Time every variant once and keep the fastest."""
        speeds, error = [], None
        for variant in self.variants:
            try:
                speeds.append((self.timed(kind, case, variant), variant))
            except Failed as e:
                error = e
        if not speeds:
            raise error
        self.chosen[kind, case.text] = max(speeds)[1]

    def run(self, kind: str, case: Case) -> float:
        if (kind, case.text) not in self.chosen:
            self.choose(kind, case)
        return self.timed(kind, case, self.chosen[kind, case.text])


class OpenVino(Peer):
    """openvino_peer.py: a process for each type, case and precision, compiled once."""

    name = peer = "openvino"

    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__([["f32"], ["bf16"]])
        self.python, self.model, self.threads = a.openvino, a.model, str(a.threads)
        self.processes: dict[tuple[str, str, str], subprocess.Popen] = {}

    def start(self, key: tuple[str, str, str]) -> subprocess.Popen:
        kind, case, precision = key
        program = Path(__file__).with_name("openvino_peer.py")
        self.processes[key] = subprocess.Popen(
            [self.python, program, "--config", self.model, "--type", kind, "--case", case,
             "--precision", precision, "--threads", self.threads],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return self.processes[key]

    def timed(self, kind: str, case: Case, variant: list[str]) -> float:
        if case.context or case.batch > 1:
            raise Refused("no such option: the graph has no KV cache")
        key = (kind, case.text, variant[0])
        process = self.processes.get(key) or self.start(key)
        try:
            process.stdin.write("\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            del self.processes[key]
            lines = process.communicate()[1].strip().splitlines() or ["no message"]
            raise Failed(f"exit code {process.returncode}: {lines[-1]}")
        return json.loads(line)["tok_s"]

    def drop_slower(self, kind: str, case: Case) -> None:
        """End the processes of variants that were not chosen."""
        chosen = self.chosen.get((kind, case.text))
        for key in [k for k in self.processes if k[:2] == (kind, case.text)]:
            if chosen and key[2] != chosen[0]:
                self.processes.pop(key).communicate()

    def choose(self, kind: str, case: Case) -> None:
        super().choose(kind, case)
        self.drop_slower(kind, case)

    def close(self) -> None:
        for process in self.processes.values():
            process.communicate()
        self.processes.clear()


class Build(Peer):
    """One llama-bench and the programs beside it."""

    def __init__(self, a: argparse.Namespace, label: str, bench: str, batched: str | None) -> None:
        self.name, self.peer, self.bench = label, label.split(":")[0], bench
        self.batched = batched or str(Path(bench).with_name("llama-batched-bench"))
        self.sweep = str(Path(bench).with_name("llama-sweep-bench"))
        self.files, self.threads = a.gguf, str(a.threads)
        done = subprocess.run([bench, "--help"], capture_output=True, text=True)
        self.help = done.stdout + done.stderr
        super().__init__([v for v in map(shlex.split, a.variant)
                          if all(self.has(w) for w in v if w.startswith("-"))])
        if not self.variants:
            sys.exit(f"{bench}: knows the options of no --variant")

    def has(self, option: str) -> bool:
        return re.search(rf"(?<![\w-]){re.escape(option)}\b", self.help) is not None

    def timed(self, kind: str, case: Case, variant: list[str]) -> float:
        common = ["-m", self.files[kind], "-t", self.threads, *variant]
        if case.batch > 1:
            return self.timed_batch(case, common)
        if case.phase == "prefill":
            work = ["-p", str(case.prompt), "-n", "0"]
            if case.context and not self.has("-d"):
                return self.timed_sweep(case, common)
        else:
            work = ["-p", "0", "-n", str(N_DECODE)]
        if case.context and self.has("-d"):
            work += ["-d", str(case.context)]
        elif case.context and self.has("-gp"):
            work = ["-p", "0", "-n", "0", "-gp", f"{case.context},{N_DECODE}"]
        elif case.context:
            raise Refused("llama-bench has no decode behind a context (-d, -gp)")
        rows = json.loads(output_of([self.bench, *common, *work, "-r", "1", "-o", "json"]))
        if len(rows) != 1:
            raise Failed(f"{len(rows)} results instead of one")
        return rows[0]["avg_ts"]

    def timed_batch(self, case: Case, common: list[str]) -> float:
        if not os.path.exists(self.batched):
            raise Refused(f"no {self.batched}")
        n_prompt = max(case.context, 1)
        n_context = case.batch * (n_prompt + N_DECODE_BATCH)
        # llama.cpp logs in a thread and may exit before its last line is out: hence one more batch,
        # of one sequence, whose line may be lost.
        work = ["-npp", str(n_prompt), "-ntg", str(N_DECODE_BATCH), "-npl", f"{case.batch},1",
                "-c", str(n_context)]
        if self.has("-d"):  # llama.cpp of today copies the KV of the prompt; a fork may share it
            work.append("-pps")
        command = [self.batched, *as_flags(common), *work]
        for n in range(TRIES):
            try:  # a fork prints its table to stderr
                return speed_in_table(output_of(command, True), case.batch)
            except Refused:
                raise
            except Failed:
                if n + 1 == TRIES:
                    raise
        raise AssertionError("not reached")

    def timed_sweep(self, case: Case, common: list[str]) -> float:
        """Prefill in steps of the prompt's size; the step behind the context is timed."""
        if not os.path.exists(self.sweep) or case.context % case.prompt:
            raise Refused("no such option: llama-bench has no -d, and llama-sweep-bench is "
                          + ("missing" if case.context % case.prompt == 0 else
                             "for contexts that are a multiple of the prompt"))
        n_step, n_steps = str(case.prompt), case.context // case.prompt
        text = output_of([self.sweep, *as_flags(common), "-c", str(case.context + case.prompt),
                          "-b", n_step, "-ub", n_step, "-n", "1", "--sweep-stride", str(n_steps),
                          "--output-format", "jsonl"], True)
        rows = [json.loads(line) for line in text.splitlines() if line.startswith('{"n_kv_max"')]
        speeds = [r["speed_pp"] for r in rows if r["n_kv"] == case.context]
        if len(speeds) != 1:
            raise Failed("no line of results from llama-sweep-bench")
        return speeds[0]


def as_flags(options: list[str]) -> list[str]:
    """The options of llama-bench as the other programs take them."""
    return shlex.split(shlex.join(options).replace("-rtr 1", "-rtr"))


def speed_in_table(text: str, batch: int) -> float:
    """S_TG of llama-batched-bench: | PP | TG | B | N_KV | T_PP | S_PP | T_TG | S_TG | T | S |"""
    for line in text.splitlines():
        cells = line.replace(" ", "").split("|")[1:-1]
        if len(cells) == 10 and cells[2] == str(batch):
            return float(cells[7])
    raise Failed("no line of results from llama-batched-bench")


# ---- statistics ----

def ratio_interval(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Geometric mean of the paired ratios and its 95 % t interval; from one pair no interval."""
    logs = [math.log(x / y) for x, y in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), math.nan, math.nan
    t = T_975[len(logs) - 2] if len(logs) - 2 < len(T_975) else 1.96
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


# ---- the comparison ----

class Entrant:
    """A program that runs once per case and round; of a column's entrants the fastest counts."""

    def __init__(self, column: str, label: str, run: Callable[[str, Case], float]) -> None:
        self.column, self.label, self.run = column, label, run
        self.speeds: dict[tuple[str, str], dict[int, float]] = {}  # (kind, case) -> by round
        self.failures: dict[tuple[str, str], int] = {}             # in a row
        self.reasons: dict[tuple[str, str], str] = {}              # of the last failure

    def attempt(self, kind: str, case: Case, step: Callable[[str, Case], float | None]):
        key = (kind, case.text)
        if self.failures.get(key, 0) >= TRIES:
            return None
        try:
            result = step(kind, case)
            self.failures[key] = 0
            return result
        except (Failed, OSError, ValueError, KeyError) as e:
            self.reasons[key] = str(e) if isinstance(e, Failed) else f"{type(e).__name__}: {e}"
            self.failures[key] = TRIES if isinstance(e, Refused) else self.failures.get(key, 0) + 1
            print(f"{kind} {case.text} {self.label or self.column}: {self.reasons[key]}",
                  file=sys.stderr)
            return None


class Comparison:
    def __init__(self, a: argparse.Namespace) -> None:
        self.tarn, self.best = Tarn(a), a.best
        batched = a.llama_batched_bench or [None] * len(a.llama_bench)
        self.builds: list[Peer] = [Build(a, label, bench, other) for (label, bench), other
                                   in zip(labelled(a.llama_bench), batched, strict=True)]
        self.openvino = OpenVino(a) if a.openvino else None
        if self.openvino:
            self.builds.append(self.openvino)
        self.entrants = [Entrant("tarn", "", self.tarn.run)]
        if a.best:
            self.entrants += [Entrant(b.peer, f"{b.name} {shlex.join(v)}",
                                      lambda kind, case, b=b, v=v: b.timed(kind, case, v))
                              for b in self.builds for v in b.variants]
        else:
            self.entrants += [Entrant(b.name, "", b.run) for b in self.builds]
        self.columns = list(dict.fromkeys(e.column for e in self.entrants[1:]))
        self.cells = [(kind, case) for kind in a.gguf for case in a.case]

    def run(self, n_rounds: int) -> None:
        if not self.best:
            for kind, case in self.cells:
                for entrant, build in zip(self.entrants[1:], self.builds, strict=True):
                    entrant.attempt(kind, case, build.choose)
        for n in range(n_rounds):
            first = n % len(self.entrants)
            for kind, case in self.cells:
                for entrant in self.entrants[first:] + self.entrants[:first]:
                    speed = entrant.attempt(kind, case, entrant.run)
                    if speed is not None:
                        entrant.speeds.setdefault((kind, case.text), {})[n] = speed
            print(f"round {n + 1} of {n_rounds} done", file=sys.stderr)

    def fastest(self, kind: str, case: Case, column: str) -> dict[int, tuple[float, str]]:
        """By round: the speed, and whose it was."""
        best: dict[int, tuple[float, str]] = {}
        for entrant in self.entrants:
            if entrant.column == column:
                for n, speed in entrant.speeds.get((kind, case.text), {}).items():
                    best[n] = max(best.get(n, (0.0, "")), (speed, entrant.label))
        return dict(sorted(best.items()))

    def options(self, kind: str, case: Case, column: str) -> str:
        """With --best: what won most rounds."""
        if not self.best:
            build = next(b for b in self.builds if b.name == column)
            return " ".join(build.chosen.get((kind, case.text), []))
        rounds = self.fastest(kind, case, column)
        if not rounds:
            return ""
        (label, n), = Counter(label for _, label in rounds.values()).most_common(1)
        return f"{label} ({n}/{len(rounds)})"

    def reasons(self, kind: str, case: Case, column: str) -> list[str]:
        key = (kind, case.text)
        return [f"{e.label}: {e.reasons[key]}" if e.label else e.reasons[key]
                for e in self.entrants if e.column == column and key in e.reasons]

    def row(self, kind: str, case: Case) -> dict:
        """The cell as --json writes it; null where the program gave no figure."""
        ours = {n: speed for n, (speed, _) in self.fastest(kind, case, "tarn").items()}
        share, limit = self.tarn.share(kind, case)
        row: dict = {"type": kind, "case": case.text, "tarn_tok_s": list(ours.values()),
                     "tarn_median": statistics.median(ours.values()) if ours else None,
                     "limit_share": share, "limit": limit, "peers": {}}
        for column in self.columns:
            theirs = {n: x for n, (x, _) in self.fastest(kind, case, column).items()}
            both = sorted(ours.keys() & theirs.keys())
            ratio = ratio_interval([ours[n] for n in both], [theirs[n] for n in both]) \
                if both else None
            row["peers"][column] = {
                "options": self.options(kind, case, column), "tok_s": list(theirs.values()),
                "failures": self.reasons(kind, case, column),
                "median": statistics.median(theirs.values()) if theirs else None,
                "ratio": ratio and [None if math.isnan(x) else x for x in ratio]}
            if self.best:
                row["peers"][column]["all"] = {
                    e.label: list(e.speeds.get((kind, case.text), {}).values())
                    for e in self.entrants if e.column == column}
        return row


def labelled(texts: list[str]) -> list[tuple[str, str]]:
    """Of each [LABEL=]PATH label and path. Labels differ; without one it is the folder above
    build/bin, or the path where that says nothing."""
    pairs: list[tuple[str, str]] = []
    for text in texts:
        given = re.fullmatch(r"([\w.-]+(?::[\w.-]+)?)=(.+)", text)
        label, path = (given[1], given[2]) if given else ("", text)
        parts = Path(path).resolve().parts
        label = label or (parts[-4] if len(parts) > 4 and parts[-2] == "bin" else parts[-2])
        if label == "tarn" or label in (x for x, _ in pairs):
            label = path
        pairs.append((label, path))
    return pairs


def table(rows: list[dict], columns: list[str]) -> str:
    lines = [["type", "case", "tarn tok/s", "of limit"]]
    for column in columns:
        lines[0] += [f"{column} tok/s", "options", "ratio (95 %)"]
    for row in rows:
        share = f"{number(row['limit_share'], '.0%')} {row['limit'] or ''}".strip()
        cells = [row["type"], row["case"], number(row["tarn_median"], ".1f"), share]
        for peer in row["peers"].values():
            ratio = ""
            if peer["ratio"]:
                mean, low, high = peer["ratio"]
                ratio = f"{mean:.2f}" + (f" ({low:.2f} to {high:.2f})" if low else "")
            cells += [number(peer["median"], ".1f"), peer["options"], ratio]
        lines.append(cells)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip()
                     for line in lines)


def number(x: float | None, form: str) -> str:
    return "" if x is None else format(x, form)


def compare(a: argparse.Namespace) -> dict:
    comparison = Comparison(a)
    comparison.run(a.rounds)
    if comparison.openvino:
        comparison.openvino.close()
    rows = [comparison.row(kind, case) for kind, case in comparison.cells]
    print(table(rows, comparison.columns))
    for line in comparison.tarn.limit_lines():
        print(line)
    for kind, case in comparison.cells:
        for column in ["tarn", *comparison.columns]:
            n = len(comparison.fastest(kind, case, column))
            for reason in comparison.reasons(kind, case, column):
                print(f"{'empty' if n == 0 else f'{n} of {a.rounds} rounds'}: {kind} {case.text} "
                      f"{column}: {reason}")
    return {"limits": comparison.tarn.limit_medians(), "limits_of_runs": comparison.tarn.limits,
            "threads": a.threads, "rounds": a.rounds, "best": a.best, "rows": rows,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


# ---- self-test: with fakes of the programs ----

FAKE_TARN = """import json, sys
case = sys.argv[sys.argv.index("--case") + 1]
phase, *numbers = case.replace("@", ":").split(":")
prompt, context = (numbers + ["0"])[:2] if phase == "prefill" else ("0", numbers[1])
batch = "1" if phase == "prefill" else numbers[0]
limits = {"read_gb_s": 20.0, "threads": 2, "void": True, "void_why": "a test"}
print(json.dumps({"limits": limits, "rows": [{"phase": phase, "prompt": int(prompt), "batch":
      int(batch), "context": int(context), "tok_s": 300.0, "limit_share": 0.5, "limit": "read"}]}))
"""
FAKE_BENCH = """import json, sys
if "--help" in sys.argv:
    print("-fa <0|1>")
elif "-gp" in sys.argv:
    sys.exit("no such option")
else:
    print(json.dumps([{"avg_ts": 100.0 if sys.argv[sys.argv.index("-fa") + 1] == "1" else 90.0}]))
"""
# A program that loses its output every other time, as llama.cpp may.
FAKE_BATCHED = """import os, sys
mark = sys.argv[0] + ".mark"
if not os.path.exists(mark):
    open(mark, "w").close()
    sys.exit()
os.remove(mark)
print("| PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |")
print("|----|----|----|----|----|----|----|----|----|----|")
print("|  1024 |     32 |   16 |  1536 |    4.0 |   256.0 |   5.12 |   100.00 |  9.12 |  168.4 |")
"""
FAKE_SWEEP = """import sys
assert sys.argv[sys.argv.index("-c") + 1] == "8704"
assert sys.argv[sys.argv.index("--sweep-stride") + 1] == "16"
for n_kv, speed in (0, 200.0), (8192, 100.0):
    print(f'{{"n_kv_max": 8704, "n_kv": {n_kv}, "speed_pp": {speed}}}')
"""


# A Python whose openvino_peer.py is slow with one precision, and ends by itself after two figures.
FAKE_PYTHON = """import json, sys
speed = 50.0 if sys.argv[sys.argv.index("--precision") + 1] == "f32" else 100.0
for n, _ in enumerate(sys.stdin):
    if n == 2:
        sys.exit("three is too many")
    print(json.dumps({"tok_s": speed}), flush=True)
"""


def self_test() -> None:
    ratios = [1.0, 2.0, 4.0]  # logarithms 0, l, 2l: mean l, deviation l, half 4.303 l / sqrt(3)
    mean, low, high = ratio_interval([3 * r for r in ratios], [3.0] * 3)
    half = 4.303 / math.sqrt(3)
    assert math.isclose(mean, 2) and math.isclose(low, 2 ** (1 - half)), (mean, low)
    assert math.isclose(high, 2 ** (1 + half)), high
    assert math.isclose(ratio_interval([8.0] * 40, [4.0] * 40)[1], 2)
    assert math.isnan(ratio_interval([2.0], [1.0])[1])
    assert labelled(["/x/fork/build/bin/b", "/x/fork/b2/bin/b", "p:q=/y/b"]) == [
        ("fork", "/x/fork/build/bin/b"), ("/x/fork/b2/bin/b", "/x/fork/b2/bin/b"), ("p:q", "/y/b")]
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for name, text in (("tarn-bench", FAKE_TARN), ("llama-bench", FAKE_BENCH),
                           ("slow-bench", FAKE_BENCH.replace("90.0", "9.0").replace("100.", "50.")),
                           ("llama-batched-bench", FAKE_BATCHED)):
            paths[name] = fake(folder, name, text)
        common = ["--tarn", paths["tarn-bench"], "--model", "m", "--gguf", "bf16=x", "--gguf",
                  "int8=y", "--rounds", "2"]
        check_rows(compare(arguments([*common, "--llama-bench", paths["llama-bench"]])), "-fa 1")
        fake(folder, "llama-sweep-bench", FAKE_SWEEP)
        result = compare(arguments([*common, "--best", "--llama-bench", f"p:fast="
                                    f"{paths['llama-bench']}", "--llama-bench", f"p:slow="
                                    f"{paths['slow-bench']}"]))
        check_rows(result, "p:fast -fa 1 (2/2)", True)
        assert result["rows"][0]["peers"]["p"]["all"]["p:slow -fa 0"] == [9, 9]
        check_openvino(compare(arguments([*common, "--openvino",
                                          fake(folder, "python", FAKE_PYTHON)])))
    print("self-test passed")


def fake(folder: str, name: str, text: str) -> str:
    path = Path(folder) / name
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


def check_openvino(result: dict) -> None:
    """The better precision is chosen; a process that ends is started again in the next round."""
    for row in result["rows"]:
        peer = row["peers"]["openvino"]
        if "@" in row["case"] or ":16:" in row["case"]:
            assert not peer["tok_s"] and "no KV cache" in peer["failures"][0], peer
        else:
            assert peer["options"] == "bf16" and peer["tok_s"] == [100], peer
            assert peer["failures"] == ["exit code 1: three is too many"], peer


def check_rows(result: dict, options: str, has_sweep: bool = False) -> None:
    rows = {(r["type"], r["case"]): r for r in result["rows"]}
    assert len(rows) == 8 and result["limits"] == {"read_gb_s": 20.0}
    for (_, case), row in rows.items():
        (peer,) = row["peers"].values()
        assert row["tarn_tok_s"] == [300, 300] and row["limit_share"] == 0.5, row
        assert row["limit"] == "read", row
        if "@" in case and not has_sweep:
            assert peer["ratio"] is None and "no such option" in peer["failures"][0], peer
        else:
            assert peer["options"] == options or "@" in case or ":16:" in case, peer
            assert all(math.isclose(x, 3) for x in peer["ratio"]), peer
            assert not peer["failures"], peer


# ---- command line ----

def arguments(argv: list[str]) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tarn", required=True, help="tarn-bench")
    p.add_argument("--model", required=True, help="directory with config.json")
    p.add_argument("--llama-bench", action="append", default=[], metavar="[LABEL=]PATH")
    p.add_argument("--llama-batched-bench", action="append")
    p.add_argument("--openvino", metavar="PYTHON", help="a Python that has the package openvino")
    p.add_argument("--gguf", action="append", required=True, metavar="bf16|int8|int4=FILE",
                   help="the types to compare, and llama.cpp's files of them")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--case", type=Case, action="append", help=f"by default {' '.join(CASES)}")
    p.add_argument("--variant", action="append", help="options of the peers to try, as one text")
    p.add_argument("--best", action="store_true", help="compare the builds of a peer as one")
    p.add_argument("--json", type=Path, help="write all figures here")
    a = p.parse_args(argv)
    a.gguf = dict(text.split("=", 1) for text in a.gguf)
    if not a.llama_bench and not a.openvino:
        p.error("no peer: give --llama-bench or --openvino")
    if set(a.gguf) - {"bf16", "int8", "int4"}:
        p.error("--gguf: the types are bf16, int8 and int4")
    if a.llama_batched_bench and len(a.llama_batched_bench) != len(a.llama_bench):
        p.error("--llama-batched-bench: one for each --llama-bench")
    a.case = a.case or [Case(text) for text in CASES]
    a.variant = a.variant or VARIANTS
    return a


def main() -> None:
    if "--self-test" in sys.argv[1:]:
        self_test()
        return
    a = arguments(sys.argv[1:])
    result = compare(a)
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
