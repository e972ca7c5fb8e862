#include "loadgen/sim/ids.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "loadgen/load/draw.h"

#define ID_MASK ((1u << 23) - 1) /* what a key takes: cache/key.h */
/* As engine/text/spans.h: a prompt of more documents stays one span. */
#define N_DOCUMENTS_MAX 256

uint32_t sim_id(uint64_t name, uint32_t position)
{
    uint64_t x = name * UINT64_C(0x9E3779B97F4A7C15) + position * UINT64_C(0xD6E8FEB86659FD93);

    /* A multiplication spreads what differs in low bits upwards, the shift brings it down. */
    x ^= x >> 32;
    x *= UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(x >> 41) & ID_MASK;
}

uint64_t sim_answer_name(const struct load_request *r, uint32_t turn, bool real_history)
{
    return real_history && r->session ? draw_mix(r->session, ~(uint64_t)turn)
                                      : draw_mix(r->index, UINT64_C(0x616E73776572));
}

static uint32_t count_words(const char *text, size_t len)
{
    uint32_t n = 0;
    bool in_word = false;

    for (size_t i = 0; i < len; i++) {
        bool is_word = !isspace((unsigned char)text[i]);
        n += is_word && !in_word;
        in_word = is_word;
    }
    return n;
}

uint64_t sim_part_tokens(const struct part *p)
{
    if (p->n_tokens || !p->text)
        return p->n_tokens;
    return (uint64_t)ceil(count_words(p->text, p->text_len) * IDS_PER_WORD);
}

uint64_t sim_part_name(const struct load_request *r, const struct part *p,
                       const struct sim_prompt_config *config)
{
    return p->answer_of != NO_TURN && config->real_history && r->session
               ? sim_answer_name(r, p->answer_of, true)
               : p->id;
}

static bool is_document(const struct load_request *r, uint32_t i)
{
    return i < r->n_parts && r->parts[i].role == PART_DOCUMENT;
}

/* Places where one part ends and another, or the prompt's end, follows. */
static uint32_t count_spans(const struct load_request *r)
{
    uint32_t n_documents = 0, n = 0;

    for (uint32_t i = 0; i < r->n_parts; i++) {
        n_documents += is_document(r, i);
        n += is_document(r, i) || is_document(r, i + 1);
    }
    return n_documents > N_DOCUMENTS_MAX ? 0 : n;
}

static void fill(struct cache_prompt *p, const struct load_request *r, uint32_t *ids,
                 uint32_t *span_ends, bool has_spans, const struct sim_prompt_config *config)
{
    for (uint32_t i = 0; i < r->n_parts; i++) {
        uint64_t n = sim_part_tokens(&r->parts[i]), name = sim_part_name(r, &r->parts[i], config);

        for (uint32_t k = 0; k < n; k++)
            ids[p->n_ids++] = sim_id(name, k);
        uint32_t last = p->n_span_ends ? span_ends[p->n_span_ends - 1] : 0;
        if (has_spans && (is_document(r, i) || is_document(r, i + 1)) && p->n_ids > last)
            span_ends[p->n_span_ends++] = p->n_ids;
    }
    if (p->n_ids == 0) /* no server takes an empty prompt: it would at least put a BOS there */
        ids[p->n_ids++] = 0;
}

enum status sim_prompt_make(struct cache_prompt *out, const struct load_request *r,
                            const struct sim_prompt_config *config)
{
    static const uint8_t fingerprint[KV_FINGERPRINT_BYTES] = "tarn-loadgen sim";
    struct kv_scope scope = {{0}};
    uint32_t n_spans = count_spans(r);
    uint64_t n_ids = 0;

    *out = (struct cache_prompt){0};
    for (uint32_t i = 0; i < r->n_parts; i++)
        n_ids += sim_part_tokens(&r->parts[i]);
    if (n_ids > SIM_PROMPT_TOKENS_MAX)
        return ERR_TOO_LARGE;
    n_ids += n_ids == 0;
    uint32_t n_keys_max = cache_blocks_max((uint32_t)n_ids, n_spans, 0);
    struct kv_key *keys = malloc(n_keys_max * sizeof *keys + (n_ids + n_spans) * sizeof(uint32_t));
    if (!keys)
        return ERR_NOMEM;
    uint32_t *ids = (uint32_t *)(keys + n_keys_max), *span_ends = ids + n_ids;
    fill(out, r, ids, span_ends, n_spans > 0, config);
    memcpy(scope.bytes, &config->tenant, sizeof config->tenant);
    kv_chain_init(&out->chain, fingerprint, &scope, config->segment_tokens);
    out->n_keys =
        kv_chain_prompt(&out->chain, ids, out->n_ids, span_ends, out->n_span_ends, 0, keys);
    out->ids = ids;
    out->span_ends = span_ends;
    out->keys = keys;
    return OK;
}

void sim_prompt_fini(struct cache_prompt *p)
{
    free((void *)(uintptr_t)p->keys);
    *p = (struct cache_prompt){0};
}
