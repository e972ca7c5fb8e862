/* api_labels.c - POST /generative_scoring (vLLM), and POST /score with label_token_ids (SGLang):
 * how probable some tokens, the labels, are behind a query and an item.
 *
 * Each label of each item is a request for one token, which can be the label alone. Its logprob is
 * that among all tokens of the vocabulary. The requests of an item share the KV of its prompt. */
#include "server/api/api.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/run/vocab_mask.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "server/api/call.h"
#include "server/api/prompt.h"
#include "server/api/prompt_cut.h"
#include "server/api/writer.h"
#include "server/http/http.h"
#include "server/server.h"

#define NAME_BYTES 48

enum rule { OWN, COPIED };

static const struct {
    const char *name;
    enum rule rule;
} fields[] = {
    {"query", OWN},       {"items", OWN},    {"label_token_ids", OWN},       {"apply_softmax", OWN},
    {"item_first", OWN},  {"model", COPIED}, {"add_special_tokens", COPIED}, {"cache_salt", COPIED},
    {"priority", COPIED},
};

struct labels {
    const struct json *query, *items; /* items: an array, or one text alone */
    bool has_softmax, item_first;
    bool joins_texts; /* as SGLang, whose prompts are query and item in one text */
};

static const struct shape answer_scoring; /* SGLang's form */

/* --- the request --- */

static enum status read_own(struct labels *l, const struct json *body, struct buf *why)
{
    enum status s = js_get_bool(body, "apply_softmax", &l->has_softmax, why);

    if (s == OK)
        s = js_get_bool(body, "item_first", &l->item_first, why);
    l->query = js_get_set(body, "query");
    l->items = js_get_set(body, "items");
    if (s == OK && !js_get_set(body, "label_token_ids"))
        s = buf_why(why, ERR_INVALID, "label_token_ids: is required");
    if (s == OK && !l->query)
        s = buf_why(why, ERR_INVALID, "query: is required");
    if (s == OK && !l->items)
        s = buf_why(why, ERR_INVALID, "items: is required");
    return s;
}

/* The body of a text completion of one token. */
static enum status make_body(struct json *made, const struct json *body)
{
    enum status s = js_set(made, "max_tokens", js_new_int(1));

    if (s == OK)
        s = js_set(made, "temperature", js_new_int(0));
    if (s == OK)
        s = js_set(made, "ignore_eos", js_new_bool(true));
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(fields); i++)
        if (fields[i].rule == COPIED && js_get_set(body, fields[i].name))
            s = js_set(made, fields[i].name, js_ref(js_get(body, fields[i].name)));
    return s;
}

/* Each answer to a prompt is one of the labels. */
static enum status read_labels(struct params *p, const struct server *srv, const struct json *ids,
                               struct buf *why)
{
    uint32_t n_vocab = srv->info->n_vocab;
    size_t n = js_len(ids);

    if (!js_is(ids, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "label_token_ids: expected an array, got %s",
                       js_type_name(js_typeof(ids)));
    if (n == 0 || n > PARAMS_N_MAX)
        return buf_why(why, ERR_INVALID, "label_token_ids: %zu entries, expected 1 to %d", n,
                       PARAMS_N_MAX);
    p->allowed = calloc(vocab_mask_n_words(n_vocab), sizeof *p->allowed);
    if (!p->allowed || buf_reserve(&p->labels, n * sizeof(uint32_t)) != OK)
        return buf_why(why, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const struct json *id = js_at(ids, i);

        if (!js_is(id, JS_INT) || js_int(id) < 0 || js_int(id) >= n_vocab)
            return buf_why(why, ERR_INVALID, "label_token_ids[%zu]: expected a token id below %u",
                           i, n_vocab);
        if (buf_u32(&p->labels, (uint32_t)js_int(id)) != OK)
            return buf_why(why, ERR_NOMEM, "out of memory");
    }
    p->sampling.rules.allowed = p->allowed;
    p->sampling.want_logprob = true;
    p->best_of = (uint32_t)n;
    return OK;
}

/* Append the ids of a text, or of an array of ids. */
static enum status append(struct prompt *p, const struct server *srv, const struct json *v,
                          const char *name, bool add_special, struct buf *why)
{
    unsigned flags = TOKENIZE_PARSE_SPECIAL | (add_special ? TOKENIZE_ADD_SPECIAL : 0);
    size_t len;

    if (!js_is(v, JS_STRING))
        return prompt_from_ids(p, srv, v, name, why);
    const char *text = js_string(v, &len);
    return prompt_from_text(p, srv, text, len, flags, why);
}

/* Make the ids of two texts in one. */
static enum status append_joined(struct prompt *p, const struct server *srv, const struct json *a,
                                 const struct json *b, bool add_special, struct buf *why)
{
    unsigned flags = TOKENIZE_PARSE_SPECIAL | (add_special ? TOKENIZE_ADD_SPECIAL : 0);
    size_t len[2];
    const char *text[2] = {js_string(a, &len[0]), js_string(b, &len[1])};
    struct buf both;

    buf_init(&both, PROMPT_TEXT_BYTES_MAX);
    enum status s = buf_append(&both, text[0], len[0]);
    if (s == OK)
        s = buf_append(&both, text[1], len[1]);
    s = s == OK ? prompt_from_text(p, srv, buf_str(&both), both.len, flags, why)
                : buf_why(why, s, "items: %s", status_words(s));
    buf_fini(&both);
    return s;
}

static enum status make_prompt(struct prompt *p, const struct call *call, const struct labels *l,
                               const struct json *item, const char *name, struct buf *why)
{
    const struct json *parts[2] = {l->item_first ? item : l->query,
                                   l->item_first ? l->query : item};
    const char *names[2] = {l->item_first ? name : "query", l->item_first ? "query" : name};
    bool add_special = call->params.add_special;
    enum status s;

    if (l->joins_texts && js_is(parts[0], JS_STRING) && js_is(parts[1], JS_STRING)) {
        s = append_joined(p, call->srv, parts[0], parts[1], add_special, why);
    } else {
        s = append(p, call->srv, parts[0], names[0], add_special, why);
        if (s == OK)
            s = append(p, call->srv, parts[1], names[1], false, why);
    }
    if (s == OK && prompt_n_ids(p) == 0)
        s = buf_why(why, ERR_INVALID, "%s: query and item must not both be empty", name);
    return s;
}

static enum status make_prompts(struct call *call, const struct labels *l, struct buf *why)
{
    bool is_list = js_is(l->items, JS_ARRAY);
    size_t n = is_list ? js_len(l->items) : 1;
    char name[NAME_BYTES] = "items";
    enum status s = OK;

    if (!is_list && !js_is(l->items, JS_STRING))
        return buf_why(why, ERR_INVALID, "items: expected an array, got %s",
                       js_type_name(js_typeof(l->items)));
    if (n == 0 || n * call->params.best_of > PARAMS_N_REQUESTS_MAX)
        return buf_why(why, ERR_INVALID,
                       "items: %zu items with %u labels, expected at least one item, and at most "
                       "%d pairs of an item and a label",
                       n, call->params.best_of, PARAMS_N_REQUESTS_MAX);
    call->prompts = calloc(n, sizeof *call->prompts);
    if (!call->prompts)
        return buf_why(why, ERR_NOMEM, "out of memory");
    for (size_t i = 0; s == OK && i < n; i++) {
        struct prompt *p = &call->prompts[call->n_prompts++];

        prompt_init(p, prompt_n_ids_max(&call->params, call->srv));
        if (is_list)
            snprintf(name, sizeof name, "items[%zu]", i);
        s = make_prompt(p, call, l, is_list ? js_at(l->items, i) : l->items, name, why);
    }
    return s;
}

static enum status read_call(struct call *call, const struct json *body, struct buf *why)
{
    const char *known[ARRAY_SIZE(fields)];
    bool is_scoring = call->shape == &answer_scoring;
    struct labels *l = calloc(1, sizeof *l);

    call->shape_state = l;
    call->made = l ? js_new_object() : NULL;
    if (!call->made)
        return buf_why(why, ERR_NOMEM, "out of memory");
    l->joins_texts = is_scoring;
    l->has_softmax = !is_scoring; /* their defaults differ */
    enum status s = read_own(l, body, why);
    if (s == OK && make_body(call->made, body) != OK)
        s = buf_why(why, ERR_NOMEM, "out of memory");
    if (s == OK)
        s = params_parse(&call->params, call->srv, call->made, PARAMS_COMPLETION, why);
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        known[i] = fields[i].name;
    unknown_fields_find(&call->params.unknown, body, "", known, ARRAY_SIZE(known));
    if (s == OK)
        s = read_labels(&call->params, call->srv, js_get(body, "label_token_ids"), why);
    return s == OK ? make_prompts(call, l, why) : s;
}

/* --- the answer --- */

/* The logprobs of an item's labels, at most 0. */
static double logprob_of(const struct call *call, uint32_t item, uint32_t label)
{
    const struct request *r = call->choices[item * call->params.best_of + label].request;

    return request_n_out(r) > 0 && r->out[0].logprob <= 0 ? (double)r->out[0].logprob : -INFINITY;
}

static double probability(const struct call *call, uint32_t item, uint32_t label)
{
    const struct labels *l = call->shape_state;
    double most = -INFINITY, sum = 0;

    if (!l->has_softmax)
        return exp(logprob_of(call, item, label));
    for (uint32_t i = 0; i < call->params.best_of; i++)
        most = fmax(most, logprob_of(call, item, i));
    if (!isfinite(most))
        return 0;
    for (uint32_t i = 0; i < call->params.best_of; i++)
        sum += exp(logprob_of(call, item, i) - most);
    return exp(logprob_of(call, item, label) - most) / sum;
}

static void write_usage(struct writer *w, const struct call *call)
{
    uint64_t n = 0, n_cached = 0;

    for (uint32_t i = 0; i < call->n_prompts; i++) {
        const struct request *r = call->choices[i * call->params.best_of].request;

        n += r->prompt.n_ids;
        n_cached += atomic_load(&r->n_cached);
    }
    write_format(w,
                 "\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%u,"
                 "\"total_tokens\":%" PRIu64
                 ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu64 "}}",
                 n, call->n_prompts, n + call->n_prompts, n_cached);
}

static enum status write_list(struct call *call, struct buf *out)
{
    struct writer w = {out, OK};

    write_puts(&w, "{\"id\":");
    write_json(&w, call->id, strlen(call->id));
    write_format(&w, ",\"object\":\"list\",\"created\":%" PRId64 ",\"model\":", call->created_s);
    write_json(&w, call->params.model, strlen(call->params.model));
    write_puts(&w, ",\"data\":[");
    for (uint32_t i = 0; i < call->n_prompts; i++) {
        write_format(&w, "%s{\"index\":%u,\"object\":\"score\",\"score\":", i ? "," : "", i);
        write_number(&w, probability(call, i, 0));
        write_puts(&w, "}");
    }
    write_puts(&w, "],");
    write_usage(&w, call);
    write_puts(&w, "}");
    return w.status;
}

static enum status write_scores(struct call *call, struct buf *out)
{
    struct writer w = {out, OK};

    write_puts(&w, "{\"object\":\"scoring\",\"model\":");
    write_json(&w, call->params.model, strlen(call->params.model));
    write_puts(&w, ",\"scores\":[");
    for (uint32_t i = 0; i < call->n_prompts; i++) {
        write_puts(&w, i ? ",[" : "[");
        for (uint32_t k = 0; k < call->params.best_of; k++) {
            write_puts(&w, k ? "," : "");
            write_number(&w, probability(call, i, k));
        }
        write_puts(&w, "]");
    }
    write_puts(&w, "],");
    write_usage(&w, call);
    write_puts(&w, "}");
    return w.status;
}

static const struct shape answer_labels = {.name = "generative_scoring",
                                           .id_prefix = "generative-scoring",
                                           .kind = PARAMS_COMPLETION,
                                           .whole = write_list,
                                           .destroy = free};
static const struct shape answer_scoring = {.name = "score",
                                            .id_prefix = "score",
                                            .kind = PARAMS_COMPLETION,
                                            .whole = write_scores,
                                            .destroy = free};

void api_labels(struct server *srv, struct http_exchange *x)
{
    call_serve(srv, x, &answer_labels, read_call);
}

void api_scoring(struct server *srv, struct http_exchange *x)
{
    call_serve(srv, x, &answer_scoring, read_call);
}
