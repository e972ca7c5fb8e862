#!/usr/bin/env python3
"""Parameters around an answer: ids of requests, aborts by id, times, prompts as token ids, the
fields that hand a request to another instance, and OpenAI's older fields about functions."""
from __future__ import annotations

import concurrent.futures
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from http_helpers import Server, make_model, run_tests, tarn_server, wait_until

CHAT, TEXT, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
HELLO = [{"role": "user", "content": "hi"}]
LONG = {"messages": HELLO, "max_tokens": 1900, "ignore_eos": True}
TEMPLATE = ("{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}"
            "{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
            "{{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}")
FUNCTION = {"name": "f", "description": "answers", "parameters": {
    "type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"],
    "additionalProperties": False}}
KEYS = {"keys": [{"name": name, "key": name * 20, "tenant": name} for name in "ab"]}
MODEL: Path
SERVER: Server


def as_tenant(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name * 20}"}


def post(path: str, body: dict[str, Any], tenant: str = "a") -> tuple[int, Any]:
    status, _, answer = SERVER.request("POST", path, body, as_tenant(tenant))
    return status, answer


def ok(path: str, body: dict[str, Any]) -> Any:
    status, answer = post(path, body)
    assert status == 200, (path, body, answer)
    return answer


def frames(path: str, body: dict[str, Any]) -> list[Any]:
    text = ok(path, {**body, "stream": True})
    return [json.loads(e[6:]) for e in text.split("\n\n") if e.startswith("data: {")]


def n_running() -> float:
    _, _, text = SERVER.request("GET", "/metrics", None, {"x-api-key": "boss"})
    return float(next(line.rsplit(" ", 1)[1] for line in text.splitlines()
                      if line.startswith("vllm:num_requests_running{")))


def a_request_names_its_answer() -> None:
    small = {"messages": HELLO, "max_tokens": 2}
    assert ok(CHAT, {**small, "request_id": "mine-1"})["id"] == "chatcmpl-mine-1"
    assert ok(TEXT, {"prompt": "x", "max_tokens": 1, "rid": "mine-2"})["id"] == "cmpl-mine-2"
    assert {f["id"] for f in frames(CHAT, {**small, "request_id": "mine-3"})} == {
        "chatcmpl-mine-3"}
    for bad in ("", "two words", "x" * 64):
        status, answer = post(CHAT, {**small, "request_id": bad})
        assert status == 400 and answer["error"]["param"] == "request_id", answer


def an_aborted_answer_ends_with_what_it_has() -> None:
    """Whole and streamed, by vLLM's list of ids and by SGLang's prefix."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        whole = pool.submit(ok, CHAT, {**LONG, "request_id": "job-1"})
        stream = pool.submit(frames, TEXT, {"prompt": "x", "max_tokens": 1900, "ignore_eos": True,
                                            "request_id": "job-2"})
        wait_until(lambda: n_running() == 2 or whole.done() or stream.done())
        _, other = post("/abort_requests", {"request_ids": ["job-1", "cmpl-job-2"]}, "b")
        assert other["aborted"] == 0, other
        n = ok("/abort_requests", {"request_ids": ["job-1", "unknown", "job-1"]})["aborted"]
        assert n <= 1, n
        n += ok("/abort_request", {"rid": "cmpl-job"})["aborted"]
        choice, last = whole.result()["choices"][0], stream.result()[-1]["choices"][0]
    if n == 2:  # none of them had ended before
        assert choice["finish_reason"] == last["finish_reason"] == "abort", (choice, last)
    wait_until(lambda: n_running() == 0)
    for body in ({}, {"request_ids": "x"}, {"rid": ""}, {"request_ids": [1]}):
        status, answer = post("/abort_requests", body)
        assert status == 400, answer


def an_abort_of_all_ends_the_tenants_calls_only() -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        mine = pool.submit(ok, CHAT, LONG)
        theirs = pool.submit(post, CHAT, {**LONG, "max_tokens": 300}, "b")
        wait_until(lambda: n_running() > 0 or mine.done())
        ok("/abort_request", {"abort_all": True})
        assert theirs.result()[1]["choices"][0]["finish_reason"] == "length"
        assert mine.result()["choices"][0]["finish_reason"] in ("abort", "length")


def strangers_end_no_calls_whose_ids_they_do_not_know() -> None:
    """Without keys all callers are one tenant: others than those of this machine must name ids."""
    body = {**LONG, "request_id": "long"}
    with concurrent.futures.ThreadPoolExecutor() as pool, tarn_server(
            MODEL, "--host", "0.0.0.0") as server:
        answer = pool.submit(server.post, CHAT, body)
        status, _, refused = server.request("POST", "/abort_request", {"abort_all": True})
        assert status == 403 and "admin" in refused["error"]["message"], refused
        for rid in ("lon", "chatcmpl-"):
            assert server.post("/abort_request", {"rid": rid})["aborted"] == 0, rid
        wait_until(lambda: answer.done() or
                   server.post("/abort_request", {"rid": "long"})["aborted"] == 1)
        assert answer.result()["choices"][0]["finish_reason"] in ("abort", "length")


def admin(method: str, path: str, body: Any = None) -> tuple[int, Any]:
    status, _, answer = SERVER.request(method, path, body, {"x-api-key": "boss"})
    return status, answer


def a_paused_engine_runs_nothing_until_it_is_resumed() -> None:
    """Requests wait, and answer then as they would have; or they end where the pause says so."""
    body = {"messages": HELLO, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    for pause, resume in (("/pause?mode=keep", "/resume"),
                          ("/pause_generation?mode=in_place", "/continue_generation")):
        assert admin("POST", pause) == (200, {"is_paused": True})
        with concurrent.futures.ThreadPoolExecutor() as pool:
            waiting = pool.submit(ok, CHAT, {**body, "request_id": "paused"})
            aborted = pool.submit(ok, CHAT, {**body, "request_id": "ended"})
            wait_until(lambda: ok("/abort_requests", {"request_ids": ["ended"]})["aborted"] == 1)
            assert aborted.result()["choices"][0]["finish_reason"] == "abort"
            assert not waiting.done()
            assert admin("GET", "/is_paused") == (200, {"is_paused": True})
            assert admin("POST", resume) == (200, {"is_paused": False})
            told = waiting.result()["choices"][0]["message"]["content"]
        assert told == ok(CHAT, body)["choices"][0]["message"]["content"]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = pool.submit(ok, CHAT, LONG)
        wait_until(lambda: n_running() > 0 or running.done())
        for path, asked in (("/pause", None), ("/pause?mode=abort", None),
                            ("/pause_generation?mode=abort", None),
                            ("/pause_generation", {"mode": "abort"})):
            assert admin("POST", path, asked)[0] == 200
        assert running.result()["choices"][0]["finish_reason"] in ("abort", "length")
        assert admin("POST", "/resume")[0] == 200
    for path in ("/pause?mode=in_place", "/resume", "/pause_generation?mode=keep", "/resume"):
        assert admin("POST", path)[0] == 200
    assert admin("POST", "/pause?mode=often")[1]["error"]["param"] == "mode"
    assert post("/pause", {})[0] == 403


def an_answer_tells_its_times() -> None:
    body = {"messages": HELLO, "max_tokens": 5, "ignore_eos": True, "return_timings": True}
    answer = ok(CHAT, body)
    streamed = frames(CHAT, body)[-1]
    for one in (answer, streamed):
        t = one["timings"]
        assert t["cache_n"] + t["prompt_n"] == one["usage"]["prompt_tokens"], one
        assert t["predicted_n"] == 5 and min(t["queue_ms"], t["prompt_ms"], t["predicted_ms"]) >= 0
        assert abs(t["predicted_per_second"] * t["predicted_ms"] / 1e3 - 5) < 0.01, t
    assert "timings" not in ok(CHAT, {"messages": HELLO, "max_tokens": 1})


def what_render_writes_can_be_generated() -> None:
    """The ids are those of the chat's own answer."""
    body = {"messages": HELLO, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    rendered = ok(CHAT + "/render", body)
    rendered["sampling_params"]["ignore_eos"] = True
    direct = ok(CHAT, {**body, "return_token_ids": True})["choices"][0]["token_ids"]
    answer = ok(GENERATE, {**rendered, "request_id": "x.1"})
    assert answer["choices"][0]["token_ids"] == direct and len(direct) == 8, (answer, direct)
    assert answer["request_id"] == "cmpl-x.1", answer
    streamed = frames(GENERATE, {**rendered, "request_id": "x.2"})
    ids = [i for f in streamed for c in f["choices"] for i in c.get("token_ids", ())]
    assert ids == direct and streamed[0]["request_id"] == "cmpl-x.2", streamed
    for bad, name in (({}, "token_ids"), ({"token_ids": "x"}, "token_ids"),
                      ({"token_ids": [5], "features": {"a": 1}}, "features"),
                      ({"token_ids": [5], "sampling_params": {"n": 0}}, "n")):
        status, wrong = post(GENERATE, bad)
        assert status == 400 and wrong["error"]["param"] == name, wrong


def a_prefill_is_handed_over() -> None:
    """The first answer's kv_transfer_params are taken by the second request."""
    body = {"messages": HELLO, "max_tokens": 1}
    first = ok(CHAT, {**body, "kv_transfer_params": {"do_remote_decode": True}})
    given = first["kv_transfer_params"]
    assert given["do_remote_prefill"] and not given["do_remote_decode"], first
    second = ok(CHAT, {**body, "kv_transfer_params": given})
    assert "kv_transfer_params" not in second, second


def older_functions_become_tools() -> None:
    ask = {"messages": HELLO, "max_tokens": 400, "functions": [FUNCTION],
           "function_call": {"name": "f"}}
    choice = ok(CHAT, ask)["choices"][0]
    call = choice["message"]["function_call"]
    assert choice["finish_reason"] == "function_call" and "tool_calls" not in choice["message"]
    assert call["name"] == "f" and set(json.loads(call["arguments"])) == {"yes"}, call
    deltas = [f["choices"][0] for f in frames(CHAT, ask)]
    parts = [d["delta"]["function_call"] for d in deltas if "function_call" in d["delta"]]
    assert parts[0]["name"] == "f" and all("name" not in p for p in parts[1:]), parts
    assert json.loads("".join(p["arguments"] for p in parts)).keys() == {"yes"}, parts
    assert deltas[-1]["finish_reason"] == "function_call", deltas[-1]
    history = [*HELLO, {"role": "assistant", "content": None, "function_call": {
        "name": "f", "arguments": '{"yes": true}'}}, {
            "role": "function", "name": "f", "content": "done"}]
    text = ok("/detokenize", {"tokens": ok(CHAT + "/render", {"messages": history})["token_ids"]})
    assert 'f{"yes": true}' in text["prompt"] and "tool: done" in text["prompt"], text
    for bad, name in (({"functions": 5}, "functions"), ({"function_call": "x"}, "function_call"),
                      ({"functions": [FUNCTION], "tools": []}, "functions"),
                      ({"functions": [{}]}, "functions[0].name"),
                      ({"functions": [FUNCTION], "function_call": {"name": "g"}},
                       "function_call.name")):
        status, answer = post(CHAT, {"messages": HELLO, **bad})
        assert status == 400 and answer["error"]["param"] == name, answer


TESTS = [a_request_names_its_answer, an_aborted_answer_ends_with_what_it_has,
         an_abort_of_all_ends_the_tenants_calls_only,
         strangers_end_no_calls_whose_ids_they_do_not_know,
         a_paused_engine_runs_nothing_until_it_is_resumed, an_answer_tells_its_times,
         what_render_writes_can_be_generated, a_prefill_is_handed_over,
         older_functions_become_tools]


def main() -> int:
    global MODEL, SERVER
    with tempfile.TemporaryDirectory(prefix="tarn-calls-") as folder:
        template, keys = Path(folder) / "template", Path(folder) / "keys.json"
        template.write_text(TEMPLATE)
        keys.write_text(json.dumps(KEYS))
        keys.chmod(0o600)
        MODEL = make_model(folder)
        with tarn_server(MODEL, "--chat-template", str(template),
                         "--tool-call-parser", "hermes", "--api-key-file", str(keys),
                         env={"TARN_ADMIN_API_KEY": "boss"}) as SERVER:
            return run_tests(TESTS)


if __name__ == "__main__":
    sys.exit(main())
