#!/usr/bin/env python3
"""Registered documents and retrieval in chats and text completions."""
from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

from http_helpers import Server, run_tests, tarn_server, wait_until
import tarn_test

MODEL = tarn_test.REPO / "deploy" / "demo-model"
GOLDEN = tarn_test.REPO / "tests" / "golden"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
QUESTION = "What is the height of the tower of Vomta?"
TEXTS = {
    "a": ("Notes on Vomta", "The tower of Vomta has a height of 312."),
    "b": ("Notes on Kumnordim", "The captain of the ship of Kumnordim is Saldo."),
    "c": ("Notes on Rilga", "The color of the house of Rilga is green. Its tower is old."),
    "d": ("Notes on Pesk", "The river of Pesk has a length of 77."),
}
TOPIC = {"a": "tower", "b": "ship", "c": "house", "d": "river"}

SERVER: Server


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12,
            "temperature": 0, "return_token_ids": True, **more}


def ask(**more: Any) -> dict[str, Any]:
    return SERVER.post(CHAT, chat(**more))


def refused(status: int, words: str, path: str = CHAT, **more: Any) -> dict[str, Any]:
    got, _, answer = SERVER.request("POST", path, chat(**more) if path == CHAT else more)
    assert got == status and words in answer["error"]["message"], (got, answer)
    return answer["error"]


def inline(name: str) -> dict[str, str]:
    return dict(zip(("title", "text"), TEXTS[name]))


def ids(answer: dict[str, Any]) -> list[str]:
    return [d["id"] for d in answer["documents"]["used"]]


def prompt(answer: dict[str, Any]) -> list[int]:
    return answer.get("prompt_token_ids") or answer["choices"][0]["prompt_token_ids"]


def put(name: str, **more: Any) -> None:
    title, text = TEXTS[name]
    status, _, answer = SERVER.request("PUT", f"/v1/documents/{name}", {
        "title": title, "text": text, "metadata": {"topic": TOPIC[name], "n": ord(name)},
        "embedding": [float(name == n) + 0.1 for n in "abcd"], **more})
    assert status in (200, 201), (status, answer)


def forget() -> None:
    assert SERVER.request("DELETE", "/cache")[0] == 200


def ids_texts_and_retrieval_give_the_same_tokens() -> None:
    found = ask(retrieval={"top_k": 2})
    names = ids(found)
    assert "a" in names and len(names) == 2, found["documents"]
    named = ask(documents=names)
    given = ask(documents=[inline(n) for n in names])
    assert prompt(found) == prompt(named) == prompt(given)
    assert (found["choices"][0]["message"] == named["choices"][0]["message"]
            == given["choices"][0]["message"])
    forget()
    cold = ask(documents=names)
    assert prompt(cold) == prompt(found)
    assert cold["choices"][0]["message"] == found["choices"][0]["message"]


def both_placements_give_the_same_tokens_too() -> None:
    for place in ("system", "template"):
        named = ask(documents=["b", "a"], documents_placement=place)
        given = ask(documents=[inline("b"), inline("a")], documents_placement=place)
        assert prompt(named) == prompt(given), place


def the_answer_lists_the_documents_and_what_was_cached_of_them() -> None:
    forget()
    first = ask(documents=["a", inline("d"), "b"])["documents"]["used"]
    assert [(d["place"], d["id"], d["title"]) for d in first] == [
        (0, "a", TEXTS["a"][0]), (1, None, TEXTS["d"][0]), (2, "b", TEXTS["b"][0])]
    assert [d["version"] for d in first] == [1, None, 1]
    assert all(d["score"] is None and d["cached_tokens"] == 0 for d in first), first
    again = ask(documents=["a", inline("d"), "c"])["documents"]["used"]
    assert [d["cached_tokens"] for d in again] == [d["n_tokens"] for d in first[:2]] + [0]
    for d in again:
        assert sum(d["cached_tokens_details"].values()) == d["cached_tokens"]


def entries_may_be_mixed_and_a_repeated_id_counts_once() -> None:
    answer = ask(documents=["c", {"id": "a"}, inline("d"), "c", {"id": "c"}])
    assert ids(answer) == ["c", "a", None]


def an_unknown_document_is_named() -> None:
    error = refused(404, 'documents[1]: there is no document "none"', documents=["a", "none"])
    assert error["param"] == "documents[1]" and error["code"] == "document_not_found", error
    refused(404, "documents[0]", TEXT, prompt="x", documents=[{"id": "none"}])
    strange = "\u2603\n\"'; drop/../%00"
    refused(404, strange, documents=[strange])
    refused(400, "documents[0]", documents=["x" * 257])
    refused(400, "documents[0]", documents=["a\0b"])


def a_search_can_be_narrowed() -> None:
    def found(**more: Any) -> list[str]:
        answer = ask(retrieval={"top_k": 4, "order": "score", **more})
        return ids(answer) if "documents" in answer else []
    assert set(found(query="captain ship")) >= {"b"} and found(query="captain ship")[0] == "b"
    assert found(query="tower", filter={"topic": "house"}) == ["c"]
    assert found(query="tower", filter={"type": "lt", "key": "n", "value": 99}) == ["a"]
    assert found(query="xyzzy") == []
    assert found(query="tower", scope="public") == []
    assert found(query="tower", scope="own", top_k=1) == ["a"]


def a_search_reports_its_result() -> None:
    before = SERVER.metrics()
    answer = ask(retrieval={"top_k": 2, "mode": "lexical", "order": "score"})
    report = answer["retrieval"]
    assert report["mode"] == "lexical" and report["found"] == 2 and report["stages"] >= 1, report
    assert report["milliseconds"] > 0 and report["speculation"] in ("none", "confirmed", "dropped")
    used = answer["documents"]["used"]
    assert used[0]["score"] >= used[1]["score"] > 0, used
    assert [d["lexical_rank"] for d in used] == [1, 2] and used[0]["vector_rank"] is None
    after = SERVER.metrics()
    name = "tarn:retrievals_total"
    assert after[name] == before[name] + 1
    assert after["tarn:retrieval_seconds_count"] == after[name]


def an_embedding_finds_the_nearest() -> None:
    near_d = [0.1, 0.1, 0.1, 1.1]
    answer = ask(retrieval={"embedding": near_d, "mode": "vector", "top_k": 2, "order": "score"})
    assert ids(answer)[0] == "d" and answer["retrieval"]["mode"] == "vector"
    both = ask(retrieval={"embedding": near_d, "top_k": 4})
    assert both["retrieval"]["mode"] == "hybrid" and sorted(ids(both)) == ["a", "b", "c", "d"]
    ranks = {d["id"]: (d["lexical_rank"], d["vector_rank"]) for d in both["documents"]["used"]}
    assert ranks["a"][0] == 1 and ranks["d"][1] == 1 and all(r[1] for r in ranks.values()), ranks


def orders() -> None:
    assert ids(ask(documents=["c", "a", "b"], documents_order="id")) == ["a", "b", "c"]
    by_score = ids(ask(retrieval={"top_k": 4, "query": "captain river tower", "order": "score"}))
    by_id = ids(ask(retrieval={"top_k": 4, "query": "captain river tower", "order": "id"}))
    assert ids(ask(retrieval={"top_k": 4, "query": "captain river tower"})) == by_id
    assert by_id == sorted(by_score) and len(by_id) == 4, (by_id, by_score)
    forget()
    turned = by_score[::-1]
    ask(documents=turned)
    warm = ask(retrieval={"top_k": 4, "query": "captain river tower", "order": "cache"})
    assert ids(warm) == turned
    assert all(d["cached_tokens"] == d["n_tokens"] for d in warm["documents"]["used"])
    # Documents of the field keep their place before those that were found.
    mixed = ask(documents=["d", inline("c")], retrieval={"top_k": 4, "order": "id",
                                                        "query": "captain river tower"})
    assert ids(mixed) == ["d", None, *[i for i in by_id if i != "d"]], ids(mixed)
    refused(400, "documents_order", documents=["a"], documents_order="cache", retrieval={})


def text_completions_take_documents() -> None:
    body = {"prompt": "Question: " + QUESTION + "\nAnswer:", "max_tokens": 4, "temperature": 0,
            "return_token_ids": True}
    forget()
    named = SERVER.post(TEXT, {**body, "documents": ["a", "b"]})
    given = SERVER.post(TEXT, {**body, "documents": [inline("a"), inline("b")]})
    assert prompt(named) == prompt(given) and len(prompt(named)) > len(body["prompt"]) / 8
    assert named["choices"][0]["text"] == given["choices"][0]["text"]
    used = given["documents"]["used"]
    assert [d["cached_tokens"] for d in used] == [d["n_tokens"] for d in used]
    found = SERVER.post(TEXT, {**body, "retrieval": {"query": "captain ship", "top_k": 1}})
    assert ids(found) == ["b"]
    echoed = SERVER.post(TEXT, {**body, "documents": ["b"], "echo": True})
    assert echoed["choices"][0]["text"].startswith("Documents:\n### Notes on Kumnordim\n")
    assert body["prompt"] in echoed["choices"][0]["text"]
    plain = SERVER.post(TEXT, {**body, "documents": []})
    assert prompt(plain) == prompt(SERVER.post(TEXT, body))
    refused(400, "prompt: expected one string", TEXT, prompt=["a", "b"], documents=["a"])
    refused(400, "prompt: expected one string", TEXT, prompt=[1, 2], retrieval={"query": "x"})
    refused(400, "documents_placement", TEXT, prompt="x", documents=["a"],
            documents_placement="system")
    refused(400, "citations", TEXT, prompt="x", documents=["a"], echo=True, citations=True)


def streams_say_it_in_the_first_frame() -> None:
    for path, body in ((CHAT, chat()), (TEXT, {"prompt": QUESTION, "max_tokens": 3})):
        frames, _ = SERVER.stream(path, {**body, "retrieval": {"top_k": 2}, "citations": True})
        has = [i for i, f in enumerate(frames) if "documents" in f]
        assert has == [0] and "retrieval" in frames[0], frames[0]
        assert "a" in [d["id"] for d in frames[0]["documents"]["used"]]
        ends = [f["choices"][0] for f in frames if f["choices"][0].get("finish_reason")]
        assert len(ends) == 1 and ends[0]["citations"] == [], ends


def asking_for_citations_keeps_the_documents_kv() -> None:
    for place in ("system", "template"):
        forget()
        ask(documents=["a", "b"], documents_placement=place)
        answer = ask(documents=["a", "b"], documents_placement=place, citations=True)
        used = answer["documents"]["used"]
        assert [d["cached_tokens"] for d in used] == [d["n_tokens"] for d in used], used
        assert answer["choices"][0]["citations"] == []
        plain = ask(documents=["a", "b"], documents_placement=place)
        assert "citations" not in plain["choices"][0] and len(prompt(plain)) < len(prompt(answer))


def wrong_searches_are_refused() -> None:
    refused(400, "retrieval: expected an object", retrieval="all")
    for wrong, words in (({"top_k": 0}, "top_k"), ({"top_k": 65}, "top_k"),
                         ({"scope": "x"}, "scope"), ({"mode": 1}, "mode"),
                         ({"order": "x"}, "order"),
                         ({"query": ""}, "query"), ({"embedding": []}, "embedding"),
                         ({"embedding": [1, None]}, "embedding[1]"),
                         ({"embedding": [1.0] * 7}, "embedding"), ({"filter": 3}, "filter"),
                         ({"filter": {"type": "and", "filters": {}}}, "filter"),
                         ({"mode": "vector"}, "mode")):
        error = refused(400, "retrieval." + words, retrieval=wrong)
        assert error["param"].startswith("retrieval."), error
    deep: Any = {"type": "eq", "key": "n", "value": 1}
    for _ in range(200):
        deep = {"type": "and", "filters": [deep]}
    refused(400, "retrieval.filter", retrieval={"filter": deep})
    refused(400, "documents: 5000 entries", documents=["a"] * 5000)
    status, headers, _ = SERVER.request("POST", CHAT, chat(retrieval={"topk": 3}))
    assert status == 200 and "retrieval.topk" in headers["x-tarn-ignored-fields"], headers


def a_deleted_document_is_gone() -> None:
    SERVER.request("PUT", "/v1/documents/gone", {"text": "Fleeting quartz."})
    assert ids(ask(documents=["gone"])) == ["gone"]
    assert ids(ask(retrieval={"query": "fleeting quartz", "top_k": 1})) == ["gone"]
    assert SERVER.request("DELETE", "/v1/documents/gone")[0] == 200
    refused(404, "gone", documents=["gone"])
    assert "documents" not in ask(retrieval={"query": "fleeting quartz", "top_k": 1})


def changed_text_is_used_at_once() -> None:
    SERVER.request("PUT", "/v1/documents/v", {"title": "V", "text": "Old words here."})
    old = ask(documents=["v"])
    SERVER.request("PUT", "/v1/documents/v", {"title": "V", "text": "New words here."})
    new = ask(documents=["v"])
    assert [a["documents"]["used"][0]["version"] for a in (old, new)] == [1, 2]
    assert prompt(new) == prompt(ask(documents=[{"title": "V", "text": "New words here."}]))
    assert prompt(new) != prompt(old)
    SERVER.request("DELETE", "/v1/documents/v")


def tests_of_one_server() -> list[Callable[[], None]]:
    return [ids_texts_and_retrieval_give_the_same_tokens, both_placements_give_the_same_tokens_too,
            the_answer_lists_the_documents_and_what_was_cached_of_them,
            entries_may_be_mixed_and_a_repeated_id_counts_once, an_unknown_document_is_named,
            a_search_can_be_narrowed, a_search_reports_its_result, an_embedding_finds_the_nearest,
            orders, text_completions_take_documents, streams_say_it_in_the_first_frame,
            asking_for_citations_keeps_the_documents_kv, wrong_searches_are_refused,
            a_deleted_document_is_gone, changed_text_is_used_at_once]


def without_a_library_the_error_is_clear() -> None:
    with tarn_server(MODEL, "--no-profile-cost", "--documents-path", "none") as s:
        for more in ({"documents": ["a"]}, {"retrieval": {"query": "x"}}):
            status, _, answer = s.request("POST", CHAT, chat(**more))
            assert status in (400, 501) and "--documents-path" in answer["error"]["message"], answer
        assert s.post(CHAT, chat(documents=[inline("a")]))["documents"]["n_documents"] == 1


def slow_search(stage_ms: int, *options: str) -> tuple[Server, Any]:
    """A server with the documents, whose searches take four stages, and its folder."""
    folder = tempfile.TemporaryDirectory()
    server = tarn_server(MODEL, "--no-profile-cost", "--documents-path", folder.name,
                         "--retrieval-stage-ms", str(stage_ms), *options)
    for name, (title, text) in TEXTS.items():
        status, _, answer = server.request("PUT", f"/v1/documents/{name}", {
            "title": title, "text": text, "prefill": "lazy"})
        assert status in (200, 201), answer
    return server, folder


def a_client_that_leaves_ends_its_search() -> None:
    s, folder = slow_search(20000)
    with s, folder:
        sockets = [s.open_raw(CHAT, chat(retrieval={"query": "tower"})) for _ in range(12)]
        time.sleep(0.2)
        for one in sockets:
            one.close()
        # Twelve searches of 80 s on eight threads: a question without one gets through long before.
        start = time.monotonic()
        s.post(CHAT, chat(documents=["a"], documents_order="cache"))
        assert time.monotonic() - start < 60
        wait_until(lambda: s.metrics()["vllm:num_requests_running"] == 0)
        assert s.blocks_in_use() == 0


def a_provisional_list_is_prefilled_while_the_search_goes_on() -> None:
    answers = []
    for mode in ("auto", "off"):
        s, folder = slow_search(250, "--speculative-prefill", mode)
        with s, folder:
            answer = s.post(CHAT, chat(retrieval={"top_k": 3}))
            answers.append((prompt(answer), answer["choices"][0]["message"]["content"]))
            used = answer["documents"]["used"]
            assert answer["retrieval"]["stages"] == 4 and len(used) > 1, answer["retrieval"]
            cached = [d["cached_tokens"] for d in used]
            if mode == "off":
                assert answer["retrieval"]["speculation"] == "none" and not any(cached), answer
            else:
                assert answer["retrieval"]["speculation"] == "confirmed", answer["retrieval"]
                assert cached == [d["n_tokens"] for d in used], used
    assert answers[0] == answers[1]


def a_client_that_leaves_leaves_no_speculative_prefill() -> None:
    s, folder = slow_search(250)
    with s, folder:
        for pause in (0.05, 0.3, 0.6, 0.9, 1.1):
            one = s.open_raw(CHAT, chat(retrieval={"query": f"tower {pause}"}, max_tokens=200))
            time.sleep(pause)
            one.close()
        wait_until(lambda: s.metrics()["vllm:num_requests_running"] == 0)
        s.wait_blocks(lambda n: n == 0)
        assert s.metrics()["vllm:num_requests_waiting"] == 0


def a_model_embeds_documents_and_queries() -> None:
    with tempfile.TemporaryDirectory() as folder, \
            tarn_server(MODEL, "--no-profile-cost", "--documents-path", folder,
                        "--embedding-model", str(MODEL)) as s:
        for name, (title, text) in TEXTS.items():
            status, _, answer = s.request("PUT", f"/v1/documents/{name}", {
                "title": title, "text": text, "prefill": "lazy"})
            assert status in (200, 201), answer
        answer = s.post(CHAT, chat(retrieval={"mode": "vector", "top_k": 4, "order": "score"}))
        report, used = answer["retrieval"], answer["documents"]["used"]
        assert report["mode"] == "vector" and report["embedding_milliseconds"] > 0, report
        assert [d["vector_rank"] for d in used] == [1, 2, 3, 4], used
        assert s.post(CHAT, chat(retrieval={}))["retrieval"]["mode"] == "hybrid"


def an_encoder_finds_the_document_that_is_asked_for_word_by_word() -> None:
    for model in ("embed-bert-cls", "embed-xlm-roberta"):
        with tempfile.TemporaryDirectory() as folder, \
                tarn_server(MODEL, "--no-profile-cost", "--documents-path", folder,
                            "--embedding-model", str(GOLDEN / model)) as s:
            for name, (title, text) in TEXTS.items():
                status, _, answer = s.request("PUT", f"/v1/documents/{name}", {
                    "title": title, "text": text, "prefill": "lazy"})
                assert status in (200, 201), answer
            for name in TEXTS:
                answer = s.post(CHAT, chat(retrieval={
                    "mode": "vector", "query": "\n".join(TEXTS[name]), "top_k": 4,
                    "order": "score"}))
                used = answer["documents"]["used"]
                assert ids(answer)[0] == name and abs(used[0]["score"] - 1) < 1e-3, used
                assert used[1]["score"] < 0.999 and answer["retrieval"]["mode"] == "vector", used


def an_encoder_is_refused_as_the_servers_model() -> None:
    done = subprocess.run(
        [str(tarn_test.program("tarn-server")), "--model", str(GOLDEN / "embed-bert-cls"),
         "--port", "0"], capture_output=True, text=True, timeout=tarn_test.patience(60),
        check=False)
    words = done.stdout + done.stderr
    assert done.returncode != 0 and "family bert is an encoder" in words, words
    assert "for --embedding-model, not for --model" in words, words


def tenants_see_their_own_and_public_documents() -> None:
    keys = {"keys": [{"name": "one", "key": "sk-00000001", "tenant": "a"},
                     {"name": "two", "key": "sk-00000002", "tenant": "b"}]}
    one, two, root = ({"Authorization": f"Bearer sk-0000000{n}"} for n in (1, 2, 9))
    with tempfile.TemporaryDirectory() as folder:
        key_file, preamble = Path(folder) / "keys.json", Path(folder) / "preamble.txt"
        key_file.write_text(json.dumps(keys))
        system = "You answer questions about towers, ships and rivers, in few words. " * 3
        preamble.write_text(system)
        with tarn_server(MODEL, "--no-profile-cost", "--documents-path", folder + "/documents",
                         "--api-key-file", str(key_file), "--admin-api-key", "sk-00000009",
                         "--preamble", str(preamble)) as s:
            def send(who: dict[str, str], **more: Any) -> tuple[int, Any]:
                body = chat(**more)
                body["messages"] = [{"role": "system", "content": system}, *body["messages"]]
                status, _, answer = s.request("POST", CHAT, body, who)
                return status, answer

            def cached(answer: dict[str, Any]) -> list[int]:
                return [d["cached_tokens"] for d in answer["documents"]["used"]]

            for who, name, more in ((one, "a", {}), (root, "b", {"public": True}),
                                    (root, "c", {"public": True})):
                title, text = TEXTS[name]
                status, _, answer = s.request("PUT", f"/v1/documents/{name}", {
                    "title": title, "text": text, "prefill": "lazy", **more}, who)
                assert status in (200, 201), (name, status, answer)
            assert send(two, documents=["a"])[0] == 404
            found = send(two, retrieval={"query": "tower captain", "top_k": 4})[1]
            assert set(ids(found)) == {"b", "c"}, found
            found = send(one, retrieval={"query": "tower captain", "top_k": 4})[1]
            assert set(ids(found)) == {"a", "b", "c"}
            assert ids(send(one, retrieval={"query": "tower captain", "scope": "own"})[1]) == ["a"]
            for place in ("template", "system"):
                s.request("DELETE", "/cache", None, root)
                first = send(one, documents=["b", "c", "a"], documents_placement=place)[1]
                assert cached(first) == [0, 0, 0], first
                # Public documents directly behind the public preamble are shared, ...
                other = send(two, documents=["b", "c"], documents_placement=place)[1]
                assert cached(other) == [d["n_tokens"] for d in first["documents"]["used"][:2]]
                again = send(two, documents=["c", "b"], documents_order="cache",
                             documents_placement=place)[1]
                assert ids(again) == ["b", "c"] and cached(again) == cached(other), again
                # ... but not the same text in a request, and nothing behind such a text.
                text = send(two, documents=[inline("b"), "c"], documents_placement=place)[1]
                assert prompt(text) == prompt(other) and cached(text) == [0, 0], text
                other = send(two, documents=["c", "b"], documents_placement=place)[1]
                assert cached(other) == [0, 0], other


def main() -> int:
    global SERVER
    with tempfile.TemporaryDirectory() as folder:
        with tarn_server(MODEL, "--no-profile-cost", "--documents-path", folder) as SERVER:
            for name in TEXTS:
                put(name)
            failed = run_tests(tests_of_one_server())
    return failed | run_tests([without_a_library_the_error_is_clear,
                               a_client_that_leaves_ends_its_search,
                               a_provisional_list_is_prefilled_while_the_search_goes_on,
                               a_client_that_leaves_leaves_no_speculative_prefill,
                               a_model_embeds_documents_and_queries,
                               an_encoder_finds_the_document_that_is_asked_for_word_by_word,
                               an_encoder_is_refused_as_the_servers_model,
                               tenants_see_their_own_and_public_documents])


if __name__ == "__main__":
    sys.exit(main())
