#include "engine/weights.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "engine/safetensors.h"
#include "kernels/pack.h"

/* Rows that one task converts, sums and packs: fixed, because the list of their CRCs is hashed. */
#define CHUNK_ROWS 64
#define N_OWNED_PER_LAYER 10
/* Elements that share a scale, when the user does not say: see ARCHITECTURE.md for the figures. */
#define GROUP_I8 128
#define GROUP_I4 32

/* One source tensor on its way into a weight (w) or a vector of floats (vec). */
struct job {
    const struct tensor *tensor; /* NULL: dummy */
    struct weight *w;
    void *table;                 /* row-major copy in w_dtype instead of packing (embedding) */
    float *vec;
    enum dtype dtype;            /* of table, and of w unless that is quantized */
    uint32_t n0, n_rows, k;
    uint64_t seed;
    float scale;                 /* dummy: standard deviation; 0: all ones (norms) or zeros */
    float fill;                  /* dummy vectors */
    uint32_t first_task;
};

struct loader {
    const struct weights_config *config;
    struct weights *w;
    struct buf *why;
    struct job *jobs;
    uint32_t n_jobs, cap;
    uint32_t n_tasks;
    uint32_t *crcs; /* [n_tasks] */
    atomic_int failed; /* enum status */
};

static void *own(struct loader *l, size_t n_bytes)
{
    struct weights *w = l->w;
    void *p = device_alloc(w->device, n_bytes);

    if (!p)
        return NULL;
    w->owned[w->n_owned++] = p;
    w->n_bytes += n_bytes;
    return p;
}

static enum status find_tensor(struct loader *l, const char *name, uint32_t rows, uint32_t cols,
                               const struct tensor **out)
{
    const struct tensor *t;
    uint32_t n_dims = cols ? 2 : 1;

    *out = NULL;
    if (l->config->dummy)
        return OK;
    t = safetensors_find(l->w->file, name);
    if (!t)
        return buf_why(l->why, ERR_INVALID, "the checkpoint in %s has no tensor %s",
                       l->config->dir, name);
    if (!t->dtype_known)
        return buf_why(l->why, ERR_UNSUPPORTED, "tensor %s has dtype %s; F32, F16 and BF16 are "
                       "supported", name, t->dtype_name);
    if (t->n_dims != n_dims || t->shape[0] != rows || (cols && t->shape[1] != cols))
        return buf_why(l->why, ERR_INVALID, "tensor %s has another shape than config.json says "
                       "(wanted [%u%s%.0u])", name, rows, cols ? ", " : "", cols);
    *out = t;
    return OK;
}

static enum status add_job(struct loader *l, struct job job)
{
    if (l->n_jobs == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 256;
        struct job *more = realloc(l->jobs, cap * sizeof *more);
        if (!more)
            return buf_why(l->why, ERR_NOMEM, "out of memory");
        l->jobs = more;
        l->cap = cap;
    }
    job.seed = l->config->seed + 0x9E3779B97F4A7C15u * (l->n_jobs + 1);
    job.first_task = l->n_tasks;
    l->n_tasks += (job.n_rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
    l->w->n_params += (uint64_t)job.n_rows * (job.k ? job.k : 1);
    l->jobs[l->n_jobs++] = job;
    return OK;
}

/* A weight in `quantized` where quantization is asked for, else in the float type. */
static enum status alloc_weight(struct loader *l, struct weight *w, uint32_t n, uint32_t k,
                                enum dtype quantized)
{
    uint32_t group = l->config->quantization.group;

    *w = (struct weight){group ? quantized : l->config->dtype, n, k, group, NULL};
    w->data = own(l, pack_bytes(w->dtype, n, k, group));
    return w->data ? OK : buf_why(l->why, ERR_NOMEM, "out of memory for the weights");
}

/* Rows [n0, n0 + rows) of w come from tensor `name`. */
static enum status add_rows(struct loader *l, struct weight *w, uint32_t n0, uint32_t rows,
                            const char *name)
{
    struct job job = {.w = w, .dtype = l->config->dtype, .n0 = n0, .n_rows = rows, .k = w->k};
    enum status s = find_tensor(l, name, rows, w->k, &job.tensor);

    job.scale = 1.0f / sqrtf((float)w->k);
    return s == OK ? add_job(l, job) : s;
}

static enum status alloc_vec(struct loader *l, float **vec, uint32_t n)
{
    *vec = own(l, n * sizeof(float));
    return *vec ? OK : buf_why(l->why, ERR_NOMEM, "out of memory for the weights");
}

static enum status add_vec(struct loader *l, float *vec, uint32_t n, const char *name, float fill)
{
    struct job job = {.vec = vec, .n_rows = n, .fill = fill};
    enum status s = find_tensor(l, name, n, 0, &job.tensor);

    return s == OK ? add_job(l, job) : s;
}

/* One fused weight of a layer: its parts in row order, and their biases if the model has any. */
struct part {
    const char *name; /* "self_attn.q_proj" */
    uint32_t rows;
};

static enum status add_fused(struct loader *l, uint32_t layer, struct weight *w, float **bias,
                             bool has_bias, uint32_t k, const struct part *parts, uint32_t n_parts)
{
    char name[160];
    uint32_t n = 0, n0 = 0;
    enum status s;

    for (uint32_t i = 0; i < n_parts; i++)
        n += parts[i].rows;
    s = alloc_weight(l, w, n, k, l->config->quantization.dtype);
    if (s == OK && has_bias)
        s = alloc_vec(l, bias, n);
    for (uint32_t i = 0; s == OK && i < n_parts; i++) {
        snprintf(name, sizeof name, "model.layers.%u.%s.weight", layer, parts[i].name);
        s = add_rows(l, w, n0, parts[i].rows, name);
        if (s == OK && has_bias) {
            snprintf(name, sizeof name, "model.layers.%u.%s.bias", layer, parts[i].name);
            s = add_vec(l, *bias + n0, parts[i].rows, name, 0);
        }
        n0 += parts[i].rows;
    }
    return s;
}

static enum status add_norm(struct loader *l, float **vec, uint32_t n, const char *name)
{
    enum status s = alloc_vec(l, vec, n);

    return s == OK ? add_vec(l, *vec, n, name, 1) : s;
}

static enum status add_layer(struct loader *l, uint32_t i)
{
    const struct model_config *m = l->config->model;
    struct layer_weights *y = &l->w->layers[i];
    uint32_t q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim;
    char name[160];
    enum status s;

    snprintf(name, sizeof name, "model.layers.%u.input_layernorm.weight", i);
    s = add_norm(l, &y->attn_norm, m->dim, name);
    if (s == OK)
        s = add_fused(l, i, &y->qkv, &y->qkv_bias, m->attention_bias, m->dim,
                      (struct part[]){{"self_attn.q_proj", q}, {"self_attn.k_proj", kv},
                                      {"self_attn.v_proj", kv}}, 3);
    if (s == OK)
        s = add_fused(l, i, &y->o, &y->o_bias, m->attention_bias, q,
                      (struct part[]){{"self_attn.o_proj", m->dim}}, 1);
    snprintf(name, sizeof name, "model.layers.%u.post_attention_layernorm.weight", i);
    if (s == OK)
        s = add_norm(l, &y->ffn_norm, m->dim, name);
    if (s == OK)
        s = add_fused(l, i, &y->gate_up, &y->gate_up_bias, m->mlp_bias, m->dim,
                      (struct part[]){{"mlp.gate_proj", m->ffn_dim}, {"mlp.up_proj", m->ffn_dim}},
                      2);
    if (s == OK)
        s = add_fused(l, i, &y->down, &y->down_bias, m->mlp_bias, m->ffn_dim,
                      (struct part[]){{"mlp.down_proj", m->dim}}, 1);
    return s;
}

/* The embedding as a packed weight of 8 bits, the output layer's if they are tied. */
static enum status add_quantized_embedding(struct loader *l, struct job job)
{
    struct weight *w = l->config->model->tied ? &l->w->output : &l->w->embedding;
    enum status s = alloc_weight(l, w, job.n_rows, job.k, DTYPE_I8);

    l->w->embedding = *w;
    job.w = w;
    return s == OK ? add_job(l, job) : s;
}

/* The embedding is read row by row where it lies, unless it is quantized, converted or made up. */
static enum status add_embedding(struct loader *l)
{
    const struct model_config *m = l->config->model;
    enum dtype t = l->config->dtype;
    struct weight *embedding = &l->w->embedding;
    struct job job = {.dtype = t, .n_rows = m->n_vocab, .k = m->dim, .scale = 1};
    enum status s = find_tensor(l, "model.embed_tokens.weight", m->n_vocab, m->dim, &job.tensor);

    if (s != OK)
        return s;
    if (l->config->quantization.group)
        return add_quantized_embedding(l, job);
    if (job.tensor && job.tensor->dtype == t &&
        (uintptr_t)job.tensor->data % dtype_bytes(t) == 0) {
        *embedding = (struct weight){t, m->n_vocab, m->dim, 0, job.tensor->data};
        if (m->tied) /* the output layer's job reads and sums the same tensor */
            return OK;
        job.table = NULL;
    } else {
        job.table = own(l, (size_t)m->n_vocab * m->dim * dtype_bytes(t));
        if (!job.table)
            return buf_why(l->why, ERR_NOMEM, "out of memory for the embedding table");
        *embedding = (struct weight){t, m->n_vocab, m->dim, 0, job.table};
    }
    return add_job(l, job);
}

static enum status add_output(struct loader *l)
{
    const struct model_config *m = l->config->model;
    struct weights *w = l->w;
    enum status s = add_norm(l, &w->final_norm, m->dim, "model.norm.weight");

    if (s == OK && m->tied && l->config->quantization.group)
        return OK; /* add_quantized_embedding() made it */
    if (s == OK)
        s = alloc_weight(l, &w->output, m->n_vocab, m->dim, DTYPE_I8);
    if (s != OK)
        return s;
    if (m->tied && l->config->dummy) {
        /* Packed from the made-up table afterwards, by pack_tied_dummy(). */
        return OK;
    }
    return add_rows(l, &w->output, 0, m->n_vocab,
                    m->tied ? "model.embed_tokens.weight" : "lm_head.weight");
}

/* --- running the jobs --- */

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Made-up weights: the sum of four uniform 16-bit numbers, near enough to a normal distribution,
 * and a function of (seed, row, column) alone. */
static void make_rows(const struct job *job, uint32_t row, uint32_t n_rows, void *dst)
{
    const float unit = job->scale * sqrtf(3.0f) / 65536.0f;

    for (uint64_t r = 0; r < n_rows; r++)
        for (uint64_t c = 0; c < job->k; c++) {
            uint64_t x = mix(job->seed + (row + r) * job->k + c);
            int sum = (int)(x & 0xffff) + (int)(x >> 16 & 0xffff) + (int)(x >> 32 & 0xffff) +
                      (int)(x >> 48) - 2 * 65535;
            dtype_store(job->dtype, dst, r * job->k + c, (float)sum * unit);
        }
}

static void convert_rows(const struct job *job, const unsigned char *src, uint32_t n_rows,
                         void *dst)
{
    enum dtype from = job->tensor->dtype;
    unsigned char element[4];

    for (size_t i = 0; i < (size_t)n_rows * job->k; i++) {
        memcpy(element, src + i * dtype_bytes(from), dtype_bytes(from)); /* any alignment */
        dtype_store(job->dtype, dst, i, dtype_load(from, element, 0));
    }
}

static void run_vec(const struct job *job, uint32_t row, uint32_t n_rows)
{
    for (uint32_t i = row; i < row + n_rows; i++) {
        unsigned char element[4];
        if (!job->tensor) {
            job->vec[i] = job->fill;
            continue;
        }
        size_t size = dtype_bytes(job->tensor->dtype);
        memcpy(element, (const unsigned char *)job->tensor->data + i * size, size);
        job->vec[i] = dtype_load(job->tensor->dtype, element, 0);
    }
}

static enum status run_matrix(const struct job *job, uint32_t row, uint32_t n_rows,
                              const unsigned char *src)
{
    size_t row_bytes = (size_t)job->k * dtype_bytes(job->dtype);
    bool quantized = job->w && job->w->group;
    /* The format promises no alignment; what is not aligned is copied like another dtype. The
     * quantizer reads any. */
    bool as_is = job->tensor &&
                 (quantized || (job->tensor->dtype == job->dtype &&
                                (uintptr_t)src % dtype_bytes(job->dtype) == 0));
    unsigned char *to = NULL, *scratch = NULL;

    if (!job->table && !job->w)
        return OK; /* the embedding is used in place: only its CRC was wanted */
    if (job->table)
        to = (unsigned char *)job->table + row * row_bytes;
    else if (!as_is && !(to = scratch = malloc(n_rows * row_bytes)))
        return ERR_NOMEM;
    if (!job->tensor)
        make_rows(job, row, n_rows, to);
    else if (to)
        convert_rows(job, src, n_rows, to);
    if (quantized)
        pack_quantize_rows(job->w, job->n0 + row, to ? job->dtype : job->tensor->dtype,
                           to ? to : src, n_rows);
    else if (job->w)
        pack_rows(job->w, job->n0 + row, to ? to : src, n_rows);
    free(scratch);
    return OK;
}

static void run_task(void *arg, uint32_t task)
{
    struct loader *l = arg;
    uint32_t low = 0, high = l->n_jobs; /* the last job with first_task <= task */

    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (l->jobs[mid].first_task <= task)
            low = mid;
        else
            high = mid;
    }
    const struct job *job = &l->jobs[low];
    uint32_t row = (task - job->first_task) * CHUNK_ROWS;
    uint32_t n_rows = job->n_rows - row < CHUNK_ROWS ? job->n_rows - row : CHUNK_ROWS;
    const unsigned char *src = NULL;
    if (job->tensor) {
        size_t row_bytes = (job->k ? job->k : 1) * dtype_bytes(job->tensor->dtype);
        src = (const unsigned char *)job->tensor->data + row * row_bytes;
        l->crcs[task] = hash_crc32c(0, src, n_rows * row_bytes);
    }
    if (job->vec) {
        run_vec(job, row, n_rows);
        return;
    }
    enum status s = run_matrix(job, row, n_rows, src);
    if (s != OK)
        atomic_store(&l->failed, (int)s);
}

static void pack_tied_dummy(struct loader *l)
{
    const struct model_config *m = l->config->model;

    pack_rows(&l->w->output, 0, l->w->embedding.data, m->n_vocab);
}

/* Names, shapes, dtypes and sums of everything loaded, in the order of the jobs. */
static void hash_content(struct loader *l)
{
    struct hash_state h;

    hash_begin(&h, sizeof l->w->content_hash, NULL, 0);
    for (uint32_t i = 0; i < l->n_jobs; i++) {
        const struct job *job = &l->jobs[i];
        uint32_t n_tasks = (job->n_rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
        uint32_t shape[3] = {job->n_rows, job->k, job->tensor ? job->tensor->dtype : 99};
        if (job->tensor)
            hash_add(&h, job->tensor->name, strlen(job->tensor->name) + 1);
        else
            hash_add(&h, &job->seed, sizeof job->seed);
        hash_add(&h, shape, sizeof shape);
        hash_add(&h, l->crcs + job->first_task, n_tasks * sizeof *l->crcs);
    }
    hash_end(&h, l->w->content_hash, sizeof l->w->content_hash);
}

static enum status plan_jobs(struct loader *l)
{
    const struct model_config *m = l->config->model;
    enum status s = OK;

    l->w->layers = calloc(m->n_layers, sizeof *l->w->layers);
    l->w->owned = calloc((size_t)m->n_layers * N_OWNED_PER_LAYER + 3, sizeof *l->w->owned);
    if (!l->w->layers || !l->w->owned)
        return buf_why(l->why, ERR_NOMEM, "out of memory");
    s = add_embedding(l);
    for (uint32_t i = 0; s == OK && i < m->n_layers; i++)
        s = add_layer(l, i);
    return s == OK ? add_output(l) : s;
}

enum status weights_load(struct weights *w, const struct weights_config *config, struct buf *why)
{
    struct loader l = {.config = config, .w = w, .why = why};
    enum status s = OK;

    *w = (struct weights){.device = config->device, .dtype = config->dtype,
                          .quantization = config->quantization};
    if (!config->dummy)
        s = safetensors_open(&w->file, config->dir, why);
    if (s == OK)
        s = plan_jobs(&l);
    if (s == OK) {
        l.crcs = calloc(l.n_tasks, sizeof *l.crcs);
        s = l.crcs ? OK : buf_why(why, ERR_NOMEM, "out of memory");
    }
    if (s == OK) {
        device_parallel(config->device, l.n_tasks, run_task, &l);
        s = (enum status)atomic_load(&l.failed);
        if (s != OK)
            buf_why(why, s, "out of memory while packing the weights");
    }
    if (s == OK && config->dummy && config->model->tied && !config->quantization.group)
        pack_tied_dummy(&l);
    if (s == OK)
        hash_content(&l);
    if (s == OK && config->quantization.group) { /* all of it is packed: let its pages go */
        safetensors_close(w->file);
        w->file = NULL;
    }
    free(l.crcs);
    free(l.jobs);
    if (s != OK)
        weights_free(w);
    return s;
}

enum status quantization_parse(struct quantization *out, const char *name, uint32_t group,
                               struct buf *why)
{
    *out = (struct quantization){0};
    if (group != 0 && group != 32 && group != 128)
        return buf_why(why, ERR_INVALID, "--quantization-group %u is unknown; 32 and 128 are known",
                       group);
    if (!strcmp(name, "int8"))
        *out = (struct quantization){DTYPE_I8, group ? group : GROUP_I8};
    else if (!strcmp(name, "int4"))
        *out = (struct quantization){DTYPE_I4, group ? group : GROUP_I4};
    else if (strcmp(name, "none") != 0)
        return buf_why(why, ERR_INVALID, "--quantization %s is unknown; none, int8 and int4 are "
                       "known", name);
    return OK;
}

enum status weights_stored_dtype(const char *dir, enum dtype *out, struct buf *why)
{
    struct safetensors *file;
    enum status s = safetensors_open(&file, dir, why);

    if (s != OK)
        return s;
    const struct tensor *t = safetensors_find(file, "model.embed_tokens.weight");
    if (!t)
        s = buf_why(why, ERR_INVALID, "the checkpoint in %s has no tensor "
                    "model.embed_tokens.weight", dir);
    else if (!t->dtype_known)
        s = buf_why(why, ERR_UNSUPPORTED, "tensor %s has dtype %s; F32, F16 and BF16 are "
                    "supported", t->name, t->dtype_name);
    else
        *out = t->dtype;
    safetensors_close(file);
    return s;
}

void weights_free(struct weights *w)
{
    for (uint32_t i = 0; i < w->n_owned; i++)
        device_free(w->device, w->owned[i]);
    free(w->owned);
    free(w->layers);
    safetensors_close(w->file);
    *w = (struct weights){0};
}
