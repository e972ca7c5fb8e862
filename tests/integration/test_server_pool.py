#!/usr/bin/env python3
"""tarn-server in a pool: refused options, a start without Redis, chats found on another instance,
tenants, leaving after SIGTERM, and deploy/pool.

    test_server_pool.py [NAME...]    only the cases of these names

Faults of the pool are in tests/integration/test_pool_*.py.
"""
from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from http_helpers import REPO, run_tests, tarn_test, wait_until
from pool_harness import PATIENT, Pool, ask, need_pool, pool_model, prompt_of

MODEL = REPO / "deploy" / "demo-model"
CHAT = "/v1/chat/completions"
LEAVE_SECONDS = 60


def documents(seed: int) -> tuple[list[dict], str]:
    """Invented documents of the repository, and a question about the last one."""
    folder = REPO / "loadgen" / "data" / "rag"
    lines = (folder / "documents.jsonl").read_text().splitlines()[6 * seed:6 * seed + 6]
    questions = (folder / "questions.jsonl").read_text().splitlines()
    question = json.loads(questions[6 * seed + 5])["question"]
    return [{k: json.loads(d)[k] for k in ("title", "text")} for d in lines], question


def chat(server, seed: int, key: str = "", **more: object) -> tuple[str, dict]:
    """The answer's text, and how many of the prompt's tokens were found in each tier."""
    texts, question = documents(seed)
    status, _, answer = server.request(
        "POST", CHAT, {"messages": [{"role": "user", "content": question}], "documents": texts,
                       "max_tokens": 24, "temperature": 0, **more},
        {"Authorization": f"Bearer {key}"} if key else None)
    assert status == 200, (status, answer)
    return (answer["choices"][0]["message"]["content"],
            answer["usage"]["prompt_tokens_details"]["cached_tokens_details"])


def of_pool(server) -> dict:
    status, _, cache = server.request("GET", "/cache", None, {"Authorization": "Bearer boss"})
    assert status == 200, cache
    return cache["pool"]


def refused(*options: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TARN_")}
    done = subprocess.run([str(tarn_test.program("tarn-server")), "--model", str(MODEL), *options],
                          env=environment, capture_output=True, text=True,
                          timeout=tarn_test.patience(60), check=False)
    assert done.returncode == 1 and not done.stdout, done
    words = [line for line in done.stderr.splitlines() if line.startswith("tarn-server: ")]
    assert len(words) == 1 and done.stderr.splitlines()[-1] == words[0], done.stderr
    return words[0]


def mistakes_in_options_are_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder, "secret")
        pool = ("--pool", "redis://user:very-secret@127.0.0.1:1/0", "--pool-secret", str(secret))
        assert "--pool: needs --pool-secret" in refused(*pool[:2])
        assert f"--pool-secret: {secret}: No such file" in refused(*pool)
        secret.touch(0o600)
        assert f"{secret} is empty" in refused(*pool)
        secret.write_text("short")
        assert "has 5 bytes, at least 16 are needed" in refused(*pool)
        secret.write_text("long-enough-to-be-a-secret")
        secret.chmod(0o644)
        assert f"chmod 600 {secret}" in refused(*pool)
        secret.chmod(0o600)
        for url in ("http://127.0.0.1", "redis://", "127.0.0.1:6379", "redis://h:99999"):
            assert "--pool" in refused("--pool", url, *pool[2:]), url
        said = refused("--pool", "redix://user:very-secret@h", *pool[2:])
        assert "--pool" in said and "very-secret" not in said, said
        assert "--pool-listen" in refused(*pool, "--pool-listen", "203.0.113.7:7000")


def an_instance_starts_without_redis_and_joins_later() -> None:
    with tempfile.TemporaryDirectory() as folder, Pool(pool_model(folder)) as pool:
        pool.redis.stop()
        alone = pool.start(0)
        assert "it does not answer yet" in alone.first_lines, alone.first_lines
        assert "very" not in alone.log_text() and "pool=" in alone.log_text()
        answer, found = ask(alone, prompt_of(1))
        assert found["remote"] == 0
        assert alone.metric("tarn:pool_directory_up") == 0
        pool.redis.start()
        wait_until(lambda: alone.metric("tarn:pool_directory_up") == 1, alone.log_text)
        later = pool.start(0)
        pool.wait(2)
        assert re.search(r"Pool default at redis://\S+: \d instances?, ", later.first_lines), \
            later.first_lines
        wait_until(lambda: pool.n_segments() >= 2, alone.log_text)
        again, found = ask(later, prompt_of(1))
        assert found["remote"] > 0 and again == answer, found


def a_chat_is_found_on_another_instance_by_its_tenant_only() -> None:
    keys = {"keys": [{"name": "a", "key": "sk-aaaaaaaa", "tenant": "red"},
                     {"name": "b", "key": "sk-bbbbbbbb", "tenant": "blue"}]}
    with tempfile.TemporaryDirectory() as folder, Pool(MODEL) as pool:
        key_file = Path(folder, "keys.json")
        key_file.write_text(json.dumps(keys))
        key_file.chmod(0o600)
        options = ("--api-key-file", str(key_file), "--admin-api-key", "boss")
        half = (*options, "--kv-cache-dtype", "int8")
        one, two, other_type = (pool.start(0, *half), pool.start(0, *half),
                                pool.start(0, *options))
        text, found = chat(one, 0, "sk-aaaaaaaa")
        assert not any(found.values()), found
        wait_until(lambda: pool.n_segments() >= 2, one.log_text)
        other, found = chat(two, 0, "sk-bbbbbbbb")
        assert other == text and not any(found.values()), found
        same, found = chat(two, 0, "sk-aaaaaaaa")
        assert same == text and found["remote"] > 256, found
        # The pool publishes its figures now and then.
        wait_until(lambda: of_pool(two)["pulled_blocks"] * 32 >= found["remote"] and
                   of_pool(two)["found"] >= 1, lambda: of_pool(two))
        assert f"n_hit_remote={found['remote']}" in two.log_text()
        _, found = chat(other_type, 0, "sk-aaaaaaaa")  # KV of another type is none for it
        assert not any(found.values()), found
        for server in (one, two, other_type):  # Pool checks the end of servers without keys
            server.end()
        pool.instances.clear()


def what_an_instance_leaves_is_found_on_the_others() -> None:
    with tempfile.TemporaryDirectory() as folder, Pool(pool_model(folder)) as pool:
        one, two = pool.start(0, "--drain-timeout", str(LEAVE_SECONDS)), pool.start(0)
        pool.wait(2)
        answers = {seed: ask(one, prompt_of(seed))[0] for seed in range(4)}
        wait_until(lambda: pool.n_segments() >= 8, one.log_text)
        begin = time.monotonic()
        one.end()
        took = time.monotonic() - begin
        assert took < LEAVE_SECONDS, took
        left = re.search(r"left the pool offered=(\d+) handed_over=(\d+)", one.log_text())
        assert left, one.log_text()[-2000:]
        for seed, answer in answers.items():
            again, found = ask(two, prompt_of(seed))
            assert again == answer and found["device"] == 320 and found["remote"] == 0, found
        print(f"      handed over {left[2]} of {left[1]} in {took:.1f} s")


def a_second_signal_ends_an_instance_that_leaves() -> None:
    """The only other instance is stopped, so nothing can be handed over to it."""
    with tempfile.TemporaryDirectory() as folder, Pool(
            pool_model(folder), options=(*PATIENT, "--drain-timeout", "600")) as pool:
        one, two = pool.start(0), pool.start(0)
        pool.wait(2)
        pool.compute(one, range(2))
        two.process.send_signal(signal.SIGSTOP)
        one.process.terminate()
        wait_until(lambda: "draining" in one.log_text(), one.log_text)
        status, _, _ = one.request("GET", "/health/ready")
        assert status == 503
        time.sleep(0.3)
        one.process.terminate()
        assert one.process.wait(60) == 0
        one.closed()
        assert "left the pool" in one.log_text(), one.log_text()[-2000:]
        two.process.send_signal(signal.SIGCONT)


# --- deploy/pool ---

def processes_with(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(command)
    return found


def deploy_pool_shows_a_hit_and_leaves_nothing_behind() -> None:
    """In a clone of links, whose programs are those of the tests; cmake has nothing to do."""
    port = tarn_test.free_ports(3)
    with tempfile.TemporaryDirectory(prefix="tarn-deploy-pool-") as folder:
        tools, out = Path(folder, "tools"), Path(folder, "out")
        tools.mkdir()
        Path(tools, "cmake").write_text("#!/bin/sh\n")
        Path(tools, "cmake").chmod(0o755)
        clone = Path(folder, "clone")
        for name in ("deploy", "loadgen/data"):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).symlink_to(REPO / name)
        (clone / "build").mkdir()
        for name in ("tarn-server", "tarnctl"):
            (clone / "build" / name).symlink_to(tarn_test.program(name))
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "TMPDIR": folder}
        with out.open("wb") as f:
            process = subprocess.Popen(
                [str(clone / "deploy/pool"), "--no-install", "--instances", "2", "--port",
                 str(port)], stdout=f, stderr=f, env=environment, start_new_session=True)
        try:
            check_demonstration(process, out, f"{folder}/tarn-pool-")
            os.killpg(process.pid, signal.SIGINT)  # Ctrl-C
        except BaseException:
            process.terminate()
            raise
        finally:
            status = process.wait(60)
        assert status == 0, out.read_text()
        assert not processes_with(f"{folder}/tarn-pool-"), processes_with(f"{folder}/tarn-pool-")
        assert not list(Path(folder).glob("tarn-pool-*"))
        for i in range(3):
            socket.create_server(("127.0.0.1", port + i)).close()


def check_demonstration(process: subprocess.Popen, out: Path, place: str) -> None:
    wait_until(lambda: "Serving until Ctrl-C." in out.read_text() or process.poll() is not None,
               out.read_text)
    assert process.poll() is None, out.read_text()
    rows = re.findall(r"^ +(\d+) +(\d+) +(\d+) +[\d.]+ ms   http", out.read_text(), re.M)
    assert len(rows) == 2 and int(rows[0][2]) == 0 and int(rows[1][2]) > 256, out.read_text()
    assert len(processes_with(place)) >= 3  # Redis and two servers, perhaps HAProxy


TESTS = [
    mistakes_in_options_are_named,
    an_instance_starts_without_redis_and_joins_later,
    a_chat_is_found_on_another_instance_by_its_tenant_only,
    what_an_instance_leaves_is_found_on_the_others,
    a_second_signal_ends_an_instance_that_leaves,
    deploy_pool_shows_a_hit_and_leaves_nothing_behind,
]

if __name__ == "__main__":
    need_pool(MODEL)
    sys.exit(run_tests([t for t in TESTS if not sys.argv[1:] or t.__name__ in sys.argv[1:]]))
