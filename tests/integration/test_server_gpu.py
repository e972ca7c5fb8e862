#!/usr/bin/env python3
"""tarn-server --device cuda from end to end, on the emulated GPU.

    greedy tokens and logprobs are those of the CPU
    when the GPU fails, open requests get an error, readiness is 503, the process soon ends with 1
    --device auto without a GPU computes on the CPU and logs one line; --device cuda refuses
    --inspect prints as many tokens as the KV pool of a start has
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from http_helpers import REPO, WAIT_SECONDS, Server

BUILD = Path(os.environ.get("TARN_BUILD_DIR", REPO / "build"))
MODEL = REPO / "deploy" / "demo-model"
EMULATED = BUILD / "tests" / "tarn-server-emulated"
LAUNCH_FAILURE = 719
SMALL = ["--kv-device-bytes", "8M", "--max-num-seqs", "4", "--max-model-len", "256",
         "--threads", "2"]


def start(program: Path, *options: str, **env: str) -> Server:
    return Server([str(program), "--model", str(MODEL), "--port", "0", *SMALL, *options], env=env)


def ended(server: Server, seconds: float) -> int:
    try:
        return server.process.wait(seconds)
    except subprocess.TimeoutExpired:
        server.process.kill()
        raise SystemExit(f"still running after {seconds} s: {server.log_text()[-2000:]}") from None


def stop(server: Server) -> None:
    server.process.terminate()
    code = ended(server, 20)
    assert code == 0, (code, server.log_text()[-2000:])


def complete(server: Server, prompt: str, n: int = 12) -> Any:
    status, _, answer = server.request("POST", "/v1/completions", {
        "prompt": prompt, "max_tokens": n, "temperature": 0, "logprobs": 3, "ignore_eos": True})
    assert status == 200, answer
    return answer["choices"][0]


def greedy_tokens_are_the_cpus() -> None:
    """In f32 throughout: then the two differ by a few units in the last place."""
    prompts = ["Which city is named in the first document?", "a", "The quick brown fox " * 8]
    options = ["--dtype", "f32", "--kv-cache-dtype", "f32"]
    answers = []
    for program, device in ((BUILD / "tarn-server", "cpu"), (EMULATED, "cuda")):
        server = start(program, "--device", device, *options)
        answers.append([complete(server, p) for p in prompts])
        # While a GPU computes, the engine thread plans the next step. Most steps of this test have
        # one sequence, and only the end of the sequence invalidates such a plan.
        metrics = server.metrics()
        n_ahead, n_steps = metrics["tarn:plans_ahead_total"], metrics["tarn:steps_total"]
        assert n_ahead == 0 if device == "cpu" else n_ahead > n_steps / 2, (device, metrics)
        stop(server)
    for prompt, cpu, gpu in zip(prompts, *answers):
        assert cpu["text"] == gpu["text"], (prompt, cpu["text"], gpu["text"])
        assert cpu["logprobs"]["tokens"] == gpu["logprobs"]["tokens"]
        for a, b in zip(cpu["logprobs"]["token_logprobs"], gpu["logprobs"]["token_logprobs"]):
            assert abs(a - b) < 1e-3, (prompt, a, b)


def bf16_and_quantized_weights_answer_alike() -> None:
    """The first token, and its logprob as near as rounding leaves it."""
    for options in (["--batch-invariant"], ["--quantization", "int8"], ["--quantization", "int4"]):
        first = []
        for program, device in ((BUILD / "tarn-server", "cpu"), (EMULATED, "cuda")):
            server = start(program, "--device", device, *options)
            first.append(complete(server, "The quick brown fox jumps over", 1))
            stop(server)
        cpu, gpu = (f["logprobs"]["token_logprobs"][0] for f in first)
        assert first[0]["text"] == first[1]["text"], (options, first)
        assert abs(cpu - gpu) < 0.1, (options, cpu, gpu)


def start_that_will_die() -> Server:
    """A server whose GPU dies soon after the start, which takes an unknown number of calls. Until
    it dies the emulated GPU computes, and a server that dies while it starts ends at once."""
    for n in range(1500, 30000, 500):
        command = [str(EMULATED), "--model", str(MODEL), "--port", "0", *SMALL, "--device", "cuda"]
        try:
            return Server(command, env={"TARN_EMULATION_FAIL": f"{n}:{LAUNCH_FAILURE}"})
        except SystemExit as e:
            assert "ended with 1" in str(e), e
    raise SystemExit("the server never started")


def a_dead_gpu_ends_the_server() -> None:
    server = start_that_will_die()
    results: list[tuple[int, Any]] = []

    def ask(stream: bool) -> None:
        status, _, answer = server.request("POST", "/v1/completions", {
            "prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True,
            "stream": stream})
        results.append((status, answer))

    assert server.request("GET", "/health/ready")[0] == 200
    deadline = time.time() + 120
    while server.process.poll() is None and time.time() < deadline:
        # More than run at once: some wait. Again until the call that fails has come.
        threads = [threading.Thread(target=ask, args=(i % 2 == 0,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a request hangs"
        if any(status != 200 for status, _ in results):
            break
        if any("error" in json.dumps(answer) for _, answer in results):
            break
    try: # no longer ready, or already gone
        status, _, answer = server.request("GET", "/health/ready")
        assert status == 503 and answer["error"]["code"] == "device_failed", (status, answer)
        status, _, answer = server.request("POST", "/v1/completions",
                                           {"prompt": "a", "max_tokens": 1})
        assert status == 503, (status, answer)
    except OSError:
        pass
    code = ended(server, WAIT_SECONDS)
    log = server.log_text()
    assert code == 1, (code, log[-2000:])
    assert log.count("the device failed device=") == 1, log[-3000:]
    assert "tarn-server: the device failed" in log, log[-1000:]
    codes = {status for status, _ in results}
    assert 503 in codes, codes
    told = [a for status, a in results if status == 503 or (status == 200 and "error" in str(a))]
    assert told and all("device failed" in str(a) for a in told), told


def without_a_gpu_auto_says_what_it_does() -> None:
    none = {"TARN_EMULATION_DEVICES": "0"}
    server = start(EMULATED, "--device", "auto", **none)
    assert complete(server, "a", 2)["text"]
    stop(server)
    lines = [line for line in server.log_text().splitlines() if "no GPU" in line]
    assert len(lines) == 1 and "kernels=cpu" in lines[0], lines
    try:
        start(EMULATED, "--device", "cuda", **none)
    except SystemExit as e:
        assert "ended with 1" in str(e) and "tarn-server: " in str(e), e
    else:
        raise SystemExit("--device cuda started without a GPU")


def inspect_tells_the_kv_pool_of_a_start() -> None:
    for options in (["--max-model-len", "512", "--quantization", "int8"],
                    ["--enforce-eager", "--kv-cache-dtype", "int8", "--max-num-seqs", "4"]):
        command = [str(EMULATED), "--model", str(MODEL), "--device", "cuda", *options]
        inspected = subprocess.run([*command, "--inspect", "json"], capture_output=True,
                                   check=True, text=True, timeout=WAIT_SECONDS)
        rows = {m["quantization"]: m for m in json.loads(inspected.stdout)["memory"]}
        row = rows["int8" if "--quantization" in options else "as stored"]
        process = subprocess.Popen(
            [*command, "--port", "0", "--no-profile-cost", "--log-format", "json"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout
        ready = json.loads(process.stdout.readline())
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 0
        assert row["tokens_that_fit"] == ready["kv_tokens"] > 0, (options, row, ready)


def main() -> None:
    if not EMULATED.exists():
        print("no tarn-server-emulated in this build")
        sys.exit(77)
    for test in (greedy_tokens_are_the_cpus, bf16_and_quantized_weights_answer_alike,
                 a_dead_gpu_ends_the_server, without_a_gpu_auto_says_what_it_does,
                 inspect_tells_the_kv_pool_of_a_start):
        t0 = time.time()
        test()
        print(f"ok {test.__name__} ({time.time() - t0:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
