#include "loadgen/bench/cache/report_inner.h"

#include <inttypes.h>

/* Targets of the project: the report says whether they were met. */
#define DEVICE_RATIO_MAX 1.5
#define HOST_RATIO_MAX 2.0
#define HASH_US_MAX 2.0
#define WALK_US_MAX 50.0
#define WALK_SEGMENTS 100.0

/* --- text --- */

static enum status text_ttft(struct buf *out, const struct ttft_result *r)
{
    static const double targets[TTFT_N_KINDS] = {0, DEVICE_RATIO_MAX, HOST_RATIO_MAX};
    enum status s = OK;

    PUT("Time to first token, prefix of %" PRIu32 " tokens and %" PRIu32 " new ones; %.2f G "
        "parameters, %s, %" PRIu32 " threads\n",
        r->prefix, r->n_new, (double)r->n_params * 1e-9, r->ops_name, r->n_threads);
    PUT("floor: %.3f GB of weights and %.3f GB of KV at %.1f GB/s (%.1f to %.1f): %.1f ms\n",
        (double)r->weight_bytes * 1e-9, (double)r->kv_bytes * 1e-9,
        r->read_bytes_per_s.median * 1e-9, r->read_bytes_per_s.min * 1e-9,
        r->read_bytes_per_s.max * 1e-9, r->floor_s.median * 1e3);
    if (r->n_disturbed)
        PUT("DISTURBED: others had the cores during %" PRIu32 " of %" PRIu32 " read rates\n",
            r->n_disturbed, r->read_bytes_per_s.n);
    PUT("%-8s %5s %10s %10s %10s %9s %8s %8s  %s\n", "prefix", "n", "median ms", "min", "max",
        "of floor", "device", "host", "target");
    for (int k = 0; k < TTFT_N_KINDS; k++) {
        const struct ttft_row *row = &r->row[k];
        PUT("%-8s %5" PRIu32 " %10.1f %10.1f %10.1f %9.2f %8" PRIu32 " %8" PRIu32,
            ttft_kind_name((enum ttft_kind)k), row->ttft_s.n, row->ttft_s.median * 1e3,
            row->ttft_s.min * 1e3, row->ttft_s.max * 1e3, row->ratio.median,
            row->n_cached_min[CACHE_DEVICE], row->n_cached_min[CACHE_HOST]);
        if (targets[k] > 0)
            PUT("  %.1f: %s", targets[k], report_verdict(row->ratio.median, targets[k]));
        PUT("\n");
        if (row->n_elsewhere)
            PUT("  %" PRIu32 " more did not find it there and are not counted\n", row->n_elsewhere);
    }
    PUT("device and host: prompt tokens found there, the least. of floor: the median of the "
        "ratios.\n\n");
    return s;
}

static enum status text_calls(struct buf *out, const char *name, const struct tree_calls *c)
{
    enum status s = OK;

    PUT("  %-5s walk and pin %8.1f us (p90 %.1f); match %.1f, attach %.1f, open %.1f, close %.1f\n",
        name, c->walk_and_pin.median * 1e6, c->walk_and_pin.p90 * 1e6, c->match.median * 1e6,
        c->attach.median * 1e6, c->open.median * 1e6, c->close.median * 1e6);
    return s;
}

static double walk_target_us(const struct tree_result *r)
{
    return WALK_US_MAX * r->path_segments / WALK_SEGMENTS;
}

static enum status text_tree(struct buf *out, const struct tree_result *r)
{
    enum status s = OK;

    PUT("Tree of %" PRIu32 " segments of 256 tokens in %" PRIu32 " paths of %" PRIu32 " (%" PRIu32
        " nodes, policy %s)\n",
        r->n_segments, r->n_paths, r->path_segments, r->n_nodes, r->policy);
    PUT("  hashing %.2f us a segment (%.2f to %.2f), target %.1f: %s; eight hashes alone %.2f us\n",
        r->hash_s.median * 1e6, r->hash_s.min * 1e6, r->hash_s.max * 1e6, HASH_US_MAX,
        report_verdict(r->hash_s.median * 1e6, HASH_US_MAX), 8 * r->hash_one_s * 1e6);
    PUT("  a path of %" PRIu32 " segments, medians; target of walk and pin %.1f us: %s\n",
        r->path_segments, walk_target_us(r),
        report_verdict(r->cold.walk_and_pin.median * 1e6, walk_target_us(r)));
    if (s == OK)
        s = text_calls(out, "cold", &r->cold);
    if (s == OK)
        s = text_calls(out, "warm", &r->warm);
    PUT("  filling in %.2f us a segment\n", r->fill_s * 1e6);
    PUT("  bookkeeping %.0f bytes a segment, %.1f MB\n\n", (double)r->memory_bytes / r->n_segments,
        (double)r->memory_bytes * 1e-6);
    return s;
}

static enum status text_miss(struct buf *out, const struct miss_result *r)
{
    static const char *const names[] = {"on", "off"};
    enum status s = OK;

    PUT("Nothing to hit: %" PRIu32 " requests of %" PRIu32 " + %" PRIu32 " tokens, %s, %.1f M "
        "multiply-adds a token\n",
        r->n_requests, r->n_prompt, r->n_out, r->ops_name, (double)r->n_macs_per_token * 1e-6);
    for (int k = 0; k < MISS_N_SIDES; k++)
        if (r->ran[k])
            PUT("  prefix caching %-3s  %.3f ms of CPU a request (%.3f to %.3f)\n", names[k],
                r->cpu_s[k].median * 1e3, r->cpu_s[k].min * 1e3, r->cpu_s[k].max * 1e3);
    if (r->ran[MISS_ON])
        PUT("  %" PRIu64 " blocks evicted\n", r->n_evicted);
    PUT("  instructions: loadgen/bench/cache/miss_instructions.py\n\n");
    return s;
}

enum status cachebench_report_text(struct buf *out, const struct cachebench_results *r)
{
    enum status s = OK;

    if (r->ttft)
        s = text_ttft(out, r->ttft);
    if (s == OK && r->tree)
        s = text_tree(out, r->tree);
    if (s == OK && r->miss)
        s = text_miss(out, r->miss);
    return s == OK ? report_disk_text(out, r) : s;
}

/* --- JSON --- */

static enum status json_ttft_row(struct buf *out, const struct ttft_row *row)
{
    enum status s = report_json_field(out, "ttft_s", &row->ttft_s);

    if (s == OK)
        s = report_json_field(out, "of_floor", &row->ratio);
    PUT("\"n_elsewhere\": %" PRIu32, row->n_elsewhere);
    for (int t = 0; t < CACHE_REMOTE; t++) /* one instance: there is no pool */
        PUT(", \"cached_%s_min\": %" PRIu32 ", \"cached_%s_max\": %" PRIu32,
            cache_tier_name((enum cache_tier)t), row->n_cached_min[t],
            cache_tier_name((enum cache_tier)t), row->n_cached_max[t]);
    return s;
}

static enum status json_ttft(struct buf *out, const struct ttft_result *r)
{
    enum status s = OK;

    PUT(",\n \"ttft\": {\"kernels\": \"%s\", \"threads\": %" PRIu32 ", \"n_params\": %" PRIu64
        ", \"prefix_tokens\": %" PRIu32 ", \"new_tokens\": %" PRIu32
        ", \"n_device_blocks\": %" PRIu32 ", \"n_host_blocks\": %" PRIu32
        ", \"weight_bytes\": %" PRIu64 ", \"kv_bytes\": %" PRIu64 ", ",
        r->ops_name, r->n_threads, r->n_params, r->prefix, r->n_new, r->n_device_blocks,
        r->n_host_blocks, r->weight_bytes, r->kv_bytes);
    if (s == OK)
        s = report_json_field(out, "read_bytes_per_s", &r->read_bytes_per_s);
    if (s == OK)
        s = report_json_field(out, "floor_s", &r->floor_s);
    PUT("\"n_disturbed\": %" PRIu32 ", \"policy\": \"%s\", \"n_moved_to_device\": %" PRIu64
        ", \"n_moved_to_host\": %" PRIu64,
        r->n_disturbed, r->cache.policy, r->cache.tier[CACHE_DEVICE].n_moved_in,
        r->cache.tier[CACHE_HOST].n_moved_in);
    for (int k = 0; k < TTFT_N_KINDS; k++) {
        PUT(",\n  \"%s\": {", ttft_kind_name((enum ttft_kind)k));
        if (s == OK)
            s = json_ttft_row(out, &r->row[k]);
        PUT("}");
    }
    PUT(",\n  \"device_of_floor_target\": %g, \"host_of_floor_target\": %g}", DEVICE_RATIO_MAX,
        HOST_RATIO_MAX);
    return s;
}

static enum status json_calls(struct buf *out, const char *name, const struct tree_calls *c)
{
    enum status s = OK;

    PUT(",\n  \"%s\": {", name);
    if (s == OK)
        s = report_json_field(out, "walk_and_pin_s", &c->walk_and_pin);
    if (s == OK)
        s = report_json_field(out, "match_s", &c->match);
    if (s == OK)
        s = report_json_field(out, "attach_s", &c->attach);
    if (s == OK)
        s = report_json_field(out, "open_s", &c->open);
    if (s == OK)
        s = report_json_figure(out, "close_s", &c->close);
    PUT("}");
    return s;
}

static enum status json_tree(struct buf *out, const struct tree_result *r)
{
    enum status s = OK;

    PUT(",\n \"tree\": {\"n_segments\": %" PRIu32 ", \"n_paths\": %" PRIu32
        ", \"path_segments\": %" PRIu32 ", \"n_nodes\": %" PRIu32 ", \"policy\": \"%s\", ",
        r->n_segments, r->n_paths, r->path_segments, r->n_nodes, r->policy);
    if (s == OK)
        s = report_json_field(out, "hash_s_per_segment", &r->hash_s);
    PUT("\"hash_one_s\": %.6g, \"fill_s_per_segment\": %.6g, \"memory_bytes\": %" PRIu64
        ", \"bytes_per_segment\": %.6g, \"hash_s_target\": %g, \"walk_and_pin_s_target\": %g",
        r->hash_one_s, r->fill_s, r->memory_bytes, (double)r->memory_bytes / r->n_segments,
        HASH_US_MAX * 1e-6, walk_target_us(r) * 1e-6);
    if (s == OK)
        s = json_calls(out, "cold", &r->cold);
    if (s == OK)
        s = json_calls(out, "warm", &r->warm);
    PUT("}");
    return s;
}

static enum status json_miss(struct buf *out, const struct miss_result *r)
{
    static const char *const names[] = {"cpu_s_on", "cpu_s_off"};
    enum status s = OK;

    PUT(",\n \"miss\": {\"kernels\": \"%s\", \"n_requests\": %" PRIu32
        ", \"prompt_tokens\": %" PRIu32 ", \"generated_tokens\": %" PRIu32
        ", \"macs_per_token\": %" PRIu64 ", \"n_evicted\": %" PRIu64,
        r->ops_name, r->n_requests, r->n_prompt, r->n_out, r->n_macs_per_token, r->n_evicted);
    for (int k = 0; k < MISS_N_SIDES; k++) {
        PUT(", ");
        if (s == OK && r->ran[k])
            s = report_json_figure(out, names[k], &r->cpu_s[k]);
        else
            PUT("\"%s\": null", names[k]);
    }
    PUT("}");
    return s;
}

enum status cachebench_report_json(struct buf *out, const struct cachebench_results *r)
{
    enum status s = buf_puts(out, "{\"format\": 1");

    if (s == OK && r->ttft)
        s = json_ttft(out, r->ttft);
    if (s == OK && r->tree)
        s = json_tree(out, r->tree);
    if (s == OK && r->miss)
        s = json_miss(out, r->miss);
    if (s == OK)
        s = report_disk_json(out, r);
    return s == OK ? buf_puts(out, "}\n") : s;
}
