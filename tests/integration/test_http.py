#!/usr/bin/env python3
"""tarn-server over HTTP with a small real model: every endpoint, every kind of bad input.

TARN_TEST_MODEL names a model directory; without it a random one is made.
"""
from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from typing import Any

from http_helpers import Server, make_model, run_tests, tarn_server, tarn_test, wait_until

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
LONG_CONTEXT = 60_000

SERVER: Server
LONG_SERVER: Server


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0,
            **more}


def refused(path: str, body: Any, status: int, param: str | None = None,
            code: str | None = None) -> str:
    got, headers, answer = SERVER.request("POST", path, body)
    assert got == status, f"{body!r:.200}: {got} {answer}"
    assert headers["content-type"].startswith("application/json")
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert isinstance(error["code"], str) and error["message"], error
    assert error["param"] == param, f"{body!r:.200}: {error}"
    assert code in (None, error["code"]), error
    return str(error["message"])


def delta_text(frames: list[Any], index: int = 0) -> str:
    return "".join(c["delta"].get("content") or "" for f in frames for c in f["choices"]
                   if c["index"] == index)


# --- generation ---

def streamed_text_equals_whole_text() -> None:
    for body in (user("Where is the red house?"), user("é 字 🙂 and more", max_tokens=60),
                 user("x", temperature=1.2, seed=7, top_p=0.9, top_k=50, max_tokens=60),
                 user("x", temperature=1.5, seed=8, stop=["e", "th"], max_tokens=200)):
        whole = SERVER.post(CHAT, body)
        frames, _ = SERVER.stream(CHAT, {**body, "stream_options": {"include_usage": True}})
        choice = whole["choices"][0]
        assert delta_text(frames) == choice["message"]["content"]
        ends = [c for f in frames for c in f["choices"] if c["finish_reason"]]
        assert len(ends) == 1
        assert ends[0]["finish_reason"] == choice["finish_reason"]
        assert frames[0]["choices"][0]["delta"]["role"] == "assistant"
        assert frames[-1]["choices"] == []
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert frames[-1]["usage"][key] == whole["usage"][key]
        assert len({f["id"] for f in frames}) == 1


def the_same_seed_gives_the_same_text() -> None:
    body = user("Once upon a time", temperature=1, seed=11, max_tokens=40)
    first = SERVER.post(CHAT, body)["choices"][0]["message"]["content"]
    assert first == SERVER.post(CHAT, body)["choices"][0]["message"]["content"]
    several = SERVER.post(CHAT, {**body, "n": 3})
    texts = [c["message"]["content"] for c in several["choices"]]
    assert texts[0] == first and len(set(texts)) == 3, texts
    assert [c["index"] for c in several["choices"]] == [0, 1, 2]
    assert texts[1] == SERVER.post(CHAT, {**body, "seed": 12})["choices"][0]["message"]["content"]
    assert several["usage"]["prompt_tokens"] == SERVER.post(CHAT, body)["usage"]["prompt_tokens"]


def a_repeated_prompt_is_found_in_the_cache() -> None:
    body = user("the same long words " * 40, max_tokens=4)
    first, second = SERVER.post(CHAT, body), SERVER.post(CHAT, body)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 32 <= cached < second["usage"]["prompt_tokens"], second["usage"]
    assert first["choices"][0]["message"] == second["choices"][0]["message"]
    by_tier = {"device": cached, "host": 0, "disk": 0}
    assert second["usage"]["prompt_tokens_details"]["cached_tokens_details"] == by_tier
    frames, _ = SERVER.stream(CHAT, {**body, "stream_options": {"include_usage": True}})
    assert frames[-1]["usage"]["prompt_tokens_details"] == \
        second["usage"]["prompt_tokens_details"], frames[-1]
    text = {"prompt": "other long words " * 40, "max_tokens": 1, "cache_ttl": 60}
    again = [SERVER.post(TEXT, text)["usage"]["prompt_tokens_details"] for _ in range(2)][1]
    assert again["cached_tokens"] >= 32, again
    assert again["cached_tokens_details"] == {"device": again["cached_tokens"], "host": 0,
                                              "disk": 0}, again
    salted = SERVER.post(CHAT, {**body, "cache_salt": "other"})
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, salted["usage"]
    assert salted["choices"][0]["message"] == first["choices"][0]["message"]


def logprobs_have_openais_shape() -> None:
    whole = SERVER.post(CHAT, user("hi", logprobs=True, top_logprobs=3, max_tokens=5,
                                   ignore_eos=True))
    content = whole["choices"][0]["logprobs"]["content"]
    assert len(content) == 5
    for token in content:
        assert set(token) == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(token["top_logprobs"]) == 3
        assert token["top_logprobs"][0]["logprob"] == token["logprob"]  # greedy took the best
        assert token["logprob"] <= 0
    text = SERVER.post(TEXT, {"prompt": "hi", "logprobs": 2, "max_tokens": 5, "temperature": 0,
                              "ignore_eos": True})
    lp = text["choices"][0]["logprobs"]
    assert {len(lp[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {5}


def logprobs_name_tokens_by_id_where_asked() -> None:
    more: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True, "return_token_ids": True,
                            "temperature": 0}
    for ask in (user("hi", logprobs=True, top_logprobs=3, **more),
                {"prompt": "hi é", "echo": True, "logprobs": 3, **more}):
        path = CHAT if "messages" in ask else TEXT
        texts, ids = (SERVER.post(path, {**ask, "return_tokens_as_token_ids": switch})["choices"][0]
                      for switch in (False, True))
        want = [f"token_id:{i}" for i in ids["token_ids"]]
        if path == CHAT:
            content = ids["logprobs"]["content"]
            tops = [[t["token"] for t in c["top_logprobs"]] for c in content]
            assert [c["token"] for c in content] == want, (content, want)
            assert [(c["logprob"], c["bytes"]) for c in content] == [
                (c["logprob"], c["bytes"]) for c in texts["logprobs"]["content"]]
        else:
            want = [f"token_id:{i}" for i in ids["prompt_token_ids"]] + want
            tops = [list(t) for t in ids["logprobs"]["top_logprobs"][1:]]
            assert ids["logprobs"]["tokens"] == want, (ids, want)
            for key in ("token_logprobs", "text_offset"):
                assert ids["logprobs"][key] == texts["logprobs"][key], key
        assert all(3 <= len(set(t)) == len(t) <= 4 for t in tops), tops
        assert all(t.startswith("token_id:") for top in tops for t in top), tops


def usage_so_far_is_in_every_event_where_asked() -> None:
    for path, ask in ((CHAT, user("hi", max_tokens=6, ignore_eos=True)),
                      (TEXT, {"prompt": "hi", "max_tokens": 6, "ignore_eos": True})):
        options = {"continuous_usage_stats": True, "include_usage": True}
        frames, _ = SERVER.stream(path, {**ask, "stream_options": options})
        counts = [f["usage"]["completion_tokens"] for f in frames]
        assert counts == sorted(counts) and counts[-1] == 6 and len(counts) > 2, counts
        assert all(f["usage"]["total_tokens"] == f["usage"]["completion_tokens"] +
                   frames[-1]["usage"]["prompt_tokens"] for f in frames), frames
        assert frames[-1]["choices"] == [] and frames[-2]["choices"], frames[-2:]
        alone, _ = SERVER.stream(path, {**ask, "stream_options": {"continuous_usage_stats": True}})
        assert alone[-1]["choices"] and alone[-1]["usage"]["completion_tokens"] == 6, alone[-1]


def stop_strings_and_ids_end_the_answer() -> None:
    body = {"prompt": "Once upon", "max_tokens": 40, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True}
    free = SERVER.post(TEXT, body)["choices"][0]
    assert free["finish_reason"] == "length" and len(free["token_ids"]) == 40
    text = free["text"]
    stop = text[len(text) // 2:len(text) // 2 + 3]
    cut = SERVER.post(TEXT, {**body, "stop": stop})["choices"][0]
    assert cut["finish_reason"] == "stop" and cut["stop_reason"] == stop
    assert cut["text"] == text[:text.index(stop)]
    kept = SERVER.post(TEXT, {**body, "stop": [stop], "include_stop_str_in_output": True})
    assert kept["choices"][0]["text"] == text[:text.index(stop) + len(stop)]
    number = free["token_ids"][7]
    by_id = SERVER.post(TEXT, {**body, "stop_token_ids": [number]})["choices"][0]
    first = free["token_ids"].index(number)
    assert by_id["finish_reason"] == "stop" and by_id["stop_reason"] == number
    assert by_id["token_ids"] == free["token_ids"][:first + 1]
    later = SERVER.post(TEXT, {**body, "stop_token_ids": [number], "min_tokens": 39})
    assert len(later["choices"][0]["token_ids"]) >= 39


def completions_take_every_form_of_prompt() -> None:
    ids = SERVER.post("/tokenize", {"prompt": "the house"})["tokens"]
    base = {"max_tokens": 6, "temperature": 0}
    one = SERVER.post(TEXT, {**base, "prompt": "the house"})
    assert one["object"] == "text_completion"
    assert SERVER.post(TEXT, {**base, "prompt": ids})["choices"][0]["text"] == \
        one["choices"][0]["text"]
    many = SERVER.post(TEXT, {**base, "prompt": ["the house", "a dog"], "n": 2})
    assert [c["index"] for c in many["choices"]] == [0, 1, 2, 3]
    assert many["choices"][1]["text"] == one["choices"][0]["text"]
    lists = SERVER.post(TEXT, {**base, "prompt": [ids, ids[:1]]})
    assert lists["choices"][0]["text"] == one["choices"][0]["text"]
    echoed = SERVER.post(TEXT, {**base, "prompt": "the house", "echo": True})
    assert echoed["choices"][0]["text"] == "the house" + one["choices"][0]["text"]
    frames, _ = SERVER.stream(TEXT, {**base, "prompt": ["the house", "a dog"], "echo": True})
    texts = ["".join(c["text"] for f in frames for c in f["choices"] if c["index"] == i)
             for i in (0, 1)]
    assert texts[0] == echoed["choices"][0]["text"], texts
    frames, _ = SERVER.stream(TEXT, {**base, "prompt": "the house", "return_token_ids": True,
                                     "ignore_eos": True})
    streamed = [i for f in frames for c in f["choices"] for i in c.get("token_ids", [])]
    assert len(streamed) == 6
    assert [c["prompt_token_ids"] for f in frames for c in f["choices"]
            if "prompt_token_ids" in c] == [ids]


def prompts_are_scored_and_warmed_and_the_best_is_chosen() -> None:
    """test_evaluation.py looks at the values; here the paths run, also under ASan."""
    body = {"prompt": ["the house é", "a dog"], "max_tokens": 3, "echo": True, "logprobs": 20,
            "n": 2}
    whole = SERVER.post(TEXT, body)["choices"]
    frames, _ = SERVER.stream(TEXT, body)
    for choice in whole:
        streamed = [t for f in frames for c in f["choices"] if c["index"] == choice["index"]
                    and c["logprobs"] for t in c["logprobs"]["tokens"]]
        assert streamed == choice["logprobs"]["tokens"] and len(streamed) > 4
        assert choice["logprobs"]["token_logprobs"][0] is None
    warmed = SERVER.post(CHAT, user("warm me", max_tokens=0, n=3))
    assert [c["finish_reason"] for c in warmed["choices"]] == ["length"] * 3
    assert warmed["usage"]["completion_tokens"] == 0
    best = SERVER.post(TEXT, {"prompt": "a dog", "best_of": 9, "n": 2, "max_tokens": 5})
    assert [c["index"] for c in best["choices"]] == [0, 1]


def documents_become_part_of_the_prompt() -> None:
    documents = [{"title": "One", "text": "first text"}, {"text": "second text"}]
    with_them = SERVER.post(CHAT, user("q", documents=documents, max_tokens=2))
    without = SERVER.post(CHAT, user("q", max_tokens=2))
    assert with_them["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"] + 5
    tokens = SERVER.post("/tokenize", {"messages": [{"role": "user", "content": "q"}],
                                       "documents": documents})
    text = SERVER.post("/detokenize", {"tokens": tokens["tokens"]})["prompt"]
    assert "first text\n" in text and "second text\n" in text, text
    assert tokens["count"] == with_them["usage"]["prompt_tokens"]


# --- the rest of the API ---

def tokenize_and_detokenize_are_inverse() -> None:
    for text in ("", "hello", " two  spaces ", "line\nline\t\n", "é 字 🙂 𝔘", "a" * 3000):
        answer = SERVER.post("/tokenize", {"prompt": text, "add_special_tokens": False,
                                           "return_token_strs": True})
        assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
        assert answer["max_model_len"] > 0
        back = SERVER.post("/detokenize", {"tokens": answer["tokens"]})["prompt"]
        assert back == text, (text, back)


def models_are_listed() -> None:
    _, _, models = SERVER.request("GET", "/v1/models")
    assert [m["id"] for m in models["data"]] == ["tiny", "org/other"]
    assert models["data"][0]["max_model_len"] > 0
    status, _, model = SERVER.request("GET", "/v1/models/org/other")
    assert status == 200 and model["id"] == "org/other"
    assert SERVER.request("GET", "/v1/models/none")[0] == 404
    answer = SERVER.post(CHAT, user("hi", model="org/other", max_tokens=1))
    assert answer["model"] == "org/other"


def health_and_metrics_answer() -> None:
    for path in ("/health", "/health/live", "/health/ready"):
        assert SERVER.request("GET", path)[0] == 200
        assert SERVER.request("HEAD", path)[0] == 200
    assert [SERVER.request(m, "/ping")[0] for m in ("GET", "HEAD", "POST")] == [200] * 3
    status, _, answer = SERVER.request("GET", "/version")
    assert status == 200 and list(answer) == ["version"] and answer["version"][0].isdigit(), answer
    m = SERVER.metrics()
    states = ["free", "cached", "in_use", "in_transfer"]
    assert sum(m[f'tarn:kv_blocks{{state="{s}"}}'] for s in states) > 0
    assert m["tarn:kv_blocks_leaked"] == 0
    assert m["tarn:process_resident_bytes"] > 1e6
    assert m["vllm:generation_tokens_total"] > 0
    assert m["vllm:time_to_first_token_seconds_count"] > 0
    _, _, text = SERVER.request("GET", "/metrics")
    typed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    for line in text.splitlines():
        if not line.startswith("#"):
            name = line.split("{")[0].split()[0]
            family = [name] + [name.removesuffix(s) for s in ("_bucket", "_sum", "_count")]
            assert typed & set(family), line


# --- bad input ---

def malformed_bodies_are_refused() -> None:
    for path in (CHAT, TEXT, "/tokenize", "/detokenize"):
        for body in (b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b'{"a":1,"a":2}',
                     b"[" * 100_000, b'{"messages":' * 600 + b"1" + b"}" * 600):
            refused(path, body, 400, None, "malformed_json")


def wrong_types_name_the_field() -> None:
    refused(CHAT, {}, 400, "messages")
    refused(CHAT, {"messages": "x"}, 400, "messages")
    refused(CHAT, {"messages": [{"role": "user", "content": "x"}, {"role": 3}]}, 400,
            "messages[1].role")
    refused(CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400,
            "messages[0].content[0].text")
    refused(CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400,
            "messages[0].content[0].type")
    for key, value in (("temperature", "x"), ("top_p", 2), ("max_tokens", -1), ("n", 129),
                       ("stop", [1]), ("stream", "yes"), ("logit_bias", {"x": 1}),
                       ("seed", 1.5), ("top_logprobs", 3)):
        message = refused(CHAT, user("x", **{key: value}), 400,
                          f"{key}[0]" if key == "stop" else key)
        assert message.startswith(key), message
    refused(TEXT, {}, 400, "prompt")
    refused(TEXT, {"prompt": []}, 400, "prompt")
    refused(TEXT, {"prompt": [1, "a"]}, 400, "prompt[1]")
    refused(TEXT, {"prompt": [10**9]}, 400, "prompt[0]")
    refused("/detokenize", {"tokens": [-1]}, 400, "tokens[0]")
    refused("/detokenize", {}, 400, "tokens")


def what_is_not_supported_is_named() -> None:
    for key, value in (("audio", {"voice": "x"}), ("modalities", ["audio"]),
                       ("response_format", {"type": "grammar"}), ("suffix", "x")):
        refused(CHAT, user("x", **{key: value}), 400, key, "unsupported_parameter")
    refused(TEXT, {"prompt": "x", "suffix": "y"}, 400, "suffix")
    refused(CHAT, user("x", best_of=2), 400, "best_of")
    SERVER.post(CHAT, user("x", max_tokens=1, unheard_of={"a": 1}, tools=[], best_of=1))


def an_unknown_model_is_404() -> None:
    refused(CHAT, user("x", model="gpt-9"), 404, "model", "model_not_found")
    refused(TEXT, {"prompt": "x", "model": "gpt-9"}, 404, "model", "model_not_found")
    refused("/tokenize", {"prompt": "x", "model": "gpt-9"}, 404, "model", "model_not_found")


def a_too_long_prompt_is_400() -> None:
    max_len = SERVER.request("GET", "/v1/models")[2]["data"][0]["max_model_len"]
    refused(TEXT, {"prompt": [1] * max_len}, 400, None, "context_length_exceeded")
    refused(TEXT, {"prompt": [1] * (max_len + 1)}, 400, None, "context_length_exceeded")
    refused(CHAT, user("word " * max_len), 400, None, "context_length_exceeded")
    answer = SERVER.post(TEXT, {"prompt": [1] * (max_len - 3), "max_tokens": 100,
                                "ignore_eos": True})
    assert answer["usage"]["completion_tokens"] == 3, answer["usage"]
    assert answer["choices"][0]["finish_reason"] == "length"


def a_huge_body_is_413() -> None:
    status, _, answer = SERVER.request("POST", CHAT, b" " * (3 << 20))
    assert status == 413 and answer["error"]["code"] == "body_too_large", (status, answer)
    # Without a Content-Length the limit is met on the way.
    import http.client
    c = http.client.HTTPConnection("127.0.0.1", SERVER.port, timeout=tarn_test.patience(60))
    c.request("POST", CHAT, iter([b" " * 65536] * 48), encode_chunked=True,
              headers={"Transfer-Encoding": "chunked"})
    assert c.getresponse().status == 413
    c.close()
    huge_header = {"X-Big": "x" * 100_000}
    assert SERVER.request("GET", "/health", None, huge_header)[0] in (400, 413, 431)


def methods_and_paths_are_told() -> None:
    status, headers, answer = SERVER.request("GET", CHAT)
    assert status == 405 and "POST" in headers["allow"], (status, answer)
    status, headers, answer = SERVER.request("DELETE", "/v1/models")
    assert status == 405 and "GET" in headers["allow"]
    status, _, answer = SERVER.request("GET", "/v1/nothing")
    assert status == 404 and answer["error"]["type"] == "not_found_error", answer
    status, headers, _ = SERVER.request("OPTIONS", CHAT)
    assert status == 204 and "POST" in headers["allow"]


# --- cancelling and limits, with a context that takes a while to fill ---

def long_body(stream: bool) -> dict[str, Any]:
    return {"prompt": "x", "max_tokens": LONG_CONTEXT, "ignore_eos": True, "stream": stream}


def a_lost_client_frees_its_blocks() -> None:
    for stream in (False, True):
        s = LONG_SERVER.open_raw(TEXT, long_body(stream))
        LONG_SERVER.wait_blocks(lambda n: n > 0)
        s.close()
        seconds = LONG_SERVER.wait_blocks(lambda n: n == 0)
        print(f"      stream={stream}: {seconds:.3f} s")
    assert LONG_SERVER.metrics()["tarn:kv_blocks_leaked"] == 0


def a_full_queue_is_429() -> None:
    # One by one: the queue holds one, and the first must have left it before the second comes.
    held = [LONG_SERVER.open_raw(TEXT, long_body(False))]
    LONG_SERVER.wait_blocks(lambda n: n > 0)
    held.append(LONG_SERVER.open_raw(TEXT, long_body(False)))
    wait_until(lambda: LONG_SERVER.metrics()["vllm:num_requests_waiting"] >= 1)
    status, headers, answer = LONG_SERVER.request("POST", TEXT, long_body(False))
    assert status == 429 and headers["retry-after"].isdigit(), (status, answer)
    for s in held:
        s.close()
    LONG_SERVER.wait_blocks(lambda n: n == 0)
    LONG_SERVER.post(TEXT, {"prompt": "x", "max_tokens": 1})


def sigterm_drains_and_the_timeout_ends_it(model: Any) -> None:
    with tarn_server(model, "--max-model-len", str(LONG_CONTEXT), "--drain-timeout", "1") as server:
        result: list[Any] = []
        thread = threading.Thread(target=lambda: result.append(
            server.request("POST", TEXT, long_body(True))))
        thread.start()
        server.wait_blocks(lambda n: n > 0)
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start > 0.9
        thread.join()
        status, _, text = result[0]
        assert status == 200 and text.endswith("data: [DONE]\n\n"), text[-200:]
        error = json.loads(text.split("\n\n")[-3].removeprefix("data: "))["error"]
        assert error["type"] == "unavailable_error", error


def main() -> int:
    global SERVER, LONG_SERVER
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        model = make_model(folder)
        long_model = make_model(other, "--max-pos", str(LONG_CONTEXT), "--layers", "4",
                                "--dim", "128", "--ffn", "512")

        def sigterm_drains() -> None:
            sigterm_drains_and_the_timeout_ends_it(long_model)

        with tarn_server(model, "--served-model-name", "tiny,org/other",
                         "--max-body-bytes", "2M") as SERVER, \
                tarn_server(long_model, "--max-model-len", str(LONG_CONTEXT),
                            "--max-num-seqs", "1", "--max-num-queued-reqs", "1") as LONG_SERVER:
            status = run_tests([
                streamed_text_equals_whole_text,
                the_same_seed_gives_the_same_text,
                a_repeated_prompt_is_found_in_the_cache,
                logprobs_have_openais_shape,
                logprobs_name_tokens_by_id_where_asked,
                usage_so_far_is_in_every_event_where_asked,
                stop_strings_and_ids_end_the_answer,
                completions_take_every_form_of_prompt,
                prompts_are_scored_and_warmed_and_the_best_is_chosen,
                documents_become_part_of_the_prompt,
                tokenize_and_detokenize_are_inverse,
                models_are_listed,
                health_and_metrics_answer,
                malformed_bodies_are_refused,
                wrong_types_name_the_field,
                what_is_not_supported_is_named,
                an_unknown_model_is_404,
                a_too_long_prompt_is_400,
                a_huge_body_is_413,
                methods_and_paths_are_told,
                a_lost_client_frees_its_blocks,
                a_full_queue_is_429,
                sigterm_drains,
            ])
            assert SERVER.metrics()["tarn:kv_blocks_leaked"] == 0
            assert SERVER.blocks_in_use() == 0
            return status


if __name__ == "__main__":
    sys.exit(main())
