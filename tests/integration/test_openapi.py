#!/usr/bin/env python3
"""/openapi.json describes the server: real answers fit its schemas and those of OpenAI's document,
every path that it names is served, and what the server's tables refuse is refused by name.

That paths and parameters are those of the server's tables is the test openapi_page's matter.
Skipped where jsonschema cannot be had (venv_helpers.py).
"""
from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from http_helpers import Server, make_model, run_tests, tarn_server, tarn_test
from venv_helpers import use_venv

use_venv("jsonschema", "yaml")
import jsonschema  # noqa: E402
import openai_schema  # noqa: E402
import openapi_page  # noqa: E402

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES = "/v1/responses"
HELLO = [{"role": "user", "content": "hi"}]
SERVER: Server
DOCUMENT: dict[str, Any] = {}
SMALL = {CHAT: {"messages": HELLO, "max_tokens": 4}, TEXT: {"prompt": "x", "max_tokens": 4},
         MESSAGES: {"messages": HELLO, "max_tokens": 4},
         RESPONSES: {"input": "hi", "max_output_tokens": 16}}


def check(document: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    root = {**schema, "components": document["components"]}
    errors = list(jsonschema.Draft202012Validator(root).iter_errors(value))
    assert not errors, [f"{e.json_path}: {e.message[:300]}" for e in errors[:3]]


def the_document_is_whole() -> None:
    """Every reference leads to a schema, and every schema is one."""
    assert DOCUMENT["openapi"].startswith("3.1."), DOCUMENT["openapi"]
    names = DOCUMENT["components"]["schemas"]
    text = json.dumps(DOCUMENT)
    used = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert used <= set(names), used - set(names)
    for schema in names.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    ids = [o["operationId"] for path in DOCUMENT["paths"].values() for o in path.values()]
    assert len(ids) == len(set(ids)) > 20, ids


def every_path_is_served() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for method in methods:
            status, _, answer = SERVER.request(method.upper(), path.replace("{id}", "nobody"))
            # A 404 may be about the document, never about the path.
            words = json.dumps(answer)
            assert status != 405 and "there is no " + method.upper() not in words, (path, answer)


def answers_fit_the_document() -> None:
    posts = [(CHAT, SMALL[CHAT]), (TEXT, SMALL[TEXT]), (MESSAGES, SMALL[MESSAGES]),
             (RESPONSES, SMALL[RESPONSES]), (RESPONSES + "/input_tokens", {"input": "hi"}),
             (CHAT, {**SMALL[CHAT], "n": 2, "logprobs": True, "return_token_ids": True}),
             (CHAT + "/render", SMALL[CHAT]), (MESSAGES + "/count_tokens", {"messages": HELLO}),
             ("/tokenize", {"prompt": "hello"}), ("/detokenize", {"tokens": [5, 6]})]
    for path, body in posts:
        described = DOCUMENT["paths"][path]["post"]
        check(DOCUMENT, described["requestBody"]["content"]["application/json"]["schema"], body)
        check(DOCUMENT, described["responses"]["200"]["content"]["application/json"]["schema"],
              SERVER.post(path, body))
    for path in ("/v1/models", "/cache", "/v1/documents", "/openapi.json"):
        status, _, answer = SERVER.request("GET", path)
        described = DOCUMENT["paths"][path]["get"]["responses"]["200"]
        assert status == 200, answer
        check(DOCUMENT, described["content"]["application/json"]["schema"], answer)
    for path, body in ((CHAT, {}), (TEXT, {"prompt": 1}), (MESSAGES, {}), ("/tokenize", {})):
        status, _, answer = SERVER.request("POST", path, body)
        described = DOCUMENT["paths"][path]["post"]["responses"]["default"]
        assert status == 400, answer
        check(DOCUMENT, described["content"]["application/json"]["schema"], answer)


def answers_fit_openais_document() -> None:
    ask = {**SMALL[CHAT], "n": 2, "logprobs": True, "top_logprobs": 2}
    openai_schema.check("CreateChatCompletionResponse", SERVER.post(CHAT, ask))
    for frame in SERVER.stream(CHAT, ask)[0]:
        openai_schema.check("CreateChatCompletionStreamResponse", frame)
    openai_schema.check("CreateCompletionResponse", SERVER.post(TEXT, {**SMALL[TEXT],
                                                                       "logprobs": 2}))
    status, _, models = SERVER.request("GET", "/v1/models")
    assert status == 200
    openai_schema.check("ListModelsResponse", models)
    openai_schema.check("CreateChatCompletionRequest", {**ask, "model": "m", "seed": 1})


def what_is_not_built_is_501() -> None:
    for path in ("audio/speech", "audio/transcriptions", "audio/translations",
                 "images/generations", "images/edits", "images/variations"):
        status, _, answer = SERVER.request("POST", "/v1/" + path, {"model": "x"})
        assert status == 501 and answer["error"]["code"] == "not_implemented", answer
    for path in ("/sleep", "/wake_up", "/release_memory_occupation", "/resume_memory_occupation"):
        status, _, answer = SERVER.request("POST", path, {})
        assert status == 501 and answer["error"]["code"] == "not_implemented", answer


def what_is_refused_is_refused_by_name() -> None:
    for path, file in ((CHAT, "params.c"), (TEXT, "params.c"), (MESSAGES, "messages_request.c"),
                       (RESPONSES, "response_read.c")):
        names = [name for name, rule in openapi_page.c_table(file, "fields")
                 if rule in openapi_page.REFUSED]
        assert len(names) > 1, names
        for name in names:
            status, _, answer = SERVER.request("POST", path, {**SMALL[path], name: ["x"]})
            assert status == 400 and answer["error"]["message"].startswith(name + ": "), answer


TESTS = [the_document_is_whole, every_path_is_served, answers_fit_the_document,
         answers_fit_openais_document, what_is_not_built_is_501,
         what_is_refused_is_refused_by_name]


def main() -> int:
    global SERVER
    with tempfile.TemporaryDirectory(prefix="tarn-openapi-") as folder:
        with tarn_server(make_model(folder), "--documents-path",
                         str(Path(folder) / "documents")) as SERVER:
            DOCUMENT.update(SERVER.request("GET", "/openapi.json")[2])
            return run_tests(TESTS)


if __name__ == "__main__":
    sys.exit(main())
