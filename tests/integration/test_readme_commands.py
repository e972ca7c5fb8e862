#!/usr/bin/env python3
"""Every command of the documents for users, as typed, in a clone without shared data.

    test_readme_commands.py [--only TEXT] [--list]

The documents are README.md, docs/user/*.md and loadgen/**/README.md; their fenced `sh` blocks are
cut into commands. The commands run one after another in a copy of this repository, with nothing
beside it, against the server that deploy/quickstart starts there. RULES says how each command runs:
most run unchanged, some with smaller numbers or with a name that must exist (/path/to/model), and a
few are skipped for a stated reason. A command that matches no rule fails the test, so a new command
in a document needs a rule here.

The programs are not built again (tests/chroot.sh does that in an empty Debian): a stand-in for
cmake links the targets that deploy/quickstart names, and only those.
"""
from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from tarn_test import REPO, build_dir, free_port, free_ports, patience  # noqa: E402

DOCUMENTS = ["README.md", *sorted(str(p.relative_to(REPO)) for folder, pattern in
                                  (("docs/user", "*.md"), ("loadgen", "**/README.md"))
                                  for p in (REPO / folder).glob(pattern))]
SIMULATIONS = "docs/user/scheduling.md"
LIMIT_S = patience(240)  # of one command; none takes that long, but the machine may be busy
TAIL = 3000    # of an output that is shown


@dataclass
class Rule:
    """How commands that match `pattern` run."""
    pattern: str                   # searched in the command
    how: str = "run"               # run, server (until it is ready), skip
    change: tuple = ()             # (pattern, replacement) pairs, applied in order
    code: int = 0
    expect: str = ""               # a pattern that the output must have
    why: str = ""                  # of skip


OTHER_SERVER = ("http://127.0.0.1:8080", "http://127.0.0.1:8000")  # the same one stands in
SMALL_SIM = (r"--count 4000", "--count 300")
ANSWERED = r"Successful requests: +[1-9][\s\S]*Failed requests: +0 "

# The first rule that matches counts.
RULES = [
    Rule(r"^deploy/quickstart\b", "skip", why="start_quickstart() has run it"),
    Rule(r"^deploy/pool --instances 2$", "skip", why="the same as in README.md"),
    Rule(r"^(nice )?loadgen/bench/pool/(show|simulated)\.py\b", "skip",
         why="minutes; the test poolbench runs it"),
    Rule(r"^deploy/pool\b", change=((r"^deploy/pool", "deploy/pool --no-install --once --port "
                                     f"{free_ports(3)}"),),
         expect=r"\n +\d+ +\d+ +[1-9]\d* +[\d.]+ ms   http"),
    Rule(r"^redis-server\b", "skip", why="stays; the next commands do without"),
    Rule(r"^\(umask 077 && openssl rand\b"),
    Rule(r"^build/tarn-server\b.*--pool-listen 10\.", "server",
         ((r"10\.0\.0\.\d", "127.0.0.1"), (r":7000", ":0"), (r"6379/0", "1/0"))),
    Rule(r"^build/tarn-server\b.*--pool\b", "server", ((r"6379/0", "1/0"),)),
    Rule(r"^(deploy/test|tests/chroot\.sh|tests/gpu/)", "skip",
         why="runs this test, needs root or a GPU"),
    Rule(r"cmake --preset cuda|^build/cuda/", "skip", why="needs nvcc"),
    Rule(r"^(cmake|cpack|ninja)\b", "skip", why="builds or installs"),
    Rule(r"^(sudo|apt|apt-get|dpkg|systemctl|systemd-analyze|journalctl|docker|kubectl|pip|pip3|"
         r"git|hf|huggingface-cli|man)\b", "skip",
         why="needs root, a network or another machine"),
    Rule(r"^curl\b.*/v1/(embeddings|rerank|score|classify)", "skip",
         why="needs a further model; the tests embeddings and scores ask such servers"),
    Rule(r"^curl\b[\s\S]*(lora_adapter|\"sql\")", "skip",
         why="needs a server with adapters; the test adapters asks one"),
    Rule(r"^curl\b.*/v1/preambles[\s\S]*\"tools\"", "skip",
         why="the demo model's template knows no tools; the test preamble_tools has one that does"),
    Rule(r"^curl\b[\s\S]*captain of Kumnordim is Stamos", expect=r'"content": ?"Stamos\.'),
    Rule(r"^curl\b[\s\S]*captain of Mirandol", expect=r'"content": ?"Tavish\.'),
    Rule(r"^curl\b.*completions/render", expect=r'"token_ids"'),
    Rule(r"^curl\b.*/v1/(chat/)?completions", expect=r'"choices"'),
    Rule(r"^curl\b"),
    Rule(r"^printf\b[\s\S]*/v1/documents/bulk", expect=r'"documents\.bulk"[\s\S]*"failed":0'),
    Rule(r"^build/tarn-server\b.*--tls-cert", "skip", why="needs a certificate and keys"),
    Rule(r"^build/tarn-server\b.*--kv-disk-path", "server",
         (("--kv-disk-path \\S+", "--kv-disk-path kv"), (r"--kv-disk-bytes \S+",
                                                         "--kv-disk-bytes 64M"))),
    Rule(r"^build/tarn-server\b.*--kv-events", "server",
         ((r"\*:5557", f"127.0.0.1:{free_ports(1)}"), (r"\*:5558", f"127.0.0.1:{free_ports(1)}"))),
    Rule(r"^build/tarn-server\b", "server"),
    Rule(r"^build/tarnctl models download\b", "skip",
         why="needs the hub; the test hub_download runs it with a stand-in"),
    Rule(r"^build/tarnctl\b"),
    Rule(r"^echo [\s\S]*build/tarnctl docs add", expect=r"(created|unchanged): Mirandol"),
    Rule(r"^(python3 )?deploy/ask\.py\b"),
    Rule(r"^(for .*\n\s*)?build/tarn-loadgen sim\b", change=(SMALL_SIM,),
         expect=r"Successful requests: +300 "),
    Rule(r"^build/tarn-loadgen compare\b", change=(OTHER_SERVER, (r"--count 24", "--count 6")),
         expect=r"mean ttft \(ms\)"),
    Rule(r"^build/tarn-loadgen\b.*--verify",
         change=((r"--rate 2 --count 100", "--rate 20 --count 15"),),
         expect=ANSWERED + r"[\s\S]*Under load another text: +0 [\s\S]*Cached another text: +0 "),
    Rule(r"^build/tarn-loadgen\b", expect=ANSWERED, change=(
        (r"--duration 60 --warmup 10", "--duration 1 --warmup 0.5"),
        (r"--rate 5 ", "--rate 10 "), (r"--request-rate 5 ", "--request-rate 40 "),
        (r"--arrival trace", "--arrival trace --trace-speed 20"),
        (r"--trace-speed 4\b", "--trace-speed 40 --count 5"),
        (r"--concurrency 2 --count 20", "--concurrency 2 --count 3"))),
    Rule(r"^build/tarn-cachesim\b.*> \S+"),
    Rule(r"^build/tarn-cachesim\b", expect=r"contest"),
    Rule(r"^loadgen/bench/policy/draw_trace\.py\b"),
    Rule(r"^build/tarn-bench limits\b", "skip", why="minutes where others use the cores"),
    Rule(r"^build/tarn-bench attention\b", change=((r"(--case \S+ ?)*$", ""), (r"$",
         " --no-limits --repetitions 1 --attention-sizes 4:2:64 --case decode:1:64")),
         expect=r"decode"),
    Rule(r"^build/tarn-bench\b", change=(
        (r"(--case \S+ ?)*$", ""), (r"build/tarn-bench", "build/tarn-bench --no-limits "
         "--repetitions 1 --case prefill:64 --case decode:2:64")), expect=r"decode"),
    Rule(r"^build/tarn-cachebench\b", change=((r"tarn-cachebench", "tarn-cachebench --part tree "
         "--segments 420 --path-segments 10 --lookups 40"),), expect=r"420"),
    Rule(r"^loadgen/bench/cache/miss_instructions\.py\b", "skip", why="minutes under valgrind; the "
         "test cache_miss_cost runs it"),
    Rule(r"^loadgen/bench/cache/show\.py\b", change=((r"show\.py", "show.py --without ttft tree "
         "miss disk writes index miss_instructions"),), expect=r"no shared data in .*leaving out"),
    Rule(r"^loadgen/bench/sched/show\.py\b.*--parts ''"),
    Rule(r"^loadgen/bench/sched/show\.py\b", change=(
        (r"--parts \S+", ""), (r"show\.py", "show.py --quick --parts planning")),
         expect=r"planning: median"),
    Rule(r"^build/tarn-schedbench\b", change=((r"tarn-schedbench", "tarn-schedbench --plans 50 "
         "--queued 100"),), expect=r"skip-join-mlfq"),
    Rule(r"^build/tarn-draftbench\b", "skip", why="its files are made by the test draftbench"),
    Rule(r"^loadgen/bench/draft/show\.py\b", "skip", why="minutes; the test draftbench runs the "
         "program"),
    Rule(r"^build/tarn-retrievalbench\b", change=((r"tarn-retrievalbench\b.*",
         "tarn-retrievalbench --vectors 2000 --dim 16 --queries 20"),), expect=r"Flat"),
    Rule(r"^loadgen/bench/rag/show\.py\b(?![\s\S]*--documents)", "skip",
         why="needs the shared data; the test ragbench runs it"),
    Rule(r"^loadgen/bench/rag/show\.py\b", change=((r"--requests 300", "--requests 40 --quick"),),
         expect=r"control's largest rate"),
    Rule(r"^loadgen/bench/retrieval/(faiss_peer|show)\.py\b", "skip",
         why="needs faiss-cpu of PyPI"),
]


# --- reading the documents ---

def blocks_of(text: str, language: str) -> list[str]:
    """The fenced blocks of a language; their indentation stays."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def is_whole(text: str) -> bool:
    """Whether bash has read a command to its end: no open quote, loop or line."""
    if text.endswith("\\"):
        return False
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    return done.returncode == 0


def commands_of(block: str) -> list[str]:
    out, pending = [], ""
    for line in block.splitlines():
        pending = f"{pending}\n{line}" if pending else line
        if not pending.strip() or pending.lstrip().startswith("#"):
            pending = ""
        elif is_whole(pending):
            out.append(pending.strip())
            pending = ""
    assert not pending, f"a block ends in the middle of a command: {pending}"
    return out


def without_comment(command: str) -> str:
    """The comment behind a command of one line."""
    return command if "\n" in command else re.sub(r"\s+#\s.*$", "", command)


def rule_of(command: str) -> Rule | None:
    joined = command.replace("\\\n", " ")
    return next((r for r in RULES if re.search(r.pattern, joined)), None)


def programs_of(text: str) -> set[str]:
    """Programs that a document names, in blocks or within its text."""
    return set(re.findall(r"(?<![\w/.])build/(tarn[\w-]*)", text))


# --- the clone ---

def tracked_files() -> list[str]:
    """The files that a commit of the working tree would have; without git: all files."""
    done = None
    if shutil.which("git"):
        done = subprocess.run(["git", "-C", str(REPO), "ls-files", "-z", "--cached", "--others",
                               "--exclude-standard"], capture_output=True, text=True, check=False)
    if done and done.returncode == 0 and done.stdout:
        return [f for f in done.stdout.split("\0") if f and (REPO / f).is_file()]
    skipped = {"build", ".git", "__pycache__"}
    return [str(p.relative_to(REPO)) for p in REPO.rglob("*")
            if p.is_file() and not skipped & set(p.relative_to(REPO).parts)]


STAND_IN = """#!/bin/sh
# cmake for deploy/quickstart: configures nothing, and builds by linking what is built.
[ "$1" = --build ] || exit 0
dir=$2
while [ $# -gt 0 ]; do
    if [ "$1" = --target ]; then
        [ -x "{built}/$2" ] || {{ echo "no target $2" >&2; exit 1; }}
        ln -sf "{built}/$2" "$dir/$2"
        shift
    fi
    shift
done
"""


class Clone:
    """A copy of the repository with an empty build folder, and the environment of its user."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "clone"
        for name in tracked_files():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, self.root / name)
        tools = folder / "tools"
        tools.mkdir()
        (tools / "cmake").write_text(STAND_IN.format(built=build_dir().resolve()))
        (tools / "cmake").chmod(0o755)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("TARN_")}
        self.env |= {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(folder / "home"),
                     "XDG_CACHE_HOME": str(folder / "home" / "cache")}
        self.env.pop("HF_HOME", None)
        self.env.pop("HF_HUB_CACHE", None)
        self.add_downloaded_model(folder / "home")
        self.add_adapters()
        self.port = free_port()
        self.env["TARN_URL"] = f"http://127.0.0.1:{self.port}"

    def add_downloaded_model(self, home: Path) -> None:
        """org/name in the local Hugging Face cache: the demo model, also as a GGUF file, which lies
        beside the demo model's directory, too."""
        demo = self.root / "deploy" / "demo-model"
        gguf = self.root / "deploy" / "demo-model-Q4_K_M.gguf"
        model = home / ".cache" / "huggingface" / "hub" / "models--org--name"
        (model / "refs").mkdir(parents=True)
        for name in ("main", "revision"):
            (model / "refs" / name).write_text("0123")
        subprocess.run([sys.executable, str(REPO / "tests" / "tools" / "make_gguf.py"), str(demo),
                        str(gguf), "--type", "q4_k"], check=True, stdout=subprocess.DEVNULL)
        (model / "snapshots" / "0123").mkdir(parents=True)
        for file in [*demo.iterdir(), gguf]:
            (model / "snapshots" / "0123" / file.name).symlink_to(file)

    def add_adapters(self) -> None:
        """Random adapters of the demo model."""
        for name in ("sql", "support"):
            subprocess.run([sys.executable, str(REPO / "tests" / "tools" / "make_tiny_adapter.py"),
                            str(self.root / "deploy" / "demo-model"),
                            str(self.root / "adapters" / name)], check=True)

    def localize(self, command: str) -> str:
        """Replace names by those that exist here: the port of the server, a model."""
        command = command.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        command = command.replace("/path/to/model", "deploy/demo-model")
        command = command.replace("/path/to/adapters", "adapters")
        return re.sub(r"--model M\b", "--model deploy/demo-model", command)

    def popen(self, command: str, out: Path) -> subprocess.Popen[bytes]:
        with out.open("wb") as f:
            return subprocess.Popen(["bash", "-c", command], cwd=self.root, env=self.env, stdout=f,
                                    stderr=subprocess.STDOUT, start_new_session=True)

    def run(self, command: str, rule: Rule) -> None:
        done = subprocess.run(["bash", "-c", command], cwd=self.root, env=self.env,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=LIMIT_S, check=False)
        assert done.returncode == rule.code, (done.returncode, done.stdout[-TAIL:])
        assert re.search(rule.expect, done.stdout), (rule.expect, done.stdout[-TAIL:])
        assert '{"error"' not in done.stdout, done.stdout[-TAIL:]

    def run_server(self, command: str) -> None:
        """Start a server on a port of its own, wait until it is ready, and end it."""
        port, out = free_port(), self.root / "server.log"
        server = self.popen(f"exec {command} --host 127.0.0.1 --port {port}", out)
        try:
            wait_for(lambda: is_ready(port), server, out)
        finally:
            server.send_signal(signal.SIGTERM)
            status = server.wait(timeout=patience(60))
        assert status == 0, (status, out.read_text()[-TAIL:])


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5):
            return True
    except OSError:
        return False


def wait_for(state, process: subprocess.Popen[bytes], out: Path) -> None:
    end = time.monotonic() + LIMIT_S
    while not state():
        text = out.read_text(errors="replace")[-TAIL:]
        assert process.poll() is None, (process.returncode, text)
        assert time.monotonic() < end, text
        time.sleep(0.05)


# --- quickstart ---

def check_demonstration(text: str) -> None:
    """The last two answers are about the same documents, computed and then found in the cache."""
    rows = re.findall(r"^ +(\d+) +(\d+) +([\d.]+) ms   (\S.*)$", text, re.M)
    assert len(rows) == 2, text
    (n_cold, cached_cold, *_), (n_warm, cached_warm, *_) = rows
    assert int(n_cold) > 400 and int(n_warm) > 400, rows  # long enough to see the difference
    assert int(cached_cold) == 0, rows
    assert int(cached_warm) > 0.9 * int(n_warm), rows
    assert "no comparison" not in text


def start_quickstart(clone: Clone, out: Path) -> subprocess.Popen[bytes]:
    """`deploy/quickstart` without packages, on a free port."""
    return clone.popen(f"exec deploy/quickstart --no-install --port {clone.port}", out)


def wait_for_quickstart(process: subprocess.Popen[bytes], out: Path) -> None:
    wait_for(lambda: "Serving until Ctrl-C." in out.read_text(errors="replace"), process, out)
    check_demonstration(out.read_text())


def end_quickstart(process: subprocess.Popen[bytes], out: Path) -> None:
    """Ctrl-C goes to quickstart and to its server."""
    os.killpg(process.pid, signal.SIGINT)
    status = process.wait(timeout=patience(60))
    assert status == 0, (status, out.read_text()[-TAIL:])


# --- all of it ---

def all_commands() -> list[tuple[str, str]]:
    """(document, command) of every block, in order."""
    return [(name, command) for name in DOCUMENTS
            for block in blocks_of((REPO / name).read_text(), "sh")
            for command in commands_of(block)]


def run_command(clone: Clone, command: str) -> str:
    """Run a command by its rule; return a description of what was done."""
    rule = rule_of(command)
    if rule is None:
        raise AssertionError("no rule of tests/integration/test_readme_commands.py knows it")
    if rule.how == "skip":
        return f"not run: {rule.why}"
    changed = without_comment(command)
    for pattern, replacement in rule.change:
        changed = re.sub(pattern, replacement, changed)
    changed = clone.localize(changed)
    if rule.how == "server":
        clone.run_server(changed)
    else:
        clone.run(changed, rule)
    return "ok"


def check_programs() -> None:
    """Each program that a document names is one of those that quickstart builds."""
    built = set(re.search(r"^PROGRAMS=\((.*?)\)", (REPO / "deploy/quickstart").read_text(),
                          re.M | re.S)[1].split())
    for name in DOCUMENTS:
        missing = programs_of((REPO / name).read_text()) - built
        assert not missing, f"{name} names {missing}, which deploy/quickstart does not build"


def check_simulations() -> None:
    """The two simulations of SIMULATIONS are comparable: they differ in the policy only."""
    lines = [c for d, c in all_commands() if d == SIMULATIONS and "tarn-loadgen sim" in c]
    assert len(lines) == 2 and all(re.search(r"--seed \d+", line) for line in lines), lines
    joined = (" ".join(line.replace("\\\n", " ").split()) for line in lines)
    without = {re.sub(r" --scheduling-policy \S+", "", line) for line in joined}
    assert len(without) == 1, without


def check_python_blocks(clone: Clone) -> None:
    """The Python of all documents, where the openai package is installed."""
    if subprocess.run([sys.executable, "-c", "import openai"], capture_output=True,
                      check=False).returncode:
        print("not run: no openai package for the python blocks")
        return
    blocks = [b for name in DOCUMENTS for b in blocks_of((REPO / name).read_text(), "python")]
    assert blocks, "no document has Python"
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", clone.localize(block)], cwd=clone.root,
                              env=clone.env, capture_output=True, text=True, timeout=LIMIT_S,
                              check=False)
        assert done.returncode == 0 and done.stdout.strip(), (block, done)


def check_data(clone: Clone) -> None:
    """The data sets are what their script writes."""
    data = clone.root / "loadgen" / "data"
    files = [p.relative_to(data) for p in data.rglob("*")
             if p.suffix in (".jsonl", ".json", ".csv")]
    assert len(files) == 6, files
    subprocess.run([sys.executable, str(data / "make_data.py"), "--out", str(clone.root / "again")],
                   check=True, env=clone.env)
    for name in files:
        assert (data / name).read_bytes() == (clone.root / "again" / name).read_bytes(), name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="commands that hold this text")
    parser.add_argument("--list", action="store_true", help="print the commands and end")
    args = parser.parse_args()
    commands = all_commands()
    if args.list:
        for name, command in commands:
            print(f"{name}: {command}")
        return 0
    check_programs()
    check_simulations()
    n_failed = 0
    with tempfile.TemporaryDirectory(prefix="tarn-readme-") as folder:
        clone, out = Clone(Path(folder)), Path(folder, "quickstart.log")
        check_data(clone)
        process = start_quickstart(clone, out)
        try:
            wait_for_quickstart(process, out)
            check_python_blocks(clone)
            for name, command in commands:
                if args.only not in command:
                    continue
                begin = time.monotonic()
                try:
                    said = run_command(clone, command)
                except (AssertionError, subprocess.TimeoutExpired) as error:
                    said = f"FAILED: {error}"
                    n_failed += 1
                print(f"{name}: {command}\n    {said} ({time.monotonic() - begin:.1f} s)",
                      flush=True)
        finally:
            end_quickstart(process, out)
    assert n_failed == 0, f"{n_failed} commands failed"
    return 0


if __name__ == "__main__":
    sys.exit(main())
