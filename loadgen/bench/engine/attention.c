#include "loadgen/bench/engine/attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "kernels/device.h"
#include "kernels/pack.h"
#include "loadgen/bench/engine/counts.h"
#include "loadgen/bench/engine/limits.h"
#include "loadgen/bench/engine/median.h"

#define SEED 1
#define NOISE_COUNT 1000003u
/* KV of all layers together: several times the last-level cache of most machines. */
#define POOL_BYTES ((uint64_t)256 << 20)
#define LAYERS_MAX 32
#define REPETITION_SECONDS 0.05
#define PARTS_MAX 2
#define CASE_NAME_BYTES (PARTS_MAX * BENCH_CASE_NAME_BYTES)

struct sizes {
    uint32_t n_heads, n_kv_heads, head_dim;
};

struct attention_case {
    struct bench_case parts[PARTS_MAX];
    uint32_t n_parts;
};

/* One case on one type of KV: what is measured, and the arrays of the call. */
struct rig {
    struct device *device;
    struct attention_params p;
    struct attn_seq *seqs;
    struct attn_segment *segs;
    uint32_t *blocks;
    float *q, *out;
    uint64_t ops, bytes; /* of one call */
    uint32_t n_segs, n_blocks;
};

static const enum dtype kv_types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8, DTYPE_F8};
static const char *const kv_names[] = {"f32", "f16", "bf16", "int8", "fp8"};

static const char *const default_cases[] = {"decode:1:8192",    "decode:16:1024",
                                            "decode:16:8192",   "prefill:512",
                                            "prefill:512@8192", "prefill:512+decode:16:1024",
                                            "prefill:32@8192"};

static enum status parse_case(struct attention_case *c, const char *text, struct buf *why)
{
    char part[CASE_NAME_BYTES];
    enum status s = OK;

    *c = (struct attention_case){0};
    for (const char *at = text; s == OK && at; c->n_parts++) {
        const char *plus = strchr(at, '+');
        size_t n = plus ? (size_t)(plus - at) : strlen(at);

        if (c->n_parts == PARTS_MAX || n >= sizeof part)
            return buf_why(why, ERR_INVALID, "--case: \"%s\" joins more than %d cases", text,
                           PARTS_MAX);
        memcpy(part, at, n);
        part[n] = '\0';
        s = case_parse(&c->parts[c->n_parts], part, why);
        at = plus ? plus + 1 : NULL;
    }
    return s;
}

static enum status parse_sizes(struct sizes *z, const char *text, struct buf *why)
{
    char end;
    int n = sscanf(text, "%u:%u:%u%c", &z->n_heads, &z->n_kv_heads, &z->head_dim, &end);

    if (n == 3 && z->n_kv_heads > 0 && z->n_heads >= z->n_kv_heads && z->n_heads <= 1024 &&
        z->n_heads % z->n_kv_heads == 0 && z->head_dim > 0 && z->head_dim <= 1024)
        return OK;
    return buf_why(why, ERR_INVALID,
                   "--attention-sizes: \"%s\" is none; give HEADS:KV_HEADS:HEAD_DIM with HEADS a "
                   "multiple of KV_HEADS, as 16:8:128",
                   text);
}

/* --- one case in memory --- */

static void rig_fini(struct rig *r)
{
    if (r->device)
        device_free(r->device, r->p.pool.base);
    free(r->seqs);
    free(r->segs);
    free(r->blocks);
    free(r->q);
    free(r->out);
}

/* Count segments, blocks, rows, operations and bytes of the case, and, if `fill`, write the
 * arrays of the call. */
static void rig_lay_out(struct rig *r, const struct attention_case *c, bool fill)
{
    struct attention_params *p = &r->p;
    const uint32_t per_segment = KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS;

    p->n_seqs = p->n_rows = r->n_segs = r->n_blocks = 0;
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct bench_case *part = &c->parts[i];
        uint32_t rows = case_rows_per_seq(part), len = part->context + rows;

        for (uint32_t s = 0; s < part->batch; s++) {
            uint32_t seg0 = r->n_segs;

            for (uint32_t at = 0; at < len; at += KV_SEGMENT_TOKENS_MAX, r->n_segs++) {
                uint32_t n = len - at < KV_SEGMENT_TOKENS_MAX ? len - at : KV_SEGMENT_TOKENS_MAX;

                if (fill)
                    r->segs[r->n_segs] = (struct attn_segment){at, n, r->n_blocks};
                r->n_blocks += per_segment;
            }
            if (fill)
                r->seqs[p->n_seqs] = (struct attn_seq){.row0 = p->n_rows,
                                                       .n_rows = rows,
                                                       .pos0 = part->context,
                                                       .seg0 = seg0,
                                                       .n_segs = r->n_segs - seg0};
            p->n_seqs++;
            p->n_rows += rows;
        }
    }
}

static void rig_count(struct rig *r, const struct attention_case *c)
{
    const struct attention_params *p = &r->p;
    struct kv_pool one = p->pool;

    one.n_layers = 1;
    r->ops = r->bytes = 0;
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct bench_case *part = &c->parts[i];
        uint32_t rows = case_rows_per_seq(part);

        r->ops += part->batch * counts_attention_ops(p->n_heads, one.head_dim, part->context, rows);
        r->bytes +=
            (uint64_t)part->batch * (part->context + rows) * kv_block_bytes(&one) / KV_BLOCK_TOKENS;
    }
}

static enum status rig_fill(struct rig *r)
{
    const struct kv_pool *pool = &r->p.pool;
    /* Elements of one byte are those of floats, which are their scales, too: about 1 / 127. */
    enum dtype t = pool->layout.scale_group ? DTYPE_F32 : pool->layout.dtype;
    float top = pool->layout.scale_group ? 1.0f / 128 : 1;
    size_t n = NOISE_COUNT * dtype_bytes(t), total = r->n_blocks * kv_block_bytes(pool);
    unsigned char *noise = malloc(n);

    if (!noise)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < NOISE_COUNT; i++)
        dtype_store(t, noise, i, (2 * rng_uniform(SEED, i) - 1) * top);
    for (size_t at = 0; at < total; at += n)
        memcpy((unsigned char *)pool->base + at, noise, total - at < n ? total - at : n);
    free(noise);
    for (size_t i = 0; i < r->p.n_rows * r->p.q_stride; i++)
        r->q[i] = 2 * rng_uniform(SEED, (uint32_t)i) - 1;
    for (uint32_t i = 0; i < r->n_blocks; i++)
        r->blocks[i] = i;
    return OK;
}

static enum status rig_init(struct rig *r, struct device *d, const struct attention_case *c,
                            const struct sizes *z, enum dtype t)
{
    struct attention_params *p = &r->p;

    *r = (struct rig){.device = d};
    *p = (struct attention_params){
        .n_heads = z->n_heads,
        .scale = 1.0f / sqrtf((float)z->head_dim),
        .q_stride = (size_t)z->n_heads * z->head_dim,
        .pool = {.layout = kv_layout_of(t), .n_kv_heads = z->n_kv_heads, .head_dim = z->head_dim}};
    rig_lay_out(r, c, false);
    p->pool.n_layers = 1;
    uint64_t layer = r->n_blocks * kv_block_bytes(&p->pool);
    p->pool.n_layers =
        layer > POOL_BYTES ? 1 : (uint32_t)fmin(LAYERS_MAX, ceil((double)POOL_BYTES / layer));
    p->pool.n_blocks = r->n_blocks;
    p->pool.base = device_alloc(d, r->n_blocks * kv_block_bytes(&p->pool));
    r->seqs = calloc(p->n_seqs, sizeof *r->seqs);
    r->segs = calloc(r->n_segs, sizeof *r->segs);
    r->blocks = calloc(r->n_blocks, sizeof *r->blocks);
    r->q = calloc(p->n_rows * p->q_stride, sizeof *r->q);
    r->out = calloc(p->n_rows * p->q_stride, sizeof *r->out);
    if (!p->pool.base || !r->seqs || !r->segs || !r->blocks || !r->q || !r->out)
        return ERR_NOMEM;
    rig_lay_out(r, c, true);
    rig_count(r, c);
    p->q = r->q;
    p->out = r->out;
    p->seqs = r->seqs;
    p->segments = r->segs;
    p->blocks = r->blocks;
    return rig_fill(r);
}

/* Seconds of one call, mean over n calls. */
static enum status time_calls(struct rig *r, uint32_t n, double *seconds)
{
    uint64_t t0 = clock_now_ns();
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < n; i++) {
        r->p.layer = i % r->p.pool.n_layers;
        s = device_ops(r->device)->attention(r->device, NULL, &r->p);
    }
    *seconds = (double)(clock_now_ns() - t0) * 1e-9 / n;
    return s;
}

static enum status measure(struct rig *r, uint32_t n_repetitions, double *median, double *best)
{
    double all[1000], one;
    enum status s = time_calls(r, r->p.pool.n_layers, &one);
    uint32_t n = (uint32_t)fmin(1e6, ceil(REPETITION_SECONDS / fmax(one, 1e-9)));

    ASSERT(n_repetitions <= ARRAY_SIZE(all));
    for (uint32_t i = 0; s == OK && i < n_repetitions; i++)
        s = time_calls(r, n, &all[i]);
    if (s == OK)
        *median = median_of(all, n_repetitions); /* which sorts them */
    if (s == OK)
        *best = all[0];
    return s;
}

static void print_share(FILE *f, double rate, double limit)
{
    if (limit > 0)
        fprintf(f, " %6.1f%%", rate / limit * 100);
    else
        fprintf(f, " %7s", "-");
}

static void print_row(FILE *f, const char *name, const char *kv, const struct rig *r,
                      double seconds, double best, const struct limits *l)
{
    const char *ops = device_ops(r->device)->name;
    double gb = (double)r->bytes / seconds, gop = (double)r->ops / seconds;

    fprintf(f, "%-28s %-5s %9.3f %9.3f %9.2f %9.2f %8.2f %8.1f", name, kv, seconds * 1e3,
            best * 1e3, (double)r->bytes * 1e-6, (double)r->ops * 1e-6, gb * 1e-9, gop * 1e-9);
    print_share(f, gb, l ? l->rate[LIMIT_READ] : 0);
    print_share(f, gop, l ? l->rate[counts_rate_of(l, ops, DTYPE_F32)] : 0);
    fputc('\n', f);
    fflush(f);
}

static enum status bench_case(FILE *f, struct device *d, const struct bench_options *o,
                              const struct sizes *z, const char *text, const struct limits *l,
                              struct buf *why)
{
    struct attention_case c;
    enum status s = parse_case(&c, text, why);
    enum dtype only = bench_dtype(o->kv_cache_dtype, DTYPE_COUNT);

    for (size_t i = 0; s == OK && i < ARRAY_SIZE(kv_types); i++) {
        struct rig r;
        double seconds, best;

        if ((only != DTYPE_COUNT && only != kv_types[i]) ||
            !(device_ops(d)->kv_dtypes & 1u << kv_types[i]))
            continue;
        s = rig_init(&r, d, &c, z, kv_types[i]);
        if (s == OK)
            s = measure(&r, (uint32_t)o->repetitions, &seconds, &best);
        if (s == OK)
            print_row(f, text, kv_names[i], &r, seconds, best, l);
        else
            s = buf_why(why, s, "%s: %s", text, status_name(s));
        rig_fini(&r);
    }
    return s;
}

static enum status measure_limits(const struct bench_options *o, struct limits *out,
                                  struct buf *why)
{
    struct limit_meter *meter = NULL;
    enum status s = limits_create(&meter, (uint32_t)o->threads, why);

    if (s == OK)
        s = limits_measure(meter, out);
    limits_destroy(meter);
    return s;
}

enum status attention_bench(FILE *f, const struct bench_options *o, struct buf *why)
{
    struct sizes z;
    struct limits limits;
    struct device *d = NULL;
    enum status s = parse_sizes(&z, o->attention_sizes, why);

    if (s != OK)
        return s;
    struct device_config config = {.kind = DEVICE_CPU,
                                   .n_threads = (uint32_t)o->threads,
                                   .weights = DTYPE_BF16,
                                   .max_rows = 1,
                                   .max_k = 64,
                                   .max_heads = z.n_heads,
                                   .max_head_dim = z.head_dim};

    if (strcmp(o->cpu_variant, "auto") != 0)
        config.cpu_variant = o->cpu_variant;
    if (!o->no_limits)
        s = measure_limits(o, &limits, why);
    if (s == OK)
        s = device_open(&d, &config, why);
    if (s != OK)
        return s;
    fprintf(f,
            "%s, %u threads, %u heads, %u KV heads of %u; shares of read and of fp32\n%-28s "
            "%-5s %9s %9s %9s %9s %8s %8s %7s %7s\n",
            device_ops(d)->name, device_n_threads(d), z.n_heads, z.n_kv_heads, z.head_dim, "case",
            "kv", "ms", "best", "MB", "Mop", "GB/s", "Gop/s", "read", "fp32");
    device_adopt_thread(d); /* else it may share a core with a pinned worker */
    uint32_t n = o->case_texts.n ? o->case_texts.n : ARRAY_SIZE(default_cases);
    for (uint32_t i = 0; s == OK && i < n; i++)
        s = bench_case(f, d, o, &z, o->case_texts.n ? o->case_texts.v[i] : default_cases[i],
                       o->no_limits ? NULL : &limits, why);
    device_close(d);
    return s;
}
