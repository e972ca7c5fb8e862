/* metrics_routers.c - the part of GET /metrics about KV events and the flows of routers. */
#include "server/api/exposition.h"
#include "server/api/metrics.h"
#include "server/api/router.h"
#include "server/events/publisher.h"
#include "server/server.h"

void metrics_write_routers(struct page *p, const struct server *srv)
{
    struct publisher_stats s;

    publisher_stats(srv->kv_events, &s);
    page_counter(p, "tarn:kv_events_batches_total", "Batches of KV events published.", s.n_batches);
    page_gauge(p, "tarn:kv_events_blocks",
               "Blocks that routers know by KV events; one in two tiers counts twice.",
               (double)s.n_blocks);
    page_counter(p, "tarn:kv_events_skipped_total",
                 "KV blocks not published because their token ids are not known.", s.n_skipped);
    page_counter(p, "tarn:kv_events_overflows_total",
                 "Times that KV events came too fast, and all were published again.",
                 s.n_overflows);
    page_counter(p, "tarn:kv_events_replays_total", "Requests of routers for past batches.",
                 s.n_replays);
    page_counter(p, "tarn:kv_events_repeats_total",
                 "Times that all blocks were published again for a router.", s.n_repeats);
    page_gauge(p, "tarn:router_flows", "Flows of x-llm-d-inference-fairness-id, at most 1000.",
               router_n_flows(srv->router_flows));
}
