#include "engine/draft_model.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/model/family.h"
#include "engine/run/forward.h"
#include "engine/sched/drafting.h"

#define NONE UINT32_MAX
/* A seat that was not used for so many steps may be taken by another sequence. */
#define SEAT_IDLE_STEPS 32
/* Where more sequences want a seat than there are, one seat changes hands every so many steps. The
 * next sequence reads its whole text again, some forward passes. */
#define SEAT_TURN_STEPS 64

struct seat {
    uint32_t slot;    /* NONE: free */
    uint32_t start;   /* position of the sequence that is the seat's first */
    uint32_t n;       /* tokens behind it that have KV */
    bool is_foreign;  /* an id of the sequence is not in the draft model's vocabulary */
    uint64_t used_at; /* number of the step */
    uint64_t since;   /* that at which the sequence took the seat */
    uint32_t *ids;    /* [window] */
};

/* A sequence that asked for a seat and got none; all 0: none. */
struct wait {
    uint64_t since, asked_at; /* numbers of steps */
};

struct draft_model {
    struct draft_model_config c;
    char *dir;
    struct model_config model;
    struct weights_config weights_config;
    struct weights weights;
    struct device *device;
    uint64_t graph_bytes; /* reserved for recorded steps; 0: none is recorded */
    uint32_t n_vocab;     /* ids that both models have */
    uint32_t window, blocks_per_seat;
    struct kv_pool pool;
    struct batch batch;
    struct forward *forward;

    uint32_t n_seats;
    struct seat *seats; /* [n_seats] */
    uint32_t *ids;      /* [n_seats, window] of the seats */
    uint32_t *seat_of;  /* [n_slots]; NONE */
    struct wait *waits; /* [n_slots] */
    uint64_t n_steps;
    uint64_t turned_at;       /* step at which a waiting sequence took a seat that was in use */
    struct draft_seq **picks; /* [n_seats] of the pass under way: those that get a guess */
    uint32_t n_picks;
    float *logits;                     /* [n_picks, V] of the pass under way */
    struct sampler_candidate *scratch; /* [n_seats, n_vocab] */
};

/* --- opening --- */

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Put the option's name before the words of an error. */
static enum status name_option(enum status s, struct buf *words, struct buf *why)
{
    if (s != OK)
        buf_why(why, s, "{draft_model}: %s", words->len ? buf_str(words) : status_name(s));
    buf_fini(words);
    return s;
}

static enum status read_config(struct draft_model *m, struct buf *why)
{
    enum status s = model_config_load(&m->model, m->dir, why);

    if (s == OK)
        s = opening_check_generates(&m->model, why);
    if (s == OK)
        s = opening_weights(&m->weights_config, &m->c.opening, &m->model, m->dir, why);
    if (s == OK && m->model.max_pos < DRAFT_WINDOW_MIN)
        s = buf_why(why, ERR_INVALID,
                    "max_position_embeddings is %u, and a draft model needs at least %u",
                    m->model.max_pos, DRAFT_WINDOW_MIN);
    return s;
}

enum status draft_model_read(struct draft_model **out, const struct draft_model_config *config,
                             struct buf *why)
{
    struct draft_model *m = calloc(1, sizeof *m);
    struct buf words;
    enum status s;

    *out = NULL;
    buf_init(&words, BUF_WHY_MAX);
    if (m) {
        m->c = *config;
        m->dir = strdup(config->dir);
    }
    s = m && m->dir ? read_config(m, &words) : buf_why(&words, ERR_NOMEM, "out of memory");
    if (s == OK)
        *out = m;
    else
        draft_model_close(m);
    return name_option(s, &words, why);
}

static uint32_t n_rows_max(const struct draft_model *m)
{
    return min_u32(m->c.n_rows_max, DRAFT_ROWS_MAX);
}

void draft_model_fit(const struct draft_model *m, struct device_config *d)
{
    struct device_config own = *d;

    opening_fit_device(&own, &m->weights_config);
    d->max_k = own.max_k > d->max_k ? own.max_k : d->max_k;
    d->max_heads = own.max_heads > d->max_heads ? own.max_heads : d->max_heads;
    d->max_head_dim = own.max_head_dim > d->max_head_dim ? own.max_head_dim : d->max_head_dim;
}

static bool same_piece(const struct tokenizer *a, const struct tokenizer *b, uint32_t id)
{
    size_t n_a = 0, n_b = 0;
    const char *x = tokenizer_piece(a, id, &n_a), *y = tokenizer_piece(b, id, &n_b);

    if (!x || !y)
        return !x && !y;
    return n_a == n_b && memcmp(x, y, n_a) == 0 &&
           tokenizer_is_special(a, id) == tokenizer_is_special(b, id);
}

/* Refuse a tokenizer in which an id means something else. */
static enum status compare_tokenizers(const struct tokenizer *t, const struct tokenizer *own,
                                      struct buf *why)
{
    uint32_t n = tokenizer_n_vocab(t);

    if (tokenizer_n_vocab(own) != n)
        return buf_why(why, ERR_INVALID,
                       "the tokenizer has %u tokens, and that of {model} has %u: a draft model "
                       "needs the same tokenizer",
                       tokenizer_n_vocab(own), n);
    for (uint32_t id = 0; id < n; id++)
        if (!same_piece(t, own, id))
            return buf_why(why, ERR_INVALID,
                           "token %u is not the same as in {model}: a draft model needs the same "
                           "tokenizer",
                           id);
    return OK;
}

/* Sizes of vocabularies may differ behind the tokenizer's last id, where rows only pad. */
static enum status check_vocabulary(struct draft_model *m, const struct tokenizer *t,
                                    uint32_t n_vocab, struct buf *why)
{
    struct tokenizer *own = NULL;
    enum status s = OK;

    m->n_vocab = min_u32(n_vocab, m->model.n_vocab);
    if (t)
        s = tokenizer_load(&own, m->dir, why);
    if (s == OK && t)
        s = compare_tokenizers(t, own, why);
    tokenizer_destroy(own);
    if (s == OK && n_vocab != m->model.n_vocab && (!t || m->n_vocab < tokenizer_n_vocab(t)))
        s = buf_why(why, ERR_INVALID,
                    "vocab_size is %u, and that of {model} is %u: a draft model needs the same "
                    "vocabulary",
                    m->model.n_vocab, n_vocab);
    return s;
}

/* Divide the store into seats. */
static enum status size_store(struct draft_model *m, struct buf *why)
{
    uint32_t len = min_u32(m->c.max_model_len, DRAFT_WINDOW_MAX) + DRAFT_TOKENS_MAX;
    enum dtype kv;
    enum status s =
        opening_kv_dtype("the type of KV,", "auto", m->weights.dtype, m->device, &kv, why);

    if (s != OK)
        return s;
    len = len < DRAFT_WINDOW_MIN ? DRAFT_WINDOW_MIN : min_u32(len, DRAFT_WINDOW_MAX);
    m->blocks_per_seat =
        min_u32((len + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS, m->model.max_pos / KV_BLOCK_TOKENS);
    m->window = m->blocks_per_seat * KV_BLOCK_TOKENS;
    model_set_context(&m->model, m->window);
    m->pool = (struct kv_pool){.layout = kv_layout_of(kv),
                               .n_layers = m->model.n_layers,
                               .n_kv_heads = m->model.n_kv_heads,
                               .head_dim = m->model.head_dim};
    uint64_t seat_bytes = (uint64_t)m->blocks_per_seat * kv_block_bytes(&m->pool);
    uint64_t n = m->c.kv_bytes ? m->c.kv_bytes / seat_bytes : DRAFT_SEATS_DEFAULT;
    if (n == 0)
        return buf_why(why, ERR_INVALID,
                       "{draft_kv_bytes} is less than the %llu bytes that one sequence of %u "
                       "tokens takes; raise it, or leave it out",
                       (unsigned long long)seat_bytes, m->window);
    m->n_seats = n < m->c.n_seqs_max ? (uint32_t)n : m->c.n_seqs_max;
    m->n_seats = min_u32(m->n_seats, n_rows_max(m));
    m->pool.n_blocks = m->n_seats * m->blocks_per_seat;
    return OK;
}

static enum status create_seats(struct draft_model *m)
{
    m->seats = calloc(m->n_seats, sizeof *m->seats);
    m->ids = calloc((size_t)m->n_seats * m->window, sizeof *m->ids);
    m->seat_of = calloc(m->c.n_slots, sizeof *m->seat_of);
    m->waits = calloc(m->c.n_slots, sizeof *m->waits);
    m->picks = calloc(m->n_seats, sizeof *m->picks);
    m->scratch = calloc((size_t)m->n_seats * m->n_vocab, sizeof *m->scratch);
    if (!m->seats || !m->ids || !m->seat_of || !m->waits || !m->picks || !m->scratch)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < m->n_seats; i++)
        m->seats[i] = (struct seat){.slot = NONE, .ids = m->ids + (size_t)i * m->window};
    for (uint32_t i = 0; i < m->c.n_slots; i++)
        m->seat_of[i] = NONE;
    return OK;
}

static enum status create_forward(struct draft_model *m)
{
    struct forward_config f = {.group = device_group_of(m->device),
                               .model = &m->model,
                               .weights = &m->weights,
                               .n_rows_max = n_rows_max(m),
                               .n_out_max = m->n_seats,
                               .n_pos = m->window,
                               .n_seqs_max = m->n_seats,
                               .n_blocks_max = m->pool.n_blocks,
                               .graph_bytes = m->graph_bytes};

    m->pool.base = device_alloc(m->device, kv_block_bytes(&m->pool) * m->pool.n_blocks);
    if (!m->pool.base)
        return ERR_NOMEM;
    enum status s = batch_create(&m->batch, f.n_rows_max, m->n_seats, m->n_seats, m->pool.n_blocks);
    return s == OK ? forward_create(&m->forward, &f) : s;
}

static enum status open_model(struct draft_model *m, const struct tokenizer *t, uint32_t n_vocab,
                              struct buf *why)
{
    enum status s = check_vocabulary(m, t, n_vocab, why);

    m->weights_config.device = m->device;
    if (s == OK)
        s = weights_load(&m->weights, &m->weights_config, why);
    if (s == OK)
        s = size_store(m, why);
    if (s != OK)
        return s;
    s = create_seats(m);
    if (s == OK)
        s = create_forward(m);
    if (s == ERR_NOMEM)
        return buf_why(why, s,
                       "out of memory for %u sequences of %u tokens: %llu bytes of KV; lower "
                       "{draft_kv_bytes}",
                       m->n_seats, m->window, (unsigned long long)draft_model_kv_bytes(m));
    return s == OK ? OK : buf_why(why, s, "the forward pass cannot be prepared");
}

uint64_t draft_model_record(struct draft_model *m, const struct step_graphs_cost *cost)
{
    m->graph_bytes = step_graphs_reserve(cost, forward_kernels_max(&m->model));
    return m->graph_bytes;
}

enum status draft_model_open(struct draft_model *m, struct device *device,
                             const struct tokenizer *t, uint32_t n_vocab, struct buf *why)
{
    struct buf words;

    m->device = device;
    buf_init(&words, BUF_WHY_MAX);
    return name_option(open_model(m, t, n_vocab, &words), &words, why);
}

void draft_model_close(struct draft_model *m)
{
    if (!m)
        return;
    forward_destroy(m->forward);
    batch_destroy(&m->batch);
    if (m->device)
        device_free(m->device, m->pool.base);
    weights_free(&m->weights);
    free(m->seats);
    free(m->ids);
    free(m->seat_of);
    free(m->waits);
    free(m->picks);
    free(m->scratch);
    free(m->dir);
    free(m);
}

void draft_model_sleep(struct draft_model *m)
{
    for (uint32_t slot = 0; slot < m->c.n_slots; slot++)
        draft_model_drop(m, slot);
    forward_forget(m->forward);
    device_free(m->device, m->pool.base);
    m->pool.base = NULL;
    weights_free(&m->weights);
}

enum status draft_model_wake(struct draft_model *m, struct buf *why)
{
    struct buf words;

    buf_init(&words, BUF_WHY_MAX);
    enum status s = weights_load(&m->weights, &m->weights_config, &words);
    if (s == OK && !(m->pool.base = device_alloc(m->device, draft_model_kv_bytes(m)))) {
        weights_free(&m->weights);
        s = buf_why(&words, ERR_NOMEM, "out of memory for its KV");
    }
    return name_option(s, &words, why);
}

uint64_t draft_model_weight_bytes(const struct draft_model *m)
{
    return m->weights.n_bytes;
}

uint64_t draft_model_kv_bytes(const struct draft_model *m)
{
    return kv_block_bytes(&m->pool) * m->pool.n_blocks;
}

uint32_t draft_model_rows_max(const struct draft_model *m)
{
    return n_rows_max(m);
}

/* --- seats --- */

void draft_model_drop(struct draft_model *m, uint32_t slot)
{
    if (!m)
        return;
    m->waits[slot] = (struct wait){0};
    if (m->seat_of[slot] == NONE)
        return;
    m->seats[m->seat_of[slot]].slot = NONE;
    m->seat_of[slot] = NONE;
}

/* Return a free seat, or the one that was idle for longest; NONE: there is none. */
static uint32_t free_seat(const struct draft_model *m)
{
    uint32_t best = NONE;

    for (uint32_t i = 0; i < m->n_seats; i++) {
        const struct seat *s = &m->seats[i];
        if (s->slot == NONE)
            return i;
        if (s->used_at + SEAT_IDLE_STEPS < m->n_steps &&
            (best == NONE || s->used_at < m->seats[best].used_at))
            best = i;
    }
    return best;
}

static void take_seat(struct draft_model *m, uint32_t at, uint32_t slot)
{
    struct seat *s = &m->seats[at];

    if (s->slot != NONE)
        m->seat_of[s->slot] = NONE;
    s->slot = slot;
    s->n = 0;
    s->start = NONE; /* of nothing yet */
    s->is_foreign = false;
    s->used_at = s->since = m->n_steps;
    m->seat_of[slot] = at;
    m->waits[slot] = (struct wait){0};
}

/* Return the sequence's seat: the one that it has, or one that it takes now; NONE: it waits. */
static uint32_t seat_for(struct draft_model *m, uint32_t slot)
{
    struct wait *w = &m->waits[slot];

    if (m->seat_of[slot] != NONE)
        return m->seat_of[slot];
    uint32_t at = free_seat(m);
    if (at != NONE) {
        take_seat(m, at, slot);
        return at;
    }
    if (w->asked_at + SEAT_IDLE_STEPS < m->n_steps)
        w->since = m->n_steps;
    w->asked_at = m->n_steps;
    return NONE;
}

void draft_model_step(struct draft_model *m)
{
    uint32_t slot = NONE, at = 0;

    m->n_steps++;
    if (m->turned_at + SEAT_TURN_STEPS > m->n_steps)
        return;
    for (uint32_t i = 0; i < m->c.n_slots; i++) {
        const struct wait *w = &m->waits[i];
        if (w->asked_at > 0 && w->asked_at + SEAT_IDLE_STEPS >= m->n_steps &&
            (slot == NONE || w->since < m->waits[slot].since))
            slot = i;
    }
    if (slot == NONE)
        return;
    for (uint32_t i = 1; i < m->n_seats; i++)
        if (m->seats[i].since < m->seats[at].since)
            at = i;
    m->turned_at = m->n_steps;
    take_seat(m, at, slot);
}

/* Keep the KV of the ids that the sequence still has, but for that of the last one: the next guess
 * comes from its row. */
static void keep_common(const struct draft_model *m, struct seat *s, const struct draft_seq *q)
{
    uint32_t n_all = q->n_known + q->n_guessed, n = 0;

    if (s->start == NONE || n_all + DRAFT_TOKENS_MAX > s->start + m->window) {
        s->start = n_all > m->window / 4 * 3 ? n_all - m->window / 2 : 0;
        s->n = 0;
    }
    uint32_t n_max = min_u32(s->n, n_all - s->start - 1);
    while (n < n_max && s->ids[n] == q->ids[s->start + n])
        n++;
    s->n = n;
}

uint32_t draft_model_unseen(struct draft_model *m, const struct draft_seq *q)
{
    uint32_t at = seat_for(m, q->slot), n_all = q->n_known + q->n_guessed;

    if (at == NONE || m->seats[at].is_foreign)
        return DRAFT_UNSEEN;
    struct seat *s = &m->seats[at];
    s->used_at = m->n_steps;
    keep_common(m, s, q);
    for (uint32_t i = s->start + s->n; i < n_all; i++)
        s->is_foreign |= q->ids[i] >= m->n_vocab;
    return s->is_foreign ? DRAFT_UNSEEN : n_all - s->start - s->n;
}

/* --- a forward pass --- */

static void add_rows(struct draft_model *m, struct draft_seq *q)
{
    uint32_t at = m->seat_of[q->slot];
    struct seat *s = &m->seats[at];
    uint32_t pos = s->start + s->n, n_unseen = q->n_known + q->n_guessed - pos;
    uint32_t n = min_u32(q->n_rows, n_unseen);

    batch_add_blocks(&m->batch, at * m->blocks_per_seat, KV_SEGMENT_TOKENS_MAX, q->ids + pos, s->n,
                     n, n == n_unseen);
    memcpy(s->ids + s->n, q->ids + pos, n * sizeof *s->ids);
    s->n += n;
    if (n == n_unseen)
        m->picks[m->n_picks++] = q;
}

static void pick(void *arg, uint32_t i)
{
    const struct draft_model *m = arg;
    struct draft_seq *q = m->picks[i];
    struct sampling sp = *q->sampling;
    struct sampler_row row = {.sampling = &sp,
                              .state = q->state,
                              .n = q->n_out + q->n_guessed,
                              .logits = m->logits + (size_t)i * m->model.n_vocab,
                              .n_vocab = m->n_vocab,
                              .scratch = m->scratch + (size_t)i * m->n_vocab};

    for (uint32_t k = 0; k < sp.n_logit_bias; k++)
        if (sp.logit_bias[k].id >= m->n_vocab)
            sp.n_logit_bias = 0;
    q->ids[q->n_known + q->n_guessed] = sampler_guess(&row, &q->lead);
}

enum status draft_model_run(struct draft_model *m, struct draft_seq *seqs, uint32_t n)
{
    batch_reset(&m->batch);
    m->n_picks = 0;
    for (uint32_t i = 0; i < n; i++)
        if (seqs[i].n_rows > 0)
            add_rows(m, &seqs[i]);
    if (m->batch.n_rows == 0)
        return OK;
    enum status s = forward_run(m->forward, &m->batch, &m->pool, &m->logits);
    if (s != OK) {
        for (uint32_t i = 0; i < m->n_seats; i++)
            m->seats[i].n = 0; /* their KV may lack what was to be written */
        return s;
    }
    device_parallel(m->device, m->n_picks, pick, m);
    for (uint32_t i = 0; i < m->n_picks; i++)
        m->picks[i]->n_guessed++;
    return OK;
}
