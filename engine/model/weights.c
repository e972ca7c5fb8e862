/* weights.c - loading a checkpoint: plan, read, hash, check. */
#include "engine/model/weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/model/family.h"
#include "engine/model/packed.h"
#include "engine/model/weights_load.h"
#include "kernels/pack.h"

#define N_WARNINGS_MAX 8 /* tensors named one by one */
/* Default number of elements that share a scale; ARCHITECTURE.md has the figures. */
#define GROUP_I8 128
#define GROUP_I4 32
#define GROUP_F8 128 /* the only one */

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
        uint32_t shape[3] = {job->n_rows, job->k, job->tensor ? tensor_dtype(job->tensor) : 99};
        if (job->again)
            continue;
        if (job->tensor)
            hash_add(&h, job->tensor->name, strlen(job->tensor->name) + 1);
        else
            hash_add(&h, &job->seed, sizeof job->seed);
        if (weights_is_coded(job)) { /* no float type has such a number */
            shape[2] = (job->tensor->code_is_f8 ? 200 : 100) + job->tensor->code_bits;
            hash_add(&h, &job->tensor->code_group, sizeof job->tensor->code_group);
        }
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

/* A checkpoint damaged by training or conversion loads and gives useless answers, so the log names
 * the damaged tensors. */
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

/* Without a quantized tensor, "as stored" is the same as no quantization. */
static void resolve_quantization(const struct loader *l)
{
    bool quantized = false;

    for (uint32_t i = 0; i < l->n_jobs && !quantized; i++)
        quantized = l->jobs[i].tensor && tensor_is_quantized(l->jobs[i].tensor);
    if (!quantized && quantization_is_as_stored(l->w->quantization))
        l->w->quantization = (struct quantization){0};
}

/* Times of a load, in ns. */
struct load_times {
    uint64_t begin, planned, end;
};

static void log_loaded(const struct weights *w, const struct load_times *t, bool was_packed)
{
    log_event(LOG_INFO, "weights loaded", "gb=%.3f s=%.3f plan_s=%.3f from=\"%s\"",
              (double)w->n_bytes * 1e-9, (double)(t->end - t->begin) * 1e-9,
              (double)(t->planned - t->begin) * 1e-9, was_packed ? "packed file" : "checkpoint");
}

/* Whether a value of the checkpoint is NaN or infinite. */
static bool any_nonfinite(const struct loader *l)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < l->n_jobs; i++)
        n += count_nonfinite(l, &l->jobs[i]);
    return n > 0;
}

/* Make all weights from the checkpoint, or from nothing. */
static enum status make_weights(struct loader *l)
{
    const struct weights_config *c = l->config;
    bool is_host = device_is_host(c->device);
    enum status s = is_host ? weights_load_host(l) : weights_load_upload(l);

    if (s != OK)
        return s;
    if (is_host && c->dummy && c->model->tied && l->w->output.data && !c->quantization.group)
        pack_tied_dummy(l);
    hash_content(l);
    warn_of_nonfinite(l);
    return OK;
}

/* Read the weights that an earlier start kept, or make them. */
static enum status fill_weights(struct loader *l, bool *was_packed)
{
    struct packed packed;
    enum status s = OK;

    packed_plan(&packed, l);
    *was_packed = packed_read(&packed, l);
    if (!*was_packed)
        s = make_weights(l);
    if (s == OK && !*was_packed && !any_nonfinite(l))
        l->w->keeper = packed_keep(&packed, l);
    free(packed.head.crcs);
    return s;
}

enum status weights_load(struct weights *w, const struct weights_config *config, struct buf *why)
{
    struct loader l = {.config = config, .w = w, .why = why};
    struct load_times t = {.begin = clock_now_ns()};
    bool was_packed = false;
    enum status s = OK;

    *w = (struct weights){
        .device = config->device, .dtype = config->dtype, .quantization = config->quantization};
    if (!config->dummy) {
        packed_stat_config(&l);
        s = checkpoint_open(&w->file, config->dir, why);
    }
    if (s == OK)
        s = config->model->family->plan_weights(&l);
    if (s == OK) {
        l.crcs = calloc(l.n_tasks, sizeof *l.crcs);
        l.n_nonfinite = calloc(l.n_tasks, sizeof *l.n_nonfinite);
        s = l.crcs && l.n_nonfinite ? OK : buf_why(why, ERR_NOMEM, "out of memory");
        resolve_quantization(&l);
    }
    t.planned = clock_now_ns();
    if (s == OK)
        s = fill_weights(&l, &was_packed);
    t.end = clock_now_ns();
    if (s == OK && !l.uses_file) { /* all weights are packed: release its pages */
        checkpoint_close(w->file);
        w->file = NULL;
    }
    if (s == OK && config->model->tied)
        weights_share_output(&l);
    if (s == OK)
        log_loaded(w, &t, was_packed);
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
    if (!strcmp(name, "auto"))
        *out = (struct quantization){.dtype = DTYPE_A8};
    else if (!strcmp(name, "int8"))
        *out = (struct quantization){DTYPE_I8, group ? group : GROUP_I8};
    else if (!strcmp(name, "int4"))
        *out = (struct quantization){DTYPE_I4, group ? group : GROUP_I4};
    else if (!strcmp(name, "fp8"))
        *out = (struct quantization){DTYPE_F8, GROUP_F8};
    else if (strcmp(name, "none") != 0)
        return buf_why(why, ERR_INVALID,
                       "{quantization} %s is unknown; auto, none, int8, int4 and fp8 are known",
                       name);
    if (out->dtype == DTYPE_F8 && group == 32)
        return buf_why(why, ERR_INVALID,
                       "{quantization_group} 32 does not go with {quantization} fp8, whose groups "
                       "have 128 weights");
    return OK;
}

enum status weights_stored_dtype(const struct model_config *m, const char *dir, enum dtype *out,
                                 struct buf *why)
{
    const char *name = m->family->embedding;
    struct checkpoint *file;
    enum status s = checkpoint_open(&file, dir, why);

    if (s != OK)
        return s;
    const struct tensor *t = checkpoint_find(file, name);
    if (!t)
        s = buf_why(why, ERR_INVALID, "the checkpoint in %s has no tensor %s", dir, name);
    else if (t->codec)
        *out = DTYPE_BF16;
    else if (!t->dtype_known)
        s = buf_why(why, ERR_UNSUPPORTED,
                    "tensor %s has dtype %s; F32, F16 and BF16 are "
                    "supported",
                    t->name, t->dtype_name);
    else
        *out = t->dtype;
    checkpoint_close(file);
    return s;
}

void weights_free(struct weights *w)
{
    packed_keep_stop(w->keeper);
    for (uint32_t i = 0; i < w->n_owned; i++)
        device_free(w->device, w->owned[i].data);
    free(w->owned);
    free(w->layers);
    checkpoint_close(w->file);
    *w = (struct weights){0};
}
