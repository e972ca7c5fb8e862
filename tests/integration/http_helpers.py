"""Helpers of the HTTP tests: a running server, requests, streams, metrics, a small test runner."""
from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Callable

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "tools"))
import sent_requests  # noqa: E402
import tarn_test  # noqa: E402

TIMEOUT = tarn_test.patience(120)
# Most seconds until a state is reached: a guard against hanging. An effect that would also come
# without the tested code must take longer than this.
WAIT_SECONDS = tarn_test.patience(60)


def wait_until(is_there: Callable[[], bool], words: Callable[[], object] = lambda: "") -> float:
    """Wait until is_there() is true; return the seconds. `words` is for the error."""
    start = time.monotonic()
    while not is_there():
        if time.monotonic() - start > WAIT_SECONDS:
            raise AssertionError(f"not there after {WAIT_SECONDS} s: {words()}")
        time.sleep(0.01)
    return time.monotonic() - start


class Server:
    """A server process; its first line with http:// on stdout says where it listens."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self.log = tempfile.NamedTemporaryFile("w+b", prefix="tarn-log-")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log,
                                        env={**os.environ, **(env or {})})
        self.port = 0
        self.first_lines = ""  # of stdout, up to the one that names the port
        assert self.process.stdout
        for line in self.process.stdout:
            self.first_lines += line.decode(errors="replace")
            found = re.search(rb"http://[^ ]*:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        if not self.port:
            raise SystemExit(f"{command[0]} ended with {self.process.wait()}: {self.log_text()}")
        self.url = f"http://127.0.0.1:{self.port}"

    def log_text(self) -> str:
        return Path(self.log.name).read_text(errors="replace")

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)

    def request(self, method: str, path: str, body: Any = None,
                headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], Any]:
        """Status, headers (lower case), parsed JSON or text. body: bytes, or made JSON."""
        connection = self.connection()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        raw = response.read()
        connection.close()
        names = {k.lower(): v for k, v in response.getheaders()}
        is_json = names.get("content-type", "").startswith("application/json") and raw
        answer = json.loads(raw) if is_json else raw.decode()
        sent_requests.note(method, path, data, response.status, answer)
        return response.status, names, answer

    def post(self, path: str, body: Any) -> Any:
        status, _, answer = self.request("POST", path, body)
        assert status == 200, f"{path}: {status} {answer}"
        return answer

    def stream(self, path: str, body: dict[str, Any]) -> tuple[list[Any], int]:
        """Frames (parsed, without [DONE], which must be the last) and how many comments came."""
        status, headers, text = self.request("POST", path, {**body, "stream": True})
        assert status == 200, f"{path}: {status} {text}"
        assert headers["content-type"].startswith("text/event-stream"), headers
        assert text.endswith("\n\n"), repr(text[-40:])
        events = text.split("\n\n")[:-1]
        assert events[-1] == "data: [DONE]", events[-1]
        comments = [e for e in events if e.startswith(":")]
        assert set(comments) <= {": keep-alive"}, comments
        data = [e for e in events[:-1] if not e.startswith(":")]
        assert all(e.startswith("data: ") for e in data), data
        return [json.loads(e[6:]) for e in data], len(comments)

    def open_raw(self, path: str, body: dict[str, Any],
                 headers: dict[str, str] | None = None) -> socket.socket:
        """Send a POST; return the socket, from which no byte of the answer was read."""
        data = json.dumps(body).encode()
        s = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        s.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s"
                  % (path.encode(), more.encode(), len(data), data))
        return s

    def metrics(self) -> dict[str, float]:
        """Sample name, with labels such as state="..." but without the constant labels -> value."""
        status, _, text = self.request("GET", "/metrics")
        assert status == 200
        out = {}
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            name, value = line.rsplit(" ", 1)
            name = re.sub(r'model_name="(?:[^"\\]|\\.)*",engine="0",?', "", name)
            out[name.replace("{}", "")] = float(value)
        return out

    def blocks_in_use(self) -> float:
        return self.metrics()['tarn:kv_blocks{state="in_use"}']

    def wait_blocks(self, want: Callable[[float], bool]) -> float:
        """Wait until the number of blocks in use satisfies `want`; return the seconds."""
        return wait_until(lambda: want(self.blocks_in_use()),
                          lambda: f"{self.blocks_in_use()} blocks in use")

    def stop(self, number: int = signal.SIGTERM, seconds: float = tarn_test.patience(60)) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            log = self.log_text()[-2000:]
            raise AssertionError(f"did not stop in {seconds} s: {log}") from None

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        status = self.stop()
        assert self.process.stdout
        self.process.stdout.close()
        if status:
            print(self.log_text()[-8000:])
            raise AssertionError(f"the server ended with {status}")


def tarn_server(model: Path, *options: str, env: dict[str, str] | None = None) -> Server:
    """A server whose timeouts are ten minutes unless set, so that a slow client meets none."""
    timeouts = {f"TARN_{phase}_TIMEOUT": "600" for phase in ("HEADER", "BODY", "WRITE", "IDLE")}
    return Server([str(tarn_test.program("tarn-server")), "--model", str(model), "--port", "0",
                   *options], {**timeouts, **(env or {})})


def fake_server(step_us: int, prefill_us: int, queue_max: int, key: str = "") -> Server:
    """The HTTP side over tests/unit/server/fake_engine.c: "abcdef...", as slow as asked for."""
    path = os.environ.get("TARN_TEST_FAKE_SERVER")
    program = path if path else str(tarn_test.program("tarn-fake-server"))
    return Server([program, "0", str(step_us), str(prefill_us), str(queue_max),
                   *([key] if key else [])])


def make_model(folder: str, *options: str) -> Path:
    """TARN_TEST_MODEL if set, else a random one made by tests/tools/make_tiny_model.py."""
    given = os.environ.get("TARN_TEST_MODEL")
    if given and not options:
        return Path(given)
    tarn_test.need_numpy()
    path = Path(folder) / "model"
    subprocess.run([sys.executable, str(tarn_test.TOOLS / "make_tiny_model.py"), str(path),
                    *options], check=True, stdout=subprocess.DEVNULL)
    return path


def run_one(test: Callable[[], None]) -> bool:
    start = time.monotonic()
    try:
        test()
    except Exception:
        print(f"FAIL  {test.__name__}\n{traceback.format_exc()}", flush=True)
        return False
    print(f"ok    {test.__name__} ({time.monotonic() - start:.2f} s)", flush=True)
    return True


def run_tests(tests: list[Callable[[], None]], n_at_once: int = 1) -> int:
    """Run each test and print one line for it; return the exit status. Tests that mostly wait and
    share nothing may run n_at_once."""
    sent_requests.watch_sdks()
    sent_requests.check_at_end()
    with concurrent.futures.ThreadPoolExecutor(n_at_once) as pool:
        n_failed = list(pool.map(run_one, tests)).count(False)
    print(f"{len(tests) - n_failed} passed, {n_failed} failed")
    return 1 if n_failed else 0
