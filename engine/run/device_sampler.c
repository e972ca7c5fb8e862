#include "engine/run/device_sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define NOT_GIVEN UINT32_MAX /* in `given`: the token is to be drawn */

#define LIST_BYTES_MAX ((size_t)16 << 20)
/* A list's entries have 4 or 8 bytes. Each list begins at a multiple of 8 bytes, so one offset is a
 * whole index into an array of either. */
#define LIST_ALIGN 8

/* Memory and progress of one step, from its launch until its tokens are handed out. */
struct turn {
    unsigned char *host;       /* pinned: [n_rows_max] sample_row, lists */
    uint32_t *out;             /* pinned: ids, logprobs, tops of the rows in this round */
    struct device_event *done; /* `out` is filled */
    struct out_top **tops;     /* [n_rows_max] where each row's go */
    uint32_t *given;           /* [n_rows_max] the row's known token, or NOT_GIVEN */
    struct out_token *tokens;
    uint32_t n_done; /* rows of earlier rounds */

    /* Counts of this round. */
    uint32_t n_rows;
    uint32_t n_top; /* the most that a row wants */
    uint32_t n_entries;
    size_t n_list_bytes;
};

struct device_sampler {
    struct device_sampler_config c;
    size_t list_bytes;     /* room for lists, behind n_rows_max rows */
    unsigned char *device; /* as turn.host; steps use it one after the other */
    float *raw;            /* device: as many floats as lists can have entries */
    uint32_t *out_device;  /* as turn.out */
    struct turn turns[DEVICE_SAMPLER_TURNS];
    struct turn *t; /* of the step that is laid out */
    float *logits;  /* of the same */
};

static size_t align_list(size_t n_bytes)
{
    return (n_bytes + LIST_ALIGN - 1) / LIST_ALIGN * LIST_ALIGN;
}

static size_t row_list_bytes(uint32_t n_seen, uint32_t n_bias, uint32_t n_mask)
{
    return n_seen * sizeof(struct sample_seen) + n_bias * sizeof(struct sample_bias) +
           align_list(n_mask * sizeof(uint32_t));
}

static size_t rows_bytes(const struct device_sampler_config *c)
{
    return c->n_rows_max * sizeof(struct sample_row);
}

static size_t out_bytes(uint32_t n_rows, uint32_t n_top)
{
    return n_rows * (sizeof(uint32_t) + sizeof(float) + n_top * sizeof(struct sample_top));
}

static size_t choose_list_bytes(const struct device_sampler_config *c)
{
    uint32_t n_seen = c->n_known_max < c->n_vocab ? c->n_known_max : c->n_vocab;
    size_t one = row_list_bytes(n_seen, SAMPLING_N_LOGIT_BIAS_MAX, vocab_mask_n_words(c->n_vocab));
    size_t all = one * c->n_rows_max, most = c->list_bytes_max ? c->list_bytes_max : LIST_BYTES_MAX;
    return all < most ? all : one > most ? one : most;
}

uint64_t device_sampler_device_bytes(const struct device_sampler_config *c)
{
    return rows_bytes(c) + 2 * (uint64_t)choose_list_bytes(c) +
           out_bytes(c->n_rows_max, SAMPLING_N_LOGPROBS_MAX);
}

static enum status create_turn(struct device_sampler *ds, struct turn *t)
{
    const struct device_sampler_config *c = &ds->c;

    t->host = device_alloc_pinned(c->device, rows_bytes(c) + ds->list_bytes);
    t->out = device_alloc_pinned(c->device, out_bytes(c->n_rows_max, SAMPLING_N_LOGPROBS_MAX));
    t->tops = calloc(c->n_rows_max, sizeof(struct out_top *));
    t->given = calloc(c->n_rows_max, sizeof *t->given);
    if (!t->host || !t->out || !t->tops || !t->given)
        return ERR_NOMEM;
    return device_event_create(c->device, &t->done);
}

enum status device_sampler_create(struct device_sampler **out,
                                  const struct device_sampler_config *config)
{
    struct device *d = config->device;
    struct device_sampler *ds = calloc(1, sizeof *ds);
    enum status s = OK;

    *out = NULL;
    if (!ds)
        return ERR_NOMEM;
    ds->c = *config;
    ds->list_bytes = choose_list_bytes(config);
    ds->device = device_alloc(d, rows_bytes(config) + ds->list_bytes);
    ds->raw = device_alloc(d, ds->list_bytes / sizeof(uint32_t) * sizeof(float));
    ds->out_device = device_alloc(d, out_bytes(config->n_rows_max, SAMPLING_N_LOGPROBS_MAX));
    if (!ds->device || !ds->raw || !ds->out_device)
        s = ERR_NOMEM;
    for (int i = 0; s == OK && i < DEVICE_SAMPLER_TURNS; i++)
        s = create_turn(ds, &ds->turns[i]);
    if (s != OK) {
        device_sampler_destroy(ds);
        return s;
    }
    *out = ds;
    return OK;
}

void device_sampler_destroy(struct device_sampler *ds)
{
    if (!ds)
        return;
    if (ds->out_device) /* a copy may be under way */
        (void)!device_stream_wait(ds->c.device, NULL);
    for (struct turn *t = ds->turns; t < ds->turns + DEVICE_SAMPLER_TURNS; t++) {
        device_event_destroy(ds->c.device, t->done);
        device_free_pinned(ds->c.device, t->host);
        device_free_pinned(ds->c.device, t->out);
        free(t->tops);
        free(t->given);
    }
    device_free(ds->c.device, ds->device);
    device_free(ds->c.device, ds->raw);
    device_free(ds->c.device, ds->out_device);
    free(ds);
}

static void begin_round(struct turn *t)
{
    t->n_rows = t->n_top = t->n_entries = 0;
    t->n_list_bytes = 0;
}

void device_sampler_begin(struct device_sampler *ds, uint32_t turn, float *logits,
                          struct out_token *tokens)
{
    ASSERT(turn < DEVICE_SAMPLER_TURNS);
    ds->t = &ds->turns[turn];
    ds->logits = logits;
    ds->t->tokens = tokens;
    ds->t->n_done = 0;
    begin_round(ds->t);
}

const uint32_t *device_sampler_ids(const struct device_sampler *ds)
{
    return ds->out_device;
}

bool device_sampler_is_whole(const struct device_sampler *ds, uint32_t turn)
{
    return ds->turns[turn].n_done == 0;
}

void device_sampler_forget(struct device_sampler *ds, uint32_t turn, uint32_t row)
{
    struct turn *t = &ds->turns[turn];

    if (row >= t->n_done && row - t->n_done < t->n_rows)
        t->tops[row - t->n_done] = NULL;
}

static void hand_out(const struct turn *t)
{
    const struct sample_row *rows = (const struct sample_row *)t->host;
    const uint32_t *ids = t->out;
    const float *logprobs = (const float *)(ids + t->n_rows);
    const struct sample_top *top = (const struct sample_top *)(ids + 2 * (size_t)t->n_rows);

    for (uint32_t i = 0; i < t->n_rows; i++) {
        struct out_token token = {ids[i], logprobs[i]};
        if (t->given[i] != NOT_GIVEN && t->given[i] != ids[i])
            token = (struct out_token){t->given[i], -INFINITY}; /* lay_out_given() says why */
        t->tokens[t->n_done + i] = token;
        for (uint32_t j = 0; t->tops[i] && j < rows[i].n_logprobs; j++) {
            const struct sample_top *found = &top[(size_t)i * t->n_top + j];
            t->tops[i][j] = (struct out_top){found->id, found->logprob};
        }
    }
}

static enum status launch_round(struct device_sampler *ds)
{
    struct device *d = ds->c.device;
    struct turn *t = ds->t;
    uint32_t n = t->n_rows;
    unsigned char *lists = ds->device + rows_bytes(&ds->c);
    struct sample_params p = {.n_rows = n,
                              .n_vocab = ds->c.n_vocab,
                              .logits = ds->logits + (size_t)t->n_done * ds->c.n_vocab,
                              .rows = (const struct sample_row *)ds->device,
                              .seen = (const struct sample_seen *)lists,
                              .bias = (const struct sample_bias *)lists,
                              .mask = (const uint32_t *)lists,
                              .raw = ds->raw,
                              .n_top = t->n_top,
                              .ids = ds->out_device,
                              .logprobs = (float *)(ds->out_device + n),
                              .top = (struct sample_top *)(ds->out_device + 2 * (size_t)n)};
    enum status s;

    if (n == 0)
        return OK;
    s = device_upload_async(d, NULL, ds->device, t->host, rows_bytes(&ds->c) + t->n_list_bytes);
    if (s == OK)
        s = device_ops(d)->sample(d, NULL, &p);
    if (s == OK)
        s = device_download_async(d, NULL, t->out, ds->out_device, out_bytes(n, t->n_top));
    return s == OK ? device_event_record(d, t->done, NULL) : s;
}

static enum status end_round(struct device_sampler *ds, struct turn *t)
{
    enum status s = t->n_rows ? device_event_wait(ds->c.device, t->done) : OK;

    if (s != OK)
        return s;
    hand_out(t);
    t->n_done += t->n_rows;
    begin_round(t);
    return OK;
}

/* Reserve n_bytes for a list; *index: its offset in elements of `element` bytes. */
static void *take(struct device_sampler *ds, size_t n_bytes, size_t element, uint32_t *index)
{
    struct turn *t = ds->t;
    void *p = t->host + rows_bytes(&ds->c) + t->n_list_bytes;

    *index = (uint32_t)(t->n_list_bytes / element);
    t->n_list_bytes += align_list(n_bytes);
    ASSERT(t->n_list_bytes <= ds->list_bytes);
    return p;
}

/* Layout of a row's mask. */
struct mask_form {
    uint32_t n; /* entries of `mask`; 0: no id is forbidden */
    enum sample_mask form;
    uint32_t lowest; /* forbidden id */
};

static struct mask_form mask_form_of(const uint32_t *mask, uint32_t n_vocab)
{
    uint32_t n_all = vocab_mask_n_words(n_vocab), n_forbid = 0, n_allow = 0, first = 0;

    for (uint32_t i = n_all; mask && i-- > 0;) {
        uint32_t forbidden = vocab_mask_forbidden(mask, n_vocab, i);
        n_allow += forbidden != vocab_mask_meant(n_vocab, i);
        if (forbidden) {
            n_forbid++;
            first = i;
        }
    }
    if (n_forbid == 0)
        return (struct mask_form){0};
    uint32_t forbidden = vocab_mask_forbidden(mask, n_vocab, first);
    struct mask_form f = {n_all, SAMPLE_MASK_ALL, 32 * first + (uint32_t)__builtin_ctz(forbidden)};
    if (2 * n_forbid < f.n) {
        f.n = 2 * n_forbid;
        f.form = SAMPLE_MASK_FORBIDS;
    }
    if (n_allow > 0 && 2 * n_allow < f.n) {
        f.n = 2 * n_allow;
        f.form = SAMPLE_MASK_ALLOWS;
    }
    return f;
}

static void lay_out_mask(const struct mask_form *form, const uint32_t *mask, uint32_t n_vocab,
                         uint32_t *out)
{
    if (form->form == SAMPLE_MASK_ALL) {
        if (form->n)
            memcpy(out, mask, form->n * sizeof *out);
        return;
    }
    bool forbids = form->form == SAMPLE_MASK_FORBIDS;
    for (uint32_t i = 0, n = 0; n < form->n; i++) {
        uint32_t forbidden = vocab_mask_forbidden(mask, n_vocab, i);
        if (forbids ? !forbidden : forbidden == vocab_mask_meant(n_vocab, i))
            continue;
        out[n++] = i;
        out[n++] = forbids ? ~forbidden : mask[i];
    }
}

static void lay_out(struct device_sampler *ds, const struct sampler_row *row, uint32_t n_seen,
                    const struct mask_form *form)
{
    const struct sampling *sp = row->sampling;
    struct turn *t = ds->t;
    struct sample_row *r = (struct sample_row *)t->host + t->n_rows;

    *r = (struct sample_row){.seed = sp->seed,
                             .n = row->n,
                             .temperature = sp->temperature,
                             .top_k = sp->top_k,
                             .top_p = sp->top_p,
                             .min_p = sp->min_p,
                             .repetition_penalty = sp->repetition_penalty,
                             .presence_penalty = sp->presence_penalty,
                             .frequency_penalty = sp->frequency_penalty,
                             .n_seen = n_seen,
                             .n_bias = sp->n_logit_bias,
                             .n_mask = form->n,
                             .mask_form = form->form,
                             .lowest_masked = form->lowest,
                             .raw0 = t->n_entries,
                             .want_logprob = sp->want_logprob,
                             .n_logprobs = sp->n_logprobs};
    struct sample_seen *seen = take(ds, n_seen * sizeof *seen, sizeof *seen, &r->seen0);
    if (n_seen)
        sampler_state_list(row->state, seen);
    struct sample_bias *bias = take(ds, r->n_bias * sizeof *bias, sizeof *bias, &r->bias0);
    for (uint32_t i = 0; i < r->n_bias; i++)
        bias[i] = (struct sample_bias){sp->logit_bias[i].id, sp->logit_bias[i].bias};
    uint32_t *mask = take(ds, form->n * sizeof *mask, sizeof *mask, &r->mask0);
    lay_out_mask(form, row->mask, ds->c.n_vocab, mask);
    t->n_entries += n_seen + r->n_bias + (form->n > 0);
}

/* Lay out a row whose token is known. The op has no field for a known token: an infinite bias makes
 * the greedy pick choose it, and logprobs are those of the logits before the bias. A bias does not
 * change a logit of -inf or NaN; hand_out() then receives another id. */
static void lay_out_given(struct device_sampler *ds, const struct sampler_row *row)
{
    static const struct sampler_state no_state;
    static const struct mask_form no_mask;
    const struct logit_bias bias = {*row->given, INFINITY};
    const struct sampling sp = {.repetition_penalty = 1,
                                .top_p = 1,
                                .n_logit_bias = 1,
                                .logit_bias = &bias,
                                .n_logprobs = row->sampling->n_logprobs,
                                .want_logprob = row->sampling->want_logprob};

    lay_out(ds, &(struct sampler_row){.sampling = &sp, .state = &no_state}, 0, &no_mask);
}

enum status device_sampler_add(struct device_sampler *ds, const struct sampler_row *row,
                               struct out_top *top)
{
    const struct sampling *sp = row->sampling;
    struct turn *t = ds->t;
    uint32_t n_seen = row->given ? 0 : row->state->n_seen;
    struct mask_form form = mask_form_of(row->given ? NULL : row->mask, ds->c.n_vocab);
    size_t n_bytes =
        row->given ? row_list_bytes(0, 1, 0) : row_list_bytes(n_seen, sp->n_logit_bias, form.n);

    ASSERT(sp->n_logprobs == 0 || (top && sp->n_logprobs <= SAMPLING_N_LOGPROBS_MAX));
    if (t->n_rows == ds->c.n_rows_max || t->n_list_bytes + n_bytes > ds->list_bytes) {
        enum status s = launch_round(ds);
        if (s == OK)
            s = end_round(ds, t);
        if (s != OK)
            return s;
    }
    if (row->given)
        lay_out_given(ds, row);
    else
        lay_out(ds, row, n_seen, &form);
    if (sp->n_logprobs > t->n_top)
        t->n_top = sp->n_logprobs;
    t->given[t->n_rows] = row->given ? *row->given : NOT_GIVEN;
    t->tops[t->n_rows++] = top;
    return OK;
}

enum status device_sampler_launch(struct device_sampler *ds)
{
    return launch_round(ds);
}

enum status device_sampler_finish(struct device_sampler *ds, uint32_t turn)
{
    return end_round(ds, &ds->turns[turn]);
}
