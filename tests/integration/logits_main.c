/* tarn-logits - the forward pass without server, scheduler and sampler: logits of every position.
 *
 *   tarn-logits MODEL_DIR IDS_FILE OUT_FILE [--dtype T] [--kv-dtype T] [--chunk N] [--threads N]
 *               [--device ref|cpu|cuda] [--cpu-variant V] [--span-ends A,B,...]
 *               [--quantization auto|none|int8|int4] [--quantization-group N] [--adapter DIR]
 *
 * IDS_FILE holds token ids separated by white space; OUT_FILE gets raw little-endian float32
 * [n_ids, vocab]; the name of the kernel set goes to stdout. A test program: references in other
 * languages are compared with it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/model/family.h"
#include "engine/run/forward.h"
#include "kernels/device.h"

struct options {
    const char *dir, *ids_file, *out_file;
    const char *dtype, *kv_dtype, *variant, *quantization, *adapter;
    uint32_t quantization_group;
    enum device_kind kind;
    uint32_t chunk, threads;
    uint32_t span_ends[64], n_span_ends;
};

static void die(const char *what, const char *detail)
{
    fprintf(stderr, "tarn-logits: %s %s\n", what, detail);
    exit(1);
}

static enum dtype dtype_of(const char *name, enum dtype otherwise)
{
    if (!name)
        return otherwise;
    if (!strcmp(name, "int8") || !strcmp(name, "fp8")) /* of KV only */
        return !strcmp(name, "int8") ? DTYPE_I8 : DTYPE_F8;
    return !strcmp(name, "bf16") ? DTYPE_BF16 : !strcmp(name, "f16") ? DTYPE_F16 : DTYPE_F32;
}

static void parse(struct options *o, int argc, char **argv)
{
    if (argc < 4)
        die("usage:", "tarn-logits MODEL_DIR IDS_FILE OUT_FILE [options]");
    *o = (struct options){.dir = argv[1],
                          .ids_file = argv[2],
                          .out_file = argv[3],
                          .kind = DEVICE_CPU,
                          .chunk = 64,
                          .quantization = "none"};
    for (int i = 4; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        if (!strcmp(argv[i], "--dtype"))
            o->dtype = v;
        else if (!strcmp(argv[i], "--kv-dtype"))
            o->kv_dtype = v;
        else if (!strcmp(argv[i], "--quantization"))
            o->quantization = v;
        else if (!strcmp(argv[i], "--adapter"))
            o->adapter = v;
        else if (!strcmp(argv[i], "--quantization-group"))
            o->quantization_group = (uint32_t)atoi(v);
        else if (!strcmp(argv[i], "--cpu-variant"))
            o->variant = v;
        else if (!strcmp(argv[i], "--chunk"))
            o->chunk = (uint32_t)atoi(v);
        else if (!strcmp(argv[i], "--threads"))
            o->threads = (uint32_t)atoi(v);
        else if (!strcmp(argv[i], "--device"))
            o->kind = !strcmp(v, "ref")    ? DEVICE_REF
                      : !strcmp(v, "cuda") ? DEVICE_CUDA
                                           : DEVICE_CPU;
        else if (!strcmp(argv[i], "--span-ends"))
            for (char *p = (char *)v; *p && o->n_span_ends < 64; p += *p == ',')
                o->span_ends[o->n_span_ends++] = (uint32_t)strtoul(p, &p, 10);
        else
            die("unknown option", argv[i]);
    }
}

static uint32_t *read_ids(const char *path, uint32_t *n)
{
    FILE *f = fopen(path, "r");
    uint32_t *ids = NULL, cap = 0;
    unsigned v;

    *n = 0;
    if (!f)
        die("cannot open", path);
    while (fscanf(f, "%u", &v) == 1) {
        if (*n == cap)
            ids = realloc(ids, (cap = cap ? cap * 2 : 1024) * sizeof *ids);
        if (!ids)
            die("out of memory", "");
        ids[(*n)++] = v;
    }
    fclose(f);
    return ids;
}

static void check(enum status s, const struct buf *why)
{
    if (s != OK)
        die(status_name(s), buf_str(why));
}

static void run(const struct options *o, struct forward *f, struct cache *cache, uint32_t n_vocab,
                const struct adapter *adapter, const uint32_t *ids, uint32_t n, struct buf *why)
{
    uint8_t fingerprint[KV_FINGERPRINT_BYTES] = {0};
    struct kv_scope scope = {{0}};
    struct cache_prompt prompt = {
        .ids = ids, .n_ids = n, .span_ends = o->span_ends, .n_span_ends = o->n_span_ends};
    struct kv_key *keys = calloc(cache_blocks_max(n, o->n_span_ends, 0), sizeof *keys);
    struct cache_seq *seq;
    struct batch batch;
    FILE *out = fopen(o->out_file, "wb");

    if (!keys || !out)
        die("cannot write", o->out_file);
    kv_chain_init(&prompt.chain, fingerprint, &scope, KV_SEGMENT_TOKENS_MAX);
    prompt.n_keys = kv_chain_prompt(&prompt.chain, ids, n, o->span_ends, o->n_span_ends, 0, keys);
    prompt.keys = keys;
    check(cache_seq_open(cache, &prompt, n, &seq), why);
    check(batch_create(&batch, o->chunk, 1, o->chunk, cache_blocks_max(n, 64, 0)), why);
    for (uint32_t pos = 0; pos < n; pos += o->chunk) {
        uint32_t c = n - pos < o->chunk ? n - pos : o->chunk;
        float *logits;
        check(cache_seq_grow(seq, c), why);
        batch_reset(&batch);
        batch_add(&batch, seq, ids + pos, pos, c, c);
        if (adapter)
            batch_adapt(&batch, adapter);
        check(forward_run(f, &batch, cache_pool(cache), &logits), why);
        cache_seq_commit(seq, c);
        if (fwrite(logits, sizeof(float) * n_vocab, c, out) != c)
            die("cannot write", o->out_file);
    }
    if (fclose(out) != 0)
        die("cannot write", o->out_file);
    cache_seq_close(seq);
    cache_check(cache);
    batch_destroy(&batch);
    free(keys);
}

/* The adapter of --adapter on the device, or NULL. */
static struct adapter *load_adapter(const struct options *o, const struct model_config *m,
                                    const struct weights *weights, struct device *device,
                                    struct buf *why)
{
    const struct adapter_source source = {.name = "adapter",
                                          .dir = o->adapter,
                                          .model = m,
                                          .weights = weights,
                                          .layout = device_weight_layout(device),
                                          .rank_max = m->dim};
    struct adapter *a = NULL;

    if (!o->adapter)
        return NULL;
    check(adapter_load(&a, &source, why), why);
    if (!device_is_host(device))
        check(adapter_place(a, device), why);
    return a;
}

int main(int argc, char **argv)
{
    struct options o;
    struct model_config m;
    struct model_work work;
    struct device *device;
    struct weights weights;
    struct forward *forward;
    struct cache *cache;
    struct buf why;
    enum dtype stored;
    uint32_t n;

    buf_init(&why, BUF_WHY_MAX);
    parse(&o, argc, argv);
    check(hash_init(), &why);
    uint32_t *ids = read_ids(o.ids_file, &n);
    check(model_config_load(&m, o.dir, &why), &why);
    model_set_context(&m, n);
    check(weights_stored_dtype(&m, o.dir, &stored, &why), &why);
    m.family->count_work(&m, NULL, &work);
    struct device_config dc = {.kind = o.kind,
                               .cpu_variant = o.variant,
                               .n_threads = o.threads,
                               .max_rows = o.chunk,
                               .max_k = work.k_max,
                               .max_heads = m.n_heads,
                               .max_head_dim = m.head_dim};
    check(device_open(&device, &dc, &why), &why);
    puts(device_ops(device)->name);
    struct weights_config wc = {
        .device = device, .dir = o.dir, .model = &m, .dtype = dtype_of(o.dtype, stored)};
    check(quantization_parse(&wc.quantization, o.quantization, o.quantization_group, &why), &why);
    check(weights_load(&weights, &wc, &why), &why);
    struct cache_config cc = {.group = device_group_of(device),
                              .segment_tokens = KV_SEGMENT_TOKENS_MAX,
                              .prefix_caching = true,
                              .pool = {.layout = kv_layout_of(dtype_of(o.kv_dtype, wc.dtype)),
                                       .n_blocks = cache_blocks_max(n, 64, 0),
                                       .n_layers = m.n_layers,
                                       .n_kv_heads = m.n_kv_heads,
                                       .head_dim = m.head_dim}};
    check(cache_create(&cache, &cc, &why), &why);
    struct adapter *adapter = load_adapter(&o, &m, &weights, device, &why);
    struct forward_config fc = {.group = device_group_of(device),
                                .model = &m,
                                .weights = &weights,
                                .n_rows_max = o.chunk,
                                .n_out_max = o.chunk,
                                .n_pos = n,
                                .n_seqs_max = 1,
                                .adapter_rank = adapter ? adapter->rank : 0,
                                .n_blocks_max = cache_blocks_max(n, 64, 0)};
    check(forward_create(&forward, &fc), &why);
    run(&o, forward, cache, m.n_vocab, adapter, ids, n, &why);
    forward_destroy(forward);
    if (adapter && adapter->on_device)
        adapter_displace(adapter);
    adapter_free(adapter);
    cache_destroy(cache);
    weights_free(&weights);
    device_close(device);
    free(ids);
    buf_fini(&why);
    return 0;
}
