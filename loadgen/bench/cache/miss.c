#include "loadgen/bench/cache/miss.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/rng.h"
#include "loadgen/bench/cache/asker.h"
#include "loadgen/bench/cache/model_files.h"

/* Prompts that fit the pool: each further one evicts another. */
#define N_FIT 4
#define N_SEQS 2
#define N_VOCAB 2000u

/* Small enough to run under callgrind in a minute. The macros above have the same numbers. */
static const char shape_config[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":256,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":64,"
    "\"intermediate_size\":768,\"vocab_size\":2000,\"max_position_embeddings\":16384,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"tie_word_embeddings\":true,"
    "\"torch_dtype\":\"bfloat16\"}\n";
#define N_LAYERS 2u
#define MACS_PER_TOKEN (N_LAYERS * (256u * (256u + 2u * 128u) + 256u * 256u + 3u * 256u * 768u))

/* An engine with caching, or the one without. */
struct side {
    bool caching;
    struct asker *asker;
    struct figure_series cpu;
    uint64_t n_asked;
};

static double cpu_seconds(void)
{
    struct timespec t;

    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) != 0)
        return 0;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t pool_bytes(uint32_t n_tokens)
{
    struct kv_pool pool = {
        .layout = kv_layout_of(DTYPE_BF16), .n_layers = N_LAYERS, .n_kv_heads = 2, .head_dim = 64};

    return N_FIT * cache_blocks_max(n_tokens, 0, 1) * kv_block_bytes(&pool);
}

static enum status open_side(struct side *side, const struct cachebench_options *o, const char *dir,
                             struct buf *why)
{
    struct engine_config c;

    engine_config_init(&c);
    c.model_dir = dir;
    c.device = "cpu";
    c.cpu_variant = strcmp(o->cpu_variant, "auto") == 0 ? NULL : o->cpu_variant;
    c.load_format = "dummy";
    c.n_threads = o->threads ? (uint32_t)o->threads : 1;
    c.max_model_len = (uint32_t)(o->prompt + o->max_tokens + 1);
    c.max_num_seqs = N_SEQS;
    c.kv_bytes = pool_bytes(c.max_model_len);
    c.prefix_caching = side->caching;
    if (o->cache_policy[0])
        c.cache_policy = o->cache_policy;
    enum status s = figure_series_init(&side->cpu, (uint32_t)o->requests);
    if (s != OK)
        return buf_why(why, s, "out of memory");
    return asker_open(&side->asker, &c, why);
}

static enum status ask_one(struct side *side, const struct cachebench_options *o, uint32_t *ids,
                           struct buf *why)
{
    uint32_t n = (uint32_t)o->prompt;
    struct answer a;
    double t0;

    for (uint32_t i = 0; i < n; i++)
        ids[i] = rng_u32(side->n_asked, i) % N_VOCAB;
    /* In base N_VOCAB, at the front: no two prompts begin alike before N_VOCAB squared. */
    ids[0] = (uint32_t)(side->n_asked % N_VOCAB);
    if (n > 1)
        ids[1] = (uint32_t)(side->n_asked / N_VOCAB % N_VOCAB);
    side->n_asked++;
    t0 = cpu_seconds();
    enum status s = asker_ask(side->asker, ids, n, NULL, 0, (uint32_t)o->max_tokens, &a, why);
    figure_series_add(&side->cpu, cpu_seconds() - t0);
    if (s == OK && a.n_cached)
        s = buf_why(why, ERR_INTERNAL,
                    "%u tokens were found of a prompt that was never asked "
                    "before",
                    a.n_cached);
    return s;
}

static enum status read_evicted(struct miss_result *out, struct asker *a, struct buf *why)
{
    struct engine_stats *stats = malloc(sizeof *stats);

    if (!stats)
        return buf_why(why, ERR_NOMEM, "out of memory");
    engine_stats(asker_engine(a), stats);
    out->n_evicted = stats->cache.tier[CACHE_DEVICE].n_evicted;
    free(stats);
    return OK;
}

/* Alternate between the sides: a change of the machine's speed hits both alike. */
static enum status run(struct side *sides, struct miss_result *out,
                       const struct cachebench_options *o, struct buf *why)
{
    uint32_t *ids = calloc(o->prompt, sizeof *ids);
    enum status s = ids ? OK : buf_why(why, ERR_NOMEM, "out of memory");

    for (uint64_t i = 0; s == OK && i < o->requests; i++)
        for (int k = 0; s == OK && k < MISS_N_SIDES; k++) {
            struct side *side = &sides[(i + (uint64_t)k) % MISS_N_SIDES]; /* first in turns */
            if (side->asker)
                s = ask_one(side, o, ids, why);
        }
    free(ids);
    if (s == OK && sides[MISS_ON].asker)
        s = read_evicted(out, sides[MISS_ON].asker, why);
    return s;
}

static enum status open_sides(struct side *sides, struct miss_result *out,
                              const struct cachebench_options *o, struct buf *why)
{
    struct model_files files = {{0}};
    enum status s = model_files_make(&files, shape_config, why);

    for (int k = 0; s == OK && k < MISS_N_SIDES; k++) {
        if (strcmp(o->prefix_caching, k == MISS_ON ? "off" : "on") == 0)
            continue;
        sides[k].caching = k == MISS_ON;
        s = open_side(&sides[k], o, files.dir, why);
        if (s == OK)
            snprintf(out->ops_name, sizeof out->ops_name, "%s",
                     engine_info(asker_engine(sides[k].asker))->ops_name);
    }
    model_files_remove(&files); /* the engines have read it */
    return s;
}

enum status miss_run(struct miss_result *out, const struct cachebench_options *o, struct buf *why)
{
    struct side sides[MISS_N_SIDES] = {{0}};

    *out = (struct miss_result){.n_requests = (uint32_t)o->requests,
                                .n_prompt = (uint32_t)o->prompt,
                                .n_out = (uint32_t)o->max_tokens,
                                .n_macs_per_token = MACS_PER_TOKEN};
    enum status s = open_sides(sides, out, o, why);
    if (s == OK && !o->quiet)
        fprintf(stderr, "miss: %llu requests\n", (unsigned long long)o->requests);
    if (s == OK)
        s = run(sides, out, o, why);
    for (int k = 0; k < MISS_N_SIDES; k++) {
        out->ran[k] = sides[k].asker != NULL;
        out->cpu_s[k] = figure_of(&sides[k].cpu);
        figure_series_fini(&sides[k].cpu);
        asker_close(sides[k].asker);
    }
    return s;
}
