#!/usr/bin/env python3
"""Every parameter of every endpoint is read: a good value is taken and not named in
X-Tarn-Ignored-Fields, and a value of another type is refused with the parameter's name.

The endpoints and parameters are those of openapi_page.py, with all members and words that they
have there. What the parameters do is the matter of other tests.
"""
from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Iterator

from http_helpers import REPO, Server, make_model, run_tests, tarn_server
import openapi_page
import openapi_schemas as of
from tarn_test import TOOLS

TEMPLATE = ("{% for d in documents or [] %}{{ d.title }}: {{ d.text }}\n{% endfor %}"
            "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}"
            "{{ m.role }}: {{ m.content }}\n{% endfor %}")
HELLO = [{"role": "user", "content": "hi"}]
OPEN_CHAT = [*HELLO, {"role": "assistant", "content": "well"}]
DOCUMENT = {"title": "a title", "text": "a text"}
TOOL = {"type": "function", "function": {"name": "f"}}
EMBEDDING = [0.5] * 32
SCHEMA = {"type": "boolean"}
TAG: dict[str, Any] = {"type": "structural_tag", "triggers": ["<"], "structures": [
    {"begin": "<a>", "end": "</a>", "schema": SCHEMA}]}
NEW_TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "no"}}

# The least body of each kind.
LEAST: dict[str, dict[str, Any]] = {
    "ChatRequest": {"messages": HELLO, "max_tokens": 2},
    "CompletionRequest": {"prompt": "x", "max_tokens": 2},
    "MessagesRequest": {"messages": HELLO, "max_tokens": 2},
    "CountTokensRequest": {"messages": HELLO},
    "ResponsesRequest": {"input": "hi", "max_output_tokens": 2},
    "GenerateRequest": {"token_ids": [5, 6]},
    "EmbeddingsRequest": {"input": "hi"},
    "RerankRequest": {"query": "hi", "documents": ["a", "b"]},
    "ScoreRequest": {"text_1": "hi", "text_2": "a"},
    "LabelsRequest": {"query": "a", "items": ["b"], "label_token_ids": [5, 6]},
    "NativeRequest": {"text": "x", "sampling_params": {"max_new_tokens": 2}},
    "ClassifyRequest": {"input": "hi"},
    "TokenizeRequest": {"messages": HELLO},
    "DetokenizeRequest": {"tokens": [5]},
    "DocumentRequest": {"text": "a text"},
    "DocumentChange": {},
    "PreambleRequest": {"system": "be short"},
    "AbortRequest": {"request_ids": []},
    "SleepTags": {},
    "AdapterLoad": {"lora_name": "known", "lora_path": "known", "load_inplace": True},
    "AdapterUnload": {"lora_name": "known"},
}
# Other names of the two texts of a score, with companions.
SCORE_NAMES = {one: {"text_1": None, "text_2": None, other: "b"} for one, other in (
    ("queries", "documents"), ("documents", "queries"), ("items", "queries"),
    ("data_1", "data_2"), ("data_2", "data_1"))}
TEXT_FORMS = ["a", {"text": "a"}]
# Values of parameters for which a value made from the schema is not good. A pair has companions.
Value = Any
With = tuple[Any, dict[str, Any]]
GOOD: dict[str, list[Value | With]] = {
    "model": ["model"],
    "messages": [HELLO],
    "prompt": ["x", ["x", "y"], [5, 6], [[5], [6]]],
    "input": ["hi", ["hi", "ho"]],
    "stream_options": [({name: True}, {"stream": True}) for name in (
        "include_usage", "continuous_usage_stats", "include_obfuscation")],
    "max_tokens": [1],
    "max_completion_tokens": [1],
    "max_output_tokens": [1],
    "top_k": [-1, 5], "seed": [1],
    "logit_bias": [{"5": 1}],
    "allowed_token_ids": [[5, 6]],
    "top_logprobs": [(2, {"logprobs": True})],
    "best_of": [2],
    "min_tokens": [1],
    "stop": ["x", ["x", "y"]],
    "priority": [-1],
    "chat_template": ["{{ messages[0].content }}"],
    "add_generation_prompt": [True],
    "continue_final_message": [(True, {"messages": OPEN_CHAT})],
    "preamble": ["known"],
    "previous_response_id": [],  # a test below has one
    "documents": [["known"], [DOCUMENT], [{"id": "known"}]],
    "documents_placement": [(word, {"documents": [DOCUMENT]}) for word in ("template", "system")],
    "documents_order": [(word, {"documents": [DOCUMENT, "known"]}) for word in (
        "given", "cache", "id")],
    "citations": [(True, {"documents": [DOCUMENT]})],
    "retrieval": [{"query": "text", "top_k": 1, "filter": {}},
                  *({"scope": word} for word in ("all", "own", "public")),
                  *({"mode": word} for word in ("auto", "lexical", "vector", "hybrid")),
                  *({"order": word} for word in ("score", "cache", "id")),
                  {"embedding": EMBEDDING, "mode": "vector"}],
    "response_format": [{"type": "text"}, {"type": "json_object"}, TAG, NEW_TAG,
                        {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}],
    "structured_outputs": [{"json": SCHEMA}, {"json_object": True}, {"regex": "a|b"},
                           {"choice": ["a", "b"]}, {"grammar": 'root ::= "a"'},
                           {"structural_tag": TAG}],
    "guided_json": [SCHEMA], "json_schema": [SCHEMA],
    "guided_regex": ["a|b"], "regex": ["a|b"], "guided_choice": [["a", "b"]],
    "guided_grammar": ['root ::= "a"'], "grammar": ['root ::= "a"'], "ebnf": ['start: "a"'],
    "tools": [[TOOL]],
    "tool_choice": [("none", {}), *((word, {"tools": [TOOL]}) for word in ("auto", "required")),
                    ({"type": "function", "function": {"name": "f"}}, {"tools": [TOOL]})],
    "logprobs": [True, 2],
    "prediction": [{"type": "content", "content": "x"}],
    "modalities": [["text"]],
    "functions": [[{"name": "f"}]],
    "function_call": [("none", {}), ("auto", {"functions": [{"name": "f"}]})],
    "cache_control": [{"type": "ephemeral"}, *({"type": "ephemeral", "ttl": word} for word in (
        "5m", "30m", "1h", "24h"))],
    "prompt_cache_options": [*({"mode": word} for word in ("implicit", "explicit")),
                             *({"ttl": word} for word in ("5m", "30m", "1h", "24h"))],
    "kv_transfer_params": [{"do_remote_decode": True, "do_remote_prefill": False}],
    "return_tokens_as_token_ids": [True],
    "system": ["be short"],
    "id": ["known"],
    "version": [],  # only with a document of that version
    "ttl": [100],
    "dimensions": [8],
    "embedding": [EMBEDDING],
    "tokens": [[5]],
    "input_type": ["query", "document"],
    "include": [],  # test_responses.py
    "token_ids": [[5, 6]],
    "lora_name": ["known"], "lora_path": ["known"], "load_inplace": [True],
    "sampling_params": [{"max_tokens": 2, "seed": 1, "stop": ["x"], "logprobs": 1}],
}
OWN: dict[str, dict[str, list[Value | With]]] = {
    "SleepTags": {"tags": []},  # test_sleep.py: the other requests would wait
    "CompletionRequest": {"logprobs": [2]},
    "ChatRequest": {"logprobs": [True]},
    "MessagesRequest": {
        "tools": [[{"name": "f", "input_schema": {"type": "object"}}]],
        "tool_choice": [({"type": "none"}, {}), *(
            ({"type": word, "disable_parallel_tool_use": True},
             {"tools": [{"name": "f", "input_schema": {"type": "object"}}]})
            for word in ("auto", "any")),
            ({"type": "tool", "name": "f"},
             {"tools": [{"name": "f", "input_schema": {"type": "object"}}]})],
        "thinking": [{"type": "disabled"}, {"type": "adaptive", "display": "omitted"},
                     {"type": "enabled", "budget_tokens": 1024, "display": "summarized"}],
        "output_config": [{"format": {"type": "json_schema", "schema": SCHEMA}},
                          *({"effort": word} for word in ("low", "medium", "high", "xhigh",
                                                          "max"))],
        "output_format": [{"type": "json_schema", "schema": SCHEMA}],
        "metadata": [{"user_id": "u"}]},
    "ResponsesRequest": {
        "tools": [[{"type": "function", "name": "f", "parameters": {"type": "object"}}]],
        "tool_choice": [("none", {}), *((word, {"tools": [{"type": "function", "name": "f"}]})
                                        for word in ("auto", "required"))],
        "text": [{"format": {"type": "text"}}, {"format": {"type": "json_object"}},
                 *({"verbosity": word} for word in ("low", "medium", "high"))],
        "reasoning": [{"effort": "low", "summary": "auto"}, *(
            {"effort": word} for word in ("none", "minimal", "medium", "high", "xhigh", "max"))],
        "input": ["hi", HELLO],
        "include": [[word] for word in of.RESPONSES["include"]["items"]["enum"]],
        "background": [(True, {"store": True})],
        "top_logprobs": [2],
        "continue_final_message": [(True, {"input": OPEN_CHAT})],
        "max_tool_calls": [1]},
    "LabelsRequest": {"query": ["a", [5]], "items": [["b"], [[5], [6]]]},
    "NativeRequest": {
        "text": ["x", ["x", "y"]], "lora_path": ["model"],
        "input_ids": [([5, 6], {"text": None}), ([[5], [6]], {"text": None})],
        "sampling_params": [{"max_new_tokens": 2, "min_new_tokens": 1, "sampling_seed": 3,
                             "no_stop_trim": True, "stop": ["x"]}]},
    "DetokenizeRequest": {"tokens": [[5], [[5], [6]]]},
    "TokenizeRequest": {"prompt": [("x", {"messages": None}), (["x", "y"], {"messages": None})],
                        "documents": [[DOCUMENT]],
                        "documents_order": [(word, {"documents": [DOCUMENT]}) for word in (
                            "given", "cache", "id")]},
    "RerankRequest": {"documents": [["a", "b"], [{"text": "a"}]], "model": ["judge"],
                      "query": TEXT_FORMS, "truncate_prompt_tokens": [-1, 8]},
    "ScoreRequest": {"model": ["judge"], "text_1": TEXT_FORMS, "text_2": TEXT_FORMS,
                     "truncate_prompt_tokens": [-1, 8],
                     **{name: [(value, more) for value in TEXT_FORMS]
                        for name, more in SCORE_NAMES.items()}},
    "ClassifyRequest": {"model": ["judge"]},
    "EmbeddingsRequest": {"model": ["embedder"], "dimensions": [8]},
    "PreambleRequest": {"tools": [[TOOL]]},
}
# No value is wrong, or the error names another thing.
ANY_VALUE = {"diagnostics"}
# Companions without which a parameter is not looked at.
NEEDS: dict[str, dict[str, dict[str, Any]]] = {
    "CompletionRequest": {"documents_order": {"documents": [DOCUMENT]},
                          "citations": {"documents": [DOCUMENT]}},
    "TokenizeRequest": {"prompt": {"messages": None}},
    "NativeRequest": {"input_ids": {"text": None}},
    "ScoreRequest": SCORE_NAMES}
SERVER: Server


def from_schema(schema: dict[str, Any]) -> list[Value]:
    """Good values, all words among them."""
    if "enum" in schema:
        return list(schema["enum"])
    if "anyOf" in schema:
        return [v for one in schema["anyOf"] for v in from_schema(one)]
    kind = schema.get("type")
    if kind == "array":
        return [from_schema(schema["items"])[:1]]
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 0.5)
        return [max(least, 0) if kind == "number" else max(int(least), 1)]
    return {"boolean": [True, False], "string": ["x"], "object": [{}]}.get(kind, ["x"])


def values_of(body: str, name: str, schema: dict[str, Any]) -> Iterator[With]:
    """Values with companions."""
    chosen = OWN.get(body, {}).get(name, GOOD.get(name, None))
    for value in from_schema(schema) if chosen is None else chosen:
        if isinstance(value, tuple):
            yield value
        else:
            yield value, {}


def bad_value(schema: dict[str, Any]) -> Any:
    """Of a type that the schema does not have."""
    kinds = {one.get("type", "string" if "enum" in one else "object")
             for one in schema.get("anyOf", [schema])}
    if of.SCHEMA in schema.get("anyOf", ()):
        kinds.add("boolean")  # a JSON schema, too
    values = (("object", {"x": 1}), ("string", "\x01"), ("boolean", True), ("number", 1.5))
    return next(value for kind, value in values if kind not in kinds)


def path_of(operation: str) -> tuple[str, str]:
    method, path = operation.split(" ")
    return method, path.replace("{id}", "known")


def send(operation: str, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
    method, path = path_of(operation)
    return SERVER.request(method, path, {k: v for k, v in body.items() if v is not None})


def bodies() -> Iterator[tuple[str, str, dict[str, dict[str, Any]]]]:
    for body, _ in openapi_page.SECTIONS:
        yield body, openapi_page.first_operation(body), openapi_page.BODIES[body][0]


def good_values_are_taken() -> None:
    wrong = []
    for body, operation, parameters in bodies():
        for name, schema in parameters.items():
            for value, more in values_of(body, name, schema):
                asked = {**LEAST[body], **more, name: value}
                status, headers, answer = send(operation, asked)
                if status not in (200, 201) or name in headers.get("x-tarn-ignored-fields", ""):
                    wrong.append(f"{operation} {asked}: {status} {headers} {str(answer)[:300]}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:20])


def values_of_another_type_are_refused_by_name() -> None:
    wrong = []
    for body, operation, parameters in bodies():
        for name, schema in parameters.items():
            if name in ANY_VALUE:
                continue
            asked = {**LEAST[body], **NEEDS.get(body, {}).get(name, {}), name: bad_value(schema)}
            status, _, answer = send(operation, asked)
            words = str(answer["error"]["message"]) if status != 200 else ""
            if status not in (400, 404) or name not in words.split(":")[0]:
                wrong.append(f"{operation} {asked}: {status} {str(answer)[:300]}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:20])


def what_is_refused_is_refused_by_name() -> None:
    for body, operation, _ in bodies():
        table = openapi_page.BODIES[body][2]
        for name, rule in openapi_page.c_table(*table) if table else []:
            if rule in openapi_page.REFUSED:
                status, _, answer = send(operation, {**LEAST[body], name: ["x"]})
                words = answer["error"]["message"]
                assert status == 400 and words.startswith(name + ": "), (operation, name, answer)


def every_operation_answers() -> None:
    """Operations that no other test asks."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("POST /v1/tokenize", {"prompt": "x"}), ("POST /v1/detokenize", {"tokens": [5]}),
        ("POST /abort_request", {"abort_all": True}),
        ("POST /reset_prefix_cache", {}), ("POST /flush_cache", {})]
    SERVER.post("/v1/completions", {**LEAST["CompletionRequest"], "session_id": "known"})
    for operation, body in [*calls, ("GET /v1/sessions/{id}", {})]:
        status, _, answer = send(operation, body)
        assert status == 200, (operation, answer)
    status, _, answer = SERVER.request("GET", "/v1/estimate?prompt_tokens=5&max_tokens=5"
                                              "&cached_tokens=1&priority=1")
    assert status == 200, answer
    asked = {**LEAST["ResponsesRequest"], "store": True}
    first = SERVER.post("/v1/responses", asked)
    then = SERVER.post("/v1/responses", {**asked, "previous_response_id": first["id"]})
    assert then["previous_response_id"] == first["id"]


TESTS = [every_operation_answers, good_values_are_taken,
         values_of_another_type_are_refused_by_name, what_is_refused_is_refused_by_name]


def main() -> int:
    global SERVER
    with tempfile.TemporaryDirectory(prefix="tarn-parameters-") as folder:
        template = Path(folder) / "template"
        template.write_text(TEMPLATE)
        embedder = REPO / "tests" / "golden" / "embed-bert-mean"
        model = make_model(folder)
        subprocess.run([sys.executable, str(TOOLS / "make_tiny_adapter.py"), str(model),
                        str(Path(folder) / "known")], check=True)
        with tarn_server(model, "--lora-dir", folder,
                         "--documents-path", str(Path(folder) / "documents"),
                         "--served-model-name", "model", "--chat-template", str(template),
                         "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3",
                         "--trust-request-chat-template", "--embedding-model", str(embedder),
                         "--served-embedding-model-name", "embedder",
                         "--rerank-model", str(REPO / "tests" / "golden" / "rerank-bert"),
                         "--served-rerank-model-name", "judge") as SERVER:
            for path, body in (("/v1/preambles/known", {"system": "be short"}),
                               ("/v1/documents/known", {"text": "a text"})):
                status, _, answer = SERVER.request("PUT", path, body)
                assert status in (200, 201), answer
            return run_tests(TESTS)


if __name__ == "__main__":
    sys.exit(main())
