#include "engine/model/weights_measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/model/family.h"
#include "engine/model/weights_load.h"

/* Addresses, not memory: a plan adds offsets to the address of a vector. */
#define NOWHERE_BYTES ((size_t)1 << 30)

void weights_measure_fault(struct loader *l)
{
    struct weights_measure *m = l->measure;
    const char *words = buf_str(l->why);

    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a */

    for (const char *p = words; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 0x100000001B3u;
    for (uint32_t i = 0; i < m->n_faults; i++)
        if (m->fault_hashes[i] == hash)
            return;
    if (m->n_faults == WEIGHTS_N_COUNTED_MAX)
        return;
    if (m->n_faults < WEIGHTS_N_FAULTS_MAX)
        snprintf(m->faults[m->n_faults], sizeof m->faults[0], "%s", words);
    m->fault_hashes[m->n_faults++] = hash;
}

static void count_code(struct weights_measure *m, const struct tensor *t)
{
    const char *name = t->codec ? t->codec->name : t->dtype_name;
    uint32_t i = 0;

    while (i < m->n_codes && strcmp(m->codes[i].name, name) != 0)
        i++;
    if (i == WEIGHTS_N_CODES_MAX)
        return;
    if (i == m->n_codes)
        m->codes[m->n_codes++] = (struct weights_code){.name = name};
    m->codes[i].n_tensors++;
    m->codes[i].n_bytes += t->n_bytes;
    for (uint32_t k = 0; t->codec && k < TENSOR_N_PARTS_MAX; k++)
        if (t->parts[k])
            m->codes[i].n_bytes += t->parts[k]->n_bytes;
}

static int compare_codes(const void *a, const void *b)
{
    const struct weights_code *x = a, *y = b;

    return x->n_bytes < y->n_bytes ? 1 : x->n_bytes > y->n_bytes ? -1 : 0;
}

static void sum_up(struct weights_measure *out, const struct loader *l)
{
    const struct weights *w = l->w;
    const struct weight *e = &w->embedding;
    struct model_work work;

    for (uint32_t i = 0; i < l->n_jobs; i++)
        if (l->jobs[i].tensor && !l->jobs[i].again)
            count_code(out, l->jobs[i].tensor);
    qsort(out->codes, out->n_codes, sizeof *out->codes, compare_codes);
    out->n_params = w->n_params;
    out->n_bytes = w->n_bytes;
    out->product = w->first ? w->first->dtype : w->dtype;
    if (e->data && e->data != out->nowhere)
        out->n_mapped_bytes = (uint64_t)e->n * e->k * dtype_bytes(e->dtype);
    l->config->model->family->count_work(l->config->model, w, &work);
    out->n_active = work.flops_per_token / 2;
}

enum status weights_measure(struct weights_measure *out, const struct weights_config *config,
                            struct checkpoint *file, struct buf *why)
{
    struct weights w = {.device = config->device,
                        .dtype = config->dtype,
                        .quantization = config->quantization,
                        .file = file};
    struct loader l = {.config = config, .w = &w, .why = why, .measure = out};

    *out = (struct weights_measure){.n_params = 0};
    out->nowhere =
        mmap(NULL, NOWHERE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (out->nowhere == MAP_FAILED)
        return buf_why(why, ERR_NOMEM, "out of addresses");
    enum status s = config->model->family->plan_weights(&l);
    if (s == OK)
        sum_up(out, &l);
    munmap(out->nowhere, NOWHERE_BYTES);
    free(l.jobs);
    w.file = NULL; /* the caller's */
    weights_free(&w);
    return s;
}
