#!/usr/bin/env python3
"""Preambles with tools, and chats that name a preamble.

The demo model answers, with templates that write tools in front of the system text, behind it, and
in the user's message.
"""
from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from http_helpers import Server, run_tests, tarn_server, wait_until
from tarn_test import REPO

MODEL = REPO / "deploy" / "demo-model"
CHAT = "/v1/chat/completions"
PREAMBLES = "/v1/preambles"
A, B, ADMIN = "key-of-tenant-a", "key-of-tenant-b", "key-of-the-administrator"
TOOLS_TEXT = """{% if tools %}<tools>{% for t in tools %}
{{ t | tojson }}{% endfor %}
</tools>
{% endif %}"""
MESSAGES = """{% for m in messages %}{% if m.role != 'system' %}<|user|>
{{ m.content }}<|end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
SYSTEM_TEXT = """{% if messages[0].role == 'system' %}{{ messages[0].content }}
{% endif %}"""
TEMPLATES = {
    "before": "<|system|>\n" + TOOLS_TEXT + SYSTEM_TEXT + "<|end|>\n" + MESSAGES,
    "behind": "<|system|>\n" + SYSTEM_TEXT + TOOLS_TEXT + "<|end|>\n" + MESSAGES,
    "with the user": "<|system|>\n" + SYSTEM_TEXT + "<|end|>\n"
    + MESSAGES.replace("{{ m.content }}", TOOLS_TEXT + "{{ m.content }}"),
}
SYSTEM = "You answer questions about ships, in one short sentence. " * 4
FILE = {"system": "You answer questions about the harbour. " * 4}
QUESTION = "Who is the captain?"


def tool(name: str, words: str = "") -> dict:
    return {"type": "function", "function": {
        "name": name, "description": words or f"Look up what is known about the {name}. " * 3,
        "parameters": {"type": "object", "properties": {
            "name": {"type": "string"}, "share": {"type": "number", "default": 0.25}}}}}


TOOLS = [tool("harbour"), tool("captain", "The spelling <|end|> is text here. " * 4)]

FOLDER: Path
SERVERS: dict[str, Server] = {}


def start(name: str, template: str) -> Server:
    path = FOLDER / name
    path.mkdir()
    keys, file, chat_template = path / "keys.json", path / "harbour.json", path / "template"
    keys.write_text(json.dumps({"keys": [{"name": "a", "key": A, "tenant": "team-a"},
                                         {"name": "b", "key": B, "tenant": "team-b"}]}))
    keys.chmod(0o600)
    file.write_text(json.dumps({**FILE, "tools": TOOLS}))
    chat_template.write_text(template)
    return tarn_server(MODEL, "--cache-dir", str(path / "cache"), "--api-key-file", str(keys),
                       "--admin-api-key", ADMIN, "--preamble", str(file), "--no-profile-cost",
                       "--threads", "1", "--tool-call-parser", "hermes",
                       "--chat-template", str(chat_template))


def call(server: Server, method: str, path: str, body: Any = None, key: str = A) -> tuple[int, Any]:
    status, _, answer = server.request(method, path, body, {"Authorization": f"Bearer {key}"})
    return status, answer


def ok(server: Server, method: str, path: str, body: Any = None, key: str = A) -> Any:
    status, answer = call(server, method, path, body, key)
    assert status == 200, f"{method} {path}: {status} {answer}"
    return answer


def refused(server: Server, want: int, words: str, method: str, path: str, body: Any,
            key: str = A) -> dict:
    status, answer = call(server, method, path, body, key)
    assert status == want and words in answer["error"]["message"], (status, answer)
    return answer["error"]


def chat(system: str | None = None, text: str = QUESTION, **more: Any) -> dict:
    messages = [{"role": "system", "content": system}] if system else []
    return {"messages": messages + [{"role": "user", "content": text}], "max_tokens": 1,
            "temperature": 0, "tool_choice": "none", **more}


def ids(server: Server, body: dict, key: str = A) -> list[int]:
    return ok(server, "POST", CHAT + "/render", body, key)["token_ids"]


def cached(server: Server, body: dict, key: str = A) -> tuple[int, int]:
    usage = ok(server, "POST", CHAT, body, key)["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


# --- KV of a preamble with tools ---

def a_public_preamble_with_tools_is_shared_by_all_up_to_the_question() -> None:
    for name, server in SERVERS.items():
        made = ok(server, "PUT", f"{PREAMBLES}/port", {"system": SYSTEM, "tools": TOOLS,
                                                       "public": True}, ADMIN)
        assert made["tools"] == TOOLS, made
        for system in (SYSTEM, FILE["system"]):
            body = chat(system, tools=TOOLS)
            n_head = len(ids(server, body)) - len(ids(server, chat(text=QUESTION)))
            cached(server, body, A)
            prompt, n = cached(server, chat(system, "What is the harbour?", tools=TOOLS), B)
            # All but the last, incomplete block of the preamble.
            assert n_head - 32 <= n < prompt, (name, n_head, n, prompt)
            # Other tools, or no tools: the ids of the preamble are not its prefix.
            for other in (TOOLS[:1], TOOLS[::-1], [tool("other"), *TOOLS], None):
                more: dict = {"tools": other} if other else {}
                alone = chat(system, cache_salt=f"{len(system)}-{other}", **more)
                assert cached(server, alone, B)[1] == 0, (name, other)
        ok(server, "DELETE", f"{PREAMBLES}/port", key=ADMIN)


def special_tokens_spelled_in_tools_are_not_shared_as_control_tokens() -> None:
    """The same bytes, with another provenance: other ids, so no KV of the public scope."""
    server = SERVERS["before"]
    body = chat(FILE["system"], tools=TOOLS)
    cached(server, body, A)
    assert cached(server, body, B)[1] > 0
    raw = chat(FILE["system"], tools=TOOLS, parse_special=True)
    assert len(ids(server, raw)) < len(ids(server, body))
    cached(server, raw, A)
    assert cached(server, {**raw, "cache_salt": "raw"}, B)[1] == 0


def a_document_is_prefilled_behind_the_tools() -> None:
    for name, server in SERVERS.items():
        ok(server, "PUT", f"{PREAMBLES}/house", {"system": SYSTEM, "tools": TOOLS})
        text = " ".join(f"The captain of ship {i} is called Kumnor-{i}." for i in range(12))
        ok(server, "PUT", "/v1/documents/ships", {"text": text, "prefill": "now"})
        seen: dict = {}

        def ready() -> bool:
            seen.update(ok(server, "GET", "/v1/documents/ships"))
            return any(p["ready"] for p in seen["paths"] if p["preamble"] == "house")

        wait_until(ready, lambda: seen)
        body = chat(SYSTEM, tools=TOOLS, documents=["ships"])
        n_tools = len(ids(server, chat(SYSTEM, tools=TOOLS))) - len(ids(server, chat(SYSTEM)))
        # Where the template writes tools behind the documents, they are computed.
        behind = 0 if name == "before" else n_tools
        prompt, n = cached(server, body)
        n_question = len(ids(server, chat()))
        assert n >= prompt - behind - n_question - 32 > 0, (name, prompt, n, behind)
        ok(server, "DELETE", "/v1/documents/ships")
        ok(server, "DELETE", f"{PREAMBLES}/house")


# --- chats that name a preamble ---

def a_named_preamble_brings_its_system_prompt_and_its_tools() -> None:
    server = SERVERS["behind"]
    ok(server, "PUT", f"{PREAMBLES}/house", {"system": SYSTEM, "tools": TOOLS})
    whole = ids(server, chat(SYSTEM, tools=TOOLS))
    assert ids(server, chat(preamble="house")) == whole
    assert ids(server, chat(preamble="house", tools=None)) == whole
    assert ids(server, chat(preamble=None)) == ids(server, chat())
    # Tools of the chat take their place, also when there are none.
    assert ids(server, chat(preamble="house", tools=[])) == ids(server, chat(SYSTEM))
    assert ids(server, chat(preamble="house", tools=TOOLS[:1])) == \
        ids(server, chat(SYSTEM, tools=TOOLS[:1]))
    file = ids(server, chat(preamble="file:harbour.json"))
    assert file == ids(server, chat(FILE["system"].strip(), tools=TOOLS))
    # The tools can be called.
    answer = ok(server, "POST", CHAT, chat(preamble="house", tool_choice={
        "type": "function", "function": {"name": "captain"}}, max_tokens=64))
    assert answer["choices"][0]["finish_reason"] in ("tool_calls", "stop", "length"), answer
    assert cached(server, chat(SYSTEM, "Where?", tools=TOOLS))[1] > len(whole) // 2
    # Lookups of documents come behind it.
    ok(server, "PUT", "/v1/documents/ship", {"text": "The captain of Kumnor is Vomta."})
    assert ids(server, chat(preamble="house", documents=["ship"])) == \
        ids(server, chat(SYSTEM, tools=TOOLS, documents=["ship"]))
    ok(server, "DELETE", "/v1/documents/ship")


def a_name_is_resolved_for_the_tenant_that_asks() -> None:
    server = SERVERS["behind"]
    ok(server, "PUT", f"{PREAMBLES}/house", {"system": SYSTEM})
    error = refused(server, 404, "house", "POST", CHAT, chat(preamble="house"), B)
    assert error["code"] == "preamble_not_found", error
    ok(server, "PUT", f"{PREAMBLES}/house", {"system": "Of all.", "public": True}, ADMIN)
    assert ids(server, chat(preamble="house"), B) == ids(server, chat("Of all."), B)
    assert ids(server, chat(preamble="house"), A) == ids(server, chat(SYSTEM), A)
    ok(server, "DELETE", f"{PREAMBLES}/house", key=ADMIN)
    ok(server, "DELETE", f"{PREAMBLES}/house")


def other_apis_name_a_preamble_too() -> None:
    """Messages, count_tokens, responses and input_tokens have the tokens of the chat."""
    server = SERVERS["behind"]
    ok(server, "PUT", f"{PREAMBLES}/house", {"system": SYSTEM, "tools": TOOLS})
    ok(server, "PUT", "/v1/documents/ship", {"text": "The captain of Kumnor is Vomta."})
    ask = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 1, "temperature": 0}
    respond = {"input": QUESTION, "max_output_tokens": 16, "temperature": 0}
    own = [{"name": "own", "description": "x", "input_schema": {"type": "object"}}]
    for more in ({}, {"documents": ["ship"]}):
        n = len(ids(server, chat(preamble="house", **more)))
        assert cached(server, chat(preamble="house", **more))[0] == n
        usage = ok(server, "POST", "/v1/messages", {**ask, **more, "preamble": "house"})["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] \
            + usage["cache_creation_input_tokens"] == n, (usage, n)
        # All but the last, incomplete block is found: the ids are those of the chat.
        assert usage["cache_read_input_tokens"] >= n - 32, (usage, n)
        counted = ok(server, "POST", "/v1/messages/count_tokens",
                     {**ask, **more, "preamble": "house"})
        assert counted["input_tokens"] == n, (counted, n)
        answer = ok(server, "POST", "/v1/responses", {**respond, **more, "preamble": "house"})
        usage = answer["usage"]
        assert usage["input_tokens"] == n, (usage, n)
        assert usage["input_tokens_details"]["cached_tokens"] >= n - 32, (usage, n)
        assert answer["instructions"] == SYSTEM, answer
        counted = ok(server, "POST", "/v1/responses/input_tokens",
                     {"input": QUESTION, **more, "preamble": "house"})
        assert counted["input_tokens"] == n, (counted, n)
    # Own tools take the place of the preamble's.
    for tools in ([], own):
        body = {**ask, "preamble": "house", "tools": tools}
        n = ok(server, "POST", "/v1/messages/count_tokens", body)["input_tokens"]
        alone = {**ask, "system": SYSTEM, "tools": tools}
        assert n == ok(server, "POST", "/v1/messages/count_tokens", alone)["input_tokens"]
        assert n == len(ids(server, chat(SYSTEM, tools=[{"type": "function", "function": {
            "name": t["name"], "description": t["description"], "parameters": t["input_schema"]}}
            for t in tools])))
    # The next turn of a conversation names the preamble again.
    first = ok(server, "POST", "/v1/responses", {**respond, "preamble": "house"})
    second = ok(server, "POST", "/v1/responses", {
        **respond, "preamble": "house", "previous_response_id": first["id"]})
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"], second
    refused(server, 400, "system: ", "POST", "/v1/messages",
            {**ask, "system": "Mine.", "preamble": "house"})
    refused(server, 400, "instructions: ", "POST", "/v1/responses",
            {**respond, "instructions": "Mine.", "preamble": "house"})
    status, answer = call(server, "POST", "/v1/messages", {**ask, "preamble": "none"})
    assert status == 404 and "none" in json.dumps(answer), answer
    error = refused(server, 404, "none", "POST", "/v1/responses", {**respond, "preamble": "none"})
    assert error["code"] == "preamble_not_found", error
    ok(server, "DELETE", "/v1/documents/ship")
    ok(server, "DELETE", f"{PREAMBLES}/house")


def mistakes_are_named() -> None:
    server = SERVERS["behind"]
    for tools, words in (({}, "tools: "), ([{"type": "x"}], "tools[0].type"),
                         ([tool("a"), tool("a")], "another tool")):
        refused(server, 400, words, "PUT", f"{PREAMBLES}/x", {"system": "x", "tools": tools})
    ok(server, "PUT", f"{PREAMBLES}/house", {"system": SYSTEM})
    refused(server, 400, "messages[0]", "POST", CHAT, chat("Mine.", preamble="house"))
    refused(server, 400, "messages", "POST", CHAT, {"preamble": "house"})
    refused(server, 400, "preamble", "POST", CHAT, chat(preamble=3))
    refused(server, 404, "none", "POST", CHAT, chat(preamble="none"))
    refused(server, 400, "temperature", "POST", CHAT, chat(preamble="house", temperature=-1))
    refused(server, 400, "preamble", "POST", "/v1/completions",
            {"prompt": "x", "preamble": "house"})
    ok(server, "DELETE", f"{PREAMBLES}/house")


TESTS = [
    a_public_preamble_with_tools_is_shared_by_all_up_to_the_question,
    special_tokens_spelled_in_tools_are_not_shared_as_control_tokens,
    a_document_is_prefilled_behind_the_tools,
    a_named_preamble_brings_its_system_prompt_and_its_tools,
    a_name_is_resolved_for_the_tenant_that_asks,
    other_apis_name_a_preamble_too,
    mistakes_are_named,
]


def main() -> int:
    global FOLDER
    with tempfile.TemporaryDirectory(prefix="tarn-preamble-tools-") as root:
        FOLDER = Path(root)
        with contextlib.ExitStack() as stack:
            for i, (name, template) in enumerate(TEMPLATES.items()):
                SERVERS[name] = stack.enter_context(start(f"server-{i}", template))
            return run_tests(TESTS)


if __name__ == "__main__":
    sys.exit(main())
