"""cluster.py - instances of tarn-server on this machine, a router before them, and Redis for their
pool."""
from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator

from cpu_share import CpuShares
from workloads import scenario

common = scenario.common
DEMO = common.REPO / "deploy" / "demo-model"
REDIS_SECONDS = 20
POOL_READY_SECONDS = 30
TIERS = ("device", "host", "disk", "remote")

# name -> policy of the router, whether the instances are a pool
POLICIES = {
    "round-robin": ("round-robin", False),
    "hash": ("hash", False),
    "precise": ("precise", False),
    "pool": ("round-robin", True),
}


def write_model(folder: Path, shape: dict) -> Path:
    """A model with random weights, and the demo model's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(DEMO / file, folder / file)
    config = json.loads((DEMO / "config.json").read_text()) | shape
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[str]:
    """A redis-server of its own; its URL."""
    if not shutil.which("redis-server"):
        raise SystemExit("the policy pool needs redis-server in the PATH")
    port = free_port()
    process = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1",
                                "--save", "", "--appendonly", "no", "--dir", str(folder)],
                               stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + REDIS_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if time.monotonic() > end or process.poll() is not None:
                    raise SystemExit("redis-server did not start") from None
                time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


class Cluster:
    """Servers with a router before them, from empty caches."""

    def __init__(self, model: Path, cache_dir: Path, policy: str, n: int, options: list[object],
                 pool_options: list[object], folder: Path, cpu_share: float = 0.0) -> None:
        """cache_dir: with the secret and the measured costs; each instance gets a copy. cpu_share:
        cores that each instance may use; 0: no limit."""
        routing, has_pool = POLICIES[policy]
        self.stack = contextlib.ExitStack()
        self.shares: CpuShares | None = None
        try:
            if cpu_share:
                self.shares = CpuShares(n, cpu_share)
                self.stack.callback(self.shares.close)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            shared = self.stack.enter_context(pool_flags(folder, pool_options)) if has_pool else []
            ports = [free_port() for _ in range(n)]  # of the KV events

            def start(i: int) -> common.Server:
                mine = folder / f"instance-{i}"
                shutil.copytree(cache_dir, mine)
                publish = (["--kv-events-endpoint", f"tcp://*:{ports[i]}"]
                           if routing == "precise" else [])
                return common.Server([common.program("tarn-server"), "--model", str(model),
                                      "--load-format", "dummy", "--port", "0", "--log-level",
                                      "warn", "--cache-dir", str(mine), "--documents-path", "none",
                                      *map(str, [*options, *shared, *publish])])

            with ThreadPoolExecutor(n) as threads:
                self.servers = list(threads.map(start, range(n)))
            for s in self.servers:
                self.stack.enter_context(s)
            for i, s in enumerate(self.servers if self.shares else []):
                self.shares.add(i, s.process.pid)
            if has_pool:
                wait_for_pool(self.servers, n)
            self.start_cpu_s, self.start_switches = self.cpu_s(), self.switches()
            self.router = self.stack.enter_context(common.Server([
                sys.executable, str(Path(__file__).with_name("router.py")), "--policy", routing,
                "--instances", ",".join(s.url for s in self.servers),
                "--events", ",".join(f"tcp://127.0.0.1:{p}" for p in ports)]))
        except BaseException:
            self.stack.close()
            raise

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def cpu_s(self) -> list[float]:
        return [s.metrics()["process_cpu_seconds_total"] for s in self.servers]

    def switches(self) -> int:
        """Times that a thread of an instance began to run, as the kernel counts them."""
        return sum(thread_switches(s.process.pid) for s in self.servers)

    def figures(self) -> dict:
        """Counts of all instances since their start."""
        switches = self.switches() - self.start_switches
        samples = [s.metrics() for s in self.servers]
        cpu_s = [at_end - at_start for at_end, at_start in zip(self.cpu_s(), self.start_cpu_s)]

        def of(name: str) -> list[float]:
            return [m.get(name, 0.0) for m in samples]

        tokens = {t: of(f'tarn:prompt_tokens_by_tier_total{{tier="{t}"}}')
                  for t in (*TIERS, "computed")}
        total = sum(map(sum, tokens.values()))
        computed = sum(tokens["computed"])
        pulled = sum(of("tarn:pool_pulled_bytes_total"))
        leaked = sum(of("tarn:kv_blocks_leaked"))
        if leaked:
            raise SystemExit(f"{leaked:.0f} blocks leaked")
        return {
            "prompt_tokens": total, "computed_tokens": computed,
            "hit_share": 1 - computed / total if total else 0.0,
            "hit_share_by_tier": {t: sum(tokens[t]) / total for t in TIERS if total},
            "pulled_bytes": pulled,
            "pulled_bytes_per_remote_token": ratio(pulled, sum(tokens["remote"])),
            "cpu_s": sum(cpu_s), "busiest": ratio(max(cpu_s) * len(cpu_s), sum(cpu_s)),
            "waited_for_cpu": max(self.shares.waited()) if self.shares else 0.0,
            "switches": switches,
            "computed_cv": variation(tokens["computed"]),
            "access_cv": variation(of("tarn:pool_accessed_tokens_total")),
            "requests_cv": variation(of("vllm:prompt_tokens_total")),
            "pool": pool_figures(samples),
            "router": json.loads(self.router.get("/router"))}


@contextlib.contextmanager
def pool_flags(folder: Path, options: list[object]) -> Iterator[list[object]]:
    secret = folder / "pool-secret"
    secret.write_text(secrets.token_hex(32) + "\n")
    secret.chmod(0o600)
    with redis(folder) as url:
        yield ["--pool", url, "--pool-secret", secret, "--pool-listen", "127.0.0.1:0", *options]


def wait_for_pool(servers: list[common.Server], n: int) -> None:
    """Until each of the servers sees n instances."""
    end = time.monotonic() + POOL_READY_SECONDS
    while any(s.metrics().get("tarn:pool_instances", 0) < n for s in servers):
        if time.monotonic() > end:
            raise SystemExit("the instances do not find each other: " +
                             servers[0].log_text()[-1000:])
        time.sleep(0.05)


def pool_figures(samples: list[dict[str, float]]) -> dict[str, float]:
    """Sums of all counters of the pool."""
    names = {k for m in samples for k in m if k.startswith("tarn:pool_") and "_total" in k}
    return {name: sum(m.get(name, 0.0) for m in samples) for name in sorted(names)}


def thread_switches(pid: int) -> int:
    """Context switches of all threads that the process has now."""
    n = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            for line in (task / "status").read_text().splitlines():
                if "ctxt_switches:" in line:
                    n += int(line.rsplit(":", 1)[1])
    return n


def ratio(over: float, under: float) -> float | None:
    return over / under if under else None


def variation(values: list[float]) -> float:
    """Standard deviation over mean."""
    mean = sum(values) / len(values)
    return (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5 / mean if mean else 0.0
