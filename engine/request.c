#include "engine/request.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/adapters.h"
#include "engine/engine.h"
#include "engine/engine_internal.h"
#include "engine/run/vocab_mask.h"

static enum status check_ids(const struct engine_info *info, const uint32_t *ids, uint32_t n_ids,
                             bool generates, struct buf *why)
{
    if (n_ids == 0)
        return buf_why(why, ERR_INVALID, "the prompt is empty");
    if (n_ids > info->max_model_len)
        return buf_why(why, ERR_INVALID,
                       "This model's maximum context length is %u tokens. "
                       "The prompt has %u tokens; shorten the prompt",
                       info->max_model_len, n_ids);
    if (n_ids == info->max_model_len && generates)
        return buf_why(why, ERR_INVALID,
                       "This model's maximum context length is %u tokens. "
                       "The prompt has %u tokens and at least one must be generated; shorten the "
                       "prompt",
                       info->max_model_len, n_ids);
    for (uint32_t i = 0; i < n_ids; i++)
        if (ids[i] >= info->n_vocab)
            return buf_why(why, ERR_INVALID, "token id %u is outside of the vocabulary (%u)",
                           ids[i], info->n_vocab);
    return OK;
}

static enum status check_spans(uint32_t n_ids, const uint32_t *ends, uint32_t n, struct buf *why)
{
    if (n > REQUEST_N_SPANS_MAX)
        return buf_why(why, ERR_INVALID, "more than %d spans", REQUEST_N_SPANS_MAX);
    for (uint32_t i = 0; i < n; i++)
        if (ends[i] == 0 || ends[i] > n_ids || (i > 0 && ends[i] <= ends[i - 1]))
            return buf_why(why, ERR_INVALID, "span ends must ascend and lie within the prompt");
    return OK;
}

/* A block has one scope, so the public part ends at a span end. */
static enum status check_public(uint32_t n_public, const uint32_t *ends, uint32_t n,
                                struct buf *why)
{
    for (uint32_t i = 0; i < n; i++)
        if (ends[i] == n_public)
            return OK;
    return n_public == 0
               ? OK
               : buf_why(why, ERR_INVALID, "%u public tokens end at no span end", n_public);
}

/* Copies into r's one allocation; *next moves on. */
static void *carve(unsigned char **next, size_t n_bytes, const void *from)
{
    void *at = *next;

    if (from && n_bytes)
        memcpy(at, from, n_bytes);
    *next += (n_bytes + 15) & ~(size_t)15;
    return at;
}

static size_t stops_bytes(const struct stopping *stopping)
{
    size_t n = 0;

    for (uint32_t i = 0; i < stopping->n_stops; i++)
        n += (stopping->stops[i].len + 15u) & ~(size_t)15;
    return n;
}

static void copy_stops(struct request *r, unsigned char **next, const struct stopping *stopping)
{
    struct detok_stop *stops = carve(next, stopping->n_stops * sizeof *stops, stopping->stops);

    for (uint32_t i = 0; i < stopping->n_stops; i++)
        stops[i].text = carve(next, stops[i].len, stopping->stops[i].text);
    r->stopping.stops = stops;
    r->stopping.stop_ids = carve(next, stopping->n_stop_ids * sizeof(uint32_t), stopping->stop_ids);
}

static size_t rules_bytes(const struct vocab_rules *rules, uint32_t n_vocab)
{
    size_t n_mask = rules->allowed ? vocab_mask_n_words(n_vocab) : 0;

    return (n_mask + rules->n_words + vocab_rules_n_word_ids(rules)) * sizeof(uint32_t);
}

static void copy_rules(struct request *r, unsigned char **next, const struct vocab_rules *rules,
                       uint32_t n_vocab)
{
    size_t n_mask = rules->allowed ? vocab_mask_n_words(n_vocab) : 0;
    const uint32_t *allowed = carve(next, n_mask * sizeof(uint32_t), rules->allowed);

    r->sampling.rules.allowed = rules->allowed ? allowed : NULL;
    r->sampling.rules.word_ends = carve(next, rules->n_words * sizeof(uint32_t), rules->word_ends);
    r->sampling.rules.word_ids =
        carve(next, vocab_rules_n_word_ids(rules) * sizeof(uint32_t), rules->word_ids);
}

static enum status check_params(const struct engine_info *info, const struct sampling *sp,
                                const struct stopping *stopping, struct buf *why)
{
    if (sp->n_logprobs > SAMPLING_N_LOGPROBS_MAX)
        return buf_why(why, ERR_INVALID, "at most %d logprobs", SAMPLING_N_LOGPROBS_MAX);
    if (sp->n_logit_bias > SAMPLING_N_LOGIT_BIAS_MAX)
        return buf_why(why, ERR_INVALID, "logit_bias: at most %d entries",
                       SAMPLING_N_LOGIT_BIAS_MAX);
    for (uint32_t i = 0; i < sp->n_logit_bias; i++)
        if (sp->logit_bias[i].id >= info->n_vocab)
            return buf_why(why, ERR_INVALID,
                           "logit_bias: token id %u is outside of the "
                           "vocabulary (%u)",
                           sp->logit_bias[i].id, info->n_vocab);
    if (!vocab_rules_are_valid(&sp->rules, info->n_vocab))
        return buf_why(why, ERR_INVALID,
                       "allowed_token_ids allows no id, or bad_words has more than %d words or %d "
                       "ids, or an id outside of the vocabulary (%u)",
                       VOCAB_N_WORDS_MAX, VOCAB_N_WORD_IDS_MAX, info->n_vocab);
    if (stopping->n_stops > DETOK_N_STOPS_MAX || stopping->n_stop_ids > REQUEST_N_STOP_IDS_MAX)
        return buf_why(why, ERR_INVALID, "at most %d stop strings and %d stop_token_ids",
                       DETOK_N_STOPS_MAX, REQUEST_N_STOP_IDS_MAX);
    for (uint32_t i = 0; i < stopping->n_stops; i++)
        if (stopping->stops[i].len == 0 || stopping->stops[i].len > DETOK_STOP_BYTES_MAX)
            return buf_why(why, ERR_INVALID, "stop: a string must have 1 to %d bytes",
                           DETOK_STOP_BYTES_MAX);
    return OK;
}

/* Allocate the arrays for tokens and logprobs. The kernel maps pages of a large calloc() at the
 * first write, so a large max_tokens costs address space and not memory. */
static enum status alloc_outputs(struct request *r, uint32_t n_ids, uint32_t n_out)
{
    size_t n_tops = r->sampling.n_logprobs;
    bool scores = r->sampling.want_prompt_logprobs;

    r->ids = calloc((size_t)n_ids + n_out, sizeof *r->ids);
    r->out = calloc((size_t)n_out + 1, sizeof *r->out); /* a prefill has no token, but an array */
    if (n_tops)
        r->out_top = calloc((n_out + 1) * n_tops, sizeof *r->out_top);
    if (scores)
        r->prompt_out = calloc(n_ids, sizeof *r->prompt_out);
    if (scores && n_tops)
        r->prompt_top = calloc(n_ids * n_tops, sizeof *r->prompt_top);
    if (!r->ids || !r->out || (n_tops && !r->out_top) || (scores && !r->prompt_out) ||
        (scores && n_tops && !r->prompt_top))
        return ERR_NOMEM;
    return OK;
}

static void free_request(struct request *r)
{
    adapter_unref(r->adapter);
    grammar_unref(r->grammar);
    free(r->ids);
    free(r->out);
    free(r->out_top);
    free(r->prompt_out);
    free(r->prompt_top);
    free((uint32_t *)r->prediction);
    free(r);
}

static void hash_prompt(struct request *r, const struct engine *e, const struct kv_scope *scope,
                        uint32_t n_public, struct kv_key *keys)
{
    struct cache_prompt *p = &r->prompt;

    kv_chain_init(&p->chain, engine_fingerprint(e), scope, engine_segment_tokens(e));
    p->n_keys =
        kv_chain_prompt(&p->chain, p->ids, p->n_ids, p->span_ends, p->n_span_ends, n_public, keys);
    p->keys = keys;
    p->n_public = n_public;
}

enum status request_create(struct request **out, const struct engine *e, const uint32_t *ids,
                           uint32_t n_ids, const uint32_t *span_ends, uint32_t n_span_ends,
                           const struct kv_scope *scope, uint32_t n_public,
                           const struct sampling *sampling, const struct stopping *stopping,
                           struct buf *why)
{
    const struct engine_info *info = engine_info(e);
    enum status s = check_ids(info, ids, n_ids, !stopping_is_prefill(stopping), why);

    *out = NULL;
    if (s == OK)
        s = check_spans(n_ids, span_ends, n_span_ends, why);
    if (s == OK)
        s = check_public(n_public, span_ends, n_span_ends, why);
    if (s == OK)
        s = check_params(info, sampling, stopping, why);
    if (s != OK)
        return s;

    uint32_t room = info->max_model_len - n_ids;
    uint32_t n_out = stopping->max_tokens < room ? stopping->max_tokens : room;
    uint32_t n_keys_max = cache_blocks_max(n_ids, n_span_ends, 0);
    size_t bytes =
        sizeof(struct request) + n_span_ends * sizeof(uint32_t) +
        n_keys_max * sizeof(struct kv_key) + sampling->n_logit_bias * sizeof(struct logit_bias) +
        stopping->n_stop_ids * sizeof(uint32_t) + stopping->n_stops * sizeof(struct detok_stop) +
        stops_bytes(stopping) + rules_bytes(&sampling->rules, info->n_vocab) + 12 * 16;
    struct request *r = calloc(1, bytes);
    if (!r)
        return buf_why(why, ERR_NOMEM, "out of memory for this request");
    r->sampling = *sampling;
    if (alloc_outputs(r, n_ids, n_out) != OK) {
        free_request(r);
        return buf_why(why, ERR_NOMEM, "out of memory for this request");
    }
    unsigned char *next = (unsigned char *)r + ((sizeof *r + 15) & ~(size_t)15);
    r->stopping = *stopping;
    r->stopping.max_tokens = n_out;
    r->stop_id = r->stop_string = -1;
    r->grammar_prefix = "";
    r->prompt.n_ids = n_ids;
    r->prompt.n_span_ends = n_span_ends;
    memcpy(r->ids, ids, n_ids * sizeof *ids);
    r->prompt.ids = r->ids;
    r->prompt.span_ends = carve(&next, n_span_ends * sizeof(uint32_t), span_ends);
    r->sampling.logit_bias =
        carve(&next, sampling->n_logit_bias * sizeof(struct logit_bias), sampling->logit_bias);
    copy_rules(r, &next, &sampling->rules, info->n_vocab);
    copy_stops(r, &next, stopping);
    hash_prompt(r, e, scope, n_public, carve(&next, n_keys_max * sizeof(struct kv_key), NULL));
    atomic_init(&r->refs, 1);
    atomic_init(&r->n_prompt_out, n_ids == 1 && r->prompt_out); /* token 0 has no logprob */
    *out = r;
    return OK;
}

enum status request_predict(struct request *r, const struct engine *e, const uint32_t *ids,
                            uint32_t n, struct buf *why)
{
    uint32_t n_vocab = engine_info(e)->n_vocab, *copy;

    ASSERT(!r->prediction);
    n = n < engine_info(e)->max_model_len ? n : engine_info(e)->max_model_len;
    if (n == 0)
        return OK;
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= n_vocab)
            return buf_why(why, ERR_INVALID, "token id %u is outside of the vocabulary (%u)",
                           ids[i], n_vocab);
    copy = malloc(n * sizeof *copy);
    if (!copy)
        return buf_why(why, ERR_NOMEM, "out of memory for this request");
    memcpy(copy, ids, n * sizeof *copy);
    r->prediction = copy;
    r->n_prediction = n;
    return OK;
}

void request_adapt(struct request *r, const struct engine *e, struct adapter *adapter)
{
    struct kv_scope scope = r->prompt.chain.scope;

    ASSERT(!r->adapter);
    adapter_narrow(adapter, &scope);
    hash_prompt(r, e, &scope, 0, (struct kv_key *)(uintptr_t)r->prompt.keys);
    r->adapter = adapter_ref(adapter);
}

void request_ref(struct request *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
}

void request_unref(struct request *r)
{
    if (!r || atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) > 1)
        return;
    free_request(r);
}

void request_poll(struct request *r)
{
    /* Sequentially consistent with the exchange of wake() in step.c: either this store comes first
     * and the engine calls wake() again, or the reads that follow see the tokens. */
    atomic_store(&r->woken, false);
}

void request_cancel(struct request *r)
{
    atomic_store(&r->cancel, true);
}

uint32_t request_n_out(const struct request *r)
{
    return atomic_load(&r->n_out);
}

enum finish_reason request_finish(const struct request *r)
{
    return (enum finish_reason)atomic_load(&r->finish);
}

uint32_t request_n_written(const struct request *r)
{
    uint32_t n_cached = atomic_load(&r->n_cached);

    return r->n_held > n_cached ? r->n_held - n_cached : 0;
}
