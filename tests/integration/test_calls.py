#!/usr/bin/env python3
"""Parameters around an answer: ids of requests, aborts by id, times, prompts as token ids, the
fields that hand a request to another instance, and OpenAI's older fields about functions."""
from __future__ import annotations

import concurrent.futures
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

from http_helpers import Server, make_model, run_tests, tarn_server, wait_until

CHAT, TEXT, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
NATIVE, LABELS = "/generate", "/generative_scoring"
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


def near(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-5 * max(1.0, abs(a), abs(b))


def labels_have_the_models_probabilities() -> None:
    """The logprobs are those that completions give for the same tokens."""
    query, items = "the captain of the ship is", [" Stamos", " a", " the tower"]

    def logprobs(prompt: str) -> dict[int, float]:
        best = ok(TEXT, {"prompt": prompt, "max_tokens": 1, "logprobs": 20, "temperature": 0,
                         "return_tokens_as_token_ids": True})["choices"][0]["logprobs"]
        return {int(k.removeprefix("token_id:")): v for k, v in best["top_logprobs"][0].items()}

    found = [logprobs(query + item) for item in items]
    labels = [min(f) for f in found]  # each among the best of one prompt at least
    body = {"query": query, "items": items, "label_token_ids": labels}
    full = ok("/v1/score", body)  # SGLang's: among all tokens
    assert full["object"] == "scoring" and len(full["scores"]) == 3, full
    for row, best in zip(full["scores"], found):
        for label, p in zip(labels, row):
            if label in best:
                assert near(p, math.exp(best[label])), (label, p, best)
    soft = ok("/score", {**body, "apply_softmax": True})["scores"]
    for row, one in zip(full["scores"], soft):
        assert all(near(a / sum(row), b) for a, b in zip(row, one)) and near(sum(one), 1)
    one = ok(LABELS, {**body, "add_special_tokens": True, "item_first": False})  # vLLM's
    assert one["object"] == "list" and one["id"].startswith("generative-scoring-"), one
    assert [d["index"] for d in one["data"]] == [0, 1, 2] and one["usage"]["completion_tokens"] == 3
    ids = [ok("/tokenize", {"prompt": t, "add_special_tokens": not i})["tokens"]
           for i, t in enumerate([query, *items])]
    by_ids = ok(LABELS, {**body, "query": ids[0], "items": ids[1:]})
    assert [d["score"] for d in by_ids["data"]] == [d["score"] for d in one["data"]]
    first = ok("/score", {**body, "item_first": True, "items": items[0]})["scores"]
    turned = ok("/score", {**body, "query": items[0], "items": query})["scores"]
    assert first == turned, (first, turned)
    for bad, name in (({"query": "a", "items": ["b"]}, "label_token_ids"),
                      ({"items": ["b"], "label_token_ids": [5]}, "query"),
                      ({"query": "a", "label_token_ids": [5]}, "items"),
                      ({**body, "label_token_ids": []}, "label_token_ids"),
                      ({**body, "label_token_ids": [-1]}, "label_token_ids[0]"),
                      ({**body, "items": []}, "items"), ({**body, "items": ["b"] * 99}, "items"),
                      ({**body, "items": ["b", 5]}, "items[1]"),
                      ({"query": "", "items": [""], "label_token_ids": [5],
                        "add_special_tokens": False}, "items[0]")):
        status, wrong = post(LABELS, bad)
        assert status == 400 and wrong["error"]["param"] == name, (bad, wrong)


def labels_do_not_depend_on_each_other() -> None:
    body = {"query": "x", "items": ["a", "b"], "label_token_ids": [5, 6, 7]}
    both = ok("/score", body)["scores"]
    for i, item in enumerate(body["items"]):
        for k, label in enumerate(body["label_token_ids"]):
            alone = ok("/score", {**body, "items": [item], "label_token_ids": [label]})
            assert alone["scores"] == [[both[i][k]]], (alone, both)


def sglangs_own_endpoint_answers() -> None:
    """Whole, streamed, in batches, with logprobs: the tokens of a completion."""
    want = ok(TEXT, {"prompt": "once upon", "max_tokens": 6, "temperature": 0, "logprobs": 2,
                     "ignore_eos": True, "return_token_ids": True})["choices"][0]
    sampling = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
    body = {"text": "once upon", "sampling_params": sampling}
    whole = ok(NATIVE, {**body, "rid": "mine-7", "return_logprob": True, "top_logprobs_num": 2,
                        "return_text_in_logprobs": True, "logprob_start_len": 0})
    meta = whole["meta_info"]
    assert whole["text"] == want["text"] and whole["output_ids"] == want["token_ids"], whole
    assert meta["id"] == "mine-7" and meta["completion_tokens"] == 6, meta
    assert meta["finish_reason"] == {"type": "length", "length": 6}, meta
    assert [t[0] for t in meta["output_token_logprobs"]] == want["logprobs"]["token_logprobs"]
    assert [t[1] for t in meta["output_token_logprobs"]] == want["token_ids"], meta
    assert any(t[2] for t in meta["output_token_logprobs"]), meta
    assert all(len(tops) == 2 for tops in meta["output_top_logprobs"]), meta
    given = meta["input_token_logprobs"]
    assert len(given) == meta["prompt_tokens"] and given[0][0] is None and given[1][0] < 0, given
    assert meta["input_top_logprobs"][0] is None and len(meta["input_top_logprobs"][1]) == 2
    ids = ok("/tokenize", {"prompt": "once upon"})["tokens"]
    assert ok(NATIVE, {"input_ids": ids, "sampling_params": sampling})["text"] == want["text"]
    streamed = frames(NATIVE, body)
    assert all(a["text"] == b["text"][:len(a["text"])] for a, b in zip(streamed, streamed[1:]))
    assert streamed[-1]["text"] == want["text"], streamed
    assert streamed[-1]["output_ids"] == want["token_ids"], streamed
    assert streamed[-1]["meta_info"]["finish_reason"]["type"] == "length", streamed
    assert all(f["meta_info"]["finish_reason"] is None for f in streamed[:-1]), streamed
    many = ok(NATIVE, {"text": ["once upon", "the"], "sampling_params": sampling})
    assert [m["index"] for m in many] == [0, 1] and many[0]["text"] == want["text"], many
    twice = frames(NATIVE, {"text": ["once upon"], "sampling_params": {**sampling, "n": 2}})
    assert {f["index"] for f in twice} == {0, 1}, twice
    stop = want["text"][2:4]
    cut = ok(NATIVE, {**body, "sampling_params": {**sampling, "stop": stop}})
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}, cut
    assert cut["text"] == want["text"][:want["text"].index(stop)], (cut, want)
    for bad, name in (({}, "text"), ({"text": "x", "input_ids": [5]}, "input_ids"),
                      ({"text": 3}, "text"), ({"input_ids": "x"}, "input_ids"),
                      ({"text": "x", "sampling_params": [{}]}, "sampling_params"),
                      ({"text": "x", "image_data": "a"}, "image_data"),
                      ({"text": "x", "sampling_params": {"stop_regex": "a"}}, "stop_regex"),
                      ({"text": "x", "stream": True, "return_logprob": True,
                        "logprob_start_len": 0}, "logprob_start_len")):
        status, wrong = post(NATIVE, bad)
        assert status == 400 and wrong["error"]["param"] == name, (bad, wrong)


def sglangs_paths_tokenize_lists() -> None:
    texts = ["hi", "the server answers"]
    one = [ok("/v1/tokenize", {"prompt": t}) for t in texts]
    both = ok("/v1/tokenize", {"prompt": texts, "return_token_strs": True})
    assert both["tokens"] == [o["tokens"] for o in one], (both, one)
    assert both["count"] == [o["count"] for o in one] and len(both["token_strs"]) == 2, both
    back = ok("/v1/detokenize", {"tokens": both["tokens"]})
    assert back["text"] == texts, back
    assert ok("/v1/detokenize", {"tokens": one[0]["tokens"]})["text"] == "hi"
    shown = ok("/v1/detokenize", {"tokens": both["tokens"], "skip_special_tokens": False})
    assert shown["text"] == shown["prompt"] == back["prompt"], (shown, back)
    assert "text" not in ok("/detokenize", {"tokens": one[0]["tokens"]})
    for path, bad, name in (("/tokenize", {"prompt": ["x", 5]}, "prompt"),
                            ("/detokenize", {"tokens": [[5], 6]}, "tokens[1]"),
                            ("/detokenize", {"tokens": [[5], [-1]]}, "tokens[1][0]")):
        status, wrong = post(path, bad)
        assert status == 400 and wrong["error"]["param"] == name, (bad, wrong)


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
         what_render_writes_can_be_generated, labels_have_the_models_probabilities,
         labels_do_not_depend_on_each_other, sglangs_own_endpoint_answers,
         sglangs_paths_tokenize_lists, a_prefill_is_handed_over, older_functions_become_tools]


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
