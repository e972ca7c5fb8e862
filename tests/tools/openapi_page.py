#!/usr/bin/env python3
"""Make server/api/openapi.json and docs/user/parameters.md from openapi_schemas.py, the server's
tables of routes and parameters, and the tests.

    openapi_page.py            write both
    openapi_page.py --check    exit 1 and name the difference if one is not up to date
    openapi_page.py --sent DIR choose the tests from what they sent, then write both

Every route and every parameter of the server's tables must be described, and every parameter that
is described must be in a table and have been sent by a test: tests/integration/sent.json has which
test sends what, and each of those tests compares itself with it (sent_requests.py).
"""
from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from pathlib import Path
from typing import Any

import openapi_schemas as of
from openapi_schemas import Schema, array, integer, number, ref, string, struct, switch
from tarn_test import REPO

API = REPO / "server" / "api"
DOCUMENT = API / "openapi.json"
PAGE = REPO / "docs" / "user" / "parameters.md"
SENT = REPO / "tests" / "integration" / "sent.json"
COMMAND = "tests/tools/openapi_page.py"
REFUSED = ("NOT_SET", "REFUSED")
NOT_DESCRIBED = ("api_media",)  # handlers whose only answer is 501

# --- the server's tables ---


def c_table(file: str, name: str) -> list[tuple[str, str]]:
    """Names of a constant table of fields, and their rules."""
    text = (API / file).read_text()
    found = re.search(r"\b" + name + r"\[\] = \{(.*?)\};", text, re.S)
    if not found:
        raise SystemExit(f"{file}: the table {name} looks different now: adapt {COMMAND}")
    rows = re.findall(r'\{"(\w+)", (\w+)', found[1])
    return rows or [(name, "") for name in re.findall(r'"(\w+)"', found[1])]


def routes() -> list[tuple[str, str, bool, bool]]:
    """Method, path, whether it goes on, whether no key is needed."""
    text = (API / "route.c").read_text()
    rows = re.findall(r'^ {4}\{"(\w+)",\s+"([^"]+)",\s+(\w+),\s+(\w+),[\w,\s]*\b(\w+)\}', text,
                      re.M)
    return [(method, path, prefix == "true", is_open == "true")
            for method, path, prefix, is_open, handler in rows if handler not in NOT_DESCRIBED]


# --- answers ---

USAGE = struct({"prompt_tokens": integer(0), "completion_tokens": integer(0),
                "total_tokens": integer(0), "prompt_tokens_details": struct(),
                "completion_tokens_details": struct()}, ("prompt_tokens", "total_tokens"))
CHOICE = {"index": integer(0), "finish_reason": of.any_of(string(), {"type": "null"})}


def completion(kind: str, choice: Schema, key: str) -> Schema:
    return struct({"id": string(), "object": of.one_of(kind), "created": integer(),
                   "model": string(), "system_fingerprint": string(),
                   "choices": array(struct({**CHOICE, key: choice}, ("index", key))),
                   "usage": ref("Usage")}, ("id", "object", "created", "model", "choices"))


def a_list(item: Schema) -> Schema:
    return struct({"object": of.one_of("list"), "data": array(item)}, ("object", "data"))


ANSWERS: dict[str, Schema] = {
    "Usage": USAGE,
    "ChatCompletion": completion("chat.completion", struct(
        {"role": of.one_of("assistant"), "content": of.any_of(string(), {"type": "null"}),
         "tool_calls": array(ref("ToolCall"))}, ("role", "content")), "message"),
    "Completion": completion("text_completion", string(), "text"),
    "AnthropicMessage": struct(
        {"id": string(), "type": of.one_of("message"), "role": of.one_of("assistant"),
         "model": string(), "content": array(struct({"type": string()}, ("type",))),
         "stop_reason": string(), "stop_sequence": of.any_of(string(), {"type": "null"}),
         "usage": struct({"input_tokens": integer(0), "output_tokens": integer(0)},
                         ("input_tokens", "output_tokens"))},
        ("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage")),
    "Response": struct(
        {"id": string(), "object": of.one_of("response"), "created_at": number(),
         "status": string(), "model": string(), "output": array(struct({"type": string()},
                                                                       ("type",)))},
        ("id", "object", "created_at", "status", "model", "output")),
    "TokenCount": struct({"input_tokens": integer(0)}, ("input_tokens",)),
    "Rendered": struct({"token_ids": of.TOKEN_IDS, "sampling_params": struct(),
                        "model": string()}, ("token_ids", "sampling_params", "model")),
    "Embeddings": a_list(struct({"object": of.one_of("embedding"), "index": integer(0),
                                 "embedding": of.any_of(string(), array(number()))},
                                ("object", "index", "embedding"))),
    "Ranking": struct({"id": string(), "model": string(), "usage": ref("Usage"), "results": array(
        struct({"index": integer(0), "relevance_score": number(), "document": struct()},
               ("index", "relevance_score")))}, ("id", "model", "results")),
    "Scores": struct({
        "id": string(), "object": of.one_of("list"), "created": integer(), "model": string(),
        "usage": ref("Usage"), "data": array(struct(
            {"index": integer(0), "object": of.one_of("score"), "score": number()},
            ("index", "object", "score")))}, ("id", "object", "created", "model", "data", "usage")),
    "Classes": struct({
        "id": string(), "object": of.one_of("list"), "created": integer(), "model": string(),
        "usage": ref("Usage"), "data": array(struct(
            {"index": integer(0), "label": of.any_of(string(), {"type": "null"}),
             "probs": array(number()), "num_classes": integer(1)},
            ("index", "label", "probs", "num_classes")))},
        ("id", "object", "created", "model", "data", "usage")),
    "Model": struct({"id": string(), "object": of.one_of("model"), "created": integer(),
                     "owned_by": string(), "max_model_len": integer(1)},
                    ("id", "object", "created", "owned_by")),
    "Models": a_list(ref("Model")),
    "Tokens": struct({"tokens": of.any_of(of.TOKEN_IDS, array(of.TOKEN_IDS)),
                      "count": of.any_of(integer(0), array(integer(0))),
                      "max_model_len": integer(1)}, ("tokens", "count")),
    "Text": struct({"prompt": of.any_of(string(), array(string())),
                    "text": of.any_of(string(), array(string()))}, ("prompt",)),
    "Error": struct({"error": struct(
        {"message": string(), "type": string(), "code": string(),
         "param": of.any_of(string(), {"type": "null"})},
        ("message", "type", "param", "code"))}, ("error",)),
    "AnthropicError": struct({"type": of.one_of("error"), "request_id": string(), "error": struct(
        {"type": string(), "message": string(), "details": struct()}, ("type", "message"))},
        ("type", "error", "request_id")),
    "Object": struct(),
}

# --- operations ---

# Bodies: name -> properties, required ones, and the server's table.
BODIES: dict[str, tuple[dict[str, Schema], tuple[str, ...], tuple[str, str] | None]] = {
    "ChatRequest": (of.generation("chat"), ("messages",), ("params.c", "fields")),
    "CompletionRequest": (of.generation("completion"), ("prompt",), ("params.c", "fields")),
    "MessagesRequest": (of.messages(), ("messages", "max_tokens"),
                        ("messages_request.c", "fields")),
    "CountTokensRequest": (of.messages(), ("messages",), ("messages_request.c", "fields")),
    "ResponsesRequest": (of.responses({name for name, rule in c_table("response_read.c", "fields")
                                       if rule in REFUSED}), (), ("response_read.c", "fields")),
    "EmbeddingsRequest": (of.EMBEDDINGS, ("input",), ("embedding_request.c", "fields")),
    "RerankRequest": (of.RERANK, ("query", "documents"),
                      ("score_request.c", "rerank_fields")),
    "ScoreRequest": (of.SCORE, (), ("score_request.c", "score_fields")),
    "LabelsRequest": (of.LABELS, ("query", "items", "label_token_ids"),
                      ("api_labels.c", "fields")),
    "ClassifyRequest": (of.CLASSIFY, ("input",), ("embedding_request.c", "classify_fields")),
    "TokenizeRequest": (of.TOKENIZE, (), ("api_tokenize.c", "tokenize_fields")),
    "GenerateRequest": (of.GENERATE, ("token_ids",), ("api_generate.c", "fields")),
    "NativeRequest": (of.NATIVE, (), ("api_native.c", "fields")),
    "AbortRequest": (of.ABORT, (), None),
    "SleepTags": (of.SLEEP_TAGS, (), None),
    "AdapterLoad": (of.ADAPTER_LOAD, ("lora_name", "lora_path"), None),
    "AdapterUnload": (of.ADAPTER_UNLOAD, ("lora_name",), None),
    "DetokenizeRequest": (of.DETOKENIZE, ("tokens",), ("api_tokenize.c", "detokenize_fields")),
    "DocumentRequest": (of.DOCUMENT, ("text",), ("document_json.c", "members")),
    "DocumentChange": ({k: of.DOCUMENT[k] for k in ("pin", "ttl", "prefill")}, (),
                       ("document_json.c", "known")),
    "PreambleRequest": (of.PREAMBLE, ("system",), ("api_preambles.c", "members")),
}
OBJECT = "Object"
PAUSE_MODE = of.one_of("abort", "wait", "keep", "in_place")
# Method, path, body, answer, whether it streams on request, query, what it does.
Query = dict[str, Schema]
OPERATIONS: list[tuple[str, str, str, str, bool, Query, str]] = [
    ("POST", "/v1/chat/completions", "ChatRequest", "ChatCompletion", True, {},
     "Answer messages"),
    ("POST", "/v1/chat/completions/render", "ChatRequest", "Rendered", False, {},
     "The prompt of a chat as token ids"),
    ("POST", "/v1/completions", "CompletionRequest", "Completion", True, {}, "Continue a text"),
    ("POST", "/v1/completions/render", "CompletionRequest", "", False, {},
     "The prompts of a completion as token ids"),
    ("POST", "/inference/v1/generate", "GenerateRequest", "Completion", True, {},
     "Continue token ids"),
    ("POST", "/generate", "NativeRequest", "", True, {}, "Continue texts, as SGLang's /generate"),
    ("POST", "/v1/messages", "MessagesRequest", "AnthropicMessage", True, {},
     "Answer messages, as Anthropic's API"),
    ("POST", "/v1/messages/count_tokens", "CountTokensRequest", "TokenCount", False, {},
     "Count the tokens of such a request"),
    ("POST", "/v1/responses", "ResponsesRequest", "Response", True, {},
     "Answer input, and remember the conversation"),
    ("POST", "/v1/responses/input_tokens", "ResponsesRequest", "TokenCount", False, {},
     "Count the tokens of such a request"),
    ("GET", "/v1/responses/{id}", "", OBJECT, True,
     {"stream": switch(), "starting_after": integer(0)}, "A kept response"),
    ("GET", "/v1/responses/{id}/input_items", "", OBJECT, False,
     {"limit": integer(1, 100), "after": string(), "order": of.one_of("asc", "desc")},
     "What a response read"),
    ("POST", "/v1/responses/{id}/cancel", "", "Response", False, {},
     "End a response in the background"),
    ("DELETE", "/v1/responses/{id}", "", OBJECT, False, {}, "Forget a response"),
    ("POST", "/v1/embeddings", "EmbeddingsRequest", "Embeddings", False, {}, "Vectors of texts"),
    ("POST", "/v1/rerank", "RerankRequest", "Ranking", False, {}, "Rank documents by a query"),
    ("POST", "/v2/rerank", "RerankRequest", "Ranking", False, {}, "The same"),
    ("POST", "/rerank", "RerankRequest", "Ranking", False, {}, "The same"),
    ("POST", "/v1/score", "ScoreRequest", "", False, {},
     "How well pairs of texts fit; with label_token_ids, the probabilities of tokens"),
    ("POST", "/score", "ScoreRequest", "", False, {}, "The same"),
    ("POST", "/generative_scoring", "LabelsRequest", "Scores", False, {},
     "The probability of a token behind a query and an item"),
    ("POST", "/v1/classify", "ClassifyRequest", "Classes", False, {}, "Labels of texts"),
    ("POST", "/classify", "ClassifyRequest", "Classes", False, {}, "The same"),
    ("GET", "/v1/estimate", "", OBJECT, False,
     {"prompt_tokens": integer(1), "max_tokens": integer(1), "priority": integer(),
      "cached_tokens": integer(0)}, "When a request would be served"),
    ("GET", "/v1/models", "", "Models", False, {}, "The models that are served"),
    ("GET", "/v1/models/{id}", "", "Model", False, {}, "One model"),
    ("POST", "/tokenize", "TokenizeRequest", "Tokens", False, {}, "Token ids of text or messages"),
    ("POST", "/detokenize", "DetokenizeRequest", "Text", False, {}, "The text of token ids"),
    ("POST", "/v1/tokenize", "TokenizeRequest", "Tokens", False, {}, "The same"),
    ("POST", "/v1/detokenize", "DetokenizeRequest", "Text", False, {}, "The same"),
    ("POST", "/abort_requests", "AbortRequest", OBJECT, False, {}, "End calls by their ids"),
    ("POST", "/abort_request", "AbortRequest", OBJECT, False, {}, "The same"),
    ("POST", "/v1/load_lora_adapter", "AdapterLoad", "", False, {}, "Load an adapter"),
    ("POST", "/v1/unload_lora_adapter", "AdapterUnload", "", False, {}, "Take its name away"),
    ("POST", "/load_lora_adapter", "AdapterLoad", OBJECT, False, {}, "Load an adapter"),
    ("POST", "/unload_lora_adapter", "AdapterUnload", OBJECT, False, {}, "Take its name away"),
    ("GET", "/v1/documents", "", OBJECT, False,
     {"limit": integer(1, 1000), "after": string(), "filter": string("a JSON object")},
     "The registered documents, in pages"),
    ("POST", "/v1/documents/bulk", "JSON lines", "", False, {}, "Import documents"),
    ("PUT", "/v1/documents/{id}", "DocumentRequest", OBJECT, False, {}, "Register a document"),
    ("GET", "/v1/documents/{id}", "", OBJECT, False, {}, "One document"),
    ("POST", "/v1/documents/{id}", "DocumentChange", OBJECT, False, {},
     "Change how a document is kept"),
    ("DELETE", "/v1/documents/{id}", "", OBJECT, False, {}, "Delete a document"),
    ("GET", "/v1/preambles", "", OBJECT, False, {}, "The preambles"),
    ("PUT", "/v1/preambles/{id}", "PreambleRequest", OBJECT, False, {}, "Register a preamble"),
    ("GET", "/v1/preambles/{id}", "", OBJECT, False, {}, "One preamble"),
    ("DELETE", "/v1/preambles/{id}", "", OBJECT, False, {}, "Delete a preamble"),
    ("GET", "/v1/sessions/{id}", "", OBJECT, False, {}, "What a session received"),
    ("POST", "/v1/sessions/{id}/close", "", OBJECT, False, {}, "Forget a session"),
    ("GET", "/v1/instances", "", OBJECT, False, {}, "The instances of the pool"),
    ("GET", "/health", "", "", False, {}, "Whether the server accepts work"),
    ("GET", "/health/live", "", "", False, {}, "Whether the process answers"),
    ("GET", "/health/ready", "", "", False, {}, "Whether the server accepts work"),
    ("GET", "/ping", "", OBJECT, False, {}, "Whether the server accepts work"),
    ("POST", "/ping", "", OBJECT, False, {}, "The same"),
    ("GET", "/version", "", OBJECT, False, {}, "The server's version"),
    ("GET", "/metrics", "", "", False, {}, "Prometheus text"),
    ("GET", "/cache", "", OBJECT, False, {"spans": integer(0, 256)}, "Content of the KV cache"),
    ("DELETE", "/cache", "", OBJECT, False, {"span": string()}, "Evict what no request uses"),
    ("POST", "/pause", "", OBJECT, False, {"mode": PAUSE_MODE}, "Run no steps"),
    ("POST", "/pause_generation", "", OBJECT, False, {"mode": PAUSE_MODE}, "The same"),
    ("POST", "/resume", "", OBJECT, False, {}, "Run steps again"),
    ("POST", "/continue_generation", "", OBJECT, False, {}, "The same"),
    ("GET", "/is_paused", "", OBJECT, False, {}, "Whether the engine is paused"),
    ("POST", "/sleep", "", OBJECT, False, {"level": integer(0, 2), "mode": PAUSE_MODE},
     "Give the memory of weights and KV back"),
    ("POST", "/wake_up", "", OBJECT, False, {"tags": of.SLEEP_TAG}, "Wake all of it, or parts"),
    ("GET", "/is_sleeping", "", OBJECT, False, {}, "Which parts sleep"),
    ("POST", "/release_memory_occupation", "SleepTags", OBJECT, False, {},
     "The same as /sleep, by tags; requests are kept"),
    ("POST", "/resume_memory_occupation", "SleepTags", OBJECT, False, {},
     "The same as /wake_up"),
    ("POST", "/reset_prefix_cache", "", OBJECT, False, {}, "Evict what no request uses"),
    ("POST", "/flush_cache", "", OBJECT, False, {}, "The same"),
    ("GET", "/openapi.json", "", OBJECT, False, {}, "This document"),
]


def or_null(schema: Schema) -> Schema:
    if not schema or schema.get("description") == "no effect" and len(schema) == 1:
        return schema
    words = {"description": schema["description"]} if "description" in schema else {}
    bare = {k: v for k, v in schema.items() if k != "description"}
    if "type" in bare and "enum" not in bare:
        return {**schema, "type": [bare["type"], "null"]}
    return {"anyOf": [*(bare["anyOf"] if list(bare) == ["anyOf"] else [bare]), {"type": "null"}],
            **words}


def body_schema(name: str) -> Schema:
    properties, required, _ = BODIES[name]
    return {"type": "object", **({"required": list(required)} if required else {}), "properties": {
        key: schema if key in required else or_null(schema)
        for key, schema in properties.items()}}


def json_content(name: str) -> Schema:
    return {"application/json": {"schema": ref(name) if name else {}}}


def operation(row: tuple[str, str, str, str, bool, Query, str], is_open: bool) -> dict[str, Any]:
    method, path, body, answer, streams, query, words = row
    content = json_content(answer)
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if path == "/metrics":
        content = {"text/plain": {"schema": {"type": "string"}}}
    error = "AnthropicError" if path.startswith("/v1/messages") else "Error"
    parameters = [{"name": "id", "in": "path", "required": True, "schema": {
        "type": "string", "minLength": 1}}] if "{id}" in path else []
    parameters += [{"name": k, "in": "query", "schema": s} for k, s in query.items()]
    name = re.sub(r"[^a-z0-9]+", "_", f"{method.lower()}{path}").strip("_")
    made: dict[str, Any] = {"operationId": name, "summary": words}
    if parameters:
        made["parameters"] = parameters
    if body == "JSON lines":
        made["requestBody"] = {"required": True, "content": {
            "application/x-ndjson": {"schema": {"type": "string"}}}}
    elif body:
        made["requestBody"] = {"required": True, "content": json_content(body)}
    made["responses"] = {"200": {"description": "the answer", "content": content},
                         "default": {"description": "an error", "content": json_content(error)}}
    if is_open:
        made["security"] = []
    return made


def check_routes() -> dict[tuple[str, str], bool]:
    """Compare the operations with the table of routes. Whether each needs no key."""
    is_open: dict[tuple[str, str], bool] = {}
    for method, path, goes_on, needs_none in routes():
        fitting = [(m, p) for m, p, *_ in OPERATIONS if m == method and (
            p.startswith(path + "{") if goes_on else p == path)]
        if not fitting:
            raise SystemExit(f"{COMMAND}: OPERATIONS lacks {method} {path}")
        is_open.update({key: needs_none for key in fitting})
    for method, path, *_ in OPERATIONS:
        if (method, path) not in is_open:
            raise SystemExit(f"{COMMAND}: the server has no {method} {path}")
    return is_open


def check_bodies() -> None:
    """Compare the described parameters with those that the server's tables have."""
    shared = set(of.generation("chat")) | set(of.generation("completion"))
    for name, (properties, _, table) in BODIES.items():
        if not table:
            continue
        rows = c_table(*table)
        served = {field for field, rule in rows if rule not in REFUSED}
        described = shared if table[0] == "params.c" else set(properties)
        if name == "ResponsesRequest":
            described = set(of.RESPONSES)
        if served != described:
            raise SystemExit(f"{name} of {COMMAND} and {table[1]} of server/api/{table[0]} "
                             f"differ: {sorted(served ^ described)}")


def openapi() -> str:
    is_open = check_routes()
    check_bodies()
    paths: dict[str, dict[str, Any]] = {}
    for row in OPERATIONS:
        method, path = row[:2]
        paths.setdefault(path, {})[method.lower()] = operation(row, is_open[method, path])
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Tarn", "version": "0.1.0",
                 "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
                 "description": "An LLM inference server. Unknown members of a body are ignored "
                                "and named in X-Tarn-Ignored-Fields."},
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"},
                                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"}},
            "schemas": {**of.COMPONENTS, **ANSWERS,
                        **{name: body_schema(name) for name in BODIES}}}}
    return json.dumps(document, indent=1) + "\n"


# --- the page ---

HEAD = f"""# Parameters

This page is generated by `{COMMAND}` from the server's tables and from what
the tests really send. Each test that is named sends the parameter, its members and its words to
this endpoint and gets an answer, or the error that names the parameter; a test that no longer does
so fails. `GET /openapi.json` has the same as a document for programs. What the parameters mean is
on the pages of [API](api.md), [structured](structured.md), [tools](tools.md),
[messages](messages.md), [responses](responses.md), [retrieval](retrieval.md) and
[models](models.md).

A parameter that is not listed is ignored and named in the header `X-Tarn-Ignored-Fields`.
"""
# Body, and the tests that are looked at first.
SECTIONS = [
    ("ChatRequest", ["test_openai_client.py", "test_requests.py", "test_tools.py",
                     "test_reasoning.py", "test_structured.py", "test_answer_rules.py",
                     "test_http.py"]),
    ("CompletionRequest", ["test_openai_client.py", "test_requests.py", "test_answer_rules.py",
                           "test_http.py"]),
    ("MessagesRequest", ["test_messages.py"]),
    ("ResponsesRequest", ["test_responses.py"]),
    ("EmbeddingsRequest", ["test_embeddings.py"]),
    ("RerankRequest", ["test_embeddings.py", "test_scores.py"]),
    ("ScoreRequest", ["test_scores.py"]),
    ("LabelsRequest", ["test_calls.py"]),
    ("ClassifyRequest", ["test_scores.py"]),
    ("TokenizeRequest", ["test_http.py", "test_special_tokens.py"]),
    ("DetokenizeRequest", ["test_http.py"]),
    ("GenerateRequest", []),
    ("NativeRequest", ["test_calls.py"]),
    ("AbortRequest", []),
    ("SleepTags", []),
    ("AdapterLoad", ["test_adapters.py"]),
    ("AdapterUnload", ["test_adapters.py"]),
    ("DocumentRequest", ["test_documents_api.py"]),
    ("DocumentChange", ["test_documents_api.py"]),
    ("PreambleRequest", ["test_documents_api.py"]),
]
NO_EFFECT = "no effect"


def first_operation(body: str) -> str:
    """The first operation with this body: the one whose parameters are proven."""
    return next(f"{row[0]} {row[1]}" for row in OPERATIONS if row[2] == body)


@functools.lru_cache(None)
def patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Of all operations; those without an id first."""
    rows = sorted(OPERATIONS, key=lambda row: "{id}" in row[1])
    return [(f"{row[0]} {row[1]}",
             re.compile(re.escape(f"{row[0]} {row[1]}").replace(r"\{id\}", "[^/]+")))
            for row in rows]


def operation_of(method: str, path: str) -> str:
    """The operation that serves a path, else an empty string."""
    return next((name for name, pattern in patterns()
                 if pattern.fullmatch(f"{method} {path}")), "")


def parts_of(name: str, schema: Schema) -> list[str]:
    """A parameter, its members and its words, as sent_requests.py names them."""
    parts = [name]
    for one in schema.get("anyOf", [schema]):
        if "$ref" in one:
            one = of.COMPONENTS[one["$ref"].rsplit("/", 1)[1]]
        words = one.get("items", one).get("enum", ())
        parts += [f"{name}={word}" for word in words]
        for member, inner in one.get("properties", {}).items():
            parts.append(f"{name}.{member}")
            parts += [f"{name}.{member}={word}" for word in inner.get("enum", ())]
    if support_of(schema) == NO_EFFECT:
        return [name]
    return list(dict.fromkeys(parts))


def claims() -> dict[str, dict[str, list[str]]]:
    """Operation -> parameter -> what tests must have sent. "": the operation itself."""
    made: dict[str, dict[str, list[str]]] = {}
    for method, path, _, _, _, query, _ in OPERATIONS:
        made[f"{method} {path}"] = {"": [""], **{name: parts_of(name, schema)
                                                 for name, schema in query.items()}}
    for body, _ in SECTIONS:
        rows = made[first_operation(body)]
        properties, _, table = BODIES[body]
        rows.update({name: parts_of(name, schema) for name, schema in properties.items()})
        rows.update({name: ["!" + name] for name, rule in (c_table(*table) if table else [])
                     if rule in REFUSED})
    return made


def tests_that_send(sent: dict[str, dict[str, list[str]]]) -> dict[tuple[str, str], list[str]]:
    """Operation and part -> the tests with it."""
    found: dict[tuple[str, str], list[str]] = {}
    for test, operations in sent.items():
        for operation, parts in operations.items():
            for part in parts:
                found.setdefault((operation, part), []).append(test)
    return found


def read_sent(folder: Path) -> None:
    """Choose a test for each claim from the files of a folder, and write sent.json."""
    found = tests_that_send({file.stem + ".py": json.loads(file.read_text())
                             for file in sorted(folder.glob("*.json"))})
    first = {first_operation(body): tests for body, tests in SECTIONS}
    chosen: dict[str, dict[str, list[str]]] = {}
    for operation, rows in claims().items():
        for part in (part for parts in rows.values() for part in parts):
            tests = sorted(found.get((operation, part), []))
            wanted = first.get(operation, [])
            tests.sort(key=lambda t: wanted.index(t) if t in wanted else len(wanted))
            if tests:
                chosen.setdefault(tests[0], {}).setdefault(operation, []).append(part)
    rows_of = {test: dict(sorted(rows.items())) for test, rows in sorted(chosen.items())}
    SENT.write_text(json.dumps(rows_of, indent=1) + "\n")


def value_of(schema: Schema) -> str:
    """A few words about the values."""
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    if "enum" in schema:
        return ", ".join(f"`{v}`" for v in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(value_of(s) for s in schema["anyOf"]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {value_of(schema['items'])}"
    if kind == "object":
        return "object"
    least, most = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        return f"{kind} above {schema['exclusiveMinimum']}, to {most}"
    if least is None or abs(least) > 10 ** 6:
        return kind
    return f"{kind}, {least} to {most}" if most is not None and most < 2 ** 31 - 1 else \
        f"{kind} from {least}"


def support_of(schema: Schema) -> str:
    words = schema.get("description", "")
    return words if words == NO_EFFECT else "yes"


def cell(operation: str, parts: list[str], found: dict[tuple[str, str], list[str]],
         missing: list[str]) -> str:
    """The tests of a row."""
    missing += [f"{operation} {part}".strip() for part in parts if (operation, part) not in found]
    tests = dict.fromkeys(test for part in parts for test in found.get((operation, part), []))
    return ", ".join(f"`{test}`" for test in tests)


def page() -> str:
    found = tests_that_send(json.loads(SENT.read_text()))
    made, missing = claims(), []
    lines = [HEAD, "## Endpoints", "", "| endpoint | answer | test |", "|---|---|---|"]
    lines += [f"| `{row[0]} {row[1]}` | {row[6]} | "
              f"{cell(f'{row[0]} {row[1]}', [''], found, missing)} |" for row in OPERATIONS]
    for method, path, body, _, _, query, _ in OPERATIONS:
        operation = f"{method} {path}"
        properties, required = (BODIES[body][0], BODIES[body][1]) if body in BODIES and \
            operation == first_operation(body) else ({}, ())
        if not properties and not query:
            continue
        lines += ["", f"## {operation}", "", "| parameter | values | supported | test |",
                  "|---|---|---|---|"]
        for name, parts in made[operation].items():
            if not name:
                continue
            schema = properties.get(name, query.get(name))
            value = value_of(schema) + (", required" if name in required else "") if schema else ""
            support = support_of(schema) if schema else "refused by name"
            lines.append(f"| `{name}` | {value} | {support} | "
                         f"{cell(operation, parts, found, missing)} |")
    if missing:
        raise SystemExit(f"no test sends this, or {SENT.name} does not know it (see "
                         "tests/integration/sent_requests.py):\n  " + "\n  ".join(missing))
    return "\n".join([*lines, ""])


# --- main ---


def differs(file: Path, text: str) -> bool:
    there = file.read_text() if file.exists() else ""
    if there == text:
        return False
    old, new = there.splitlines() + [""], text.splitlines() + [""]
    at = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)) - 1)
    print(f"{file.relative_to(REPO)} is not up to date: run {COMMAND}\n"
          f"  line {at + 1} is       {old[at]}\n  line {at + 1} must be  {new[at]}")
    return True


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--sent", type=Path, metavar="DIR",
                        help="what tests with TARN_SENT_DIR=DIR wrote: choose the page's tests")
    args = parser.parse_args()
    if args.sent:
        read_sent(args.sent)
    made = {DOCUMENT: openapi(), PAGE: page()}
    if args.check:
        return int(any([differs(file, text) for file, text in made.items()]))
    for file, text in made.items():
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
