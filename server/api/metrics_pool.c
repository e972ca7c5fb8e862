/* metrics_pool.c - metrics of the pool of instances: the directory, what was pulled, queried and
 * lent. */
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
    page_head(
        p, "tarn:pool_notes_total", "counter",
        "Messages about documents to and from other instances; dropped: there was no room, or "
        "the other one was away.");
    page_sample(p, "tarn:pool_notes_total", ",result=\"sent\"", (double)s->n_notes_sent);
    page_sample(p, "tarn:pool_notes_total", ",result=\"received\"", (double)s->n_notes_received);
    page_sample(p, "tarn:pool_notes_total", ",result=\"dropped\"", (double)s->n_notes_dropped);
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
      fails[] = {{",why=\"lost\"", s->n_reads_lost},
                 {",why=\"timeout\"", s->n_reads_timed_out},
                 {",why=\"corrupt\"", s->n_reads_corrupt}};

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
    page_counter(p, "tarn:pool_peer_timeouts_total",
                 "Questions that another instance did not answer in time.", s->n_peer_timeouts);
    page_gauge(p, "tarn:pool_read_latency_seconds",
               "Moving mean of the time before a read's first byte.", s->read_latency_s);
    page_gauge(p, "tarn:pool_read_bytes_per_second", "Moving mean of what reads achieve; 0: none.",
               s->read_bytes_per_s);
}

static void write_queries(struct page *p, const struct cache_stats *c)
{
    static const char name[] = "tarn:pool_sequences_total";
    const struct pool_stats *s = &c->pool;
    char labels[32];

    page_head(p, name, "counter",
              "Sequences for which another instance had KV, by what was done with it.");
    for (enum cache_way w = 0; w < CACHE_N_WAYS; w++) {
        snprintf(labels, sizeof labels, ",way=\"%s\"", cache_way_name(w));
        page_sample(p, name, labels, (double)c->n_ways[w]);
    }
    page_counter(p, "tarn:pool_queries_total",
                 "Queries to KV on other instances, one per layer and piece of a sequence.",
                 s->n_queries);
    page_counter(p, "tarn:pool_queries_failed_total", "Of those, queries that got no answer.",
                 s->n_queries_failed);
    page_gauge(p, "tarn:pool_device_ipc_instances",
               "Instances whose GPU memory is mapped here (CUDA IPC).", s->n_mapped);
    page_counter(p, "tarn:pool_device_ipc_bytes_total",
                 "KV copied from the GPU memory of other instances, of "
                 "tarn:pool_pulled_bytes_total.",
                 s->n_near_bytes);
    page_counter(p, "tarn:pool_query_bytes_total", "Queries sent and tiles received.",
                 s->n_query_bytes);
    page_gauge(p, "tarn:pool_query_seconds",
               "Moving mean of the time that the answer to a query takes.", s->query_s);
    page_counter(p, "tarn:pool_attended_total", "Queries answered for other instances.",
                 s->n_attended);
    page_counter(p, "tarn:pool_attended_rows_total", "Rows of those queries.", s->n_attended_rows);
}

static void write_lending(struct page *p, const struct pool_stats *s)
{
    page_gauge(p, "tarn:pool_lent_blocks", "KV blocks that other instances may read now.",
               s->n_lent);
    page_counter(p, "tarn:pool_lent_blocks_total", "KV blocks sent to other instances.",
                 s->n_lent_blocks);
    page_counter(p, "tarn:pool_lent_bytes_total", "KV sent to other instances.", s->n_lent_bytes);
    page_counter(p, "tarn:pool_lease_timeouts_total",
                 "Lent prefixes that the other instance did not give back in time.",
                 s->n_lease_timeouts);
    page_counter(p, "tarn:pool_offered_total",
                 "Prefixes offered to other instances before this one ends.", s->n_offered);
    page_counter(p, "tarn:pool_handed_over_total", "Of those, prefixes that another one took.",
                 s->n_handed_over);
}

static void write_balance(struct page *p, const struct pool_stats *s)
{
    static const char copies[] = "tarn:pool_copies_total";

    page_counter(p, "tarn:pool_accessed_tokens_total",
                 "Tokens of KV here that were sent to other instances, or that attention read, for "
                 "this instance or for others.",
                 (uint64_t)s->n_accesses);
    page_gauge(p, "tarn:pool_load_cv",
               "Standard deviation over mean of these tokens per second, over all instances.",
               s->load_cv);
    page_head(p, copies, "counter",
              "Prefixes offered to a less loaded instance; copied: it serves them, too; moved: it "
              "serves them instead of this one.");
    page_sample(p, copies, ",result=\"offered\"", (double)s->n_copies_offered);
    page_sample(p, copies, ",result=\"copied\"", (double)s->n_copies);
    page_sample(p, copies, ",result=\"moved\"", (double)s->n_moves);
}

void metrics_write_pool(struct page *p, const struct cache_stats *c)
{
    write_directory(p, &c->pool);
    write_members(p, &c->pool);
    write_pulls(p, &c->pool, &c->tier[CACHE_REMOTE]);
    write_queries(p, c);
    write_lending(p, &c->pool);
    write_balance(p, &c->pool);
}
