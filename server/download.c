#include "server/download.h"

#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/model/hub.h"
#include "engine/model/hub_download.h"

#define LOG_NS UINT64_C(10000000000) /* between two lines about one file */

static void log_progress(void *arg, const struct hub_progress *p)
{
    uint64_t *told_ns = arg, now_ns = clock_now_ns();

    if (p->was_here || (!p->is_done && now_ns - *told_ns < LOG_NS))
        return;
    *told_ns = now_ns;
    log_event(LOG_INFO,
              p->is_done      ? "downloaded"
              : p->is_waiting ? "another process downloads"
                              : "downloading",
              "file=\"%s\" file_gb=%.3f of_gb=%.3f all_gb=%.3f of_all_gb=%.3f files=%u", p->path,
              (double)p->n_here * 1e-9, (double)p->n_bytes * 1e-9,
              (double)(p->is_done ? p->n_all_here : p->n_all_here + p->n_here) * 1e-9,
              (double)p->n_all_bytes * 1e-9, p->n_files);
}

static bool is_name(const char *model)
{
    struct hub_name h;
    struct stat st;

    return stat(model, &st) != 0 && hub_name_parse(model, &h);
}

static enum status download(const char *model, struct buf *why)
{
    uint64_t told_ns = clock_now_ns();
    struct hub_download d = {.name = model, .progress = log_progress, .arg = &told_ns};

    if (!model[0] || !is_name(model) || hub_has_model(model))
        return OK;
    log_event(LOG_INFO, "the model is not in the local cache: downloading it", "model=\"%s\"",
              model);
    return hub_download(&d, NULL, why);
}

enum status download_models(const struct config *c, struct buf *why)
{
    if (!c->download)
        return OK;
    enum status s = download(c->model, why);
    if (s == OK)
        s = download(c->draft_model, why);
    if (s == OK)
        s = download(c->embedding_model, why);
    return s == OK ? download(c->rerank_model, why) : s;
}
