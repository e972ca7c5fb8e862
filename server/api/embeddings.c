#include "server/api/embeddings.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/embedder.h"
#include "engine/model/hub.h"
#include "server/http/http.h"
#include "server/http/work_pool.h"
#include "server/server.h"

#define N_THREADS 2 /* one may run heavy jobs (work_pool.h) */
#define N_QUEUED_MAX 128
/* Weights a token as so many bytes of a body: jobs above 2048 tokens are heavy. A small encoder
 * computes as many in about a second on two cores. */
#define TOKEN_COST (WORK_HEAVY_COST / 2048)

struct embeddings {
    struct embedder *embedder;
    struct work_pool *pool;
    const char *path, *name, *last_part; /* strings of the configuration */
    atomic_size_t n_reserved;            /* bytes of answers in flight */
};

static void run_job(void *item)
{
    struct http_job *job = item;

    job->run(job->arg);
}

static enum status open_embedder(struct embeddings *e, const struct server *srv,
                                 enum embeddings_kind kind, struct buf *why)
{
    const struct config *c = srv->config;
    struct embedder_config config = {
        .dtype = "auto", .quantization = "auto", .classifies = kind == EMBEDDINGS_LABELS};
    struct buf dir;

    buf_init(&dir, 2 * PATH_MAX);
    enum status s = hub_resolve(e->path, &dir, why);
    config.model_dir = buf_str(&dir);
    config.cpu_variant = strcmp(c->cpu_variant, "auto") == 0 ? NULL : c->cpu_variant;
    config.n_threads = srv->info->n_threads;
    config.measure = c->profile_cost;
    if (s == OK)
        s = embedder_open(&e->embedder, &config, why);
    buf_fini(&dir);
    return s;
}

static void set_names(struct embeddings *e, const char *path, const char *given)
{
    const char *slash;

    e->path = path;
    e->name = given && given[0] ? given : path;
    slash = strrchr(e->name, '/');
    e->last_part = slash && slash[1] ? slash + 1 : e->name;
}

enum status embeddings_open(struct embeddings **out, const struct server *srv,
                            enum embeddings_kind kind, struct buf *why)
{
    const struct config *c = srv->config;
    bool has_labels = kind == EMBEDDINGS_LABELS;
    const char *model = has_labels ? c->rerank_model : c->embedding_model;

    *out = NULL;
    if (!model || !model[0])
        return OK;
    struct embeddings *e = calloc(1, sizeof *e);
    if (!e)
        return buf_why(why, ERR_NOMEM, "out of memory");
    set_names(e, model, has_labels ? c->served_rerank_model_name : c->served_embedding_model_name);
    enum status s = open_embedder(e, srv, kind, why);
    if (s == OK && (s = work_pool_create(&e->pool, N_THREADS, N_QUEUED_MAX, run_job)) != OK)
        buf_why(why, s, "cannot start the threads of %s", e->name);
    if (s == OK)
        *out = e;
    else
        embeddings_close(e);
    return s;
}

void embeddings_close(struct embeddings *e)
{
    if (!e)
        return;
    work_pool_destroy(e->pool);
    embedder_close(e->embedder);
    free(e);
}

struct embedder *embeddings_embedder(const struct embeddings *e)
{
    return e ? e->embedder : NULL;
}

const char *embeddings_name(const struct embeddings *e)
{
    return e->name;
}

const char *embeddings_path(const struct embeddings *e)
{
    return e->path;
}

const char *embeddings_find(const struct embeddings *e, const char *name)
{
    if (!e)
        return NULL;
    return strcmp(e->name, name) == 0        ? e->name
           : strcmp(e->last_part, name) == 0 ? e->last_part
                                             : NULL;
}

bool embeddings_reserve(struct embeddings *e, size_t bytes)
{
    size_t before = atomic_fetch_add(&e->n_reserved, bytes);

    if (before == 0 || before + bytes <= EMBEDDINGS_BYTES_MAX)
        return true;
    embeddings_release(e, bytes);
    return false;
}

void embeddings_release(struct embeddings *e, size_t bytes)
{
    atomic_fetch_sub(&e->n_reserved, bytes);
}

enum status embeddings_run(struct embeddings *e, struct http_job *job, uint64_t client,
                           uint32_t n_tokens)
{
    return work_pool_push(e->pool, job, client, n_tokens * TOKEN_COST);
}
