#!/usr/bin/env python3
"""tests/gpu/run without a GPU: after any failure, all measured results are in the report.

A copy of tests/gpu runs against stand-ins: an nvidia-smi that names a GPU, the speed program and
some kernel tests on the emulated device, and small scripts for the rest.
"""
from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from http_helpers import REPO, run_tests
import tarn_test

N_FILES_MAX = 8  # that come back from the device machine
EMULATED = ("activation", "merge", "norms")  # the quickest
FOLDER: Path

SERVER = '''#!{python}
import http.server, json, signal, sys
if "--version" in sys.argv:
    print("tarn-server stand-in"); sys.exit(0)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked = [0]
    def reply(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.asked[0] += 1
        self.reply(b"tarn:step_gap_seconds_sum{{}} 0.001\\ntarn:step_gap_seconds_count{{}} 10\\n"
                   b"vllm:inter_token_latency_seconds_sum{{}} %d\\n"
                   b"vllm:inter_token_latency_seconds_count{{}} %d\\n"
                   % (self.asked[0], 1000 * self.asked[0]))
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply(json.dumps({{"choices": [{{"token_ids": [1] * body["max_tokens"]}}],
                                "usage": {{"prompt_tokens": len(body["prompt"])}}}}).encode())
    def log_message(self, *_):
        pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
server = Server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
server.serve_forever()
'''
BENCH = '''#!/bin/sh
echo '{"rows": [{"phase": "decode", "prompt": 0, "batch": 1, "context": 1024, "seconds": 0.006}]}'
'''
TESTS = '''#!/bin/sh
case $1 in
{hook}
{emulated}) exec env -u TARN_GPU_TEST "{build}/tests/cuda_$1" ;;
*) echo "$1: a stand-in, nothing was tested" ;;
esac
'''
SPEED = '''#!/bin/sh
{hook}
exec env -u TARN_GPU_TEST "{build}/tests/tarn-gpu-speed-emulated" "$@" --max-seconds 5
'''


class Machine:
    """A folder with a copy of tests/gpu, stand-in programs, and stand-in tools, first in PATH."""

    def __init__(self, name: str, test_hook: str = "", speed_hook: str = "", gpu: bool = True,
                 tools: dict[str, str] | None = None) -> None:
        self.root = FOLDER / name
        self.out, self.bin = self.root / "out", self.root / "build/gpu/bin"
        shutil.copytree(REPO / "tests/gpu", self.root / "tests/gpu")
        build = tarn_test.build_dir()
        self.write(self.bin / "tarn-server", SERVER.format(python=sys.executable))
        self.write(self.bin / "tarn-bench", BENCH)
        self.write(self.bin / "tarn-gpu-tests",
                   TESTS.format(hook=test_hook, emulated="|".join(EMULATED), build=build))
        self.write(self.bin / "tarn-gpu-speed", SPEED.format(hook=speed_hook, build=build))
        all_tools = {"nvidia-smi": "echo 'name, driver'; echo 'Stand-in, 1.0'" if gpu else "exit 9",
                     "ldd": "echo 'statically linked'", "compute-sanitizer":
                     'while [ "$1" != "${1#-}" ]; do case $1 in --tool|--error-exitcode) shift;; '
                     'esac; shift; done; exec "$@"', **(tools or {})}
        for tool, body in all_tools.items():
            self.write(self.root / "tools" / tool, f"#!/bin/sh\n{body}\n")

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def start(self, *options: str) -> subprocess.Popen:
        env = {**os.environ, "PATH": f"{self.root / 'tools'}:{os.environ['PATH']}",
               "OUT": str(self.out)}
        return subprocess.Popen([sys.executable, str(self.root / "tests/gpu/run"), *options],
                                env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                cwd=self.root)

    def run(self, *options: str) -> tuple[int, str]:
        process = self.start(*options)
        output = process.communicate(timeout=tarn_test.patience(800))[0].decode()
        return process.returncode, output

    def report(self) -> str:
        path = self.out / "report.txt"
        return path.read_text() if path.is_file() else ""

    def unpack(self) -> dict[str, str]:
        """The files in all.tgz. The output folder has no files but all.tgz and report.txt."""
        names = sorted(p.name for p in self.out.iterdir() if not p.name.startswith("."))
        assert names == ["all.tgz", "report.txt"] and len(names) <= N_FILES_MAX, names
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+", n) for n in names)
        with tarfile.open(self.out / "all.tgz") as tar:
            return {m.name: tar.extractfile(m).read().decode(errors="replace")  # type: ignore
                    for m in tar.getmembers()}


def n_rows(files: dict[str, str], name: str) -> int:
    return len(list(csv.DictReader(files[name].splitlines())))


def the_plan_of_seconds_adds_up() -> None:
    sys.path.insert(0, str(REPO / "tests/gpu"))
    import steps
    plan = steps.make_steps(Path("bin"), Path("work"))
    total = sum(s.seconds for s in plan) + steps.FIND_SECONDS
    assert total <= steps.PLAN_SECONDS == 480, total
    names = [c.name for s in plan for c in s.commands]
    assert len(names) == len(set(names)), "two commands write one log"
    order = [s.name for s in plan]
    assert order.index("first") < order.index("decisive") < order.index("speed"), order
    assert order[-1] == "sanitizers"


def a_whole_run_brings_back_tables_and_logs() -> None:
    machine = Machine("whole")
    status, output = machine.run()
    assert status == 0, output
    assert output.splitlines()[-1].endswith(" passed, 0 failed"), output
    files = machine.unpack()
    assert n_rows(files, "decisive.csv") > 20 and n_rows(files, "ceilings.csv") == 14
    for name in ("full_gemm.log", "synccheck_small.log", "server.log", "tarn-server.log",
                 "server-in-turn.log", "tarn-server-in-turn.log",
                 "bench-8b.json", "speed.csv", "invariant.csv", "torch.log",
                 "transformers.log"):
        assert name in files, sorted(files)
    assert "nothing to compare with" in files["transformers.log"], files["transformers.log"]
    assert "100 answers" in files["server.log"] and "step gap: 100.0 us" in files["server.log"]
    report = machine.report()
    for what in ("asynchronous steps", "steps in turn"):
        assert re.search(rf"1 B served, 16 decodes, {what} +0.0 +1000.0 ", report), report
    import predict
    for words in ("Stand-in", "floor us", "attention 8B", "70 to 85 %",
                  *(f"8 B {case.name}" for case in predict.CASES)):
        assert words in report, report


def a_killed_command_costs_itself_only() -> None:
    machine = Machine("killed", test_hook='gemm) kill -9 $$ ;;', speed_hook=
                      'case " $* " in *" --invariant "*) echo about to die; kill -9 $$ ;; esac')
    status, output = machine.run("--only", "first,decisive,invariant,sanitizers")
    assert status == 1 and "killed by signal 9" in output, output
    files = machine.unpack()
    assert n_rows(files, "decisive.csv") > 20
    report = machine.report()
    assert "about to die" in report and "invariant" in report
    passed = re.search(r"(\d+) passed, (\d+) failed", output.splitlines()[-1])
    assert passed and int(passed[2]) == 1 + 1 + 3, output  # first, invariant, three sanitizers


def a_run_that_is_killed_has_brought_back_its_rows() -> None:
    machine = Machine("cut", speed_hook='case " $* " in *speed.csv*) sleep 600 ;; esac')
    process = machine.start("--only", "decisive,speed")
    deadline = time.monotonic() + 300
    while "decisive" not in machine.report() or "passed" not in machine.report():
        assert time.monotonic() < deadline and process.poll() is None, machine.report()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert n_rows(machine.unpack(), "decisive.csv") > 20
    subprocess.run(["pkill", "-f", str(machine.bin)], check=False)


def a_late_command_ends_and_the_rest_is_named() -> None:
    machine = Machine("late", speed_hook="echo one row; sleep 100")
    status, output = machine.run("--seconds", "4", "--only", "decisive,torch,speed")
    assert status == 1, output
    assert "out of time" in output and "no time left" in output, output
    assert "one row" in machine.unpack()["decisive.log"]


def a_missing_library_means_a_build_here() -> None:
    """The build is a stand-in too: it copies the programs to where a build puts them."""
    hidden = "[ -e %s ] && echo linked || echo 'libcudart.so.13 => not found'"
    made = FOLDER / "library" / "build/gpu-here"
    tools = {"ldd": hidden % made, "cmake":
             f'mkdir -p {made}/gpu; cp {FOLDER}/library/build/gpu/bin/* {made}/; '
             f'cp {FOLDER}/library/build/gpu/bin/tarn-gpu-* {made}/gpu/'}
    machine = Machine("library", tools=tools)
    (machine.root / "build/gpu/lib").mkdir()
    (machine.root / "build/gpu/deps").mkdir()
    status, output = machine.run("--only", "decisive")
    assert "does not find libcudart.so.13" in output, output
    assert status == 0 and n_rows(machine.unpack(), "decisive.csv") > 20, output


def a_build_that_fails_says_why() -> None:
    machine = Machine("no-build", tools={"ldd": "echo 'libcudart.so.13 => not found'",
                                         "cmake": "echo no compiler here; exit 1"})
    (machine.root / "build/gpu/lib").mkdir()
    (machine.root / "build/gpu/deps").mkdir()
    status, output = machine.run("--only", "decisive")
    assert status == 1 and "no compiler here" in machine.report(), output
    assert "did not start" in output, output


def no_gpu_is_said_at_once() -> None:
    machine = Machine("none", gpu=False)
    status, output = machine.run()
    assert status == 1 and output.splitlines()[-1] == "0 passed, 1 failed", output
    assert "no GPU here" in machine.report()


def main() -> int:
    global FOLDER
    with tempfile.TemporaryDirectory(prefix="tarn-gpu-run-") as folder:
        FOLDER = Path(folder)
        return run_tests([the_plan_of_seconds_adds_up, a_whole_run_brings_back_tables_and_logs,
                          a_killed_command_costs_itself_only,
                          a_run_that_is_killed_has_brought_back_its_rows,
                          a_late_command_ends_and_the_rest_is_named,
                          a_missing_library_means_a_build_here, a_build_that_fails_says_why,
                          no_gpu_is_said_at_once])


if __name__ == "__main__":
    sys.exit(main())
