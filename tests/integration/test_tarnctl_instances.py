#!/usr/bin/env python3
"""tarnctl instances against a pool: who is listed, in which state, and for how long.

    test_tarnctl_instances.py
"""
from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from http_helpers import Server, run_tests, tarn_test, wait_until
from pool_harness import Instance, Pool, need_pool, pool_model

FOLDER: Path
MODEL: Path


def tarnctl(server: Server, *words: str) -> str:
    done = subprocess.run([str(tarn_test.program("tarnctl")), "--url",
                           f"http://127.0.0.1:{server.port}", "instances", *words],
                          capture_output=True, text=True)
    assert done.returncode == 0, done
    return done.stdout


def listed(s: Instance) -> dict[str, Any]:
    return {i["name"]: i for i in json.loads(tarnctl(s, "--json"))["data"]}


def states(s: Instance) -> dict[str, str]:
    return {name: i["state"] for name, i in listed(s).items()}


def wait_states(s: Instance, **expected: str) -> None:
    wait_until(lambda: states(s) == expected, lambda: states(s))


def instances_are_listed_with_their_state() -> None:
    other = pool_model(str(FOLDER / "other"), "--seed", "7")
    with Pool(MODEL) as pool:
        a, b = pool.start(0, name="a"), pool.start(1, name="b")
        c = pool.start(2, name="c", model=other)
        wait_states(a, a="ready", b="ready", c="other_model")
        wait_states(c, a="other_model", b="other_model", c="ready")
        seen = listed(a)
        assert [n for n, i in seen.items() if i["self"]] == ["a"], seen
        assert len({i["id"] for i in seen.values()}) == 3, seen
        assert all(i["address"] for i in seen.values()), seen
        wait_until(lambda: all(i["kv_blocks"]["total"] > 0 for i in listed(a).values()),
                   lambda: listed(a))
        table = tarnctl(a).splitlines()
        assert table[0].split()[:4] == ["name", "state", "address", "http"], table
        assert [row.split()[0] for row in table[1:]] == ["a", "b", "c"], table
        assert table[1].split()[:3] == ["a", "*", "ready"], table
        # Both sides warn of an instance with another secret.
        right, pool.secret = pool.secret, pool.folder / "wrong"
        pool.secret.write_text("0123456789abcdef0123456789abcdef\n")
        pool.secret.chmod(0o600)
        d = pool.start(2, name="d")
        pool.secret = right
        wait_states(a, a="ready", b="ready", c="other_model", d="other_secret")
        assert states(d)["b"] == "other_secret", states(d)
        for s, other in ((a, "d"), (d, "a")):
            words = rf'another secret: it shares nothing peer=[0-9a-f]{{16}} name="?{other}"?\n'
            assert re.search(words, s.log_text()), s.log_text()
        d.end()
        wait_states(a, a="ready", b="ready", c="other_model")
        # An instance that stands still drops out, and is back when it goes on.
        b.process.send_signal(signal.SIGSTOP)
        wait_states(a, a="ready", c="other_model")
        b.process.send_signal(signal.SIGCONT)
        wait_states(a, a="ready", b="ready", c="other_model")
        # One that ends drops out at once, and a flush of Redis hides nobody for long.
        c.end()
        pool.redis.flush()
        wait_states(a, a="ready", b="ready")
        # Without Redis the list is old, and says so.
        assert "directory" not in tarnctl(a)
        pool.redis.stop()
        wait_until(lambda: tarnctl(a).splitlines()[-1].startswith("the pool's directory (Redis) "),
                   lambda: tarnctl(a))


def a_server_without_a_pool_says_so() -> None:
    server = Server([str(tarn_test.program("tarn-server")), "--model", str(MODEL), "--port", "0",
                     "--cache-dir", str(FOLDER / "alone")])
    assert tarnctl(server) == "the server belongs to no pool (--pool)\n"
    assert server.stop() == 0


def main() -> int:
    global FOLDER, MODEL
    with tempfile.TemporaryDirectory(prefix="tarn-instances-test-") as folder:
        FOLDER = Path(folder)
        MODEL = pool_model(folder)
        need_pool(MODEL)
        return run_tests([instances_are_listed_with_their_state, a_server_without_a_pool_says_so])


if __name__ == "__main__":
    sys.exit(main())
