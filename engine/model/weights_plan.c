/* weights_plan.c - memory for each weight, and the list of the tensors that fill it. */
#include "engine/model/weights_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/weights_load.h"
#include "engine/model/weights_measure.h"
#include "kernels/pack.h"

/* Alignment of the weights of experts: that of an allocation on a GPU. */
#define EXPERT_ALIGN 256

/* Group of int8 weights made of tensors that are quantized, but not to codes. Their own groups are
 * of any size; small ones add the least error. */
#define GROUP_OTHER_CODES 32

const struct model_config *plan_model(const struct loader *l)
{
    return l->config->model;
}

/* A configuration without ranks means one. */
uint32_t plan_n_ranks(const struct loader *l)
{
    return l->config->n_ranks ? l->config->n_ranks : 1;
}

enum status plan_refuses_ranks(struct loader *l, const char *what)
{
    if (plan_n_ranks(l) == 1)
        return OK;
    return buf_why(l->why, ERR_UNSUPPORTED, "{tensor_parallel_size}: %s", what);
}

void *plan_layers(struct loader *l, size_t layer_bytes)
{
    l->w->layers = calloc(l->config->model->n_layers, layer_bytes);
    if (!l->w->layers)
        buf_why(l->why, ERR_NOMEM, "out of memory");
    return l->w->layers;
}

void plan_first_product(struct loader *l, const struct weight *w)
{
    l->w->first = w;
}

static void *own(struct loader *l, size_t n_bytes)
{
    struct weights *w = l->w;

    if (l->measure) {
        w->n_bytes += n_bytes;
        return l->measure->nowhere;
    }
    void *p = device_alloc(w->device, n_bytes);
    if (!p)
        return NULL;
    device_place(w->device, p, n_bytes, DEVICE_SPLIT);
    if (w->n_owned == w->owned_cap) {
        uint32_t cap = w->owned_cap ? w->owned_cap * 2 : 256;
        struct weights_part *more = realloc(w->owned, cap * sizeof *more);
        if (!more) {
            device_free(w->device, p);
            return NULL;
        }
        w->owned = more;
        w->owned_cap = cap;
    }
    w->owned[w->n_owned++] = (struct weights_part){p, n_bytes};
    w->n_bytes += n_bytes;
    return p;
}

static enum status check_tensor(struct loader *l, const char *name, uint32_t rows, uint32_t cols,
                                const struct tensor **out)
{
    const struct tensor *t;
    uint32_t n_dims = cols ? 2 : 1;

    *out = NULL;
    if (l->config->dummy)
        return OK;
    t = checkpoint_find(l->w->file, name);
    if (!t)
        return buf_why(l->why, ERR_INVALID, "the checkpoint in %s has no tensor %s", l->config->dir,
                       name);
    if (!t->codec && !t->dtype_known)
        return buf_why(l->why, ERR_UNSUPPORTED,
                       "tensor %s has dtype %s; F32, F16 and BF16 are "
                       "supported",
                       name, t->dtype_name);
    if (t->n_dims != n_dims || t->shape[0] != rows || (cols && t->shape[1] != cols))
        return buf_why(l->why, ERR_INVALID,
                       "tensor %s has another shape than the configuration says "
                       "(wanted [%u%s%.0u])",
                       name, rows, cols ? ", " : "", cols);
    *out = t;
    return OK;
}

static enum status find_tensor(struct loader *l, const char *name, uint32_t rows, uint32_t cols,
                               const struct tensor **out)
{
    enum status s = check_tensor(l, name, rows, cols, out);

    if (s == OK || !l->measure || (s != ERR_INVALID && s != ERR_UNSUPPORTED))
        return s;
    weights_measure_fault(l);
    return OK; /* the plan goes on, as if the weight were random */
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
    job.k_all = job.k_all ? job.k_all : job.k;
    job.n_shares = job.n_shares ? job.n_shares : 1;
    job.first_task = l->n_tasks;
    l->n_tasks += weights_n_tasks(&job);
    if (!job.again) {
        uint64_t n = (uint64_t)job.n_rows * (job.k ? job.k : 1);

        l->w->n_params += n;
        l->w->n_params_all += n * job.n_shares;
    }
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

/* Storage of the tensors that fill one weight. */
struct stored {
    uint32_t n_plain, n_quantized;
    uint32_t n_codes, n_f8; /* of n_quantized: with codes, with F8 numbers as codes */
    uint32_t bits, group;   /* most bits; a group that divides all others */
};

static void stored_add(struct stored *s, const struct tensor *t)
{
    if (!t || !tensor_is_quantized(t)) {
        s->n_plain++;
        return;
    }
    s->n_quantized++;
    if (!t->code_bits || !t->code_group || t->code_group % 32)
        return;
    if (t->code_is_f8) {
        s->n_f8++;
        return;
    }
    if (s->n_codes++ == 0)
        s->group = 128;
    s->bits = t->code_bits > s->bits ? t->code_bits : s->bits;
    s->group = t->code_group % 128 ? 32 : s->group;
}

/* The quantization of a weight: `asked` (its group is 0 for floats), or as stored. */
static struct quantization choose_quantization(const struct loader *l, struct quantization asked,
                                               const struct stored *s)
{
    if (!quantization_is_as_stored(l->config->quantization))
        return asked;
    if (s->n_plain || !s->n_quantized)
        return (struct quantization){0};
    if (s->n_f8 == s->n_quantized)
        return (struct quantization){DTYPE_F8, 128};
    if (s->n_codes < s->n_quantized)
        return (struct quantization){DTYPE_I8, GROUP_OTHER_CODES};
    return (struct quantization){s->bits > 4 ? DTYPE_A8 : DTYPE_A4, s->group};
}

/* choose_quantization() for the embedding or the output layer, which int4 and fp8 make int8. */
static struct quantization choose_table_quantization(const struct loader *l, const struct tensor *t)
{
    struct stored s = {0};

    stored_add(&s, t);
    return choose_quantization(l, (struct quantization){DTYPE_I8, l->config->quantization.group},
                               &s);
}

/* A weight without memory. */
static struct weight describe_weight(const struct loader *l, uint32_t n, uint32_t k,
                                     struct quantization q)
{
    struct weight w = {.dtype = q.group ? q.dtype : l->config->dtype,
                       .layout = device_weight_layout(l->w->device),
                       .n = n,
                       .k = k,
                       .group = q.group};

    if (w.layout == WEIGHT_ROWS)
        w.stride = pack_row_stride(k);
    return w;
}

static enum status alloc_weight(struct loader *l, struct weight *w, uint32_t n, uint32_t k,
                                struct quantization q)
{
    *w = describe_weight(l, n, k, q);
    w->data = own(l, pack_weight_bytes(w));
    return w->data ? OK : no_memory(l);
}

/* Where rows of a weight come from. All counts are of this rank's rows. */
struct source {
    char name[160]; /* of the tensor */
    uint32_t rows;
    uint32_t before, all; /* of the same tensor: rows before these, and all */
    enum plan_split split;
};

/* A whole tensor. */
static struct source source_of(const char *name, uint32_t rows, enum plan_split split)
{
    struct source src = {.rows = rows, .all = rows, .split = split};

    snprintf(src.name, sizeof src.name, "%s", name);
    return src;
}

/* Part i of a product, from its tensor PREFIX NAME.KIND. */
static struct source source_of_part(const char *prefix, const struct plan_part *parts,
                                    uint32_t n_parts, uint32_t i, const char *kind)
{
    struct source src = {.rows = parts[i].rows, .split = parts[i].split};

    for (uint32_t j = 0; j < n_parts; j++) {
        bool is_same = strcmp(parts[j].name, parts[i].name) == 0;

        src.before += is_same && j < i ? parts[j].rows : 0;
        src.all += is_same ? parts[j].rows : 0;
    }
    snprintf(src.name, sizeof src.name, "%s%s.%s", prefix, parts[i].name, kind);
    return src;
}

/* Find the tensor of which this rank has k columns (0: a vector). */
static enum status find_source(struct loader *l, const struct source *src, uint32_t k,
                               const struct tensor **out)
{
    uint32_t n = plan_n_ranks(l);

    return find_tensor(l, src->name, src->split == PLAN_ROWS ? src->all * n : src->all,
                       src->split == PLAN_K ? k * n : k, out);
}

/* The tensor's row that is this rank's first one. */
static uint32_t first_row(const struct loader *l, const struct source *src)
{
    return src->split == PLAN_ROWS ? src->before * plan_n_ranks(l) + l->config->rank * src->rows
                                   : src->before;
}

/* Codes share scales in groups, so a rank's columns have to be whole groups. */
static enum status check_groups(struct loader *l, const struct job *job)
{
    if (!job->tensor || !weights_is_coded(job) || job->k == job->k_all ||
        job->k % job->tensor->code_group == 0)
        return OK;
    return buf_why(l->why, ERR_UNSUPPORTED,
                   "{tensor_parallel_size}: %u columns of tensor %s, whose scales cover %u columns "
                   "each, are not whole groups; another {quantization} than auto would do",
                   job->k, job->tensor->name, job->tensor->code_group);
}

/* Plan rows [n0, n0 + rows) of w from this rank's share of the source. */
static enum status add_rows(struct loader *l, struct weight *w, uint32_t n0,
                            const struct source *src)
{
    bool in_k = src->split == PLAN_K;
    struct job job = {.w = w,
                      .dtype = l->config->dtype,
                      .n0 = n0,
                      .n_rows = src->rows,
                      .k = w->k,
                      .row0 = first_row(l, src),
                      .k0 = in_k ? l->config->rank * w->k : 0,
                      .k_all = in_k ? w->k * plan_n_ranks(l) : w->k,
                      .n_shares = src->split == PLAN_WHOLE ? 1 : plan_n_ranks(l)};
    enum status s = find_source(l, src, w->k, &job.tensor);

    job.scale = 1.0f / sqrtf((float)job.k_all);
    if (s == OK)
        s = check_groups(l, &job);
    return s == OK ? add_job(l, job) : s;
}

static enum status alloc_vec(struct loader *l, float **vec, uint32_t n)
{
    *vec = own(l, n * sizeof(float));
    return *vec ? OK : no_memory(l);
}

static enum status add_vec(struct loader *l, float *vec, const struct source *src, float fill)
{
    struct source whole = *src;

    if (src->split == PLAN_K)
        whole.split = PLAN_WHOLE;
    struct job job = {.vec = vec,
                      .n_rows = src->rows,
                      .fill = fill,
                      .row0 = first_row(l, &whole),
                      .n_shares = whole.split == PLAN_ROWS ? plan_n_ranks(l) : 1};
    enum status s = find_source(l, &whole, 0, &job.tensor);

    return s == OK ? add_job(l, job) : s;
}

enum status plan_product(struct loader *l, struct weight *w, float **bias, uint32_t k,
                         const char *prefix, const struct plan_part *parts, uint32_t n_parts)
{
    const struct tensor *t;
    struct stored stored = {0};
    struct source src;
    uint32_t n = 0, n0 = 0;
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < n_parts; i++) {
        n += parts[i].rows;
        src = source_of_part(prefix, parts, n_parts, i, "weight");
        s = find_source(l, &src, k, &t);
        stored_add(&stored, t);
    }
    if (s == OK)
        s = alloc_weight(l, w, n, k, choose_quantization(l, l->config->quantization, &stored));
    if (s == OK && bias)
        s = alloc_vec(l, bias, n);
    for (uint32_t i = 0; s == OK && i < n_parts; i++) {
        src = source_of_part(prefix, parts, n_parts, i, "weight");
        s = add_rows(l, w, n0, &src);
        if (s == OK && bias) {
            src = source_of_part(prefix, parts, n_parts, i, "bias");
            s = add_vec(l, *bias + n0, &src, 0);
        }
        n0 += parts[i].rows;
    }
    return s;
}

enum status plan_router(struct loader *l, struct weight *w, uint32_t k, const char *prefix,
                        const struct plan_part *part)
{
    struct source src = source_of_part(prefix, part, 1, 0, "weight");

    *w = describe_weight(l, part->rows, k, (struct quantization){0});
    w->dtype = DTYPE_F32;
    w->data = own(l, pack_weight_bytes(w));
    if (!w->data)
        return no_memory(l);
    enum status s = add_rows(l, w, 0, &src);
    if (s == OK)
        l->jobs[l->n_jobs - 1].dtype = DTYPE_F32;
    return s;
}

/* Allocate the weights of n experts, which all have the type of w, together. */
static enum status alloc_experts(struct loader *l, struct weight *each, size_t *expert_bytes,
                                 uint32_t n, struct weight w)
{
    *expert_bytes = (pack_weight_bytes(&w) + EXPERT_ALIGN - 1) / EXPERT_ALIGN * EXPERT_ALIGN;
    unsigned char *data = own(l, n * *expert_bytes);

    if (!data)
        return no_memory(l);
    for (uint32_t i = 0; i < n; i++) {
        each[i] = w;
        each[i].data = data + i * *expert_bytes;
    }
    return OK;
}

/* A tensor of an expert, and its rows [n0, n0 + rows) of the weight. */
struct expert_part {
    uint32_t expert, n0;
    struct source src;
};

static struct expert_part expert_part_of(const struct plan_experts *p, uint32_t expert, uint32_t i)
{
    struct expert_part part = {.expert = expert};
    char name[160];

    for (uint32_t j = 0; j < i; j++)
        part.n0 += p->parts[j].rows;
    snprintf(name, sizeof name, "%s%s.%u.%s.weight", p->prefix, p->experts, expert,
             p->parts[i].name);
    part.src = source_of(name, p->parts[i].rows, p->parts[i].split);
    return part;
}

/* Choose one type for all experts. */
static enum status choose_of_experts(struct loader *l, const struct plan_experts *p,
                                     struct quantization *out)
{
    struct stored stored = {0};
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < p->n * p->n_parts; i++) {
        struct expert_part part = expert_part_of(p, i / p->n_parts, i % p->n_parts);
        const struct tensor *t;

        s = find_source(l, &part.src, p->k, &t);
        stored_add(&stored, t);
    }
    *out = choose_quantization(l, l->config->quantization, &stored);
    return s;
}

enum status plan_experts(struct loader *l, const struct plan_experts *p, struct weight *each,
                         size_t *expert_bytes)
{
    struct quantization q;
    uint32_t rows = 0;
    enum status s = choose_of_experts(l, p, &q);

    for (uint32_t i = 0; i < p->n_parts; i++)
        rows += p->parts[i].rows;
    if (s == OK)
        s = alloc_experts(l, each, expert_bytes, p->n, describe_weight(l, rows, p->k, q));
    for (uint32_t i = 0; s == OK && i < p->n * p->n_parts; i++) {
        struct expert_part part = expert_part_of(p, i / p->n_parts, i % p->n_parts);

        s = add_rows(l, &each[part.expert], part.n0, &part.src);
    }
    return s;
}

static enum status add_norm(struct loader *l, float **vec, uint32_t n, const char *name)
{
    struct source src = source_of(name, n, PLAN_WHOLE);
    enum status s = alloc_vec(l, vec, n);

    if (s == OK)
        s = add_vec(l, *vec, &src, 1);
    if (s == OK && plan_model(l)->norm == NORM_RMS_PLUS_ONE)
        l->jobs[l->n_jobs - 1].offset = 1;
    return s;
}

enum status plan_norm(struct loader *l, float **vec, uint32_t n, const char *prefix,
                      const char *name)
{
    char tensor[160];

    snprintf(tensor, sizeof tensor, "%s%s.weight", prefix, name);
    return add_norm(l, vec, n, tensor);
}

/* The tensor of the bias is named like that of the weights, which ends with "weight". */
static enum status add_norm_bias(struct loader *l, float **vec, uint32_t n, const char *weight)
{
    char tensor[160];
    int len = (int)(strlen(weight) - strlen("weight"));
    enum status s = alloc_vec(l, vec, n);

    snprintf(tensor, sizeof tensor, "%.*sbias", len, weight);
    struct source src = source_of(tensor, n, PLAN_WHOLE);
    return s == OK ? add_vec(l, *vec, &src, 0) : s;
}

enum status plan_norm_bias(struct loader *l, float **vec, uint32_t n, const char *prefix,
                           const char *name)
{
    char tensor[160];

    snprintf(tensor, sizeof tensor, "%s%s.weight", prefix, name);
    return add_norm_bias(l, vec, n, tensor);
}

/* Plan the embedding as a weight of its own, or as the output layer's weight if they are tied. No
 * device reads rows of 4 bits. */
static enum status add_packed_embedding(struct loader *l, struct job job, struct quantization q)
{
    struct weight *w = l->config->model->tied ? &l->w->output : &l->w->embedding;

    if (q.dtype == DTYPE_A4)
        q.dtype = DTYPE_A8;
    enum status s = alloc_weight(l, w, job.n_rows, job.k, q);

    l->w->embedding = *w;
    job.w = w;
    return s == OK ? add_job(l, job) : s;
}

/* A host device reads rows of the embedding from the mapped file, unless the embedding is converted
 * or generated. */
static enum status add_embedding_table(struct loader *l, struct job job)
{
    const struct model_config *m = l->config->model;
    enum dtype t = job.dtype;
    struct weight *embedding = &l->w->embedding;

    *embedding = (struct weight){
        .dtype = t, .layout = WEIGHT_ROWS, .n = m->n_vocab, .k = m->dim, .stride = m->dim};
    if (job.tensor && !job.tensor->codec && job.tensor->dtype == t &&
        (uintptr_t)job.tensor->data % dtype_bytes(t) == 0) {
        embedding->data = job.tensor->data;
        l->uses_file = true;
        return m->tied ? OK : add_job(l, job); /* only for its CRC */
    }
    embedding->data = job.table = own(l, (size_t)m->n_vocab * m->dim * dtype_bytes(t));
    if (!job.table)
        return buf_why(l->why, ERR_NOMEM, "out of memory for the embedding table");
    job.again = m->tied && job.tensor;
    return add_job(l, job);
}

enum status plan_embedding(struct loader *l, const char *tensor)
{
    const struct model_config *m = l->config->model;
    bool packs = device_weight_layout(l->w->device) == WEIGHT_ROWS;
    struct job job = {.dtype = l->config->dtype, .n_rows = m->n_vocab, .k = m->dim, .scale = 1};
    enum status s = find_tensor(l, tensor, m->n_vocab, m->dim, &job.tensor);

    if (s != OK)
        return s;
    l->embedding = tensor;
    struct quantization q = choose_table_quantization(l, job.tensor);
    if (q.group)
        return add_packed_embedding(l, job, q);
    if (!packs)
        return add_embedding_table(l, job);
    if (m->tied &&
        job.tensor) /* plan_output() adds the job, so that the jobs have the order of a host
                       device */
        return OK;
    return add_packed_embedding(l, job, q);
}

void weights_share_output(struct loader *l)
{
    uint32_t n_ranks = plan_n_ranks(l), n = l->config->model->n_vocab / n_ranks;
    struct weight *w = &l->w->output;
    struct pack_range ranges[2];

    if (n_ranks == 1 || !w->data || w->group || w->n != n * n_ranks)
        return;
    pack_row_ranges(w, l->config->rank * n, n, ranges);
    w->data = (const unsigned char *)w->data + ranges[0].offset;
    w->n = n;
}

/* Plan the output layer with a tensor of its own, or the embedding's. */
static enum status add_output(struct loader *l, const char *name)
{
    const struct model_config *m = l->config->model;
    struct weights *w = l->w;
    uint32_t n = plan_n_ranks(l);
    bool is_shared = !m->tied && m->n_vocab % n == 0;
    struct source src = source_of(name, is_shared ? m->n_vocab / n : m->n_vocab,
                                  is_shared ? PLAN_ROWS : PLAN_WHOLE);
    const struct tensor *t = NULL;
    enum status s = find_source(l, &src, m->dim, &t);

    if (s == OK)
        s = alloc_weight(l, &w->output, src.rows, m->dim, choose_table_quantization(l, t));
    if (s != OK)
        return s;
    if (!w->embedding.data)
        w->embedding = w->output;
    if (m->tied && l->config->dummy) {
        /* pack_tied_dummy() packs it later from the generated table. */
        return OK;
    }
    return add_rows(l, &w->output, 0, &src);
}

enum status plan_output(struct loader *l, const char *norm, const char *head)
{
    const struct model_config *m = l->config->model;
    struct weights *w = l->w;
    enum status s = add_norm(l, &w->final_norm, m->dim, norm);

    if (s == OK && m->norm == NORM_LAYER)
        s = add_norm_bias(l, &w->final_norm_bias, m->dim, norm);
    if (s != OK)
        return s;
    if (!w->output.data) { /* else add_packed_embedding() added the job */
        if (l->config->no_output && w->embedding.data)
            return OK;
        s = add_output(l, m->tied ? l->embedding : head);
    }
    return s;
}

/* Plan a table [n, D] of floats whose rows are read one by one. */
static enum status plan_table(struct loader *l, struct weight *w, uint32_t n, const char *tensor)
{
    uint32_t dim = plan_model(l)->dim;
    struct job job = {.dtype = l->config->dtype, .n_rows = n, .k = dim, .scale = 1};
    enum status s = OK;

    if (!device_is_host(l->w->device))
        return buf_why(l->why, ERR_UNSUPPORTED, "a model with %s runs on the CPU only", tensor);
    s = find_tensor(l, tensor, n, dim, &job.tensor);
    if (s != OK)
        return s;
    *w =
        (struct weight){.dtype = job.dtype, .layout = WEIGHT_ROWS, .n = n, .k = dim, .stride = dim};
    w->data = job.table = own(l, (size_t)n * dim * dtype_bytes(job.dtype));
    return w->data ? add_job(l, job) : no_memory(l);
}

enum status plan_positions(struct loader *l, uint32_t first, uint32_t n, const char *tensor)
{
    struct weight *w = &l->w->positions;
    enum status s = plan_table(l, w, first + n, tensor);

    if (s != OK)
        return s;
    w->n = n;
    w->data = (const unsigned char *)w->data + (size_t)first * w->k * dtype_bytes(w->dtype);
    return OK;
}

enum status plan_types(struct loader *l, uint32_t n, const char *tensor)
{
    return plan_table(l, &l->w->types, n, tensor);
}

static enum status plan_f32(struct loader *l, struct weight *w, float **bias, const char *name,
                            uint32_t rows)
{
    const struct plan_part part = {name, rows, PLAN_WHOLE};
    enum status s = plan_router(l, w, plan_model(l)->dim, "", &part);

    return s == OK ? plan_norm_bias(l, bias, rows, "", name) : s;
}

enum status plan_labels(struct loader *l, const char *pooler, const char *labels)
{
    struct weights *w = l->w;
    enum status s = plan_f32(l, &w->pooler, &w->pooler_bias, pooler, plan_model(l)->dim);

    return s == OK ? plan_f32(l, &w->labels, &w->labels_bias, labels, plan_model(l)->n_labels) : s;
}

enum status plan_embedding_norm(struct loader *l, const char *prefix, const char *name)
{
    uint32_t dim = plan_model(l)->dim;
    enum status s = plan_norm(l, &l->w->embedding_norm, dim, prefix, name);

    return s == OK ? plan_norm_bias(l, &l->w->embedding_norm_bias, dim, prefix, name) : s;
}
