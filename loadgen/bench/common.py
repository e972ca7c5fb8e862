"""common.py - what the live parts of the benches share: built programs, a file of results, a server
process, and tarn-loadgen against it. Standard library only."""
from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
STOP_SECONDS = 60
ASK_SECONDS = 600


def build_dir() -> Path:
    return Path(os.environ.get("TARN_BUILD_DIR") or REPO / "build")


def program(name: str) -> str:
    path = build_dir() / name
    if not path.is_file():
        raise SystemExit(f"{name} is not in {build_dir()}: build it, or set TARN_BUILD_DIR")
    return str(path)


def offers(option: str) -> bool:
    """Whether this build of the server has the option."""
    done = subprocess.run([program("tarn-server"), "--help"], capture_output=True, text=True)
    return f"--{option} " in done.stdout


def progress(words: str) -> None:
    print("+", words, file=sys.stderr, flush=True)


class Store:
    """A JSON file of results; it is written after every part."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.out: dict = {"format": 1}
        if path and path.exists():
            self.out = json.loads(path.read_text())
            if self.out.get("format") != 1:
                raise SystemExit(f"{path}: not a file of this program; use another one")

    def put(self, name: str, value: object) -> None:
        self.out[name] = value
        self.save()

    def save(self) -> None:
        if self.path:
            other = self.path.with_name(self.path.name + ".part")
            other.write_text(json.dumps(self.out, indent=1) + "\n")
            os.replace(other, self.path)


# --- a server ---

class Server:
    """A process that prints where it listens, until the end of its `with`."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.log = tempfile.NamedTemporaryFile("w+b", prefix="tarn-bench-log-")
        began = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log)
        self.port = 0
        assert self.process.stdout
        for line in self.process.stdout:
            found = re.search(rb"http://[^ ]*:(\d+)", line)
            if found:
                self.port = int(found[1])
                break
        self.start_s = time.monotonic() - began
        if not self.port:
            self.process.wait()
            raise SystemExit(f"{' '.join(command)}\nended: {self.log_text()[-2000:]}")
        self.url = f"http://127.0.0.1:{self.port}"

    def log_text(self) -> str:
        return Path(self.log.name).read_text(errors="replace")

    def ask(self, method: str, path: str, body: object = None,
            kind: str = "application/json") -> tuple[int, str]:
        """Status and text. body: bytes, or made JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ASK_SECONDS)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": kind} if data else {})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def must(self, method: str, path: str, body: object = None,
             kind: str = "application/json") -> dict:
        """The answer's JSON (of JSON lines: the last one); an error ends the program."""
        status, text = self.ask(method, path, body, kind)
        if status >= 300:
            raise SystemExit(f"{method} {path}: {status} {text[:500]}")
        last = text.strip().rsplit("\n", 1)[-1] if kind.endswith("ndjson") else text
        return json.loads(last) if last else {}

    def get(self, path: str) -> str:
        status, text = self.ask("GET", path)
        if status != 200:
            raise SystemExit(f"{path}: {status} {text[:200]}")
        return text

    def metrics(self) -> dict[str, float]:
        """Sample name, with its labels but for model_name and engine -> value."""
        out = {}
        for line in self.get("/metrics").splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = re.sub(r'(model_name|engine)="(?:[^"\\]|\\.)*",?', "", name)
                out[name.replace("{}", "")] = float(value)
        return out

    def metric(self, name: str) -> float:
        """The sum over the label sets of one metric."""
        values = [v for k, v in self.metrics().items() if k.split("{")[0] == name]
        if not values:
            raise SystemExit(f"/metrics has no {name}")
        return sum(values)

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds of each thread so far."""
        return thread_cpu_s(self.process.pid)

    def memory_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()
        if status:
            raise SystemExit(f"{' '.join(self.command)}\nended with {status}: "
                             f"{self.log_text()[-2000:]}")
        self.log.close()


def thread_cpu_s(pid: int) -> dict[str, float]:
    tick = os.sysconf("SC_CLK_TCK")
    used = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # the thread has ended meanwhile
            continue
        used[task.name] = (int(fields[11]) + int(fields[12])) / tick
    return used


# --- the load ---

class Load:
    """One run of tarn-loadgen."""

    def __init__(self, url: str, *options: object) -> None:
        with tempfile.TemporaryDirectory(prefix="tarn-bench-") as folder:
            out, raw = Path(folder, "out.json"), Path(folder, "raw.jsonl")
            command = [program("tarn-loadgen"), "--url", url, "--ignore-eos", "--quiet",
                       "--progress=false", "--json", str(out), "--raw", str(raw),
                       *map(str, options)]
            start, words = time.monotonic(), Path(folder, "words")
            with words.open("w") as err:
                run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err)
                _, status, usage = os.wait4(run.pid, 0)
            run.returncode = os.waitstatus_to_exitcode(status)
            self.wall_s = time.monotonic() - start
            self.cpu_s = usage.ru_utime + usage.ru_stime
            if run.returncode != 0:
                raise SystemExit(f"{' '.join(command)}\nended with {run.returncode}: "
                                 f"{words.read_text(errors='replace')[-2000:]}")
            self.result = json.loads(out.read_text())
            with raw.open() as lines:
                self.requests = [json.loads(line) for line in lines]

    def measured(self) -> list[dict]:
        return [r for r in self.requests if r["measured"] and r["end"] == "ok"]
