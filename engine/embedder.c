#include "engine/embedder.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "engine/embedder_files.h"
#include "engine/model/family.h"
#include "engine/opening.h"
#include "engine/run/encoder.h"
#include "engine/run/forward.h"
#include "engine/settings.h"
#include "engine/text/tokenizer/tokenizer.h"

#define MAX_TOKENS_DEFAULT 8192u
#define STEP_TOKENS_DEFAULT 256u
#define PROMPT_BYTES_MAX ((size_t)64 << 10)

struct embedder {
    struct embedder_config c; /* its strings are borrowed during embedder_open() only */
    struct model_config model;
    struct device *device;
    struct weights weights;
    struct tokenizer *tokenizer;
    uint32_t n_closing; /* tokens that the tokenizer's template puts behind a text */
    struct embedder_files files;
    struct embedder_labels labels; /* of a model that classifies */
    char name[128];

    /* The turns of the calls: a mutex alone would let one caller take it again and again. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t next_turn, turn; /* under lock */
    /* Of the call whose turn it is. */
    struct kv_pool pool; /* of a decoder, as the next two */
    struct batch batch;
    struct forward *forward;
    struct encoder *encoder; /* NULL: the model is a decoder */
    double *sum;             /* [D] */
};

/* --- opening: model and buffers --- */

static enum status load_weights(struct embedder *e, struct buf *why)
{
    struct opening o = {.load_format = DEFAULT_LOAD_FORMAT,
                        .dtype = e->c.dtype ? e->c.dtype : DEFAULT_DTYPE,
                        .quantization =
                            e->c.quantization ? e->c.quantization : DEFAULT_QUANTIZATION};
    struct device_config d = {.kind = DEVICE_CPU,
                              .cpu_variant = e->c.cpu_variant,
                              .n_threads = e->c.n_threads ? e->c.n_threads : 1,
                              .max_rows = e->c.step_tokens,
                              .measure = e->c.measure};
    struct weights_config w;
    enum status s = opening_weights(&w, &o, &e->model, e->c.model_dir, why);

    if (s != OK)
        return s;
    opening_fit_device(&d, &w);
    s = device_open(&e->device, &d, why);
    w.device = e->device;
    w.no_output = true;
    return s == OK ? weights_load(&e->weights, &w, why) : s;
}

static size_t n_ids(const struct buf *ids)
{
    return ids->len / sizeof(uint32_t);
}

/* Tokenize a letter anew. */
static enum status tokenize_letter(struct embedder *e, const char *letter, unsigned flags,
                                   struct buf *ids)
{
    buf_reset(ids);
    return tokenizer_encode(e->tokenizer, letter, 1, flags, ids);
}

/* Count the tokens that the tokenizer's template puts behind a text: tokenize a letter with the
 * template and without it. */
static enum status count_closing(struct embedder *e, struct buf *ids, struct buf *why)
{
    uint32_t own[8];
    size_t n_own, at = 0;
    enum status s = tokenize_letter(e, "a", 0, ids);

    n_own = n_ids(ids);
    if (s == OK && n_own <= ARRAY_SIZE(own)) {
        memcpy(own, ids->data, ids->len);
        s = tokenize_letter(e, "a", TOKENIZE_ADD_SPECIAL, ids);
    }
    if (s != OK || n_own == 0 || n_own > ARRAY_SIZE(own))
        return s == ERR_NOMEM ? buf_why(why, s, "out of memory") : OK;
    while (at + n_own < n_ids(ids) &&
           memcmp((uint32_t *)(void *)ids->data + at, own, n_own * sizeof *own) != 0)
        at++;
    e->n_closing = (uint32_t)(n_ids(ids) - at - n_own);
    return OK;
}

/* Refuse a model that wants lower case and whose tokenizer does not make it. */
static enum status check_case(struct embedder *e, struct buf *ids, struct buf *why)
{
    uint32_t lower = UINT32_MAX, upper = UINT32_MAX - 1; /* a letter is one token, or refused */
    enum status s = tokenize_letter(e, "a", 0, ids);

    if (!e->files.lowers)
        return OK;
    if (s == OK && n_ids(ids) == 1)
        memcpy(&lower, ids->data, sizeof lower);
    if (s == OK)
        s = tokenize_letter(e, "A", 0, ids);
    if (s == OK && n_ids(ids) == 1)
        memcpy(&upper, ids->data, sizeof upper);
    if (s == ERR_NOMEM)
        return buf_why(why, s, "out of memory");
    if (s == OK && lower == upper)
        return OK;
    return buf_why(why, ERR_UNSUPPORTED,
                   "sentence_bert_config.json: do_lower_case is not supported with a tokenizer "
                   "that tells A from a");
}

/* A tokenizer without a template of pairs is fine for single texts: embedder_join() refuses. */
static enum status check_template(const struct embedder *e, struct buf *why)
{
    struct tokenizer_pair t;
    uint32_t most = 0;

    if (!e->c.classifies || !tokenizer_pair(e->tokenizer, &t))
        return OK;
    for (size_t i = 0; i < t.n_before; i++)
        most = t.before[i] > most ? t.before[i] : most;
    for (size_t i = 0; i < t.n_between; i++)
        most = t.between[i] > most ? t.between[i] : most;
    for (size_t i = 0; i < t.n_after; i++)
        most = t.after[i] > most ? t.after[i] : most;
    return most < e->model.n_vocab
               ? OK
               : buf_why(why, ERR_INVALID,
                         "tokenizer.json: post_processor has token %u, but vocab_size is %u", most,
                         e->model.n_vocab);
}

static enum status try_tokenizer(struct embedder *e, struct buf *why)
{
    struct buf ids;

    buf_init(&ids, EMBEDDER_IDS_BYTES_MAX);
    enum status s = count_closing(e, &ids, why);
    if (s == OK)
        s = check_case(e, &ids, why);
    if (s == OK)
        s = check_template(e, why);
    buf_fini(&ids);
    return s;
}

/* An encoder computes a text in one step. */
static enum status choose_lengths(struct embedder *e, struct buf *why)
{
    uint32_t context = e->model.max_pos, most = e->files.max_tokens;

    if (e->c.max_tokens > context)
        return buf_why(why, ERR_INVALID,
                       "texts of %u tokens are above the model's max_position_embeddings %u",
                       e->c.max_tokens, context);
    if (e->c.max_tokens == 0) {
        e->c.max_tokens = context < MAX_TOKENS_DEFAULT ? context : MAX_TOKENS_DEFAULT;
        if (most > 0 && most < e->c.max_tokens)
            e->c.max_tokens = most;
    }
    model_set_context(&e->model, e->c.max_tokens);
    if (e->c.step_tokens == 0)
        e->c.step_tokens = STEP_TOKENS_DEFAULT;
    if (e->c.step_tokens > e->c.max_tokens || e->model.family->is_encoder)
        e->c.step_tokens = e->c.max_tokens;
    return OK;
}

static enum status create_forward(struct embedder *e)
{
    const struct model_config *m = &e->model;
    uint32_t n_out = e->files.pooling == POOLING_MEAN ? e->c.step_tokens : 1;

    e->pool =
        (struct kv_pool){.layout = kv_layout_of(e->weights.dtype),
                         .n_blocks = (e->c.max_tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS,
                         .n_layers = m->n_layers,
                         .n_kv_heads = m->n_kv_heads,
                         .head_dim = m->head_dim};
    struct forward_config f = {.group = device_group_of(e->device),
                               .model = m,
                               .weights = &e->weights,
                               .n_rows_max = e->c.step_tokens,
                               .n_out_max = n_out,
                               .n_pos = e->c.max_tokens,
                               .n_seqs_max = 1,
                               .n_blocks_max = e->pool.n_blocks,
                               .hidden = true};
    e->pool.base = device_alloc(e->device, kv_block_bytes(&e->pool) * e->pool.n_blocks);
    if (!e->pool.base)
        return ERR_NOMEM;
    enum status s = batch_create(&e->batch, e->c.step_tokens, 1, n_out, e->pool.n_blocks);
    return s == OK ? forward_create(&e->forward, &f) : s;
}

static enum status create_buffers(struct embedder *e)
{
    struct encoder_config c = {.group = device_group_of(e->device),
                               .model = &e->model,
                               .weights = &e->weights,
                               .n_tokens_max = e->c.max_tokens};

    e->sum = calloc(e->model.dim, sizeof *e->sum);
    if (!e->sum)
        return ERR_NOMEM;
    return e->model.family->is_encoder ? encoder_create(&e->encoder, &c) : create_forward(e);
}

static void set_name(struct embedder *e)
{
    const char *path = e->c.model_dir;
    size_t end = strlen(path), begin;

    while (end > 1 && path[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/';)
        begin--;
    snprintf(e->name, sizeof e->name, "%.*s", (int)(end - begin), path + begin);
}

/* Refuse a model that is of the other kind, and read the labels. */
static enum status check_use(struct embedder *e, struct buf *why)
{
    if (!e->c.classifies && e->model.n_labels > 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "a model that classifies texts embeds none: name it by {rerank_model}");
    if (e->c.classifies && e->model.n_labels == 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "a model of the family %s has no labels; BertForSequenceClassification, "
                       "RobertaForSequenceClassification and XLMRobertaForSequenceClassification "
                       "have",
                       e->model.family->name);
    return e->c.classifies
               ? embedder_labels_load(&e->labels, e->c.model_dir, e->model.n_labels, why)
               : OK;
}

static enum status open_model(struct embedder *e, struct buf *why)
{
    enum status s = hash_init();

    if (s != OK)
        return buf_why(why, s, "libsodium cannot start");
    s = model_config_load(&e->model, e->c.model_dir, why);
    if (s == OK)
        s = embedder_files_load(&e->files, e->c.model_dir, e->model.dim,
                                e->model.family->is_encoder, why);
    if (s == OK)
        s = check_use(e, why);
    if (s == OK)
        s = choose_lengths(e, why);
    if (s == OK)
        s = tokenizer_load(&e->tokenizer, e->c.model_dir, why);
    if (s == OK)
        s = try_tokenizer(e, why);
    if (s == OK)
        s = load_weights(e, why);
    if (s == OK && (s = create_buffers(e)) != OK)
        buf_why(why, s, "out of memory for the buffers of an embedding model");
    return s;
}

enum status embedder_open(struct embedder **out, const struct embedder_config *config,
                          struct buf *why)
{
    struct embedder *e = calloc(1, sizeof *e);
    struct buf words;

    *out = NULL;
    if (!e)
        return buf_why(why, ERR_NOMEM, "out of memory");
    e->c = *config;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    buf_init(&words, BUF_WHY_MAX);
    set_name(e);
    enum status s = open_model(e, &words);
    if (s == OK) {
        *out = e;
    } else {
        buf_why(why, s, "%s: %s", e->c.classifies ? "{rerank_model}" : "{embedding_model}",
                buf_str(&words));
        embedder_close(e);
    }
    buf_fini(&words);
    return s;
}

void embedder_close(struct embedder *e)
{
    if (!e)
        return;
    encoder_destroy(e->encoder);
    forward_destroy(e->forward);
    batch_destroy(&e->batch);
    device_free(e->device, e->pool.base);
    weights_free(&e->weights);
    tokenizer_destroy(e->tokenizer);
    device_close(e->device);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    embedder_files_fini(&e->files);
    embedder_labels_fini(&e->labels);
    free(e->sum);
    free(e);
}

uint32_t embedder_dim(const struct embedder *e)
{
    return e->model.dim;
}

const char *embedder_name(const struct embedder *e)
{
    return e->name;
}

uint32_t embedder_max_tokens(const struct embedder *e)
{
    return e->c.max_tokens;
}

uint32_t embedder_n_vocab(const struct embedder *e)
{
    return e->model.n_vocab;
}

/* --- tokens --- */

/* Tokenize a text behind its prompt. */
static enum status tokenize_as(const struct embedder *e, enum embedder_role role, const char *text,
                               size_t len, unsigned flags, struct buf *ids)
{
    const char *prompt = role == EMBEDDER_QUERY      ? e->files.query_prompt
                         : role == EMBEDDER_DOCUMENT ? e->files.document_prompt
                                                     : NULL;
    enum status s = len > EMBEDDER_TEXT_BYTES_MAX ? ERR_TOO_LARGE : OK;
    struct buf whole;

    if (s != OK || !prompt)
        return s == OK ? tokenizer_encode(e->tokenizer, text, len, flags, ids) : s;
    buf_init(&whole, EMBEDDER_TEXT_BYTES_MAX + PROMPT_BYTES_MAX);
    s = buf_append(&whole, prompt, strlen(prompt));
    if (s == OK)
        s = buf_append(&whole, text, len);
    if (s == OK)
        s = tokenizer_encode(e->tokenizer, buf_str(&whole), whole.len, flags, ids);
    buf_fini(&whole);
    return s;
}

enum status embedder_tokenize(const struct embedder *e, enum embedder_role role, const char *text,
                              size_t len, bool add_special, struct buf *ids, struct buf *why)
{
    size_t before = n_ids(ids);
    enum status s = tokenize_as(e, role, text, len, add_special ? TOKENIZE_ADD_SPECIAL : 0, ids);

    if (s == ERR_TOO_LARGE)
        return buf_why(why, s, "a text of %zu bytes is too long to be embedded", len);
    if (s != OK)
        return buf_why(why, s,
                       s == ERR_NOMEM ? "out of memory"
                                      : "the model's tokenizer cannot read this text");
    const uint32_t *all = (const uint32_t *)(const void *)ids->data; /* malloc aligns it */
    if (n_ids(ids) == before)
        return buf_why(why, ERR_INVALID, "a text without tokens cannot be embedded");
    for (size_t i = before; i < n_ids(ids); i++)
        if (all[i] >= e->model.n_vocab)
            return buf_why(why, ERR_INVALID,
                           "the model's tokenizer gives token %u, but its vocab_size is "
                           "%u",
                           all[i], e->model.n_vocab);
    return OK;
}

uint32_t embedder_cut(const struct embedder *e, uint32_t *ids, size_t n, uint32_t n_max,
                      bool has_special)
{
    if (n <= n_max)
        return (uint32_t)n;
    size_t n_closing = has_special && e->n_closing < n_max ? e->n_closing : 0;
    memmove(ids + n_max - n_closing, ids + n - n_closing, n_closing * sizeof *ids);
    return n_max;
}

/* --- encoding --- */

/* Compute all steps. The hidden states that count are added in the order of their positions, so
 * that the sum does not depend on the size of the steps. */
static enum status run_steps(struct embedder *e, const uint32_t *ids, uint32_t n)
{
    uint32_t step = e->c.step_tokens, dim = e->model.dim;
    float *hidden;

    memset(e->sum, 0, dim * sizeof *e->sum);
    for (uint32_t pos = 0; pos < n; pos += step) {
        uint32_t n_rows = n - pos < step ? n - pos : step;
        bool is_last = pos + n_rows == n;
        uint32_t n_out = e->files.pooling == POOLING_MEAN ? n_rows : is_last ? 1 : 0;

        batch_reset(&e->batch);
        batch_add_blocks(&e->batch, 0, KV_SEGMENT_TOKENS_MAX, ids + pos, pos, n_rows, n_out);
        enum status s = forward_run(e->forward, &e->batch, &e->pool, &hidden);
        if (s != OK)
            return s;
        for (uint32_t row = 0; row < n_out; row++)
            for (uint32_t i = 0; i < dim; i++)
                e->sum[i] += hidden[(size_t)row * dim + i];
    }
    return OK;
}

/* Compute the text in one step, as every token sees all others. */
static enum status run_encoder(struct embedder *e, const uint32_t *ids, uint32_t n)
{
    uint32_t dim = e->model.dim;
    uint32_t first = e->files.pooling == POOLING_LAST ? n - 1 : 0;
    uint32_t end = e->files.pooling == POOLING_FIRST ? 1 : n;
    const float *hidden;
    enum status s = encoder_run(e->encoder, ids, n, n, &hidden);

    memset(e->sum, 0, dim * sizeof *e->sum);
    for (uint32_t row = first; s == OK && row < end; row++)
        for (uint32_t i = 0; i < dim; i++)
            e->sum[i] += hidden[(size_t)row * dim + i];
    return s;
}

/* Scale the sum to length 1; a mean has the same direction. */
static enum status normalize(const struct embedder *e, float *out, struct buf *why)
{
    double squares = 0;

    for (uint32_t i = 0; i < e->model.dim; i++)
        squares += e->sum[i] * e->sum[i];
    if (!(squares > 0) || !isfinite(squares))
        return buf_why(why, ERR_CORRUPT,
                       "the embedding model gave no finite vector: its weights may be damaged");
    for (uint32_t i = 0; i < e->model.dim; i++)
        out[i] = (float)(e->sum[i] / sqrt(squares));
    return OK;
}

static void take_turn(struct embedder *e)
{
    pthread_mutex_lock(&e->lock);
    uint64_t turn = e->next_turn++;
    while (e->turn != turn)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

static void end_turn(struct embedder *e)
{
    pthread_mutex_lock(&e->lock);
    e->turn++;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

enum status embedder_encode_ids(struct embedder *e, const uint32_t *ids, uint32_t n, float *out,
                                struct buf *why)
{
    ASSERT(n > 0 && n <= e->c.max_tokens);
    take_turn(e);
    enum status s = e->encoder ? run_encoder(e, ids, n) : run_steps(e, ids, n);
    if (s != OK)
        buf_why(why, s, "the model failed (%s)", status_name(s));
    else
        s = normalize(e, out, why);
    end_turn(e);
    return s;
}

enum status embedder_encode(struct embedder *e, enum embedder_role role, const char *text,
                            size_t len, float *out, uint32_t *n_tokens, struct buf *why)
{
    struct buf ids;
    uint32_t n = 0;

    buf_init(&ids, EMBEDDER_IDS_BYTES_MAX);
    enum status s = embedder_tokenize(e, role, text, len, true, &ids, why);
    if (s == OK) {
        uint32_t *all = (uint32_t *)(void *)ids.data;
        n = embedder_cut(e, all, n_ids(&ids), e->c.max_tokens, true);
        s = embedder_encode_ids(e, all, n, out, why);
    }
    if (n_tokens)
        *n_tokens = s == OK ? n : 0;
    buf_fini(&ids);
    return s;
}

/* --- labels --- */

const struct embedder_labels *embedder_labels(const struct embedder *e)
{
    return e->model.n_labels > 0 ? &e->labels : NULL;
}

/* Cut the longer of two lengths until both are equal, then both, to n_max in all. */
static void cut_lengths(size_t *a, size_t *b, size_t n_max)
{
    size_t *longer = *a > *b ? a : b, *shorter = *a > *b ? b : a;

    if (*a + *b <= n_max)
        return;
    if (2 * *shorter > n_max)
        *shorter = n_max / 2;
    *longer = n_max - *shorter;
}

enum status embedder_join(const struct embedder *e, const struct buf *a, const struct buf *b,
                          uint32_t n_max, struct buf *ids, uint32_t *n_first, struct buf *why)
{
    struct tokenizer_pair t;
    size_t n_a = n_ids(a), n_b = n_ids(b);

    if (!tokenizer_pair(e->tokenizer, &t))
        return buf_why(why, ERR_UNSUPPORTED,
                       "the model's tokenizer.json has no template of two texts (post_processor)");
    size_t n_own = t.n_before + t.n_between + t.n_after;
    if (n_max > 0 && n_max <= n_own)
        return buf_why(why, ERR_INVALID, "%u tokens leave no room beside the %zu of the template",
                       n_max, n_own);
    if (n_max > 0)
        cut_lengths(&n_a, &n_b, n_max - n_own);
    const struct {
        const void *ids;
        size_t n;
    } parts[] = {{t.before, t.n_before},
                 {a->data, n_a},
                 {t.between, t.n_between},
                 {b->data, n_b},
                 {t.after, t.n_after}};
    enum status s = OK;
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(parts); i++)
        s = buf_append(ids, parts[i].ids, parts[i].n * sizeof(uint32_t));
    *n_first = (uint32_t)(t.has_types && e->labels.has_types ? t.n_before + n_a + t.n_first
                                                             : n_own + n_a + n_b);
    return s == OK ? OK : buf_why(why, s, "out of memory");
}

enum status embedder_classify_ids(struct embedder *e, const uint32_t *ids, uint32_t n,
                                  uint32_t n_first, float *out, struct buf *why)
{
    ASSERT(n > 0 && n <= e->c.max_tokens);
    take_turn(e);
    enum status s = encoder_classify(e->encoder, ids, n, n_first, out);
    end_turn(e);
    if (s != OK)
        return buf_why(why, s, "the model failed (%s)", status_name(s));
    for (uint32_t i = 0; i < e->model.n_labels; i++)
        if (!isfinite(out[i]))
            return buf_why(why, ERR_CORRUPT,
                           "the model gave no finite score: its weights may be damaged");
    return OK;
}
