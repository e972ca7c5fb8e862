"""Start a server with random weights, let ask.py send requests, end it by SIGTERM.

    serve.py SERVER WORK MODEL PORT NAME [OPTION...]

First 100 requests that come and go, whose answers are checked; then 16 that decode side by side,
for the time between two tokens. Options are the server's. The exit code is 1 if an answer was wrong
or the server did not end with 0. The log of the server is WORK/tarn-NAME.log.
"""
from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent


DECODES = ["--requests", "16", "--tokens", "256", "--again", "0"]


def counters(url: str) -> dict[str, float]:
    """The server's numbers by their names, without histograms' buckets; empty: no answer."""
    try:
        with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    except OSError as error:
        print(f"no metrics: {error}")
        return {}
    return {line.split("{")[0].split(" ")[0]: float(line.rsplit(" ", 1)[1]) for line in lines
            if line and line[0] != "#" and "_bucket" not in line}


def mean_us(before: dict[str, float], after: dict[str, float], name: str) -> str:
    """The mean of a histogram in between."""
    n, total = (after.get(name + end, 0) - before.get(name + end, 0) for end in ("_count", "_sum"))
    return f"{1e6 * total / n:.1f} us, mean of {n:.0f}" if n else "not measured"


def ask(url: str, *options: str) -> int:
    return subprocess.run([sys.executable, str(HERE / "ask.py"), "--url", url, "--ready-seconds",
                           "30", *options]).returncode


def ask_all(url: str) -> int:
    """Both kinds of requests, and a line of what the server measured of each."""
    failed = ask(url)
    before = counters(url)
    print("step gap:", mean_us({}, before, "tarn:step_gap_seconds"), flush=True)
    failed |= ask(url, *DECODES)
    after = counters(url)
    steps, ahead = (after.get(name, 0) - before.get(name, 0)
                    for name in ("tarn:steps_total", "tarn:async_steps_total"))
    print("between tokens:", mean_us(before, after, "vllm:inter_token_latency_seconds"))
    print(f"asynchronous: {ahead:.0f} of {steps:.0f} steps", flush=True)
    return failed


def main() -> int:
    program, work, model, port, name, *options = sys.argv[1:]
    with open(Path(work) / f"tarn-{name}.log", "wb") as log:
        server = subprocess.Popen([program, "--model", model, "--load-format", "dummy", "--device",
                                   "cuda", "--port", port, *options], stdout=log,
                                  stderr=subprocess.STDOUT)
    try:
        failed = ask_all(f"http://127.0.0.1:{port}")
        server.send_signal(signal.SIGTERM)
        ended = server.wait(timeout=15)
    finally:
        server.kill()
    if ended:
        print(f"the server ended with {ended}; see tarn-{name}.log")
    return 1 if failed or ended else 0


if __name__ == "__main__":
    sys.exit(main())
