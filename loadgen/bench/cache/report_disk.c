#include <inttypes.h>

#include "loadgen/bench/cache/report_inner.h"

/* Targets of the project: the report says whether they were met. */
#define READ_RATIO_MAX 1.3
#define COST_PERCENT_MAX 2.0
#define INDEX_S_MAX 1.0
#define INDEX_RECORDS 100000.0

static double per_token(uint64_t bytes, const struct disk_ttft_result *r)
{
    return (double)bytes / r->prefix;
}

static double index_target_s(const struct index_result *r)
{
    return INDEX_S_MAX * r->n_records / INDEX_RECORDS;
}

/* --- text --- */

static enum status text_disk_row(struct buf *out, const struct disk_ttft_result *r,
                                 enum disk_kind k)
{
    const struct disk_row *row = &r->row[k];
    enum status s = OK;

    PUT("%-8s %5" PRIu32 " %10.1f %10.1f %10.1f", disk_kind_name(k), row->ttft_s.n,
        row->ttft_s.median * 1e3, row->ttft_s.min * 1e3, row->ttft_s.max * 1e3);
    if (row->ratio.n)
        PUT(" %9.2f %8" PRIu32 "  %.1f: %s", row->ratio.median, row->n_on_disk_min, READ_RATIO_MAX,
            report_verdict(row->ratio.median, READ_RATIO_MAX));
    PUT("\n");
    if (row->n_elsewhere)
        PUT("  %" PRIu32 " more did not find it there and are not counted\n", row->n_elsewhere);
    return s;
}

static enum status text_disk(struct buf *out, const struct disk_ttft_result *r)
{
    enum status s = OK;

    PUT("Time to first token from disk (%s%s), prefix of %" PRIu32 " tokens and %" PRIu32 " new "
        "ones; %.2f G parameters, %s, %" PRIu32 " threads\n",
        r->io, r->is_direct ? ", O_DIRECT" : "", r->prefix, r->n_new, (double)r->n_params * 1e-9,
        r->ops_name, r->n_threads);
    PUT("floor: %.3f GB of KV at %.2f GB/s (%.2f to %.2f; %s): %.1f ms, and a step: %.1f ms\n",
        (double)r->kv_bytes * 1e-9, r->disk_bytes_per_s.median * 1e-9,
        r->disk_bytes_per_s.min * 1e-9, r->disk_bytes_per_s.max * 1e-9, r->rate_pattern,
        r->read_s.median * 1e3, r->floor_s.median * 1e3);
    if (!r->rate_is_direct)
        PUT("NOT DIRECT: this file system has no O_DIRECT, and the rate is that of the page "
            "cache\n");
    PUT("%-8s %5s %10s %10s %10s %9s %8s  %s\n", "prefix", "n", "median ms", "min", "max",
        "of floor", "on disk", "target");
    for (int k = 0; s == OK && k < DISK_N_KINDS; k++)
        s = text_disk_row(out, r, (enum disk_kind)k);
    PUT("%" PRIu64 " reads failed, %" PRIu64 " corrupt, %" PRIu64 " too late; %" PRIu64 " requests "
        "computed what could be read\n",
        r->tier.n_reads_failed, r->tier.n_corrupt, r->tier.n_timeouts, r->tier.n_not_worth);
    PUT("bytes on disk a token %.1f, payload %.1f: %.4f times; files %.1f MB of %.1f MB allowed\n",
        per_token(r->disk_bytes, r), per_token(r->kv_bytes, r),
        (double)r->disk_bytes / (double)r->kv_bytes, (double)r->file_bytes * 1e-6,
        (double)r->file_bytes_max * 1e-6);
    PUT("stolen by other machines: %.1f %%\n\n", 100 * r->steal_share);
    return s;
}

static enum status text_writes(struct buf *out, const struct writes_result *r)
{
    enum status s = OK;

    PUT("Writing to disk beside requests: %" PRIu32 " at once, %" PRIu32 " new tokens and %" PRIu32
        " generated ones each, then as many with the same prompts; %.2f G parameters, %s, %" PRIu32
        " threads; %" PRIu32 " rounds\n",
        r->n_requests, r->n_prompt, r->n_out, (double)r->n_params * 1e-9, r->ops_name, r->n_threads,
        r->n_rounds);
    PUT("%-14s %10s %10s %10s %10s %10s %12s  %s\n", "", "tokens/s", "cost %", "min", "max",
        "MB written", "meanwhile %", "target");
    for (int i = 0; i < WRITES_N_SIDES; i++) {
        const struct writes_row *row = &r->row[i];
        const struct figure *c = &row->cost_percent;

        PUT("%-14s %10.1f", writes_side_name((enum writes_side)i), row->tokens_per_s.median);
        if (i != WRITES_NONE)
            PUT(" %10.2f %10.2f %10.2f", c->median, c->min, c->max);
        if (i >= WRITES_FIRST)
            PUT(" %10.1f %12.1f  %.0f: %s", (double)row->n_written_bytes * 1e-6,
                100 * row->written_meanwhile, COST_PERCENT_MAX,
                report_verdict(c->median, COST_PERCENT_MAX));
        PUT("\n");
    }
    PUT("cost: of time, against the batch without a disk of the same round; median, least, most. "
        "Stolen by other machines: %.1f %%\n\n",
        100 * r->steal_share);
    return s;
}

static enum status text_index(struct buf *out, const struct index_result *r)
{
    enum status s = OK;

    PUT("Opening a directory of %" PRIu32 " records (%s%s; room for %" PRIu32 ")\n", r->n_records,
        r->io, r->is_direct ? ", O_DIRECT" : "", r->n_extents);
    PUT("  cold %.3f s (%.3f to %.3f; the first %.3f), warm %.3f s (%.3f to %.3f); with all else "
        "%.3f s\n",
        r->cold_s.median, r->cold_s.min, r->cold_s.max, r->first_s, r->warm_s.median, r->warm_s.min,
        r->warm_s.max, r->open_s.median);
    PUT("  target of cold %.2f s: %s; writing them took %.1f s; stolen by other machines: %.1f "
        "%%\n",
        index_target_s(r), report_verdict(r->cold_s.median, index_target_s(r)), r->write_s,
        100 * r->steal_share);
    return s;
}

enum status report_disk_text(struct buf *out, const struct cachebench_results *r)
{
    enum status s = OK;

    if (r->disk)
        s = text_disk(out, r->disk);
    if (s == OK && r->writes)
        s = text_writes(out, r->writes);
    if (s == OK && r->index)
        s = text_index(out, r->index);
    return s;
}

/* --- JSON --- */

static enum status json_disk_row(struct buf *out, const struct disk_ttft_result *r,
                                 enum disk_kind k)
{
    const struct disk_row *row = &r->row[k];
    enum status s = OK;

    PUT(",\n  \"%s\": {", disk_kind_name(k));
    if (s == OK)
        s = report_json_field(out, "ttft_s", &row->ttft_s);
    if (s == OK && (k == DISK_READ || k == DISK_RESTART))
        s = report_json_field(out, "of_floor", &row->ratio);
    PUT("\"n_elsewhere\": %" PRIu32 ", \"cached_disk_min\": %" PRIu32 "}", row->n_elsewhere,
        row->n_on_disk_min);
    return s;
}

static enum status json_disk(struct buf *out, const struct disk_ttft_result *r)
{
    enum status s = OK;

    PUT(",\n \"disk\": {\"kernels\": \"%s\", \"threads\": %" PRIu32 ", \"n_params\": %" PRIu64
        ", \"prefix_tokens\": %" PRIu32 ", \"new_tokens\": %" PRIu32
        ", \"n_device_blocks\": %" PRIu32 ", \"kv_bytes\": %" PRIu64
        ", \"io\": \"%s\", \"is_direct\": %s, ",
        r->ops_name, r->n_threads, r->n_params, r->prefix, r->n_new, r->n_device_blocks,
        r->kv_bytes, r->io, r->is_direct ? "true" : "false");
    if (s == OK)
        s = report_json_field(out, "disk_bytes_per_s", &r->disk_bytes_per_s);
    PUT("\"disk_rate_pattern\": \"%s\", \"disk_rate_is_direct\": %s, ", r->rate_pattern,
        r->rate_is_direct ? "true" : "false");
    if (s == OK)
        s = report_json_field(out, "read_s", &r->read_s);
    if (s == OK)
        s = report_json_field(out, "floor_s", &r->floor_s);
    PUT("\"n_reads_failed\": %" PRIu64 ", \"n_corrupt\": %" PRIu64 ", \"n_timeouts\": %" PRIu64
        ", \"n_not_worth\": %" PRIu64 ", \"n_read_bytes\": %" PRIu64,
        r->tier.n_reads_failed, r->tier.n_corrupt, r->tier.n_timeouts, r->tier.n_not_worth,
        r->tier.n_read_bytes);
    PUT(", \"bytes_per_token\": %.6g, \"payload_bytes_per_token\": %.6g, \"bytes_of_payload\": %.6g"
        ", \"file_bytes\": %" PRIu64 ", \"file_bytes_max\": %" PRIu64 ", \"steal_share\": %.4f",
        per_token(r->disk_bytes, r), per_token(r->kv_bytes, r),
        (double)r->disk_bytes / (double)r->kv_bytes, r->file_bytes, r->file_bytes_max,
        r->steal_share);
    for (int k = 0; s == OK && k < DISK_N_KINDS; k++)
        s = json_disk_row(out, r, (enum disk_kind)k);
    PUT(",\n  \"disk_of_floor_target\": %g}", READ_RATIO_MAX);
    return s;
}

static enum status json_writes(struct buf *out, const struct writes_result *r)
{
    enum status s = OK;

    PUT(",\n \"writes\": {\"kernels\": \"%s\", \"threads\": %" PRIu32 ", \"n_params\": %" PRIu64
        ", \"n_rounds\": %" PRIu32 ", \"n_requests\": %" PRIu32 ", \"prompt_tokens\": %" PRIu32
        ", \"generated_tokens\": %" PRIu32 ", \"batch_tokens\": %" PRIu32,
        r->ops_name, r->n_threads, r->n_params, r->n_rounds, r->n_requests, r->n_prompt, r->n_out,
        r->n_batch_tokens);
    for (int i = 0; i < WRITES_N_SIDES; i++) {
        const struct writes_row *row = &r->row[i];

        PUT(",\n  \"%s\": {", writes_side_name((enum writes_side)i));
        if (s == OK)
            s = report_json_field(out, "tokens_per_s", &row->tokens_per_s);
        if (s == OK && i != WRITES_NONE)
            s = report_json_field(out, "cost_percent", &row->cost_percent);
        PUT("\"written_bytes\": %" PRIu64 ", \"written_meanwhile_share\": %.4f}",
            row->n_written_bytes, row->written_meanwhile);
    }
    PUT(",\n  \"steal_share\": %.4f, \"cost_percent_target\": %g}", r->steal_share,
        COST_PERCENT_MAX);
    return s;
}

static enum status json_index(struct buf *out, const struct index_result *r)
{
    enum status s = OK;

    PUT(",\n \"index\": {\"io\": \"%s\", \"is_direct\": %s, \"n_records\": %" PRIu32
        ", \"n_extents\": %" PRIu32 ", \"write_s\": %.6g, \"first_s\": %.6g, ",
        r->io, r->is_direct ? "true" : "false", r->n_records, r->n_extents, r->write_s, r->first_s);
    if (s == OK)
        s = report_json_field(out, "cold_s", &r->cold_s);
    if (s == OK)
        s = report_json_field(out, "warm_s", &r->warm_s);
    if (s == OK)
        s = report_json_field(out, "open_s", &r->open_s);
    PUT("\"steal_share\": %.4f, \"cold_s_target\": %g}", r->steal_share, index_target_s(r));
    return s;
}

enum status report_disk_json(struct buf *out, const struct cachebench_results *r)
{
    enum status s = OK;

    if (r->disk)
        s = json_disk(out, r->disk);
    if (s == OK && r->writes)
        s = json_writes(out, r->writes);
    if (s == OK && r->index)
        s = json_index(out, r->index);
    return s;
}
