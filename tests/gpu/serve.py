"""Start a server with random weights, let ask.py send 100 requests, end it by SIGTERM.

    serve.py SERVER WORK MODEL PORT [--requests N]

The exit code is 1 if an answer was wrong or the server did not end with 0. The log of the server is
WORK/tarn-server.log.
"""
from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent


def step_gap(url: str) -> str:
    """Mean time between two steps, from the server's own histogram."""
    try:
        with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError as error:
        return f"no metrics: {error}"
    values = {line.split("{")[0].split(" ")[0]: float(line.rsplit(" ", 1)[1])
              for line in text.splitlines() if line.startswith("tarn:step_gap_seconds_")
              and "_bucket" not in line}
    n = values.get("tarn:step_gap_seconds_count", 0)
    return f"step gap: {1e6 * values.get('tarn:step_gap_seconds_sum', 0) / n:.1f} us, mean of " \
           f"{n:.0f}" if n else "no step gap was measured"


def main() -> int:
    program, work, model, port, *rest = sys.argv[1:]
    url = f"http://127.0.0.1:{port}"
    with open(Path(work) / "tarn-server.log", "wb") as log:
        server = subprocess.Popen([program, "--model", model, "--load-format", "dummy", "--device",
                                   "cuda", "--port", port], stdout=log, stderr=subprocess.STDOUT)
    try:
        asked = subprocess.run([sys.executable, str(HERE / "ask.py"), "--url", url,
                                "--ready-seconds", "30", *(rest or ["--requests", "100"])])
        print(step_gap(url), flush=True)
        server.send_signal(signal.SIGTERM)
        ended = server.wait(timeout=15)
    finally:
        server.kill()
    if ended:
        print(f"the server ended with {ended}; see tarn-server.log")
    return 1 if asked.returncode or ended else 0


if __name__ == "__main__":
    sys.exit(main())
