/* metrics_pool.c - metrics of the pool of instances: the directory, what was pulled and lent. */
#include <stddef.h>
#include <stdio.h>

#include "base/check.h"
#include "cache/cache.h"
#include "server/api/exposition.h"
#include "server/api/metrics.h"

static void write_directory(struct page *p, const struct pool_stats *s)
{
    const struct directory_stats *d = &s->directory;

    page_gauge(p, "tarn:pool_directory_up", "1 while the directory (Redis) answers.", d->is_up);
    page_counter(p, "tarn:pool_directory_connects_total", "Connections made to the directory.",
                 d->n_connects);
    page_counter(p, "tarn:pool_directory_timeouts_total",
                 "Connections to the directory given up because an answer took too long.",
                 d->n_timeouts);
    page_gauge(p, "tarn:pool_directory_round_trip_seconds",
               "Moving mean of the time that an answer of the directory takes.", d->round_trip_s);
    page_counter(p, "tarn:pool_announced_total", "Segments announced or withdrawn.",
                 d->n_announced);
    page_counter(p, "tarn:pool_announcements_dropped_total",
                 "Announcements that were not sent: the directory was away or slow.", d->n_dropped);
    page_counter(p, "tarn:pool_events_lost_total",
                 "Times that all segments were announced again because a queue was full.",
                 s->n_events_lost);
}

static void write_members(struct page *p, const struct pool_stats *s)
{
    page_gauge(p, "tarn:pool_instances", "Instances in the directory, this one included.",
               s->n_instances);
    page_gauge(p, "tarn:pool_peers", "Instances that this one is connected to.", s->n_peers);
    page_gauge(p, "tarn:pool_segments", "Segments of this instance in the directory.",
               s->n_segments);
    page_counter(p, "tarn:pool_refused_total",
                 "Connections refused: the peer did not prove the pool's secret.", s->n_refused);
}

static void write_pulls(struct page *p, const struct pool_stats *s,
                        const struct cache_tier_stats *remote)
{
    static const char lookups[] = "tarn:pool_lookups_total",
                      reads[] = "tarn:pool_reads_failed_total";
    const struct {
        const char *labels;
        uint64_t n;
    } ends[] = {{",result=\"found\"", s->n_found},
                {",result=\"timeout\"", s->n_lookup_timeouts},
                {",result=\"not_found\"", s->n_lookups > s->n_found + s->n_lookup_timeouts
                                              ? s->n_lookups - s->n_found - s->n_lookup_timeouts
                                              : 0}},
      fails[] = {{",why=\"lost\"", s->n_reads_failed},
                 {",why=\"timeout\"", s->n_timeouts},
                 {",why=\"corrupt\"", s->n_corrupt}};

    page_head(p, lookups, "counter", "Lookups of KV on other instances, by result.");
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
        page_sample(p, lookups, ends[i].labels, (double)ends[i].n);
    page_counter(p, "tarn:pool_not_worth_total",
                 "Requests that computed what another instance has, as that was faster.",
                 remote->n_not_worth);
    page_gauge(p, "tarn:pool_remote_blocks",
               "KV blocks of other instances that waiting requests know of.", remote->n_cached);
    page_counter(p, "tarn:pool_stale_total",
                 "Instances that did not have what the directory said they hold.", s->n_stale);
    page_gauge(p, "tarn:pool_lookup_seconds", "Moving mean of the time of a lookup.", s->lookup_s);
    page_counter(p, "tarn:pool_pulled_blocks_total", "KV blocks read from other instances.",
                 s->n_pulled_blocks);
    page_counter(p, "tarn:pool_pulled_bytes_total", "KV read from other instances.",
                 s->n_pulled_bytes);
    page_head(p, reads, "counter", "Reads from other instances that failed: computed again.");
    for (size_t i = 0; i < ARRAY_SIZE(fails); i++)
        page_sample(p, reads, fails[i].labels, (double)fails[i].n);
    page_gauge(p, "tarn:pool_read_latency_seconds",
               "Moving mean of the time before a read's first byte.", s->read_latency_s);
    page_gauge(p, "tarn:pool_read_bytes_per_second", "Moving mean of what reads achieve; 0: none.",
               s->read_bytes_per_s);
}

static void write_lending(struct page *p, const struct pool_stats *s)
{
    page_gauge(p, "tarn:pool_lent_blocks", "KV blocks that other instances may read now.",
               s->n_lent);
    page_counter(p, "tarn:pool_lent_blocks_total", "KV blocks sent to other instances.",
                 s->n_lent_blocks);
    page_counter(p, "tarn:pool_lent_bytes_total", "KV sent to other instances.", s->n_lent_bytes);
    page_counter(p, "tarn:pool_offered_total",
                 "Prefixes offered to other instances before this one ends.", s->n_offered);
    page_counter(p, "tarn:pool_handed_over_total", "Of those, prefixes that another one took.",
                 s->n_handed_over);
}

void metrics_write_pool(struct page *p, const struct cache_stats *c)
{
    write_directory(p, &c->pool);
    write_members(p, &c->pool);
    write_pulls(p, &c->pool, &c->tier[CACHE_REMOTE]);
    write_lending(p, &c->pool);
}
