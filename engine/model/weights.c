/* weights.c - which tensor goes where, and what is remembered about it. */
#include "engine/model/weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "engine/model/weights_load.h"
#include "kernels/pack.h"

#define N_OWNED_PER_LAYER 10
#define N_WARNINGS_MAX 8 /* tensors named one by one */
/* Elements that share a scale, when the user does not say: see ARCHITECTURE.md for the figures. */
#define GROUP_I8 128
#define GROUP_I4 32

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
        return buf_why(l->why, ERR_INVALID, "the checkpoint in %s has no tensor %s", l->config->dir,
                       name);
    if (!t->dtype_known)
        return buf_why(l->why, ERR_UNSUPPORTED,
                       "tensor %s has dtype %s; F32, F16 and BF16 are "
                       "supported",
                       name, t->dtype_name);
    if (t->n_dims != n_dims || t->shape[0] != rows || (cols && t->shape[1] != cols))
        return buf_why(l->why, ERR_INVALID,
                       "tensor %s has another shape than config.json says "
                       "(wanted [%u%s%.0u])",
                       name, rows, cols ? ", " : "", cols);
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
    l->n_tasks += weights_n_tasks(&job);
    if (!job.again)
        l->w->n_params += (uint64_t)job.n_rows * (job.k ? job.k : 1);
    l->jobs[l->n_jobs++] = job;
    return OK;
}

static enum status no_memory(struct loader *l)
{
    const char *failure = device_failure(l->w->device);
    size_t n_free, n_total;

    if (failure)
        return buf_why(l->why, ERR_INTERNAL, "the device failed: %s", failure);
    if (device_is_host(l->w->device) || device_memory(l->w->device, &n_free, &n_total) != OK)
        return buf_why(l->why, ERR_NOMEM, "out of memory for the weights");
    return buf_why(l->why, ERR_NOMEM,
                   "out of device memory for the weights: %.2f GB were taken, "
                   "%.2f of %.2f GB are free",
                   (double)l->w->n_bytes * 1e-9, (double)n_free * 1e-9, (double)n_total * 1e-9);
}

/* A weight in `quantized` where quantization is asked for, else in the float type. */
static enum status alloc_weight(struct loader *l, struct weight *w, uint32_t n, uint32_t k,
                                enum dtype quantized)
{
    uint32_t group = l->config->quantization.group;

    *w = (struct weight){.dtype = group ? quantized : l->config->dtype,
                         .layout = device_weight_layout(l->w->device),
                         .n = n,
                         .k = k,
                         .group = group};
    if (w->layout == WEIGHT_ROWS)
        w->stride = pack_row_stride(k);
    w->data = own(l, pack_weight_bytes(w));
    return w->data ? OK : no_memory(l);
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
    return *vec ? OK : no_memory(l);
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
                      (struct part[]){{"self_attn.q_proj", q},
                                      {"self_attn.k_proj", kv},
                                      {"self_attn.v_proj", kv}},
                      3);
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

/* The embedding as a weight of its own, or as the output layer's if they are tied. */
static enum status add_packed_embedding(struct loader *l, struct job job)
{
    struct weight *w = l->config->model->tied ? &l->w->output : &l->w->embedding;
    enum status s = alloc_weight(l, w, job.n_rows, job.k, DTYPE_I8);

    l->w->embedding = *w;
    job.w = w;
    return s == OK ? add_job(l, job) : s;
}

/* On a host device the embedding is read row by row where it lies, in the mapped file, unless it is
 * converted or made up. */
static enum status add_embedding_table(struct loader *l, struct job job)
{
    const struct model_config *m = l->config->model;
    enum dtype t = job.dtype;
    struct weight *embedding = &l->w->embedding;

    *embedding = (struct weight){
        .dtype = t, .layout = WEIGHT_ROWS, .n = m->n_vocab, .k = m->dim, .stride = m->dim};
    if (job.tensor && job.tensor->dtype == t && (uintptr_t)job.tensor->data % dtype_bytes(t) == 0) {
        embedding->data = job.tensor->data;
        return m->tied ? OK : add_job(l, job); /* only for its CRC */
    }
    embedding->data = job.table = own(l, (size_t)m->n_vocab * m->dim * dtype_bytes(t));
    if (!job.table)
        return buf_why(l->why, ERR_NOMEM, "out of memory for the embedding table");
    job.again = m->tied && job.tensor;
    return add_job(l, job);
}

static enum status add_embedding(struct loader *l)
{
    const struct model_config *m = l->config->model;
    bool packs = device_weight_layout(l->w->device) == WEIGHT_ROWS;
    struct job job = {.dtype = l->config->dtype, .n_rows = m->n_vocab, .k = m->dim, .scale = 1};
    enum status s = find_tensor(l, "model.embed_tokens.weight", m->n_vocab, m->dim, &job.tensor);

    if (s != OK)
        return s;
    if (l->config->quantization.group)
        return add_packed_embedding(l, job);
    if (!packs)
        return add_embedding_table(l, job);
    if (m->tied && job.tensor) /* add_output() makes it, in the place where host devices sum it */
        return OK;
    return add_packed_embedding(l, job);
}

static enum status add_output(struct loader *l)
{
    const struct model_config *m = l->config->model;
    struct weights *w = l->w;
    enum status s = add_norm(l, &w->final_norm, m->dim, "model.norm.weight");

    if (s == OK && w->output.data)
        return OK; /* add_packed_embedding() made it */
    if (s == OK)
        s = alloc_weight(l, &w->output, m->n_vocab, m->dim, DTYPE_I8);
    if (s != OK)
        return s;
    if (!w->embedding.data)
        w->embedding = w->output;
    if (m->tied && l->config->dummy) {
        /* Packed from the made-up table afterwards, by pack_tied_dummy(). */
        return OK;
    }
    return add_rows(l, &w->output, 0, m->n_vocab,
                    m->tied ? "model.embed_tokens.weight" : "lm_head.weight");
}

static void pack_tied_dummy(struct loader *l)
{
    pack_rows(&l->w->output, 0, l->w->embedding.data, l->config->model->n_vocab);
}

/* Names, shapes, dtypes and sums of everything loaded, in the order of the jobs. */
static void hash_content(struct loader *l)
{
    struct hash_state h;

    hash_begin(&h, sizeof l->w->content_hash, NULL, 0);
    for (uint32_t i = 0; i < l->n_jobs; i++) {
        const struct job *job = &l->jobs[i];
        uint32_t shape[3] = {job->n_rows, job->k, job->tensor ? job->tensor->dtype : 99};
        if (job->again)
            continue;
        if (job->tensor)
            hash_add(&h, job->tensor->name, strlen(job->tensor->name) + 1);
        else
            hash_add(&h, &job->seed, sizeof job->seed);
        hash_add(&h, shape, sizeof shape);
        hash_add(&h, l->crcs + job->first_task, weights_n_tasks(job) * sizeof *l->crcs);
    }
    hash_end(&h, l->w->content_hash, sizeof l->w->content_hash);
}

static uint64_t count_nonfinite(const struct loader *l, const struct job *job)
{
    uint64_t n = 0;

    for (uint32_t i = 0; job->tensor && !job->again && i < weights_n_tasks(job); i++)
        n += l->n_nonfinite[job->first_task + i];
    return n;
}

/* A checkpoint that training or a conversion broke loads, and answers rubbish: say which tensors
 * are to blame. */
static void warn_of_nonfinite(const struct loader *l)
{
    uint32_t n_tensors = 0;

    for (uint32_t i = 0; i < l->n_jobs; i++) {
        const struct job *job = &l->jobs[i];
        uint64_t n = count_nonfinite(l, job);
        if (n > 0 && n_tensors++ < N_WARNINGS_MAX)
            log_event(LOG_WARN, "weights with NaN or infinity",
                      "tensor=\"%s\" n_values=%" PRIu64 " of=%" PRIu64, job->tensor->name, n,
                      (uint64_t)job->n_rows * (job->k ? job->k : 1));
    }
    if (n_tensors > 0)
        log_event(LOG_WARN, "answers of this model may be meaningless",
                  "n_tensors_with_nan_or_infinity=%u dir=\"%s\"", n_tensors, l->config->dir);
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
    bool is_host = device_is_host(config->device);
    enum status s = OK;

    *w = (struct weights){
        .device = config->device, .dtype = config->dtype, .quantization = config->quantization};
    if (!config->dummy)
        s = safetensors_open(&w->file, config->dir, why);
    if (s == OK)
        s = plan_jobs(&l);
    if (s == OK) {
        l.crcs = calloc(l.n_tasks, sizeof *l.crcs);
        l.n_nonfinite = calloc(l.n_tasks, sizeof *l.n_nonfinite);
        s = l.crcs && l.n_nonfinite ? OK : buf_why(why, ERR_NOMEM, "out of memory");
    }
    if (s == OK)
        s = is_host ? weights_load_host(&l) : weights_load_upload(&l);
    if (s == OK && is_host && config->dummy && config->model->tied && !config->quantization.group)
        pack_tied_dummy(&l);
    if (s == OK) {
        hash_content(&l);
        warn_of_nonfinite(&l);
    }
    if (s == OK && (config->quantization.group || !is_host)) { /* all packed: let its pages go */
        safetensors_close(w->file);
        w->file = NULL;
    }
    free(l.crcs);
    free(l.n_nonfinite);
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
        return buf_why(why, ERR_INVALID, "{quantization_group} %u is unknown; 32 and 128 are known",
                       group);
    if (!strcmp(name, "int8"))
        *out = (struct quantization){DTYPE_I8, group ? group : GROUP_I8};
    else if (!strcmp(name, "int4"))
        *out = (struct quantization){DTYPE_I4, group ? group : GROUP_I4};
    else if (strcmp(name, "none") != 0)
        return buf_why(why, ERR_INVALID,
                       "{quantization} %s is unknown; none, int8 and int4 are known", name);
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
        s = buf_why(why, ERR_INVALID,
                    "the checkpoint in %s has no tensor "
                    "model.embed_tokens.weight",
                    dir);
    else if (!t->dtype_known)
        s = buf_why(why, ERR_UNSUPPORTED,
                    "tensor %s has dtype %s; F32, F16 and BF16 are "
                    "supported",
                    t->name, t->dtype_name);
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
