"""The parameters of tarn-server's endpoints as JSON schemas: the source of openapi_page.py.

A parameter may also be null, which means that it is absent; openapi_page.py adds that.
"""
from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def integer(least: int | None = None, most: int | None = None, words: str = "") -> Schema:
    return with_words({"type": "integer", **limits(least, most)}, words)


def number(least: float | None = None, most: float | None = None, words: str = "") -> Schema:
    return with_words({"type": "number", **limits(least, most)}, words)


def limits(least: float | None, most: float | None) -> Schema:
    return {**({} if least is None else {"minimum": least}),
            **({} if most is None else {"maximum": most})}


def string(words: str = "", **more: Any) -> Schema:
    return with_words({"type": "string", **more}, words)


def switch(words: str = "") -> Schema:
    return with_words({"type": "boolean"}, words)


def one_of(*names: str, words: str = "") -> Schema:
    return with_words({"type": "string", "enum": list(names)}, words)


def array(items: Schema, words: str = "", **more: Any) -> Schema:
    return with_words({"type": "array", "items": items, **more}, words)


def struct(properties: dict[str, Schema] | None = None, required: tuple[str, ...] = (),
           words: str = "") -> Schema:
    return with_words({"type": "object", **({"properties": properties} if properties else {}),
                       **({"required": list(required)} if required else {})}, words)


def any_of(*schemas: Schema, words: str = "") -> Schema:
    return with_words({"anyOf": list(schemas)}, words)


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def with_words(schema: Schema, words: str) -> Schema:
    return {**schema, "description": words} if words else schema


TOKEN_IDS = array(integer(0))
CACHE_CONTROL = struct({"type": one_of("ephemeral"), "ttl": one_of("5m", "30m", "1h", "24h")},
                       ("type",), "the prompt up to its end is evicted last for this time")
TEXT = string("a text")
SCHEMA = struct(words="a JSON schema; docs/user/structured.md lists the keywords")
TEXT_PART = struct({"type": one_of("text"), "text": string(),
                    "cache_control": ref("CacheControl"), "prompt_cache_breakpoint": struct()},
                   ("type", "text"))
TOOL_CALL = struct({"id": string(), "type": one_of("function"), "function": struct(
    {"name": string(), "arguments": any_of(string(), struct())}, ("name",))}, ("id", "function"))
MESSAGE = struct({
    "role": one_of("system", "developer", "user", "assistant", "tool"),
    "content": any_of(string(), array(ref("TextPart")), {"type": "null"}),
    "name": string(), "tool_calls": array(ref("ToolCall")), "tool_call_id": string(),
    "refusal": string(), "reasoning_content": string(), "reasoning": string(),
    "cache_control": ref("CacheControl")}, ("role",))
TOOL = struct({"type": one_of("function"), "function": struct(
    {"name": string(pattern="^[A-Za-z0-9_.-]{1,64}$"), "description": string(),
     "parameters": SCHEMA, "strict": switch()}, ("name",))}, ("type", "function"))
DOCUMENT_ENTRY = any_of(string("the id of a registered document"),
                        struct({"title": string(), "text": string()}, ("text",)),
                        struct({"id": string("of a registered document")}, ("id",)))
RETRIEVAL = struct({
    "query": string("default: the last message of the user"),
    "scope": one_of("all", "own", "public"), "embedding": array(number()),
    "mode": one_of("auto", "lexical", "vector", "hybrid"), "top_k": integer(1, 64),
    "filter": struct(), "order": one_of("score", "cache", "id")},
    words="documents that a search finds")
RESPONSE_FORMAT = any_of(
    struct({"type": one_of("text", "json_object")}, ("type",)),
    struct({"type": one_of("json_schema"), "json_schema": struct(
        {"name": string(), "strict": switch(), "schema": SCHEMA}, ("schema",))},
        ("type", "json_schema")),
    struct({"type": one_of("structural_tag"), "format": struct(), "structures": array(struct()),
            "triggers": array(string())}, ("type",)))

COMPONENTS = {"CacheControl": CACHE_CONTROL, "TextPart": TEXT_PART, "ToolCall": TOOL_CALL,
              "Message": MESSAGE, "Tool": TOOL, "DocumentEntry": DOCUMENT_ENTRY}

# What chats and text completions share; params.c has the names in this order.
GENERATION: dict[str, Schema] = {
    "model": string("a served name; default: the first one"),
    "messages": array(ref("Message"), minItems=1, maxItems=4096),
    "prompt": any_of(string(), array(string()), TOKEN_IDS, array(TOKEN_IDS)),
    "stream": switch("events instead of one answer"),
    "stream_options": struct({"include_usage": switch(), "continuous_usage_stats": switch(),
                              "include_obfuscation": switch()}, words="only with stream"),
    "max_tokens": integer(0, 4294967295, "of the answer; 0: only the prompt is computed"),
    "max_completion_tokens": integer(0, 4294967295, "the newer name of max_tokens"),
    "temperature": number(0, 100),
    "top_p": with_words({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, ""),
    "top_k": integer(-1, 2147483647, "-1 and 0: no limit"),
    "min_p": number(0, 1),
    "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": 100},
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "logit_bias": {"type": "object", "additionalProperties": number(-100, 100)},
    "allowed_token_ids": array(integer(0), "an answer has only these tokens", minItems=1),
    "bad_words": array(string(), "texts that no answer has"),
    "logprobs": any_of(switch("chats"), integer(0, 20, "completions")),
    "top_logprobs": integer(0, 20, "chats; needs logprobs"),
    "prompt_logprobs": integer(0, 20, "not in a stream"),
    "truncate_prompt_tokens": integer(-1, None, "leave the last tokens of the prompt"),
    "n": integer(1, 128),
    "best_of": integer(0, 128, "completions"),
    "seed": integer(-2 ** 63, 2 ** 63 - 1),
    "stop": any_of(string(), array(string(), maxItems=16)),
    "stop_token_ids": array(integer(0)),
    "min_tokens": integer(0, 4294967295),
    "ignore_eos": switch(),
    "skip_special_tokens": switch(),
    "include_stop_str_in_output": switch(),
    "return_token_ids": switch(),
    "return_tokens_as_token_ids": switch("of logprobs"),
    "priority": integer(-2 ** 31, 2 ** 31 - 1, "a lower value runs sooner"),
    "slo_ttft_ms": number(0, None, "target of the first token"),
    "slo_tpot_ms": number(0, None, "target of the mean time between tokens"),
    "cache_salt": string("only requests with the same salt share cached KV", minLength=1),
    "cache_ttl": integer(0, 86400, "seconds for which the prompt's KV is evicted last"),
    "cache_control": ref("CacheControl"),
    "prompt_cache_retention": one_of("in_memory", "24h"),
    "prompt_cache_options": struct({"mode": one_of("implicit", "explicit"),
                                    "ttl": one_of("5m", "30m", "1h", "24h")}),
    "session_id": string("names a job", minLength=1, maxLength=256),
    "request_id": string("the id of the answer behind its prefix; POST /abort_requests ends it",
                         pattern="^[A-Za-z0-9._-]{1,63}$"),
    "rid": string("SGLang's name of request_id", pattern="^[A-Za-z0-9._-]{1,63}$"),
    "kv_transfer_params": struct({"do_remote_decode": switch(), "do_remote_prefill": switch()},
                                 words="as vLLM's: see docs/user/routers.md"),
    "return_timings": switch("the answer has the times of the call"),
    "chat_template": string(words="a template for this request; needs "
                                  "--trust-request-chat-template"),
    "chat_template_kwargs": struct(words="variables of the chat template"),
    "add_generation_prompt": switch(),
    "continue_final_message": switch(),
    "preamble": string("the id of a registered preamble"),
    "documents": array(ref("DocumentEntry")),
    "documents_placement": one_of("template", "system"),
    "documents_order": one_of("given", "cache", "id"),
    "retrieval": RETRIEVAL,
    "citations": switch(),
    "parse_special": switch("spelled special tokens are control tokens"),
    "response_format": RESPONSE_FORMAT,
    "structured_outputs": struct({
        "json": any_of(SCHEMA, string()), "json_object": switch(), "regex": string(),
        "choice": array(string()), "grammar": string(),
        "structural_tag": any_of(struct(), string())}),
    "guided_json": any_of(SCHEMA, string()),
    "guided_regex": string(),
    "guided_choice": array(string()),
    "guided_grammar": string(),
    "json_schema": any_of(SCHEMA, string()),
    "grammar": string("GBNF or Lark-like EBNF"),
    "regex": string("SGLang's name of guided_regex"),
    "ebnf": string("SGLang's name of guided_grammar"),
    "include_reasoning": switch("whether the answer has what the model thought"),
    "thinking_token_budget": integer(-1, words="tokens of thoughts, whose end is then forced; -1: "
                                     "no bound"),
    "thinking_budget": integer(-1, words="another name of thinking_token_budget"),
    "tools": array(ref("Tool"), maxItems=128),
    "tool_choice": any_of(one_of("none", "auto", "required"), struct(
        {"type": one_of("function"), "function": struct({"name": string()}, ("name",))},
        ("type", "function"))),
    "parallel_tool_calls": switch(),
    "echo": switch("completions"),
    "add_special_tokens": switch(),
    "reasoning_effort": one_of("none", "minimal", "low", "medium", "high", "xhigh", "max",
                               words="a variable of the chat template"),
    "verbosity": one_of("low", "medium", "high", words="no effect"),
    "service_tier": one_of("auto", "default", "flex", "scale", "priority", "fast",
                           words="no effect"),
    "store": switch("no effect"),
    "metadata": struct(words="no effect"),
    "user": string("no effect"),
    "safety_identifier": string("no effect"),
    "prompt_cache_key": string("no effect"),
    "prediction": struct(words="no effect"),
    "functions": array(struct({"name": string(), "description": string(), "parameters": SCHEMA},
                              ("name",)), "the older name of tools", maxItems=128),
    "function_call": any_of(one_of("none", "auto"), struct({"name": string()}, ("name",)),
                            words="the older name of tool_choice"),
    "modalities": array(one_of("text"), maxItems=1),
    "length_penalty": number(words="no effect"),
    "spaces_between_special_tokens": switch("no effect"),
    "custom_labels": struct(words="no effect"),
    "truncation_side": one_of("left", words="of truncate_prompt_tokens"),
}
CHAT_ONLY = {"messages", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
             "continue_final_message", "add_generation_prompt", "chat_template",
             "chat_template_kwargs",
             "include_reasoning", "thinking_token_budget", "thinking_budget", "reasoning_effort",
             "preamble", "documents_placement", "functions", "function_call",
             "modalities"}
COMPLETION_ONLY = {"prompt", "best_of", "echo"}


def generation(kind: str) -> dict[str, Schema]:
    """The parameters of a chat or a completion."""
    left_out = COMPLETION_ONLY if kind == "chat" else CHAT_ONLY
    found = {name: s for name, s in GENERATION.items() if name not in left_out}
    found["logprobs"] = GENERATION["logprobs"]["anyOf"][kind != "chat"]
    return found


BLOCK = any_of(
    struct({"type": one_of("text"), "text": string(), "cache_control": ref("CacheControl")},
           ("type", "text")),
    struct({"type": one_of("document"), "title": string(), "context": string(),
            "source": any_of(
                struct({"type": one_of("text"), "media_type": one_of("text/plain"),
                        "data": string()}, ("type", "data")),
                struct({"type": one_of("content"), "content": any_of(
                    string(), array(ref("TextPart")))}, ("type", "content"))),
            "cache_control": ref("CacheControl")}, ("type", "source")),
    struct({"type": one_of("search_result"), "source": string(), "title": string(),
            "content": array(ref("TextPart"))}, ("type", "content")),
    struct({"type": one_of("tool_use"), "id": string(), "name": string(), "input": struct(),
            "cache_control": ref("CacheControl")}, ("type", "id", "name", "input")),
    struct({"type": one_of("tool_result"), "tool_use_id": string(), "is_error": switch(),
            "content": any_of(string(), array(ref("TextPart"))),
            "cache_control": ref("CacheControl")}, ("type", "tool_use_id")),
    struct({"type": one_of("thinking"), "thinking": string(), "signature": string()},
           ("type", "thinking")),
    struct({"type": one_of("redacted_thinking"), "data": string()}, ("type",)))
COMPONENTS["Block"] = BLOCK

# messages_request.c has the names in this order; None: as in a chat.
MESSAGES: dict[str, Schema | None] = {
    "messages": array(struct({"role": one_of("user", "assistant", "system"),
                              "content": any_of(string(), array(ref("Block")))},
                             ("role", "content")), minItems=1, maxItems=4096),
    "system": any_of(string(), array(ref("TextPart"))),
    "stop_sequences": array(string(), maxItems=16),
    "tools": array(struct({"type": one_of("custom"), "name": string(), "description": string(),
                           "input_schema": SCHEMA, "strict": switch(),
                           "cache_control": ref("CacheControl")}, ("name", "input_schema")),
                   maxItems=128),
    "tool_choice": struct({"type": one_of("auto", "any", "tool", "none"), "name": string(),
                           "disable_parallel_tool_use": switch()}, ("type",)),
    "thinking": struct({"type": one_of("enabled", "adaptive", "disabled"),
                        "budget_tokens": integer(1),
                        "display": one_of("summarized", "omitted")}, ("type",)),
    "output_config": struct({"effort": one_of("low", "medium", "high", "xhigh", "max"),
                             "format": struct({"type": one_of("json_schema"), "schema": SCHEMA},
                                              ("type", "schema"))}),
    "output_format": struct({"type": one_of("json_schema"), "schema": SCHEMA},
                            ("type", "schema"), "the older name of output_config.format"),
    "model": None, "max_tokens": None, "stream": None, "temperature": None, "top_p": None,
    "top_k": None, "metadata": None, "cache_control": None,
    "service_tier": string("no effect"), "inference_geo": string("no effect"),
    "speed": string("no effect"), "diagnostics": struct(words="no effect"),
    "seed": None, "min_p": None, "repetition_penalty": None, "presence_penalty": None,
    "frequency_penalty": None, "logit_bias": None, "allowed_token_ids": None, "bad_words": None,
    "min_tokens": None, "ignore_eos": None, "stop_token_ids": None, "priority": None,
    "slo_ttft_ms": None, "slo_tpot_ms": None, "cache_salt": None, "cache_ttl": None,
    "session_id": None, "chat_template_kwargs": None, "parse_special": None,
    "preamble": None, "documents": None,
    "documents_placement": None, "documents_order": None, "retrieval": None,
    "structured_outputs": None,
}


def messages() -> dict[str, Schema]:
    return {name: GENERATION[name] if s is None else s for name, s in MESSAGES.items()}


ITEM = any_of(
    struct({"type": one_of("message"), "role": one_of("system", "developer", "user", "assistant"),
            "content": any_of(string(), array(struct({"type": one_of(
                "input_text", "output_text", "refusal")}, ("type",))))}, ("role", "content")),
    struct({"type": one_of("function_call"), "call_id": string(), "name": string(),
            "arguments": string()}, ("type", "call_id", "name", "arguments")),
    struct({"type": one_of("function_call_output"), "call_id": string(),
            "output": any_of(string(), array(struct()))}, ("type", "call_id", "output")),
    struct({"type": one_of("reasoning"), "summary": array(struct())}, ("type",)),
    struct({"type": one_of("item_reference"), "id": string()}, ("id",)))
COMPONENTS["Item"] = ITEM

# response_read.c has the names in this order; other fields are those of chats.
RESPONSES: dict[str, Schema] = {
    "input": any_of(string(), array(ref("Item"))),
    "instructions": string("a system message of this response only"),
    "previous_response_id": string(),
    "include": array(one_of(
        "file_search_call.results", "message.output_text.logprobs", "reasoning.encrypted_content",
        "web_search_call.results", "web_search_call.action.sources",
        "message.input_image.image_url", "computer_call_output.output.image_url",
        "code_interpreter_call.outputs")),
    "text": struct({"format": any_of(
        struct({"type": one_of("text", "json_object")}, ("type",)),
        struct({"type": one_of("json_schema"), "name": string(), "schema": SCHEMA,
                "strict": switch()}, ("type", "name", "schema"))),
        "verbosity": one_of("low", "medium", "high")}),
    "tools": array(any_of(
        struct({"type": one_of("function"), "name": string(), "description": string(),
                "parameters": SCHEMA, "strict": switch()}, ("type", "name")),
        struct({"type": one_of("file_search"), "vector_store_ids": array(string()),
                "max_num_results": integer(1, 64), "filters": struct()},
               ("type", "vector_store_ids"))), maxItems=128),
    "tool_choice": any_of(one_of("none", "auto", "required"), struct({"type": string()},
                                                                     ("type",))),
    "reasoning": struct({"effort": one_of("none", "minimal", "low", "medium", "high", "xhigh",
                                          "max"), "summary": string()}),
    "max_output_tokens": integer(1),
    "max_tool_calls": integer(0),
    "top_logprobs": integer(0, 20),
    "truncation": one_of("auto", "disabled"),
    "background": switch(),
    "store": switch(),
    "metadata": struct(),
    "preamble": GENERATION["preamble"],
}


def responses(refused: set[str]) -> dict[str, Schema]:
    """Its own parameters, and those of chats that it does not refuse."""
    return {**RESPONSES, **{name: schema for name, schema in generation("chat").items()
                            if name not in refused and name not in RESPONSES}}


EMBEDDINGS = {
    "input": any_of(string(), array(string(), maxItems=2048), TOKEN_IDS, array(TOKEN_IDS)),
    "model": string(), "encoding_format": one_of("float", "base64"), "dimensions": integer(1),
    "user": string("no effect"), "input_type": one_of("query", "document"),
    "truncate_prompt_tokens": integer(-1), "add_special_tokens": switch(),
}
TEXT_OR_OBJECT = any_of(string(minLength=1), struct({"text": string(minLength=1)}, ("text",)))
TEXTS = any_of(string(minLength=1), struct({"text": string(minLength=1)}, ("text",)),
               array(TEXT_OR_OBJECT, minItems=1, maxItems=2047))
ACTIVATION = {name: switch() for name in ("use_activation", "activation", "softmax")}
RERANK = {
    "model": string(), "query": TEXT_OR_OBJECT,
    "documents": array(TEXT_OR_OBJECT, minItems=1, maxItems=2047),
    "top_n": integer(1, 2147483647), "return_documents": switch(),
    "max_tokens_per_doc": integer(1, 2147483647), "user": string("no effect"),
    "truncate_prompt_tokens": integer(-1), **ACTIVATION,
}
SCORE = {
    **{name: TEXTS for name in ("text_1", "text_2", "queries", "documents", "items", "data_1",
                                "data_2")},
    "model": string(), "user": string("no effect"), "truncate_prompt_tokens": integer(-1),
    **ACTIVATION,
}
LABELS = {
    "query": any_of(string(), TOKEN_IDS),
    "items": any_of(array(string(), minItems=1), array(TOKEN_IDS, minItems=1)),
    "label_token_ids": array(integer(0), "tokens whose probability is wanted", minItems=1,
                             maxItems=128),
    "apply_softmax": switch("among the labels; else among all tokens"),
    "item_first": switch("the prompt is item and query"),
    **{name: GENERATION[name] for name in ("model", "add_special_tokens", "cache_salt",
                                           "priority")},
}
CLASSIFY = {
    **{name: EMBEDDINGS[name] for name in ("input", "model", "user", "truncate_prompt_tokens",
                                           "add_special_tokens")},
    **ACTIVATION,
}
TOKENIZE = {name: GENERATION[name] for name in (
    "model", "prompt", "messages", "add_special_tokens", "documents", "documents_placement",
    "documents_order", "citations", "parse_special", "add_generation_prompt",
    "continue_final_message", "chat_template_kwargs", "reasoning_effort")}
TOKENIZE["prompt"] = any_of(string(), array(string()))
TOKENIZE["return_token_strs"] = switch()
GENERATE = {
    "token_ids": TOKEN_IDS,
    "sampling_params": struct(words="members of a text completion's body"),
    **{name: GENERATION[name] for name in (
        "model", "stream", "stream_options", "cache_salt", "priority", "kv_transfer_params",
        "return_timings", "session_id", "request_id")}}
NATIVE = {
    "text": any_of(string(), array(string())), "input_ids": any_of(TOKEN_IDS, array(TOKEN_IDS)),
    "sampling_params": struct({
        "max_new_tokens": integer(0, 4294967295, "default: 128"),
        "min_new_tokens": integer(0, 4294967295), "no_stop_trim": switch(),
        "sampling_seed": integer()}, words="also those of a text completion"),
    "return_logprob": switch(),
    "logprob_start_len": integer(-1, 2147483647, "-1: no logprobs of the prompt"),
    "top_logprobs_num": integer(0, 20), "return_text_in_logprobs": switch(),
    "stream": GENERATION["stream"], "rid": GENERATION["request_id"],
    "model": GENERATION["model"], "lora_path": string("SGLang's name of model"),
    "extra_key": string("SGLang's name of cache_salt", minLength=1),
    "priority": GENERATION["priority"], "session_id": GENERATION["session_id"],
    "log_metrics": switch("no effect")}
ABORT = {"request_ids": array(string(), maxItems=1024), "rid": string("how ids begin", minLength=1),
         "abort_all": switch("all calls of the key's tenant")}
SLEEP_TAG = one_of("weights", "kv_cache", "scheduling")
SLEEP_TAGS = {"tags": array(SLEEP_TAG, maxItems=8)}
ADAPTER_UNLOAD = {"lora_name": string(minLength=1, maxLength=255)}
ADAPTER_LOAD = {**ADAPTER_UNLOAD,
                "lora_path": string("a folder, absolute or in that of --lora-dir", minLength=1),
                "load_inplace": switch("in place of the adapter of that name"),
                "base_model_name": string("the parent in lists of models", maxLength=255)}
DETOKENIZE = {"model": string(), "tokens": any_of(TOKEN_IDS, array(TOKEN_IDS)),
              "skip_special_tokens": switch()}
DOCUMENT = {
    "id": string(), "title": string(), "text": string(), "metadata": struct(),
    "embedding": array(number()), "public": switch(), "pin": switch(), "ttl": integer(1),
    "prefill": one_of("now", "lazy"), "version": integer(0, 4294967295),
}
PREAMBLE = {"system": string(), "tools": array(ref("Tool")), "public": switch()}
