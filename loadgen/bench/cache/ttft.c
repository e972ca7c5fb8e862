#include "loadgen/bench/cache/ttft.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "loadgen/bench/engine/limits_internal.h"
#include "loadgen/bench/engine/memory.h"
#include "loadgen/bench/cache/asker.h"
#include "loadgen/bench/cache/shape.h"

/* The host tier has so many times the blocks of the device tier, so it evicts nothing. */
#define HOST_MULTIPLE 3
/* Dummy weights are made, then packed; buffers of a step; code. */
#define SPARE_BYTES ((uint64_t)512 << 20)
#define N_SEQS 4

struct measurement {
    const struct cachebench_options *o;
    struct ttft_result *out;
    struct asker *asker;
    struct read_meter *meter;
    struct bench_shape shape;
    uint32_t *ids;               /* [prefix + n_new] */
    uint64_t on_device, on_host; /* seeds of the prefixes that lie there */
    uint64_t n_prefixes, n_asked;
    double rate; /* bytes/s: the latest */
    struct figure_series ttft[TTFT_N_KINDS], ratio[TTFT_N_KINDS], rates, floors;
};

const char *ttft_kind_name(enum ttft_kind k)
{
    static const char *const names[] = {"cold", "device", "host"};

    return names[k];
}

/* --- setting up --- */

/* Refuse before any of the memory is allocated. The buffers of the read rate take at most a quarter
 * of the rest. */
static enum status check_memory(const struct measurement *t, bool tied, struct buf *why)
{
    const struct bench_shape *m = &t->shape;
    struct bench_work w;

    counts_step(m, 1, t->o->prefix, 1, 1, &w);
    uint64_t table = tied ? 0 : (uint64_t)m->n_vocab * m->dim * dtype_bytes(m->output);
    uint64_t blocks = t->out->n_device_blocks + (uint64_t)t->out->n_host_blocks;
    uint64_t need = w.weight_bytes + table + blocks * shape_block_bytes(m) + SPARE_BYTES;
    uint64_t available = memory_available();
    if (need <= available)
        return OK;
    return buf_why(why, ERR_TOO_LARGE,
                   "part ttft needs about %.1f GiB of memory and %.1f GiB are "
                   "available: a smaller --prefix or --model, or --part tree or miss",
                   (double)need / (1 << 30), (double)available / (1 << 30));
}

static struct engine_config config_of(const struct measurement *t, const char *dir)
{
    const struct cachebench_options *o = t->o;
    struct engine_config c;

    shape_engine_config(&c, o, dir);
    c.max_model_len = (uint32_t)(o->prefix + o->n_new + 1);
    c.max_num_seqs = N_SEQS;
    c.kv_bytes = t->out->n_device_blocks * shape_block_bytes(&t->shape);
    c.kv_host_bytes = t->out->n_host_blocks * shape_block_bytes(&t->shape);
    return c;
}

static enum status open_all(struct measurement *t, struct buf *why)
{
    struct model_files files = {{0}};
    const char *dir;
    bool tied = false;
    enum status s = shape_open(&t->shape, &tied, &dir, &files, t->o, why);

    if (s == OK)
        s = check_memory(t, tied, why);
    if (s == OK) {
        struct engine_config c = config_of(t, dir);
        s = asker_open(&t->asker, &c, why);
    }
    model_files_remove(&files); /* the engine has read it */
    if (s == OK)
        s = read_create(&t->meter, engine_info(asker_engine(t->asker))->n_threads, why);
    return s;
}

static enum status make_series(struct measurement *t)
{
    uint32_t n = (uint32_t)(t->o->rounds * t->o->hits);
    enum status s = figure_series_init_all(t->ttft, TTFT_N_KINDS, n);

    if (s == OK)
        s = figure_series_init_all(t->ratio, TTFT_N_KINDS, n);
    if (s == OK)
        s = figure_series_init(&t->floors, n);
    if (s == OK)
        s = figure_series_init(&t->rates, n + (uint32_t)t->o->rounds);
    t->ids = calloc(t->o->prefix + t->o->n_new, sizeof *t->ids);
    return t->ids ? s : ERR_NOMEM;
}

/* --- asking --- */

static enum status ask(struct measurement *t, uint64_t prefix_seed, struct answer *a,
                       struct buf *why)
{
    uint32_t n_vocab = t->shape.n_vocab, prefix = (uint32_t)t->o->prefix;
    uint32_t n_new = (uint32_t)t->o->n_new;
    uint64_t asked = t->n_asked++;

    for (uint32_t i = 0; i < prefix; i++)
        t->ids[i] = rng_u32(prefix_seed, i) % n_vocab;
    t->ids[prefix] = (uint32_t)(asked % n_vocab); /* no two prompts continue alike */
    for (uint32_t i = 1; i < n_new; i++)
        t->ids[prefix + i] = rng_u32(asked, (uint64_t)i << 32) % n_vocab;
    return asker_ask(t->asker, t->ids, prefix + n_new, &prefix, 1, 1, a, why);
}

/* Tokens of another prefix that the device tier can hold beside one prompt. */
static uint32_t slack_tokens(const struct measurement *t)
{
    uint64_t used = (t->o->prefix + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS +
                    (t->o->n_new + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;

    return t->out->n_device_blocks > used
               ? (uint32_t)(t->out->n_device_blocks - used) * KV_BLOCK_TOKENS
               : 0;
}

/* Whether the prefix was found in the tier that this kind of request measures. */
static bool lies_right(const struct measurement *t, enum ttft_kind k, const struct answer *a)
{
    uint32_t prefix = (uint32_t)t->o->prefix;

    switch (k) {
    case TTFT_COLD: return a->n_cached == 0;
    case TTFT_DEVICE: return a->n_cached_in[CACHE_DEVICE] == prefix;
    case TTFT_HOST:
        return a->n_cached == prefix && a->n_cached_in[CACHE_HOST] > 0 &&
               a->n_cached_in[CACHE_HOST] + slack_tokens(t) >= prefix;
    case TTFT_N_KINDS: break;
    }
    return false;
}

static void count(struct measurement *t, enum ttft_kind k, const struct answer *a, double rate)
{
    struct ttft_row *row = &t->out->row[k];
    double seconds = (double)a->ttft_ns * 1e-9;
    double floor = (double)(t->out->weight_bytes + t->out->kv_bytes) / rate;

    if (!lies_right(t, k, a)) {
        row->n_elsewhere++;
        return;
    }
    for (int i = 0; i < CACHE_N_TIERS; i++) {
        uint32_t n = a->n_cached_in[i];
        if (t->ttft[k].n == 0 || n < row->n_cached_min[i])
            row->n_cached_min[i] = n;
        if (n > row->n_cached_max[i])
            row->n_cached_max[i] = n;
    }
    figure_series_add(&t->ttft[k], seconds);
    figure_series_add(&t->ratio[k], seconds / floor);
}

static enum status measure_rate(struct measurement *t, struct buf *why)
{
    struct read_figure f;
    enum status s = read_measure(t->meter, &f);

    if (s != OK || !(f.bytes_per_s > 0))
        return buf_why(why, s == OK ? ERR_INTERNAL : s,
                       "the read rate cannot be measured: no "
                       "thread could be started");
    t->rate = f.bytes_per_s;
    t->out->n_disturbed += f.cpu_share < READ_CPU_SHARE_MIN;
    figure_series_add(&t->rates, f.bytes_per_s);
    return OK;
}

/* Request a new prefix; the prefix on the device is spilled to the host. */
static enum status ask_cold(struct measurement *t, struct answer *a, struct buf *why)
{
    t->on_host = t->on_device;
    t->on_device = ++t->n_prefixes;
    return ask(t, t->on_device, a, why);
}

static enum status ask_pair(struct measurement *t, struct buf *why)
{
    double rate = t->rate;
    struct answer device, host;
    enum status s = ask(t, t->on_device, &device, why);

    if (s == OK)
        s = ask(t, t->on_host, &host, why);
    if (s == OK)
        s = measure_rate(t, why);
    if (s != OK)
        return s;
    uint64_t moved = t->on_host;
    t->on_host = t->on_device;
    t->on_device = moved;
    rate = t->rate > rate ? t->rate : rate;
    figure_series_add(&t->floors, (double)(t->out->weight_bytes + t->out->kv_bytes) / rate);
    count(t, TTFT_DEVICE, &device, rate);
    count(t, TTFT_HOST, &host, rate);
    return OK;
}

static enum status run_round(struct measurement *t, struct buf *why)
{
    struct answer cold;
    enum status s = ask_cold(t, &cold, why);

    if (s == OK)
        s = measure_rate(t, why);
    if (s == OK)
        count(t, TTFT_COLD, &cold, t->rate);
    for (uint64_t i = 0; s == OK && i < t->o->hits; i++)
        s = ask_pair(t, why);
    return s;
}

/* Warm up with the first prefix, which the first round finds on the host. */
static enum status run_rounds(struct measurement *t, struct buf *why)
{
    struct answer warm;
    enum status s = ask_cold(t, &warm, why);

    for (int i = 0; s == OK && i < 2; i++)
        s = ask(t, t->on_device, &warm, why);
    for (uint64_t i = 0; s == OK && i < t->o->rounds; i++) {
        if (!t->o->quiet)
            fprintf(stderr, "ttft: round %llu of %llu\n", (unsigned long long)i + 1,
                    (unsigned long long)t->o->rounds);
        s = run_round(t, why);
    }
    return s;
}

/* --- */

static enum status finish(struct measurement *t, struct buf *why)
{
    struct ttft_result *r = t->out;
    struct engine_stats *stats = malloc(sizeof *stats);

    if (!stats)
        return buf_why(why, ERR_NOMEM, "out of memory");
    engine_stats(asker_engine(t->asker), stats);
    r->cache = stats->cache;
    free(stats);
    r->read_bytes_per_s = figure_of(&t->rates);
    r->floor_s = figure_of(&t->floors);
    for (int k = 0; k < TTFT_N_KINDS; k++) {
        r->row[k].ttft_s = figure_of(&t->ttft[k]);
        r->row[k].ratio = figure_of(&t->ratio[k]);
        if (r->row[k].ttft_s.n == 0)
            return buf_why(why, ERR_INTERNAL,
                           "of %u %s requests none found its prefix there: "
                           "eviction did not move it as this measurement needs it",
                           r->row[k].n_elsewhere, ttft_kind_name((enum ttft_kind)k));
    }
    return OK;
}

static void begin_result(struct measurement *t)
{
    const struct engine_info *i = engine_info(asker_engine(t->asker));
    struct ttft_result *r = t->out;
    struct bench_work w;

    counts_step(&t->shape, 1, r->prefix, r->n_new, 1, &w);
    snprintf(r->ops_name, sizeof r->ops_name, "%s", i->ops_name);
    r->n_threads = i->n_threads;
    r->n_params = i->n_params;
    r->n_device_blocks = i->n_kv_blocks;
    r->n_host_blocks = i->n_kv_host_blocks;
    r->weight_bytes = w.weight_bytes;
    r->kv_bytes = w.kv_bytes;
}

enum status ttft_run(struct ttft_result *out, const struct cachebench_options *o, struct buf *why)
{
    struct measurement t = {.o = o, .out = out};

    *out = (struct ttft_result){.prefix = (uint32_t)o->prefix, .n_new = (uint32_t)o->n_new};
    out->n_device_blocks = cache_blocks_max((uint32_t)(o->prefix + o->n_new), 1, 1);
    out->n_host_blocks = HOST_MULTIPLE * out->n_device_blocks;
    enum status s = make_series(&t);
    if (s != OK)
        s = buf_why(why, s, "out of memory");
    if (s == OK)
        s = open_all(&t, why);
    if (s == OK) {
        begin_result(&t);
        s = run_rounds(&t, why);
    }
    if (s == OK)
        s = finish(&t, why);
    read_destroy(t.meter);
    asker_close(t.asker);
    figure_series_fini_all(t.ttft, TTFT_N_KINDS);
    figure_series_fini_all(t.ratio, TTFT_N_KINDS);
    figure_series_fini(&t.floors);
    figure_series_fini(&t.rates);
    free(t.ids);
    return s;
}
