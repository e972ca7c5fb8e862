#include "engine/model/adapter.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "engine/model/adapter_config.h"
#include "engine/model/decoder.h"
#include "engine/model/safetensors.h"
#include "kernels/pack.h"

#define FILE_NAME "adapter_model.safetensors"
#define PREFIX "base_model.model."
#define LAYERS "model.layers."
/* Of the hash: a change of the arithmetic needs another one. */
#define HASH_WORDS "tarn adapter 1"
/* Of a file of tensors: its header, which has about 200 bytes for each of them. */
#define HEADER_BYTES_MAX ((size_t)16 << 20)
#define ALIGN 256
#define MODULE_BYTES 128
#define N_TARGETS 7

/* A module of a layer that may have an addition. */
struct target {
    const char *name; /* behind "model.layers.N."; NULL: there is no such module */
    enum adapter_place place;
    uint32_t col0, n, k;
};

/* A module's two matrices. */
struct pair {
    const struct tensor *a, *b;
    double scale;
};

struct reader {
    const struct adapter_source *source;
    struct adapter_config config;
    struct safetensors *file;
    struct pair *pairs; /* [n_layers * N_TARGETS] */
    struct adapter *out;
    struct buf *why;
};

bool adapter_is_possible(const struct model_config *m)
{
    return m->family->run_layer == decoder_run;
}

/* --- which module a tensor belongs to --- */

static const char *either(const char *a, const char *b)
{
    return a ? a : b;
}

/* The modules of a layer. A mixture of experts has none in its feed-forward part. */
static void list_targets(const struct adapter_source *src, uint32_t layer,
                         struct target out[N_TARGETS])
{
    const struct model_config *m = src->model;
    const struct decoder_names *names = decoder_layers(src->weights)[layer].names;
    uint32_t q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim, f = m->ffn_dim;
    bool is_fused = names->is_fused || names->qkv, dense = !moe_has_layer(m, layer);
    struct target all[N_TARGETS] = {
        {is_fused ? either(names->qkv, "self_attn.qkv_proj") : "self_attn.q_proj", ADAPTER_QKV, 0,
         is_fused ? q + 2 * kv : q, m->dim},
        {is_fused ? NULL : "self_attn.k_proj", ADAPTER_QKV, q, kv, m->dim},
        {is_fused ? NULL : "self_attn.v_proj", ADAPTER_QKV, q + kv, kv, m->dim},
        {either(names->o, "self_attn.o_proj"), ADAPTER_O, 0, m->dim, q},
        {!dense            ? NULL
         : names->is_fused ? "mlp.gate_up_proj"
                           : "mlp.gate_proj",
         ADAPTER_GATE_UP, 0, names->is_fused ? 2 * f : f, m->dim},
        {dense && !names->is_fused ? "mlp.up_proj" : NULL, ADAPTER_GATE_UP, f, f, m->dim},
        {dense ? "mlp.down_proj" : NULL, ADAPTER_DOWN, 0, m->dim, f},
    };

    memcpy(out, all, sizeof all);
}

/* Cut `part` off the front of *at. */
static bool skip(const char **at, const char *part)
{
    size_t n = strlen(part);

    if (strncmp(*at, part, n) != 0)
        return false;
    *at += n;
    return true;
}

/* A number without leading zeros. */
static bool read_number(const char **at, uint32_t max, uint32_t *out)
{
    const char *p = *at;

    *out = 0;
    if (*p < '0' || *p > '9' || (*p == '0' && p[1] >= '0' && p[1] <= '9'))
        return false;
    for (; *p >= '0' && *p <= '9'; p++)
        if ((*out = *out * 10 + (uint32_t)(*p - '0')) > max)
            return false;
    *at = p;
    return true;
}

/* Split "base_model.model.model.layers.N.MODULE.lora_A.weight". */
static bool split_name(const char *name, uint32_t n_layers, uint32_t *layer,
                       char module[MODULE_BYTES], bool *is_b)
{
    static const char *const ends[] = {".lora_A.weight", ".lora_B.weight"};
    size_t n;

    if (!skip(&name, PREFIX LAYERS) || !read_number(&name, n_layers - 1, layer) || *name++ != '.')
        return false;
    n = strlen(name);
    for (int i = 0; i < 2; i++) {
        size_t k = strlen(ends[i]);

        if (n <= k || n - k >= MODULE_BYTES || strcmp(name + n - k, ends[i]) != 0)
            continue;
        memcpy(module, name, n - k);
        module[n - k] = '\0';
        *is_b = i == 1;
        return true;
    }
    return false;
}

/* The rank that the configuration gives to a module of a layer, and its scale. */
static uint32_t rank_of(const struct reader *r, uint32_t layer, const char *module, double *scale)
{
    char full[MODULE_BYTES + 32];

    snprintf(full, sizeof full, LAYERS "%u.%s", layer, module);
    *scale = adapter_config_scale(&r->config, full);
    return adapter_config_rank(&r->config, full);
}

static enum status check_tensor(const struct reader *r, const struct tensor *t, uint64_t rows,
                                uint64_t cols)
{
    if (!t->dtype_known)
        return buf_why(r->why, ERR_UNSUPPORTED,
                       "tensor %s has dtype %s; F32, F16 and BF16 are supported", t->name,
                       t->dtype_name);
    if (t->n_dims == 2 && t->shape[0] == rows && t->shape[1] == cols)
        return OK;
    return buf_why(r->why, ERR_INVALID,
                   "tensor %s has another shape than model and adapter_config.json say "
                   "(wanted [%" PRIu64 ", %" PRIu64 "])",
                   t->name, rows, cols);
}

static enum status take_tensor(struct reader *r, const struct tensor *t)
{
    const struct adapter_source *src = r->source;
    struct target targets[N_TARGETS];
    char module[MODULE_BYTES];
    uint32_t layer, at = 0;
    double scale;
    bool is_b;

    if (!split_name(t->name, src->model->n_layers, &layer, module, &is_b))
        return buf_why(r->why, ERR_UNSUPPORTED,
                       "tensor %.200s is not supported: lora_A and lora_B of modules in %s0 to "
                       "%s%u are",
                       t->name, LAYERS, LAYERS, src->model->n_layers - 1);
    list_targets(src, layer, targets);
    while (at < N_TARGETS && !(targets[at].name && strcmp(targets[at].name, module) == 0))
        at++;
    if (at == N_TARGETS)
        return buf_why(r->why, ERR_UNSUPPORTED,
                       "tensor %.200s: this model has no module %s that adapters are supported for "
                       "(experts have none)",
                       t->name, module);
    uint32_t rank = rank_of(r, layer, module, &scale);
    struct pair *p = &r->pairs[(size_t)layer * N_TARGETS + at];
    if (rank > src->rank_max || rank > src->model->dim)
        return buf_why(r->why, ERR_TOO_LARGE,
                       "module %s of layer %u has rank %u, at most %u is served ({max_lora_rank})",
                       module, layer, rank,
                       src->rank_max < src->model->dim ? src->rank_max : src->model->dim);
    p->scale = scale;
    *(is_b ? &p->b : &p->a) = t;
    r->out->rank = rank > r->out->rank ? rank : r->out->rank;
    return is_b ? check_tensor(r, t, targets[at].n, rank) : check_tensor(r, t, rank, targets[at].k);
}

/* Check that matrices come in pairs, and that there are any. */
static enum status check_pairs(const struct reader *r)
{
    size_t n = (size_t)r->source->model->n_layers * N_TARGETS, n_pairs = 0;

    for (size_t i = 0; i < n; i++) {
        const struct pair *p = &r->pairs[i];

        if (!p->a != !p->b)
            return buf_why(r->why, ERR_INVALID, "tensor %s has no lora_%c beside it",
                           (p->a ? p->a : p->b)->name, p->a ? 'B' : 'A');
        n_pairs += p->a != NULL;
    }
    return n_pairs > 0 ? OK : buf_why(r->why, ERR_INVALID, "%s has no tensors", FILE_NAME);
}

/* --- packing --- */

static void shape(const struct adapter_source *src, struct weight *w, uint32_t n, uint32_t k,
                  size_t *at)
{
    *w = (struct weight){.dtype = DTYPE_F32,
                         .layout = src->layout,
                         .n = n,
                         .k = k,
                         .stride = src->layout == WEIGHT_ROWS ? pack_row_stride(k) : 0,
                         .data = (const void *)(uintptr_t)*at}; /* an offset, until place_at() */
    *at += (pack_weight_bytes(w) + ALIGN - 1) / ALIGN * ALIGN;
}

/* Plan the weights of one product from the pairs of its modules. */
static void plan_product_of(const struct reader *r, const struct target *targets,
                            const struct pair *pairs, enum adapter_place place, size_t *at)
{
    size_t layer = (size_t)(pairs - r->pairs) / N_TARGETS;
    struct adapter_product *y = &r->out->products[layer * ADAPTER_N_PLACES + place];
    uint32_t mid = 0, k = 0;

    for (uint32_t i = 0; i < N_TARGETS; i++) {
        if (!pairs[i].a || targets[i].place != place)
            continue;
        struct adapter_up *up = &y->ups[y->n_ups++];
        uint32_t rank = (uint32_t)pairs[i].a->shape[0];

        *up = (struct adapter_up){.col0 = targets[i].col0, .mid0 = mid};
        shape(r->source, &up->w, targets[i].n, rank, at);
        mid += rank;
        k = targets[i].k;
        r->out->n_params += (uint64_t)rank * (targets[i].n + (uint64_t)k);
    }
    if (mid > 0)
        shape(r->source, &y->down, mid, k, at);
}

static void plan(const struct reader *r)
{
    struct target targets[N_TARGETS];

    for (uint32_t layer = 0; layer < r->out->n_layers; layer++) {
        list_targets(r->source, layer, targets);
        for (int place = 0; place < ADAPTER_N_PLACES; place++)
            plan_product_of(r, targets, &r->pairs[(size_t)layer * N_TARGETS],
                            (enum adapter_place)place, &r->out->n_bytes);
    }
}

/* Move all weights from memory that begins at `from` to memory that begins at `to`. */
static void place_at(struct adapter *a, const void *from, const void *to)
{
    for (size_t i = 0; i < (size_t)a->n_layers * ADAPTER_N_PLACES; i++) {
        struct adapter_product *y = &a->products[i];

        if (y->n_ups == 0)
            continue;
        y->down.data = (const void *)((uintptr_t)y->down.data - (uintptr_t)from + (uintptr_t)to);
        for (uint32_t k = 0; k < y->n_ups; k++)
            y->ups[k].w.data =
                (const void *)((uintptr_t)y->ups[k].w.data - (uintptr_t)from + (uintptr_t)to);
    }
}

/* Pack a tensor, times a scale, as rows [n0, ..) of w. */
static enum status pack_tensor(const struct reader *r, const struct tensor *t, double scale,
                               const struct weight *w, uint32_t n0)
{
    size_t n = (size_t)t->shape[0] * t->shape[1];
    float *floats = malloc(n * sizeof *floats);
    enum status s = OK;

    if (!floats)
        return buf_why(r->why, ERR_NOMEM, "out of memory for the adapter");
    dtype_convert(DTYPE_F32, floats, t->dtype, t->data, n);
    for (size_t i = 0; s == OK && i < n; i++) {
        floats[i] *= (float)scale;
        if (!isfinite(floats[i]))
            s = buf_why(r->why, ERR_INVALID, "tensor %s has NaN or infinity", t->name);
    }
    if (s == OK)
        pack_rows(w, n0, floats, (uint32_t)t->shape[0]);
    free(floats);
    return s;
}

static void hash_pair(struct hash_state *h, const struct pair *p)
{
    const struct tensor *both[] = {p->a, p->b};

    hash_add(h, &p->scale, sizeof p->scale);
    for (int i = 0; i < 2; i++) {
        uint64_t head[3] = {both[i]->shape[0], both[i]->shape[1], both[i]->dtype};

        hash_add(h, both[i]->name, strlen(both[i]->name) + 1);
        hash_add(h, head, sizeof head);
        hash_add(h, both[i]->data, both[i]->n_bytes);
    }
}

static enum status pack_product_of(const struct reader *r, const struct target *targets,
                                   const struct pair *pairs, const struct adapter_product *y,
                                   enum adapter_place place)
{
    const struct adapter_up *up = y->ups;
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < N_TARGETS; i++) {
        if (!pairs[i].a || targets[i].place != place)
            continue;
        s = pack_tensor(r, pairs[i].a, 1, &y->down, up->mid0);
        if (s == OK)
            s = pack_tensor(r, pairs[i].b, pairs[i].scale, &up->w, 0);
        up++;
    }
    return s;
}

static enum status pack(const struct reader *r)
{
    struct adapter *a = r->out;
    struct target targets[N_TARGETS];
    struct hash_state h;
    enum status s = OK;

    hash_begin(&h, sizeof a->hash, NULL, 0);
    hash_add(&h, HASH_WORDS, sizeof HASH_WORDS);
    for (uint32_t layer = 0; s == OK && layer < a->n_layers; layer++) {
        const struct pair *pairs = &r->pairs[(size_t)layer * N_TARGETS];

        list_targets(r->source, layer, targets);
        for (int place = 0; s == OK && place < ADAPTER_N_PLACES; place++)
            s = pack_product_of(r, targets, pairs,
                                &a->products[(size_t)layer * ADAPTER_N_PLACES + place],
                                (enum adapter_place)place);
        for (uint32_t i = 0; i < N_TARGETS; i++)
            if (pairs[i].a)
                hash_pair(&h, &pairs[i]);
    }
    hash_end(&h, a->hash, sizeof a->hash);
    return s;
}

/* --- loading --- */

static enum status create(struct reader *r)
{
    const struct adapter_source *src = r->source;
    uint32_t n_layers = src->model->n_layers;
    struct adapter *a = r->out = calloc(1, sizeof *a);

    r->pairs = calloc((size_t)n_layers * N_TARGETS, sizeof *r->pairs);
    if (!a || !r->pairs)
        return buf_why(r->why, ERR_NOMEM, "out of memory for the adapter");
    atomic_init(&a->refs, 1);
    a->n_layers = n_layers;
    a->name = strdup(src->name);
    a->path = strdup(src->dir);
    a->base = src->base ? strdup(src->base) : NULL;
    a->products = calloc((size_t)n_layers * ADAPTER_N_PLACES, sizeof *a->products);
    return a->name && a->path && a->products && (!src->base || a->base)
               ? OK
               : buf_why(r->why, ERR_NOMEM, "out of memory for the adapter");
}

static enum status read_tensors(struct reader *r)
{
    uint32_t n;
    const struct tensor *all = safetensors_all(r->file, &n);
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < n; i++)
        s = take_tensor(r, &all[i]);
    return s == OK ? check_pairs(r) : s;
}

static enum status fill(struct reader *r)
{
    struct adapter *a = r->out;

    plan(r);
    a->memory = aligned_alloc(ALIGN, a->n_bytes);
    if (!a->memory)
        return buf_why(r->why, ERR_NOMEM, "out of memory for the adapter");
    memset(a->memory, 0, a->n_bytes); /* padding of packed weights */
    place_at(a, NULL, a->memory);
    return pack(r);
}

/* The bytes of a file that has each matrix with the largest rank. The file is copied before it is
 * read, because another process may cut it off meanwhile. */
static size_t file_bytes_max(const struct adapter_source *src)
{
    size_t n_bytes = HEADER_BYTES_MAX;
    struct target targets[N_TARGETS];

    for (uint32_t layer = 0; layer < src->model->n_layers; layer++) {
        list_targets(src, layer, targets);
        for (uint32_t i = 0; i < N_TARGETS; i++)
            if (targets[i].name)
                n_bytes += sizeof(float) * src->rank_max * ((size_t)targets[i].n + targets[i].k);
    }
    return n_bytes;
}

enum status adapter_load(struct adapter **out, const struct adapter_source *source, struct buf *why)
{
    struct reader r = {.source = source, .why = why};
    enum status s = OK;

    *out = NULL;
    if (!adapter_is_possible(source->model))
        return buf_why(why, ERR_UNSUPPORTED, "a model of the family %s takes no adapters",
                       source->model->family->name);
    s = adapter_config_read(&r.config, source->dir, why);
    if (s == OK)
        s = create(&r);
    if (s == OK)
        s = safetensors_copy_file(&r.file, source->dir, FILE_NAME, file_bytes_max(source), why);
    if (s == OK)
        s = read_tensors(&r);
    if (s == OK)
        s = fill(&r);
    safetensors_close(r.file);
    adapter_config_fini(&r.config);
    free(r.pairs);
    if (s == OK)
        *out = r.out;
    else
        adapter_free(r.out);
    return s;
}

enum status adapter_place(struct adapter *a, struct device *d)
{
    void *p = device_alloc(d, a->n_bytes);
    enum status s = p ? device_upload(d, p, a->memory, a->n_bytes) : ERR_NOMEM;

    if (s != OK) {
        device_free(d, p);
        return s;
    }
    place_at(a, a->memory, p);
    a->device = d;
    a->on_device = p;
    free(a->memory);
    a->memory = NULL;
    return OK;
}

void adapter_displace(struct adapter *a)
{
    device_free(a->device, a->on_device);
    a->on_device = NULL;
}

void adapter_free(struct adapter *a)
{
    if (!a)
        return;
    ASSERT(!a->on_device);
    free(a->memory);
    free(a->products);
    free(a->name);
    free(a->path);
    free(a->base);
    free(a);
}

/* --- the step --- */

static enum status add_run(const struct layer_step *s, const struct adapter_product *y,
                           const struct adapter_run *run, const float *in, float *out,
                           size_t out_stride)
{
    struct gemm_params down = {.n_rows = run->n_rows,
                               .a = in + (size_t)run->row0 * y->down.k,
                               .a_stride = y->down.k,
                               .w = y->down,
                               .next = &y->ups[0].w,
                               .out = s->adapter_mid,
                               .out_stride = y->down.n};
    enum status status = s->ops->gemm(s->device, NULL, &down);

    for (uint32_t i = 0; status == OK && i < y->n_ups; i++) {
        const struct adapter_up *up = &y->ups[i];
        struct gemm_params p = {.n_rows = run->n_rows,
                                .a = s->adapter_mid + up->mid0,
                                .a_stride = y->down.n,
                                .w = up->w,
                                .accumulate = 1,
                                .out = out + (size_t)run->row0 * out_stride + up->col0,
                                .out_stride = out_stride};

        status = s->ops->gemm(s->device, NULL, &p);
    }
    return status;
}

enum status adapter_add(const struct layer_step *s, uint32_t layer, enum adapter_place place,
                        const float *in, float *out, size_t out_stride)
{
    enum status status = OK;

    for (uint32_t i = 0; status == OK && i < s->n_adapter_runs; i++) {
        const struct adapter_run *run = &s->adapter_runs[i];
        const struct adapter_product *y =
            &run->adapter->products[(size_t)layer * ADAPTER_N_PLACES + place];

        if (y->n_ups > 0)
            status = add_run(s, y, run, in, out, out_stride);
    }
    return status;
}
