#include "server/summary.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>

#include "base/log.h"
#include "engine/engine.h"
#include "server/server.h"

#define INTERVAL_NS UINT64_C(10000000000)

static double full_perc(const struct cache_tier_stats *c)
{
    return c->n_blocks ? 100.0 * (c->n_blocks - c->n_free) / c->n_blocks : 0;
}

bool summary_next(struct summary *s, const struct engine_stats *now, uint64_t now_ns,
                  struct summary_figures *out)
{
    const struct cache_stats *c = &now->cache;
    const struct cache_tier_stats *device = &c->tier[CACHE_DEVICE];
    double seconds = (double)(now_ns - s->t_ns) * 1e-9;
    uint64_t n_query = c->n_query_tokens - s->n_query_tokens;
    bool busy = now->n_steps != s->n_steps || now->n_running > 0 || now->n_waiting > 0;
    bool say = busy || s->was_busy;

    if (n_query)
        s->hit_perc = 100.0 * (double)(c->n_hit_tokens - s->n_hit_tokens) / (double)n_query;
    *out = (struct summary_figures){
        .prompt_per_s = (double)(now->n_prompt_tokens - s->n_prompt_tokens) / seconds,
        .generation_per_s = (double)(now->n_generation_tokens - s->n_generation_tokens) / seconds,
        .n_running = now->n_running,
        .n_waiting = now->n_waiting,
        .n_preemptions = now->n_preemptions - s->n_preemptions,
        .kv_usage_perc = device->n_blocks ? 100.0 * device->n_in_use / device->n_blocks : 0,
        .hit_perc = s->hit_perc,
        .has_host = c->tier[CACHE_HOST].n_blocks > 0,
        .has_disk = c->tier[CACHE_DISK].n_blocks > 0,
        .host_full_perc = full_perc(&c->tier[CACHE_HOST]),
        .disk_full_perc = full_perc(&c->tier[CACHE_DISK])};
    *s = (struct summary){.t_ns = now_ns,
                          .n_steps = now->n_steps,
                          .n_prompt_tokens = now->n_prompt_tokens,
                          .n_generation_tokens = now->n_generation_tokens,
                          .n_preemptions = now->n_preemptions,
                          .n_query_tokens = c->n_query_tokens,
                          .n_hit_tokens = c->n_hit_tokens,
                          .was_busy = busy,
                          .hit_perc = s->hit_perc};
    return say;
}

void summary_words(const struct summary_figures *f, char out[SUMMARY_WORDS_BYTES])
{
    char preemptions[48] = "", host[48] = "", disk[48] = "";

    if (f->n_preemptions)
        snprintf(preemptions, sizeof preemptions, "Preemptions: %" PRIu64 ", ", f->n_preemptions);
    if (f->has_host)
        snprintf(host, sizeof host, ", Host KV cache full: %.1f%%", f->host_full_perc);
    if (f->has_disk)
        snprintf(disk, sizeof disk, ", Disk KV cache full: %.1f%%", f->disk_full_perc);
    snprintf(out, SUMMARY_WORDS_BYTES,
             "Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f "
             "tokens/s, Running: %u reqs, Waiting: %u reqs, %sGPU KV cache usage: %.1f%%, Prefix "
             "cache hit rate: %.1f%%%s%s",
             f->prompt_per_s, f->generation_per_s, f->n_running, f->n_waiting, preemptions,
             f->kv_usage_perc, f->hit_perc, host, disk);
}

static void log_figures(const struct summary_figures *f)
{
    char words[SUMMARY_WORDS_BYTES];

    if (!log_is_json()) {
        summary_words(f, words);
        log_event(LOG_INFO, words, "%s", "");
        return;
    }
    log_event(LOG_INFO, "engine",
              "prompt_tokens_per_s=%.1f generation_tokens_per_s=%.1f running=%u waiting=%u "
              "preemptions=%" PRIu64 " kv_usage_perc=%.1f prefix_hit_perc=%.1f "
              "kv_host_full_perc=%.1f kv_disk_full_perc=%.1f",
              f->prompt_per_s, f->generation_per_s, f->n_running, f->n_waiting, f->n_preemptions,
              f->kv_usage_perc, f->hit_perc, f->host_full_perc, f->disk_full_perc);
}

void summary_log(struct summary *s, const struct server *srv, uint64_t now_ns)
{
    struct summary_figures figures;
    struct engine_stats now;

    if (now_ns - s->t_ns < INTERVAL_NS)
        return;
    engine_stats(srv->engine, &now);
    if (!summary_next(s, &now, now_ns, &figures))
        return;
    log_figures(&figures);
    malloc_trim(0);
}
