#include "kernels/cpu/choice.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/save_file.h"
#include "kernels/kv_layout.h"
#include "kernels/pack.h"

/* Long enough for the clock, and small enough for a second-level cache. */
#define N_ROWS 24
#define N_COLS 256
#define N_K 1024
#define N_SAMPLES 12
/* More than most last-level caches give to one process. */
#define FETCH_WEIGHT_BYTES ((size_t)64 << 20)
#define N_FETCH_SAMPLES 4
#define FETCH_MAX_NS 50000000u
/* Least gain for which the first way to prefetch gives way. */
#define FETCH_MARGIN 1.05
#define CANDIDATES_MAX 16
/* Finite in every type, as element, code, scale and offset. */
#define FILL_BYTE 0x3c
/* Attention of one head over one segment, which is a quarter of the product's operations: the share
 * in a model of 0.5 B parameters behind 1,000 tokens, or in one of 8 B behind 7,000. */
#define ATTN_DIM 128
#define ATTN_BLOCKS (KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS)

static const char *const fetch_names[] = {
    [CPU_FETCH_AHEAD] = "ahead", [CPU_FETCH_QUARTERS] = "quarters"};

/* A device with one product and one attention on it. */
struct bench {
    struct device *d;
    struct gemm_params p;
    struct attention_params attn;
    struct attn_seq seq;
    struct attn_segment segment;
    uint32_t blocks[ATTN_BLOCKS];
};

/* The last rows of a segment attend to all of it. */
static bool bench_add_attention(struct bench *b, enum dtype kv)
{
    struct kv_pool pool = {.layout = kv_layout_of(kv),
                           .n_blocks = ATTN_BLOCKS,
                           .n_layers = 1,
                           .n_kv_heads = 1,
                           .head_dim = ATTN_DIM};
    size_t kv_bytes = ATTN_BLOCKS * kv_block_bytes(&pool), n = (size_t)N_ROWS * ATTN_DIM;
    float *q = device_alloc(b->d, n * sizeof(float));

    pool.base = device_alloc(b->d, kv_bytes);
    b->seq =
        (struct attn_seq){.n_rows = N_ROWS, .pos0 = KV_SEGMENT_TOKENS_MAX - N_ROWS, .n_segs = 1};
    b->segment = (struct attn_segment){.n_tokens = KV_SEGMENT_TOKENS_MAX};
    for (uint32_t i = 0; i < ATTN_BLOCKS; i++)
        b->blocks[i] = i;
    b->attn = (struct attention_params){
        .n_seqs = 1,
        .n_rows = N_ROWS,
        .n_rows_max = N_ROWS,
        .n_segs = 1,
        .n_segs_max = 1,
        .n_heads = 1,
        .scale = 0.1f,
        .q = q,
        .q_stride = ATTN_DIM,
        .out = device_alloc(b->d, n * sizeof(float)),
        .seqs = &b->seq,
        .segments = &b->segment,
        .blocks = b->blocks,
        .pool = pool,
    };
    if (!q || !pool.base || !b->attn.out)
        return false;
    memset(pool.base, FILL_BYTE, kv_bytes);
    for (size_t i = 0; i < n; i++)
        q[i] = (float)(i % 61) / 61;
    return true;
}

static bool bench_open(struct bench *b, const struct cpu_variant *v,
                       const struct device_config *config, uint32_t n_cols, uint32_t n_threads)
{
    struct device_config dc = {.kind = DEVICE_CPU,
                               .cpu_variant = v->name,
                               .n_threads = n_threads,
                               .numa = config->numa,
                               .max_rows = N_ROWS,
                               .max_k = N_K,
                               .max_heads = 1,
                               .max_head_dim = ATTN_DIM};
    enum dtype t = config->weights;
    uint32_t group = t < DTYPE_FLOATS ? 0 : config->weights_group;
    size_t bytes = pack_bytes(t, n_cols, N_K, group);
    float *a;

    *b = (struct bench){0};
    if (device_open(&b->d, &dc, NULL) != OK)
        return false;
    void *data = device_alloc(b->d, bytes);
    b->p = (struct gemm_params){
        .a = a = device_alloc(b->d, (size_t)N_ROWS * N_K * sizeof(float)),
        .a_stride = N_K,
        .w = {.dtype = t, .n = n_cols, .k = N_K, .group = group, .data = data},
        .out = device_alloc(b->d, (size_t)N_ROWS * n_cols * sizeof(float)),
        .out_stride = n_cols,
    };
    b->p.w.layout = device_weight_layout(b->d);
    if (!data || !a || !b->p.out)
        return false;
    memset(data, FILL_BYTE, bytes);
    for (size_t i = 0; i < (size_t)N_ROWS * N_K; i++)
        a[i] = (float)(i % 61) - 30;
    return bench_add_attention(b, config->kv);
}

static void keep_best(double *best, enum status s, uint64_t start_ns)
{
    double seconds = (double)(clock_now_ns() - start_ns) * 1e-9;

    if (s == OK && seconds < *best)
        *best = seconds;
}

/* The shorter of *best and one run of the product. */
static void bench_run(struct bench *b, uint32_t n_rows, double *best)
{
    b->p.n_rows = n_rows;
    uint64_t start_ns = clock_now_ns();

    keep_best(best, device_ops(b->d)->gemm(b->d, NULL, &b->p), start_ns);
}

static void bench_attend(struct bench *b, double *best)
{
    uint64_t start_ns = clock_now_ns();

    keep_best(best, device_ops(b->d)->attention(b->d, NULL, &b->attn), start_ns);
}

static double cost_of(const struct cpu_rate *r)
{
    return CPU_CHOICE_PROMPT_ROWS * (r->prefill + r->attention) + r->decode;
}

uint32_t cpu_choose(const struct cpu_rate *rates, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (cost_of(&rates[i]) * CPU_CHOICE_MARGIN < cost_of(&rates[best]))
            best = i;
    return best;
}

/* --- measurements --- */

/* The variants that this machine has; portable C only if there is no other. */
static uint32_t list_candidates(const struct cpu_variant *out[CANDIDATES_MAX])
{
    uint32_t n_all, n = 0;
    const struct cpu_variant *all = cpu_variants(&n_all);

    for (uint32_t i = 0; i < n_all && n < CANDIDATES_MAX; i++)
        if (all[i].supported() && (n == 0 || strcmp(all[i].name, "portable") != 0))
            out[n++] = &all[i];
    return n;
}

static void measure_variants(struct cpu_choice *c, const struct device_config *config,
                             struct buf *words)
{
    const struct cpu_variant *candidates[CANDIDATES_MAX];
    uint32_t n = list_candidates(candidates);
    struct cpu_rate rates[CANDIDATES_MAX];
    struct bench benches[CANDIDATES_MAX] = {{0}};
    bool is_open = true;

    for (uint32_t i = 0; i < n; i++) {
        rates[i] = (struct cpu_rate){1e9, 1e9, 1e9};
        is_open = is_open && bench_open(&benches[i], candidates[i], config, N_COLS, 1);
    }
    for (int sample = 0; is_open && sample < N_SAMPLES; sample++)
        for (uint32_t i = 0; i < n; i++) {
            bench_run(&benches[i], N_ROWS, &rates[i].prefill);
            bench_run(&benches[i], 1, &rates[i].decode);
            bench_attend(&benches[i], &rates[i].attention);
        }
    for (uint32_t i = 0; i < n; i++) {
        rates[i].prefill /= N_ROWS;
        rates[i].attention /= N_ROWS;
        device_close(benches[i].d);
        if (buf_printf(words, "%s%s %.2f+%.2f+%.2f us", i ? ", " : "", candidates[i]->name,
                       1e6 * rates[i].prefill, 1e6 * rates[i].attention,
                       1e6 * rates[i].decode) != OK)
            continue; /* words of a log line */
    }
    if (is_open && n > 0)
        c->variant = candidates[cpu_choose(rates, n)];
}

static void measure_fetch(struct cpu_choice *c, const struct device_config *config,
                          uint32_t n_threads, struct buf *words)
{
    enum dtype t = config->weights;
    size_t panel = pack_panel_bytes(t, N_K, t < DTYPE_FLOATS ? 0 : config->weights_group);
    uint32_t n_cols = (uint32_t)(FETCH_WEIGHT_BYTES / panel) * PANEL_COLS;
    double best[ARRAY_SIZE(fetch_names)] = {1e9, 1e9};
    struct bench b;

    if (bench_open(&b, c->variant, config, n_cols, n_threads)) {
        uint64_t end_ns = clock_now_ns() + FETCH_MAX_NS;

        for (int i = 0; i < N_FETCH_SAMPLES && (i == 0 || clock_now_ns() < end_ns); i++)
            for (uint32_t f = 0; f < ARRAY_SIZE(best); f++) {
                device_cpu(b.d)->fetch = (enum cpu_fetch)f;
                bench_run(&b, 1, &best[f]);
            }
        c->fetch = best[CPU_FETCH_QUARTERS] * FETCH_MARGIN < best[CPU_FETCH_AHEAD]
                       ? CPU_FETCH_QUARTERS
                       : CPU_FETCH_AHEAD;
        for (uint32_t f = 0; f < ARRAY_SIZE(best); f++)
            if (buf_printf(words, "%s%s %.1f GB/s", words->len > 0 ? "; " : "", fetch_names[f],
                           1e-9 * (double)(panel * (n_cols / PANEL_COLS)) / best[f]) != OK)
                break;
    }
    device_close(b.d);
}

/* --- the file of an earlier start --- */

/* A line that names the machine, its variants and what was measured: a file that begins otherwise
 * is of another machine or version. */
static enum status write_key(struct buf *out, const struct device_config *config,
                             uint32_t n_threads)
{
    char line[256], model[256] = "";
    const struct cpu_variant *candidates[CANDIDATES_MAX];
    uint32_t n = list_candidates(candidates);
    FILE *f = fopen("/proc/cpuinfo", "r");

    while (f && !model[0] && fgets(line, sizeof line, f))
        if (strncmp(line, "model name", 10) == 0)
            memcpy(model, line, sizeof model);
    if (f)
        fclose(f);
    model[strcspn(model, "\n")] = '\0';
    enum status s = buf_printf(
        out, "tarn kernels 2, %s, weights %u of groups of %u, KV %u, %u threads, %s:", model,
        (unsigned)config->weights, config->weights_group, (unsigned)config->kv, n_threads,
        config->cpu_variant ? config->cpu_variant : "auto");
    for (uint32_t i = 0; s == OK && i < n; i++)
        s = buf_printf(out, " %s.%u", candidates[i]->name, candidates[i]->ops->version);
    return s;
}

/* The file of these settings: a server with others must not take the place of its choice. */
static bool write_path(char path[PATH_MAX], const struct device_config *config, uint32_t n_threads)
{
    int n = snprintf(path, PATH_MAX, "%s/kernels-%u-%u-%u-%u-%s.txt", config->measure_dir,
                     (unsigned)config->weights, config->weights_group, (unsigned)config->kv,
                     n_threads, config->cpu_variant ? config->cpu_variant : "auto");

    return n > 0 && n < PATH_MAX;
}

/* The whole text of a file with this choice. */
static enum status write_choice(struct buf *out, const struct buf *key, const struct cpu_choice *c)
{
    buf_reset(out);
    return buf_printf(out, "%s\nvariant %s\nprefetch %s\n", buf_str(key), c->variant->name,
                      fetch_names[c->fetch]);
}

/* Whether the file has the text of one of the possible choices, which *c then becomes. */
static bool load(struct cpu_choice *c, const char *path, const struct buf *key)
{
    const struct cpu_variant *candidates[CANDIDATES_MAX];
    uint32_t n = list_candidates(candidates);
    char text[1024];
    FILE *f = fopen(path, "r");
    size_t len = f ? fread(text, 1, sizeof text, f) : 0;
    bool found = false;
    struct buf one;

    if (f)
        fclose(f);
    buf_init(&one, sizeof text);
    for (uint32_t i = 0; !found && len > 0 && i < n * ARRAY_SIZE(fetch_names); i++) {
        struct cpu_choice like = {candidates[i / ARRAY_SIZE(fetch_names)],
                                  (enum cpu_fetch)(i % ARRAY_SIZE(fetch_names))};

        found = write_choice(&one, key, &like) == OK && one.len == len &&
                memcmp(one.data, text, len) == 0;
        if (found)
            *c = like;
    }
    buf_fini(&one);
    return found;
}

static void save(const struct cpu_choice *c, const char *path, const struct buf *key)
{
    struct buf text, why;

    buf_init(&text, 1024);
    buf_init(&why, BUF_WHY_MAX);
    if (write_choice(&text, key, c) != OK || save_file(path, &text, &why) != OK)
        log_event(LOG_WARN, "the choice of kernels is not kept: each start measures", "why=\"%s\"",
                  buf_str(&why));
    buf_fini(&text);
    buf_fini(&why);
}

/* Measure what the configuration does not name. */
static void measure(struct cpu_choice *c, const struct device_config *config, uint32_t n_threads,
                    struct buf *words)
{
    if (!config->cpu_variant)
        measure_variants(c, config, words);
    measure_fetch(c, config, n_threads, words);
}

/* A process that starts at the same time waits, and then finds the choice of this one: instances
 * with other kernels than each other's could not share KV. */
void cpu_measure(struct cpu_choice *c, const struct device_config *config, uint32_t n_threads)
{
    char path[PATH_MAX] = "";
    struct buf key, words;
    bool kept, loaded;

    buf_init(&key, 1024);
    buf_init(&words, 1024);
    kept = config->measure_dir && write_key(&key, config, n_threads) == OK &&
           write_path(path, config, n_threads);
    int lock = kept ? save_lock_dir(config->measure_dir) : -1;
    loaded = kept && load(c, path, &key);
    if (!loaded)
        measure(c, config, n_threads, &words);
    if (kept && !loaded)
        save(c, path, &key);
    save_unlock_dir(lock);
    log_event(LOG_INFO, "kernels chosen", "variant=%s prefetch=%s source=%s measured=\"%s\"",
              c->variant->name, fetch_names[c->fetch],
              loaded                ? "file"
              : config->cpu_variant ? "flag"
                                    : "measured",
              words.len > 0 ? buf_str(&words) : "");
    buf_fini(&key);
    buf_fini(&words);
}
