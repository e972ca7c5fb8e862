/* tool_format.h - the forms in which models write calls of tools, and which form a chat template
 * teaches.
 *
 *   hermes          <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>  Hermes, Qwen
 *   llama3_json     {"name": "f", "parameters": {...}}        Llama 3 and 4, the whole answer
 *   mistral         [TOOL_CALLS] [{"name": "f", "arguments": {...}}]
 *   granite         <|tool_call|> [{"name": "f", "arguments": {...}}]             Granite 3
 *   phi4_mini_json  functools[{"name": "f", "arguments": {...}}]
 *   mistral_v11     [TOOL_CALLS]f[ARGS]{...}                        Mistral's models since 2025
 *   deepseek_v3     name and JSON between special tokens, the JSON fenced  DeepSeek V3, R1
 *   deepseek_v31    the same without a fence                               DeepSeek V3.1
 *   qwen3_coder     <tool_call>\n<function=f>\n<parameter=k>\nVALUE\n</parameter>\n</function>...
 *   glm45           <tool_call>f\n<arg_key>k</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>
 *   pythonic        [f(k="x"), g()]                           Llama 3.2 and 4, the whole answer
 *   lfm2            <|tool_call_start|>[f(k="x"), g()]<|tool_call_end|>
 *   kimi_k2         functions.f:0 and JSON between special tokens
 *   minimax         <tool_calls>\n{"name": "f", "arguments": {...}}\n</tool_calls>   MiniMax M1
 *   minimax_m2      <minimax:tool_call><invoke name="f"><parameter name="k">VALUE</parameter>...
 *   seed_oss        as qwen3_coder, in <seed:tool_call>
 *   glm47           as glm45, without new lines                            GLM 4.7
 *   deepseek_v32    as minimax_m2, with other tags that say what is a string
 *   hunyuan_a13b    <tool_calls>[{"name": "f", "arguments": {...}}]</tool_calls>
 *   openai          <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>,
 *                   gpt-oss: a message of the form that reasoning.h gives calls
 *
 * Owns    nothing: the formats are constants.
 * Thread  any.
 * Errors  none, but ERR_NOMEM where it says so.
 * Units   bytes of UTF-8. */
#ifndef TARN_ENGINE_TEXT_TOOL_FORMAT_H
#define TARN_ENGINE_TEXT_TOOL_FORMAT_H

#include <stdbool.h>

#include "base/json.h"
#include "engine/text/chat_template.h"

/* The values of --tool-call-parser, with "auto": by the chat template, and "none". */
#define TOOL_FORMAT_NAMES                                                                          \
    "auto|deepseek_v3|deepseek_v31|deepseek_v32|deepseek_v4|glm45|glm47|granite|hermes|"           \
    "hunyuan_a13b|kimi_k2|lfm2|llama3_json|llama4_json=llama3_json|minimax|minimax_m2|mistral|"    \
    "mistral_v11|openai|gpt-oss=openai|phi4_mini_json|pythonic|llama4_pythonic=pythonic|"          \
    "qwen3_coder|qwen3_xml=qwen3_coder|seed_oss|none"

#define TOOL_NAME_BYTES_MAX 64u
#define TOOLS_MAX 128u /* of a request */

#define TOOL_WORDS_MAX 6

enum call_syntax {
    CALLS_JSON,  /* an object with the name and the arguments */
    CALLS_NAMED, /* the name, and an object of the arguments */
    CALLS_TAGS,  /* the name, and each argument in tags */
    CALLS_PYTHON /* a call of Python */
};

/* A text that is absent is "". */
struct tool_format {
    const char *name;
    enum call_syntax syntax;
    const char *marker; /* begins calls in a text; "": calls are the whole answer */
    const char *prefix; /* what may stand before such an answer; "" */
    const char *gap;    /* what may stand between the marker and `open`; "" */
    const char *open, *separator, *close; /* around calls, as the templates write them */
    const char *arguments;                /* the key of the arguments */
    bool is_list;                         /* calls are the items of an array */
    bool is_message; /* a call is a message of its own, the last one of an answer */
    const char *end; /* ends a call in a text */
    /* NAMED and TAGS: */
    const char *before_name, *behind_name;
    const char *before_id; /* NAMED: what may stand behind the name, an id behind it */
    bool is_numbered;      /* the id is a number, and "functions.NAME:NUMBER" is the call's id */
    const char *next;      /* begins a further call without a marker */
    /* TAGS and PYTHON: */
    const char *before_key, *behind_key, *behind_value, *before_end;
    const char *behind_json_key;       /* TAGS: instead of behind_key where JSON follows; "" */
    const char *value_end;             /* TAGS: the begin of behind_value that ends a value */
    const char *words[TOOL_WORDS_MAX]; /* special tokens of calls, or NULL */
};

/* The format with this name; "auto": the one that the template (NULL: none) teaches. NULL: there is
 * none. */
const struct tool_format *tool_format_find(const char *name, const struct chat_template *t);

/* The form that a request allows its answer. */
struct tool_wish {
    const struct json *tools; /* the request's, checked */
    const char *only;         /* the one function that may be called; NULL: each */
    const struct json *form;  /* instead of calls: a value by this schema, or, of `true`, any
                                 object; NULL: none */
    bool is_free;             /* text without calls may come, or precede them; without a form, needs
                                 a marker */
    bool many;                /* several calls */
};

/* Make the source of a grammar of the kind GRAMMAR_CALLS (engine/grammar/grammar.h). A function's
 * parameters bind its arguments unless is_free and the function is not `strict`. NULL: out of
 * memory. */
struct json *tool_format_grammar(const struct tool_format *f, const struct tool_wish *w);

#endif
