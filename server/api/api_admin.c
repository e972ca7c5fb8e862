/* api_admin.c - GET /cache (what the KV store holds) and DELETE /cache (forget all, or one span).
 *
 * The handlers wait for the engine thread, which answers between two steps, so they run on a work
 * thread (route.c). If the step takes too long, the answer is 503 with Retry-After. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "server/api/api.h"
#include "server/api/library.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/kv_disk.h"
#include "server/server.h"

#define BODY_BYTES_MAX (256u << 10)
#define N_SPANS 20 /* default of ?spans */

void api_reply(struct http_exchange *x, struct writer *w)
{
    if (w->status == OK)
        http_reply(x, 200, "application/json", w->out);
    else
        error_reply(x, w->status, NULL, "out of memory");
    buf_fini(w->out);
}

bool api_is_answered(struct http_exchange *x, enum status s)
{
    if (s == ERR_TIMEOUT)
        error_reply_as(x, 503, ERR_UNAVAILABLE, NULL, "the engine is in a long step, try again");
    else if (s != OK)
        error_reply(x, s, NULL, "the engine does not answer");
    return s == OK;
}

/* Read ?spans=N. False: the error was answered. */
static bool get_n_spans(struct http_exchange *x, uint32_t *n)
{
    const char *text = http_query(x, "spans");
    char words[96];

    *n = N_SPANS;
    if (!text)
        return true;
    size_t len = strspn(text, "0123456789");
    unsigned long v =
        len > 0 && len <= 6 && text[len] == '\0' ? strtoul(text, NULL, 10) : ENGINE_N_SPANS_MAX + 1;
    if (v > ENGINE_N_SPANS_MAX) {
        snprintf(words, sizeof words, "spans: expected a whole number from 0 to %d, got \"%.20s\"",
                 ENGINE_N_SPANS_MAX, text);
        error_reply(x, ERR_INVALID, NULL, words);
        return false;
    }
    *n = (uint32_t)v;
    return true;
}

static void write_tier(struct writer *w, const struct server *srv, enum cache_tier t,
                       const struct cache_tier_stats *c)
{
    write_format(w,
                 "{\"name\":\"%s\",\"bytes\":%" PRIu64 ",\"blocks\":{\"total\":%u,\"free\":%u,"
                 "\"cached\":%u,\"in_use\":%u,\"in_transfer\":%u,\"leaked\":%u}",
                 cache_tier_name(t), c->n_blocks * srv->info->kv_block_bytes, c->n_blocks,
                 c->n_free, c->n_cached, c->n_in_use, c->n_in_transfer, c->n_leaked);
    write_format(w,
                 ",\"nodes\":%u,\"hit_tokens\":%" PRIu64 ",\"evicted_blocks\":%" PRIu64
                 ",\"moved_in_blocks\":%" PRIu64 ",\"saved_s\":%.6f,\"lost_s\":%.6f,\"order\":",
                 c->n_nodes, c->n_hit_tokens, c->n_evicted, c->n_moved_in, c->saved_s, c->lost_s);
    if (c->order && c->order[0])
        write_json(w, c->order, strlen(c->order));
    else
        write_puts(w, "null");
    write_puts(w, "}");
}

static void write_tiers(struct writer *w, const struct server *srv, const struct cache_stats *c)
{
    bool any = false;

    write_puts(w, ",\"tiers\":[");
    for (int t = 0; t < CACHE_N_TIERS; t++) {
        if (c->tier[t].n_blocks == 0)
            continue;
        write_puts(w, any ? "," : "");
        write_tier(w, srv, (enum cache_tier)t, &c->tier[t]);
        any = true;
    }
    write_puts(w, "]");
}

static void write_tokens(struct writer *w, const struct cache_stats *c)
{
    write_format(w,
                 ",\"tokens\":{\"queried\":%" PRIu64 ",\"hit\":%" PRIu64 ",\"restored\":%" PRIu64
                 ",\"hit_rate\":",
                 c->n_query_tokens, c->n_hit_tokens, c->n_restored_tokens);
    if (c->n_query_tokens)
        write_number(w, (double)c->n_hit_tokens / (double)c->n_query_tokens);
    else
        write_puts(w, "null");
    write_puts(w, "}");
}

static void write_swaps(struct writer *w, const struct cache_stats *c)
{
    write_format(w,
                 ",\"swapped_blocks\":{\"spilled_ahead\":%" PRIu64 ",\"spilled_on_demand\":%" PRIu64
                 ",\"fetched_ahead\":%" PRIu64 ",\"fetched_on_demand\":%" PRIu64
                 ",\"expected_lost\":%" PRIu64 "}",
                 c->n_spilled_ahead, c->n_spilled_on_demand, c->n_fetched_ahead,
                 c->n_fetched_on_demand, c->n_expected_lost);
}

/* Write the object of the disk tier; null without one. */
static void write_disk(struct writer *w, const struct cache_disk_stats *d)
{
    struct kv_disk_dropped dropped[KV_DISK_N_WHYS];

    if (!d->is_on) {
        write_puts(w, ",\"disk\":null");
        return;
    }
    write_format(w,
                 ",\"disk\":{\"io\":\"%s\",\"direct\":%s,\"hung\":%s,\"extent_bytes\":%" PRIu64
                 ",\"index_s\":%.6f,\"found_blocks\":%u,\"preloaded_blocks\":%" PRIu64
                 ",\"dropped_records\":{",
                 d->io, d->is_direct ? "true" : "false", d->is_hung ? "true" : "false",
                 d->extent_bytes, d->index_s, d->n_found, d->n_preloaded_blocks);
    kv_disk_dropped(d, dropped);
    for (int i = 0; i < KV_DISK_N_WHYS; i++)
        write_format(w, "%s\"%s\":%u", i ? "," : "", dropped[i].why, dropped[i].n);
    write_format(w,
                 "},\"read_bytes\":%" PRIu64 ",\"written_bytes\":%" PRIu64
                 ",\"read_bytes_per_s\":%.0f,\"reads_failed\":%" PRIu64
                 ",\"writes_failed\":%" PRIu64 ",\"timeouts\":%" PRIu64
                 ",\"corrupt_blocks\":%" PRIu64 ",\"not_worth\":%" PRIu64 "}",
                 d->n_read_bytes, d->n_written_bytes, d->read_bytes_per_s, d->n_reads_failed,
                 d->n_writes_failed, d->n_timeouts, d->n_corrupt, d->n_not_worth);
}

/* Write the object of the pool of instances; null without one. */
static void write_pool(struct writer *w, const struct server *srv, const struct cache_stats *c)
{
    const struct pool_stats *s = &c->pool;

    if (c->n_tiers <= CACHE_REMOTE) {
        write_puts(w, ",\"pool\":null");
        return;
    }
    write_format(w,
                 ",\"pool\":{\"name\":\"%s\",\"transport\":\"%s\",\"directory_up\":%s,"
                 "\"instances\":%u,\"peers\":%u,\"segments\":%u,\"lookups\":%" PRIu64
                 ",\"found\":%" PRIu64 ",\"stale\":%" PRIu64 ",\"lookup_s\":%.6f",
                 srv->config->pool_name, s->transport, s->directory.is_up ? "true" : "false",
                 s->n_instances, s->n_peers, s->n_segments, s->n_lookups, s->n_found, s->n_stale,
                 s->lookup_s);
    write_format(w,
                 ",\"pulled_blocks\":%" PRIu64 ",\"pulled_bytes\":%" PRIu64
                 ",\"read_bytes_per_s\":%.0f,\"reads_failed\":%" PRIu64 ",\"lent_blocks\":%" PRIu64
                 ",\"lent_bytes\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"handed_over\":%" PRIu64,
                 s->n_pulled_blocks, s->n_pulled_bytes, s->read_bytes_per_s,
                 s->n_reads_lost + s->n_reads_timed_out + s->n_reads_corrupt, s->n_lent_blocks,
                 s->n_lent_bytes, s->n_refused, s->n_handed_over);
    write_format(w, ",\"copies\":%" PRIu64 ",\"moves\":%" PRIu64 ",\"load_cv\":%.3f", s->n_copies,
                 s->n_moves, s->load_cv);
    write_format(w,
                 ",\"queries\":%" PRIu64 ",\"queries_failed\":%" PRIu64 ",\"query_bytes\":%" PRIu64
                 ",\"attended_rows\":%" PRIu64 ",\"sequences\":{",
                 s->n_queries, s->n_queries_failed, s->n_query_bytes, s->n_attended_rows);
    for (enum cache_way way = 0; way < CACHE_N_WAYS; way++)
        write_format(w, "%s\"%s\":%" PRIu64, way ? "," : "", cache_way_name(way), c->n_ways[way]);
    write_puts(w, "}}");
}

static void write_span(struct writer *w, const struct cache_span *s, uint32_t n_tiers)
{
    char key[2 * KV_KEY_BYTES + 1];

    hash_hex(key, s->key.bytes, KV_KEY_BYTES);
    write_format(w, "{\"key\":\"%s\",\"depth\":%u,\"tokens\":%u,\"blocks\":%u,\"blocks_by_tier\":{",
                 key, s->depth, s->n_tokens, s->n_blocks);
    for (uint32_t t = 0; t < n_tiers; t++)
        write_format(w, "%s\"%s\":%u", t ? "," : "", cache_tier_name((enum cache_tier)t),
                     s->n_blocks_in[t]);
    write_format(w,
                 "},\"nodes\":%u,\"children\":%u,\"uses\":%" PRIu64 ",\"hit_tokens\":%" PRIu64
                 ",\"saved_s\":%.6f,\"idle_s\":%.3f,\"in_use\":%s,\"held\":%s",
                 s->n_nodes, s->n_children, s->n_uses, s->n_hit_tokens, s->saved_s,
                 (double)s->idle_ns * 1e-9, s->in_use ? "true" : "false",
                 s->is_held ? "true" : "false");
}

/* Write which document the span is, if it is one. */
static void write_document(struct writer *w, const struct server *srv, const struct kv_key *key)
{
    struct document d;

    document_init(&d);
    if (library_find(srv->library, key, &d)) {
        write_puts(w, ",\"document\":{\"id\":");
        write_json(w, d.id, strlen(d.id));
        write_puts(w, ",\"title\":");
        write_json(w, buf_str(&d.title), d.title.len);
        write_puts(w, ",\"tenant\":");
        write_json(w, d.tenant, strlen(d.tenant));
        write_format(w, ",\"version\":%u}", d.version);
    }
    document_fini(&d);
}

static void write_spans(struct writer *w, const struct server *srv,
                        const struct engine_cache_view *v)
{
    write_puts(w, ",\"top_spans\":[");
    for (uint32_t i = 0; i < v->n_spans; i++) {
        write_puts(w, i ? "," : "");
        write_span(w, &v->spans[i], v->stats.n_tiers);
        write_document(w, srv, &v->spans[i].key);
        write_puts(w, "}");
    }
    write_puts(w, "]");
}

void api_cache(struct server *srv, struct http_exchange *x)
{
    struct engine_cache_view v;
    const struct cache_stats *c = &v.stats;
    struct buf body;
    struct writer w = {&body, OK};
    uint32_t n_spans;

    if (!get_n_spans(x, &n_spans) ||
        !api_is_answered(x, engine_cache_view(srv->engine, n_spans, &v)))
        return;
    buf_init(&body, BODY_BYTES_MAX);
    write_format(&w,
                 "{\"object\":\"cache\",\"block_tokens\":%d,\"block_bytes\":%" PRIu64
                 ",\"format_version\":%d,\"fingerprint\":\"%s\",\"policy\":\"%s\"",
                 KV_BLOCK_TOKENS, srv->info->kv_block_bytes, KV_FORMAT_VERSION,
                 srv->info->fingerprint_hex, c->policy);
    write_tiers(&w, srv, c);
    write_tokens(&w, c);
    write_swaps(&w, c);
    write_disk(&w, &c->disk);
    write_pool(&w, srv, c);
    write_format(&w,
                 ",\"tree\":{\"nodes\":%u,\"spans\":%u,\"holds\":%u,\"held_blocks\":%u,"
                 "\"session_blocks\":%u,\"superseded_blocks\":%" PRIu64
                 ",\"metadata_bytes\":%" PRIu64 "}",
                 c->n_nodes, v.n_spans_all, c->n_holds, c->n_held_blocks, c->n_session_blocks,
                 c->n_superseded, c->memory_bytes);
    write_spans(&w, srv, &v);
    write_format(&w, ",\"copies_failed\":%" PRIu64 "}", c->n_copies_failed);
    api_reply(x, &w);
}

/* Forget all KV that no request uses. The engine thread does so before it takes any request that is
 * sent after this answer. The answer's figures are taken shortly before; running requests may add
 * to the cache until then. */
static void forget_all(struct server *srv, struct http_exchange *x)
{
    struct engine_cache_view v;
    struct buf body;
    struct writer w = {&body, OK};

    enum status s = engine_cache_view(srv->engine, 0, &v);
    engine_reset_cache(srv->engine);
    buf_init(&body, BODY_BYTES_MAX);
    write_puts(&w, "{\"object\":\"cache.reset\",\"status\":\"ok\",\"cached_blocks\":");
    if (s == OK) {
        for (uint32_t t = 0; t < v.stats.n_tiers; t++)
            write_format(&w, "%s\"%s\":%u", t ? "," : "{", cache_tier_name((enum cache_tier)t),
                         v.stats.tier[t].n_cached);
        write_format(&w, "},\"holds\":%u}", v.stats.n_holds);
    } else {
        write_puts(&w, "null,\"holds\":null}"); /* a long step: the engine forgets after it */
    }
    api_reply(x, &w);
}

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool read_key(const char *text, struct kv_key *key)
{
    for (int i = 0; i < KV_KEY_BYTES; i++, text += 2) {
        int high = digit(text[0]), low = high < 0 ? -1 : digit(text[1]);
        if (low < 0)
            return false;
        key->bytes[i] = (uint8_t)(high << 4 | low);
    }
    return *text == '\0';
}

/* Forget a span and all spans behind it. Blocks that running requests use are forgotten when these
 * requests end. */
static void forget_span(struct server *srv, struct http_exchange *x, const char *text)
{
    struct kv_key key;
    struct buf body;
    struct writer w = {&body, OK};
    uint32_t n_blocks;
    char hex[2 * KV_KEY_BYTES + 1];

    if (!read_key(text, &key)) {
        error_reply(x, ERR_INVALID, NULL,
                    "span: expected 64 hex digits, the `key` of a span of "
                    "GET /cache");
        return;
    }
    if (!api_is_answered(x, engine_cache_erase(srv->engine, &key, &n_blocks)))
        return;
    if (n_blocks == 0) {
        error_reply(x, ERR_NOT_FOUND, NULL, "span: no span has this key; GET /cache lists spans");
        return;
    }
    hash_hex(hex, key.bytes, KV_KEY_BYTES);
    buf_init(&body, BODY_BYTES_MAX);
    write_format(&w, "{\"object\":\"cache.erase\",\"status\":\"ok\",\"span\":\"%s\",\"blocks\":%u}",
                 hex, n_blocks);
    api_reply(x, &w);
}

/* vLLM's and SGLang's way to forget all. Their parameters have no meaning here. */
void api_cache_reset(struct server *srv, struct http_exchange *x)
{
    forget_all(srv, x);
}

/* Forget ?span=KEY, or all without a query. An unknown parameter is refused, because forgetting all
 * would not be what its sender meant. */
void api_cache_forget(struct server *srv, struct http_exchange *x)
{
    const char *span = http_query(x, "span");

    if (span)
        forget_span(srv, x, span);
    else if (http_has_query(x))
        error_reply(x, ERR_INVALID, NULL,
                    "expected span=KEY to forget one span, or no parameter to forget everything");
    else
        forget_all(srv, x);
}
