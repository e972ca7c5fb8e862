#include "server/banner.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "engine/engine.h"
#include "server/kv_disk.h"
#include "server/pool_flags.h"
#include "server/server.h"

/* Write the server's URL, and the options that curl needs before it. */
static void write_address(const struct config *c, uint16_t port, char *curl, char *url, size_t n)
{
    const char *scheme = c->tls_cert[0] ? "https" : "http";
    bool is_v6 = strchr(c->host, ':') != NULL;

    curl[0] = '\0';
    if (c->uds[0]) {
        snprintf(curl, n, "--unix-socket %.200s ", c->uds);
        snprintf(url, n, "%s://localhost", scheme);
    } else {
        snprintf(url, n, "%s://%s%.200s%s:%u", scheme, is_v6 ? "[" : "", c->host, is_v6 ? "]" : "",
                 port);
    }
}

static void print_text(const struct server *srv, const struct engine_stats *stats, const char *curl,
                       const char *url)
{
    const struct engine_info *info = srv->info;
    uint64_t n_tokens = (uint64_t)info->n_kv_blocks * KV_BLOCK_TOKENS;

    printf("KV cache size: %" PRIu64 " tokens\n", n_tokens);
    if (info->n_kv_host_blocks)
        printf("Host KV cache size: %" PRIu64 " tokens (%.1f MB)\n",
               (uint64_t)info->n_kv_host_blocks * KV_BLOCK_TOKENS,
               (double)info->n_kv_host_blocks * (double)info->kv_block_bytes * 1e-6);
    kv_disk_print(stdout, srv->config->kv_disk_path, &stats->cache);
    pool_print(stdout, srv->config, &stats->cache.pool);
    printf("Maximum concurrency for %u tokens per request: %.2fx\n", info->max_model_len,
           info->max_model_len ? (double)n_tokens / info->max_model_len : 0);
    printf("Loaded in %.2f s: %.1f M parameters, %.1f MB as %s, %s, %u threads\n",
           (double)info->load_ns * 1e-9, (double)info->n_params * 1e-6,
           (double)info->weight_bytes * 1e-6, info->weights_name, info->ops_name, info->n_threads);
    printf("Tarn " TARN_VERSION " serves %s at %s/v1\n\n", srv->model_names[0], url);
    if (srv->config->uds[0])
        printf("  on the Unix socket %s\n", srv->config->uds);
    printf("  curl %s%s/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", "
           "\"content\": \"Hello!\"}]}'\n\n",
           curl, url);
    fflush(stdout);
}

static void print_json(const struct server *srv, const struct engine_stats *stats, const char *url)
{
    const struct engine_info *info = srv->info;
    const struct cache_disk_stats *disk = &stats->cache.disk;
    uint64_t n_tokens = (uint64_t)info->n_kv_blocks * KV_BLOCK_TOKENS;

    log_announce("serving",
                 "version=\"" TARN_VERSION "\" model=\"%s\" params=%" PRIu64
                 " weights=\"%s\" weight_bytes=%" PRIu64 " kernels=\"%s\" threads=%u load_s=%.2f "
                 "max_model_len=%u kv_tokens=%" PRIu64 " kv_host_tokens=%" PRIu64
                 " kv_disk_tokens=%" PRIu64 " kv_disk_blocks_found=%u max_concurrency=%.2f "
                 "pool=\"%s\" pool_instances=%u uds=\"%s\" url=\"%s/v1\"",
                 srv->model_names[0], info->n_params, info->weights_name, info->weight_bytes,
                 info->ops_name, info->n_threads, (double)info->load_ns * 1e-9, info->max_model_len,
                 n_tokens, (uint64_t)info->n_kv_host_blocks * KV_BLOCK_TOKENS,
                 (uint64_t)stats->cache.tier[CACHE_DISK].n_blocks * KV_BLOCK_TOKENS,
                 disk->is_on ? disk->n_found : 0,
                 info->max_model_len ? (double)n_tokens / info->max_model_len : 0,
                 config_has_pool(srv->config) ? srv->config->pool_name : "",
                 stats->cache.pool.n_instances, srv->config->uds, url);
}

void banner_print(const struct server *srv, uint16_t port)
{
    struct engine_stats stats;
    char curl[320], url[320];

    write_address(srv->config, port, curl, url, sizeof url);
    engine_stats(srv->engine, &stats);
    if (log_is_json())
        print_json(srv, &stats, url);
    else
        print_text(srv, &stats, curl, url);
}
