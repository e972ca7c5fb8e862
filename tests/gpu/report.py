"""Write the results of tests/gpu/run: report.txt and all.tgz, after each command.

report.txt is for people: the device, one table of floors, predictions and measured times, the
result of each command, the last lines of those that failed. all.tgz holds every log, CSV and JSON.
"""
from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

import predict

FILE_BYTES_MAX = 1 << 20  # of a file in all.tgz: its end
TAIL_LINES = 15

# The predictions of kernels/cuda/PERFORMANCE.md: share of the floor, or microseconds.
PREDICTED = {
    ("launch", ""): "2 to 3 us",
    ("gemm", "bf16"): "70 to 85 %",
    ("gemm", "int8"): "70 to 85 %",
    ("gemm", "int4"): "65 to 80 %",
    ("gemm", "fp8"): "70 to 85 %",
    ("gemm", "T 2048"): "cuBLASLt",
    ("attention", "64 seqs x 1 rows"): "70 to 85 %",
    ("attention", "1 seqs x 1 rows"): "40 blocks: low",
    ("attention", "rows @ 0"): "40 to 60 %",
    ("attention", "rows @ 0 by mma.sync"): "25 to 35 %",
    ("attention", "d256 1 seqs x 2048 rows @ 0"): "125 to 175 us",
    ("attention", "64 rows @ 16384"): "40 to 60 us",
    ("attention", "64 rows @ 16384 by mma.sync"): "65 to 92 us",
    ("sample", ""): "20 to 60 us",
}


@dataclass
class Row:
    what: str
    floor_us: float | None
    predicted: str
    us: float | None
    peer_us: float | None = None


def predicted(op: str, shape: str) -> str:
    """The most specific prediction: the longest part of the shape that has one."""
    fits = [(len(part), words) for (of, part), words in PREDICTED.items()
            if of == op and part in shape]
    return max(fits)[1] if fits else ""


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows that are whole: the last line may have been cut."""
    try:
        rows = list(csv.DictReader(path.read_text(errors="replace").splitlines()))
    except OSError:
        return []
    return [r for r in rows if r and None not in r.values() and None not in r]


def number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def step_of(bench: str) -> predict.Step:
    """The step of tarn-bench's case decode:BATCH:CONTEXT, decode:BATCH:CONTEXT@SHARED, prefill:ROWS
    or prefill:ROWS@CONTEXT."""
    phase, _, rest = bench.partition(":")
    first, _, context = rest.partition(":" if phase == "decode" else "@")
    if phase == "decode":
        context, _, shared = context.partition("@")
        return predict.Step(int(first), 1, int(context or 0), shared=int(shared or 0))
    return predict.Step(1, int(first), int(context or 0))


def step_row(name: str, device: predict.Device, ops: list[predict.Op], gap: str,
             seconds: float | None) -> Row:
    fast, slow = predict.predicted_seconds(device, ops, gap)
    return Row(f"8 B {name}", predict.floor_seconds(device, ops) * 1e6,
               f"{predict.in_ms(fast)} to {predict.in_ms(slow)} ms",
               seconds * 1e6 if seconds else None)


class Report:
    """Owns the folder of logs `work`, and writes the two files in `out`."""

    def __init__(self, out: Path, work: Path) -> None:
        self.out, self.work = out, work
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        out.mkdir(parents=True, exist_ok=True)
        self.notes: list[str] = []
        self.results: list[tuple[str, str, str, float]] = []
        self.n_passed = self.n_failed = 0

    def log_path(self, name: str) -> Path:
        return self.work / f"{name}.log"

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(text, flush=True)

    def add(self, step: str, name: str, result: str, seconds: float) -> None:
        """Count a command, print its number, and write the results known so far."""
        self.results.append((step, name, result, seconds))
        if result == "passed":
            self.n_passed += 1
        else:
            self.n_failed += 1
        print(f"{step:12} {name:28} {result:20} {seconds:6.1f} s", flush=True)
        if result not in ("passed", "no time left"):
            print(self.tail(name), flush=True)
        self.refresh()

    def tail(self, name: str) -> str:
        try:
            lines = self.log_path(name).read_text(errors="replace").splitlines()
        except OSError:
            return "    (no log)"
        return "\n".join("    " + line[:200] for line in lines[-TAIL_LINES:])

    # --- the table ---

    def kernel_rows(self) -> list[Row]:
        peers = {(r.get("op"), r.get("shape")): number(r.get("us"))
                 for r in read_csv(self.work / "torch.csv")}
        return [Row(f"{r['op']} {r['shape']}", number(r.get("floor_us")),
                    predicted(r["op"], r["shape"]), number(r.get("us")),
                    peers.get((r["op"], r["shape"])))
                for r in read_csv(self.work / "decisive.csv") if "op" in r and "shape" in r]

    def ceilings(self) -> tuple[float, float]:
        """Bytes and operations per second, 0 where they were not measured."""
        copy = matrix = 0.0
        for r in read_csv(self.work / "decisive.csv"):
            if r.get("shape", "").startswith("ceiling"):
                seconds = (number(r.get("us")) or 0) * 1e-6
                if seconds and r["op"] == "copy":
                    copy = (number(r.get("bytes")) or 0) / seconds
                elif seconds:
                    matrix = (number(r.get("operations")) or 0) / seconds
        return copy, matrix

    def model_rows(self) -> list[Row]:
        """The rows of predict.py's table, and tarn-bench's further cases, with the floors of this
        device: measured where they were."""
        copy, matrix = self.ceilings()
        usual = predict.Device()
        device = predict.Device(copy or usual.copy_rate, matrix or usual.matrix_rate)
        measured = self.measured_steps()
        wanted = [(c.name, c.weights, c.bench, c.ops(device, predict.model_8b()), c.gap)
                  for c in predict.CASES if not c.products]
        named = {(weights, bench) for _, weights, bench, _, _ in wanted}
        for weights, bench in measured:
            if (weights, bench) not in named:
                wanted.append((f"{bench.replace(':', ' ')}, {weights}", weights, bench,
                               predict.step_ops(device, predict.model_8b().quantized(weights),
                                                step_of(bench)),
                               predict.gap_of(step_of(bench))))
        rows = [step_row(name, device, ops, gap, measured.get((weights, bench)))
                for name, weights, bench, ops, gap in wanted]
        for c in predict.CASES:
            if c.products:
                rows.append(step_row(c.name, device, c.ops(device, predict.model_8b()), c.gap,
                                     self.products_seconds(c)))
        return rows

    def measured_steps(self) -> dict[tuple[str, str], float]:
        """Seconds by weights and tarn-bench's case."""
        found = {}
        for name, weights in (("bench-8b", "bf16"), ("bench-8b-int4", "int4"),
                              ("bench-8b-int8", "int8"), ("bench-8b-fp8", "fp8")):
            try:
                for r in json.loads((self.work / f"{name}.json").read_text())["rows"]:
                    bench = (f"prefill:{r['prompt']}" + (f"@{r['context']}" if r["context"] else "")
                             if r["prompt"] else f"decode:{r['batch']}:{r['context']}"
                             + (f"@{r['shared']}" if r.get("shared") else ""))
                    found[weights, bench] = float(r["seconds"])
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return found

    def products_seconds(self, case: predict.Case) -> float | None:
        """The products of a step, each timed by itself; None: one of them was not."""
        us = {r.get("shape", "").split(" N ")[0]: number(r.get("us"))
              for r in read_csv(self.work / "decisive.csv")
              if r.get("op") == "gemm" and r.get("shape", "").endswith(f" T {case.step.n_rows}")}
        total = 0.0
        for op in case.ops(predict.Device(), predict.model_8b()):
            if op.name == "output":
                one = us.get("output int8")
            else:
                one = us.get(f"{op.name} {case.weights} g32")
            if not one:
                return None
            total += op.times * one
        return total * 1e-6

    def server_rows(self) -> list[Row]:
        """The time between two tokens of 16 requests to a server with a model of 1 B, and to the
        library transformers."""
        rows = []
        for name, what in (("server", "asynchronous steps"), ("server-in-turn", "steps in turn"),
                           ("transformers", "transformers")):
            try:
                log = (self.work / f"{name}.log").read_text(errors="replace")
            except OSError:
                continue
            found = re.search(r"^between tokens: ([\d.]+) us", log, re.M)
            if found:
                rows.append(Row(f"1 B served, 16 decodes, {what}", None, "", float(found[1])))
        return rows

    def table(self) -> str:
        rows = self.kernel_rows() + self.model_rows() + self.server_rows()
        if not rows:
            return "(nothing was timed)"
        lines = [f"{'what':46} {'floor us':>10} {'predicted':>16} {'measured us':>12} "
                 f"{'share':>6} {'PyTorch us':>11}"]
        for r in rows:
            share = f"{100 * r.floor_us / r.us:5.0f}%" if r.floor_us and r.us else ""
            us = format(r.us, ".1f") if r.us else "-"
            lines.append(f"{r.what:46} {r.floor_us or 0:10.1f} {r.predicted:>16} {us:>12} "
                         f"{share:>6} {format(r.peer_us, '.1f') if r.peer_us else '':>11}")
        return "\n".join(lines)

    # --- the files ---

    def text(self) -> str:
        parts = ["\n".join(self.notes), self.table()]
        parts.append("\n".join(f"{step:12} {name:28} {result:20} {seconds:6.1f} s"
                               for step, name, result, seconds in self.results))
        for step, name, result, _ in self.results:
            if result not in ("passed", "no time left"):
                parts.append(f"--- {name}: {result}\n{self.tail(name)}")
        parts.append(f"{self.n_passed} passed, {self.n_failed} failed")
        return "\n\n".join(parts) + "\n"

    def replace(self, name: str, data: bytes) -> None:
        """A reader finds the old file or the new one, never a part."""
        new = self.out / f".{name}.new"
        new.write_bytes(data)
        os.replace(new, self.out / name)

    def refresh(self) -> None:
        """Write both files from the current contents of the folder of logs."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as tar:
            for path in sorted(self.work.iterdir()):
                try:
                    data = path.read_bytes()[-FILE_BYTES_MAX:]
                except OSError:
                    continue
                info = tarfile.TarInfo(path.name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        self.replace("all.tgz", packed.getvalue())
        self.replace("report.txt", self.text().encode())
