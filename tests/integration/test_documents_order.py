#!/usr/bin/env python3
"""`documents_order` "cache" puts cached documents first, and the answer reports the order."""
from __future__ import annotations

import sys
from typing import Any

from http_helpers import Server, run_tests, tarn_server
import tarn_test

MODEL = tarn_test.REPO / "deploy" / "demo-model"
CHAT = "/v1/chat/completions"
WORDS = "the ship of Kumnordim has a captain and the tower of Vomta has a height".split()

SERVER: Server


def document(name: str) -> dict[str, str]:
    """Text of a few blocks that no other name has."""
    return {"title": name, "text": " ".join(f"{name} {w}." for w in WORDS * 2)}


def ask(names: list[str], order: str | None = "cache", **more: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "Who is it?"}], "max_tokens": 1,
            "temperature": 0, "documents": [document(n) for n in names],
            "return_token_ids": True, **more}
    if order:
        body["documents_order"] = order
    return SERVER.post(CHAT, body)


def cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def order(answer: dict[str, Any]) -> list[int]:
    return answer["documents"]["order"]


def prompt(answer: dict[str, Any]) -> list[int]:
    return answer.get("prompt_token_ids") or answer["choices"][0]["prompt_token_ids"]


def forget() -> None:
    status, _, _ = SERVER.request("DELETE", "/cache")
    assert status == 200
    ask([], None)


def new_documents_keep_the_given_order() -> None:
    forget()
    assert order(ask(["a", "b", "c"])) == [0, 1, 2]


def cached_documents_come_first_in_their_cached_order() -> None:
    forget()
    first = ask(["a", "b", "c"], "given")
    assert "order" not in first["documents"]
    again = ask(["c", "a", "b"])
    assert order(again) == [1, 2, 0]
    assert prompt(again) == prompt(first)
    assert cached(again) > 0.9 * len(prompt(first)), again["usage"]
    # The cached documents come first, then the others in the given order.
    more = ask(["x", "b", "y", "a"])
    assert order(more) == [3, 1, 0, 2]
    assert prompt(more) == prompt(ask(["a", "b", "x", "y"], "given"))


def the_longest_path_wins() -> None:
    forget()
    ask(["a", "b"], "given")
    ask(["b", "c", "d"], "given")
    assert order(ask(["a", "b", "c", "d"])) == [1, 2, 3, 0]


def an_order_that_was_chosen_can_be_asked_for_again() -> None:
    forget()
    ask(["a", "b"], "given")
    names = ["z", "b", "a"]
    chosen = ask(names)
    assert order(chosen) == [2, 1, 0]
    given = ask([names[i] for i in order(chosen)], "given")
    assert prompt(given) == prompt(chosen)
    assert given["choices"][0]["message"] == chosen["choices"][0]["message"]


def another_salt_sees_nothing() -> None:
    forget()
    ask(["a", "b"], "given", cache_salt="one")
    assert order(ask(["b", "a"], cache_salt="two")) == [0, 1]
    assert order(ask(["b", "a"])) == [0, 1]
    assert order(ask(["b", "a"], cache_salt="one")) == [1, 0]


def forgotten_documents_do_not_count_as_cached() -> None:
    forget()
    ask(["a", "b"], "given")
    assert order(ask(["b", "a"])) == [1, 0]
    forget()
    assert order(ask(["b", "a"])) == [0, 1]


def both_placements_work() -> None:
    forget()
    for placement in ("system", "template"):
        ask(["a", "b", "c"], "given", documents_placement=placement)
        assert order(ask(["c", "b", "a"], documents_placement=placement)) == [2, 1, 0], placement


def streams_report_the_order_too() -> None:
    forget()
    ask(["a", "b"], "given")
    body = {"messages": [{"role": "user", "content": "Who is it?"}], "max_tokens": 1,
            "stream": True, "stream_options": {"include_usage": True}, "documents_order": "cache",
            "documents": [document(n) for n in ("b", "a")]}
    frames, _ = SERVER.stream(CHAT, body)
    said = [f["documents"]["order"] for f in frames if "documents" in f]
    assert said and all(s == [1, 0] for s in said), frames


def an_unknown_order_is_refused() -> None:
    for wrong in ("best", 7):
        status, _, answer = SERVER.request("POST", CHAT, {
            "messages": [{"role": "user", "content": "q"}], "documents_order": wrong})
        assert status == 400 and "documents_order" in answer["error"]["message"], answer


def main() -> int:
    global SERVER
    with tarn_server(MODEL, "--no-profile-cost") as SERVER:
        return run_tests([
            new_documents_keep_the_given_order,
            cached_documents_come_first_in_their_cached_order,
            the_longest_path_wins,
            an_order_that_was_chosen_can_be_asked_for_again,
            another_salt_sees_nothing,
            forgotten_documents_do_not_count_as_cached,
            both_placements_work,
            streams_report_the_order_too,
            an_unknown_order_is_refused,
        ])


if __name__ == "__main__":
    sys.exit(main())
