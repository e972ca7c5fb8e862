"""Write the results of tests/gpu/run: report.txt and all.tgz, after each command.

report.txt is for people: the device, one table of floors, predictions and measured times, the
result of each command, the last lines of those that failed. all.tgz holds every log, CSV and JSON.
"""
from __future__ import annotations

import csv
import io
import json
import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

FILE_BYTES_MAX = 1 << 20  # of a file in all.tgz: its end
TAIL_LINES = 15

# An 8 B Llama (tests/gpu/model-8b): bytes that a decode step reads, operations of a prompt token.
LAYER_PARAMS = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
OUTPUT_PARAMS = 128256 * 4096
KV_BYTES = 2 * 32 * 1024 * 2  # a token
N_HEADS_TIMES_DIM = 32 * 32 * 128  # over all layers

# The predictions of kernels/cuda/PERFORMANCE.md: share of the floor, or microseconds.
PREDICTED = {
    ("launch", ""): "2 to 3 us",
    ("gemm", "bf16"): "70 to 85 %",
    ("gemm", "int8"): "60 to 75 %",
    ("gemm", "int4"): "50 to 65 %",
    ("gemm", "T 2048"): "cuBLASLt",
    ("attention", "64 seqs x 1 rows"): "70 to 85 %",
    ("attention", "1 seqs x 1 rows"): "32 blocks: low",
    ("attention", "rows @ 0"): "25 to 35 %",
    ("attention", "64 rows @ 16384"): "low: few blocks",
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
        """tarn-bench's cases of the 8 B model beside the floors of this device."""
        copy, matrix = self.ceilings()
        rows = []
        for name, bytes_each in (("bench-8b", 2.0), ("bench-8b-int4", 0.5625)):
            try:
                measured = json.loads((self.work / f"{name}.json").read_text())["rows"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            for r in measured:
                rows.append(self.model_row(name, r, bytes_each, copy, matrix))
        return rows

    @staticmethod
    def model_row(name: str, r: dict, bytes_each: float, copy: float, matrix: float) -> Row:
        context, batch, prompt = r["context"], r["batch"], r["prompt"]
        new = prompt or 1
        output_bytes = 2.0 if bytes_each == 2.0 else 1.0  # quantized models keep 8 bits there
        n_bytes = (LAYER_PARAMS * bytes_each + OUTPUT_PARAMS * output_bytes
                   + KV_BYTES * batch * (context + new))
        ops = (2 * LAYER_PARAMS * new * batch + 2 * OUTPUT_PARAMS * batch
               + 4 * N_HEADS_TIMES_DIM * batch * new * (context + new / 2))
        floor = max(n_bytes / copy, ops / matrix) if copy and matrix else None
        what = f"prefill {prompt} @ {context}" if prompt else f"decode {batch} @ {context}"
        return Row(f"8 B {'int4' if bytes_each < 1 else 'bf16'} {what}",
                   floor * 1e6 if floor else None, "", r["seconds"] * 1e6)

    def table(self) -> str:
        rows = self.kernel_rows() + self.model_rows()
        if not rows:
            return "(nothing was timed)"
        lines = [f"{'what':46} {'floor us':>10} {'predicted':>16} {'measured us':>12} "
                 f"{'share':>6} {'PyTorch us':>11}"]
        for r in rows:
            share = f"{100 * r.floor_us / r.us:5.0f}%" if r.floor_us and r.us else ""
            lines.append(f"{r.what:46} {r.floor_us or 0:10.1f} {r.predicted:>16} {r.us or 0:12.1f} "
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
