#include "tests/unit/server/fake_embedder.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"

#define OPENING_ID 256
#define CLOSING_ID 257
#define HELD_TURN_NS UINT64_C(1000000)

struct embedder {
    struct embedder_labels labels; /* n is 0: none */
};

static char first_label[] = "sea";
static char *label_names[2] = {first_label, NULL};
static struct embedder the_embedder;
static struct embedder the_classifier = {
    .labels = {.names = label_names, .of_texts = LABELS_SOFTMAX, .of_pairs = LABELS_SIGMOID}};

atomic_bool fake_embedder_is_held;
atomic_uint fake_embedder_n_begun;
atomic_uint fake_embedder_max_tokens = FAKE_MAX_TOKENS;
atomic_uint fake_embedder_n_labels = 2;

enum status embedder_open(struct embedder **out, const struct embedder_config *config,
                          struct buf *why)
{
    (void)why;
    *out = config->classifies ? &the_classifier : &the_embedder;
    the_classifier.labels.n = atomic_load(&fake_embedder_n_labels);
    return OK;
}

void embedder_close(struct embedder *e)
{
    (void)e;
}

uint32_t embedder_dim(const struct embedder *e)
{
    (void)e;
    return FAKE_DIM;
}

uint32_t embedder_max_tokens(const struct embedder *e)
{
    (void)e;
    return atomic_load(&fake_embedder_max_tokens);
}

uint32_t embedder_n_vocab(const struct embedder *e)
{
    (void)e;
    return FAKE_EMBEDDER_N_VOCAB;
}

enum status embedder_tokenize(const struct embedder *e, enum embedder_role role, const char *text,
                              size_t len, bool add_special, struct buf *ids, struct buf *why)
{
    const char *prompt = role == EMBEDDER_QUERY ? "q:" : role == EMBEDDER_DOCUMENT ? "d:" : "";
    enum status s = add_special ? buf_u32(ids, OPENING_ID) : OK;

    (void)e;
    for (; s == OK && *prompt; prompt++)
        s = buf_u32(ids, (unsigned char)*prompt);
    for (size_t i = 0; s == OK && i < len; i++)
        s = buf_u32(ids, (unsigned char)text[i]);
    if (s == OK && add_special)
        s = buf_u32(ids, CLOSING_ID);
    return s == OK ? OK : buf_why(why, s, "the fake embedder has no memory");
}

uint32_t embedder_cut(const struct embedder *e, uint32_t *ids, size_t n, uint32_t n_max,
                      bool has_special)
{
    (void)e;
    if (n <= n_max)
        return (uint32_t)n;
    if (has_special)
        ids[n_max - 1] = ids[n - 1];
    return n_max;
}

enum status embedder_encode_ids(struct embedder *e, const uint32_t *ids, uint32_t n, float *out,
                                struct buf *why)
{
    double squares = 0;

    (void)e;
    (void)why;
    atomic_fetch_add(&fake_embedder_n_begun, 1);
    while (atomic_load(&fake_embedder_is_held))
        clock_sleep_ns(HELD_TURN_NS);
    for (uint32_t i = 0; i < FAKE_DIM; i++) {
        uint32_t sum = i + 1;
        for (uint32_t k = 0; k < n; k++)
            sum = sum * 31 + ids[k] * (i + 3);
        out[i] = ids[0] == FAKE_ZERO_ID && i + 1 < FAKE_DIM ? 0 : (float)(sum % 1009) - 504.5f;
        squares += (double)out[i] * (double)out[i];
    }
    for (uint32_t i = 0; i < FAKE_DIM; i++)
        out[i] = (float)((double)out[i] / sqrt(squares));
    return OK;
}

const struct embedder_labels *embedder_labels(const struct embedder *e)
{
    return e->labels.n > 0 ? &e->labels : NULL;
}

enum status embedder_join(const struct embedder *e, const struct buf *a, const struct buf *b,
                          uint32_t n_max, struct buf *ids, uint32_t *n_first, struct buf *why)
{
    size_t n_a = a->len / sizeof(uint32_t), n_b = b->len / sizeof(uint32_t);

    (void)e;
    if (n_max > 0 && n_max <= 3)
        return buf_why(why, ERR_INVALID, "%u tokens leave no room", n_max);
    while (n_max > 0 && n_a + n_b + 3 > n_max)
        *(n_a > n_b ? &n_a : &n_b) -= 1;
    enum status s = buf_u32(ids, OPENING_ID);
    if (s == OK)
        s = buf_append(ids, a->data, n_a * sizeof(uint32_t));
    if (s == OK)
        s = buf_u32(ids, CLOSING_ID);
    if (s == OK)
        s = buf_append(ids, b->data, n_b * sizeof(uint32_t));
    if (s == OK)
        s = buf_u32(ids, CLOSING_ID);
    *n_first = (uint32_t)n_a + 2;
    return s;
}

enum status embedder_classify_ids(struct embedder *e, const uint32_t *ids, uint32_t n,
                                  uint32_t n_first, float *out, struct buf *why)
{
    uint32_t sum = 0;

    (void)why;
    for (uint32_t i = 0; i < n; i++)
        sum += ids[i] + (i >= n_first ? i : 0);
    out[0] = (float)sum / 100;
    if (e->labels.n > 1)
        out[1] = 0;
    return OK;
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
        n = embedder_cut(e, all, ids.len / sizeof *all, embedder_max_tokens(e), true);
        s = embedder_encode_ids(e, all, n, out, why);
    }
    if (n_tokens)
        *n_tokens = n;
    buf_fini(&ids);
    return s;
}
