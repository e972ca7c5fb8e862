#include "loadgen/bench/policy/report.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/json.h"

static const char *parts_name(enum paths_parts parts)
{
    return parts == PARTS_DOCUMENTS ? "documents" : "all";
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static double of_ideal(const struct paths *p, const struct replay_result *r)
{
    return share((double)r->n_tokens_hit, (double)p->n_tokens_ideal);
}

static double ns_per_use(const struct replay_result *r)
{
    return share(r->cpu_s * 1e9, (double)r->n_uses);
}

static enum status table_row(struct buf *out, const struct sim_options *o, const struct paths *p,
                             const struct replay_result *rows, const char *name)
{
    enum status s = buf_printf(out, "%-8s", name);
    double slowest = 0;

    for (uint32_t i = 0; s == OK && i < o->n_shares; i++) {
        s = buf_printf(out, " %7.2f", 100 * of_ideal(p, &rows[i]));
        slowest = fmax(slowest, ns_per_use(&rows[i]));
    }
    for (uint32_t i = 0; s == OK && i < o->n_shares; i++)
        s = buf_printf(out, "%s%7.2f", i ? " " : "  |",
                       100 * share(rows[i].saved_s, rows[i].ideal_s));
    return s == OK ? buf_printf(out, "  | %6.0f\n", slowest) : s;
}

enum status report_table(struct buf *out, const struct sim_options *o, const struct paths *p,
                         const struct replay_result *results)
{
    enum status s = buf_printf(
        out,
        "%s: %" PRIu32 " requests, %" PRIu64 " tokens (parts: %s), %" PRIu64 " distinct in %" PRIu32
        " nodes\nideal: %.2f %% of tokens hit\n"
        "%% of ideal: tokens hit | seconds saved, by memory in %% of the distinct tokens\n%-8s",
        o->trace, p->n_requests, p->n_tokens, parts_name(p->parts), p->n_tokens_distinct,
        p->n_nodes, 100 * share((double)p->n_tokens_ideal, (double)p->n_tokens), "policy");

    for (uint32_t k = 0; k < 2; k++)
        for (uint32_t i = 0; s == OK && i < o->n_shares; i++)
            s = buf_printf(out, "%s%7g", k && !i ? "  |" : " ", 100 * o->shares[i]);
    if (s == OK)
        s = buf_puts(out, "  | ns/use\n");
    for (uint32_t i = 0; s == OK && i < o->n_policies; i++)
        s = table_row(out, o, p, results + (size_t)i * o->n_shares,
                      replace_policy_name(o->policies[i]));
    return s;
}

static enum status json_result(struct buf *out, const struct sim_options *o, const struct paths *p,
                               uint32_t policy, uint32_t k, const struct replay_result *r)
{
    return buf_printf(
        out,
        "%s\n    {\"policy\": \"%s\", \"memory_share\": %.6g, \"n_tokens_hit\": %" PRIu64
        ", \"hit_share\": %.6f, \"hit_share_of_ideal\": %.6f, \"n_nodes_hit\": %" PRIu64
        ", \"saved_s\": %.3f, \"saved_share_of_ideal\": %.6f, \"n_uses\": %" PRIu64
        ", \"n_evicted\": %" PRIu64 ", \"n_not_kept\": %" PRIu64 ", \"n_tokens_max\": %" PRIu64
        ", \"order_share\": {\"%s\": %.4f, \"%s\": %.4f, \"%s\": %.4f}, \"n_switches\": %" PRIu64
        ", \"n_entries_max\": %" PRIu32 ", \"policy_bytes\": %" PRIu64
        ", \"cpu_s\": %.4f, \"ns_per_use\": %.1f}",
        policy || k ? "," : "", replace_policy_name(o->policies[policy]), o->shares[k],
        r->n_tokens_hit, share((double)r->n_tokens_hit, (double)p->n_tokens), of_ideal(p, r),
        r->n_nodes_hit, r->saved_s, share(r->saved_s, r->ideal_s), r->n_uses, r->n_evicted,
        r->n_not_kept, r->n_tokens_max, replay_orders[0], r->order_share[0], replay_orders[1],
        r->order_share[1], replay_orders[2], r->order_share[2], r->n_switches, r->n_entries_max,
        r->memory_bytes, r->cpu_s, ns_per_use(r));
}

static enum status json_head(struct buf *out, const struct sim_options *o, const struct paths *p)
{
    enum status s = buf_puts(out, "{\"format\": 1,\n  \"trace\": ");

    if (s == OK)
        s = js_write_string(out, o->trace, strlen(o->trace));
    if (s == OK)
        s = buf_printf(out,
                       ", \"parts\": \"%s\", \"row_first\": %" PRIu64 ", \"n_requests\": %" PRIu32
                       ", \"n_tokens\": %" PRIu64 ", \"n_tokens_distinct\": %" PRIu64
                       ", \"n_nodes\": %" PRIu32 ", \"n_tokens_ideal\": %" PRIu64
                       ",\n  \"history\": ",
                       parts_name(p->parts), o->from, p->n_requests, p->n_tokens,
                       p->n_tokens_distinct, p->n_nodes, p->n_tokens_ideal);
    if (s == OK)
        s = js_write_number(out, o->history); /* null: all */
    return s == OK ? buf_printf(out,
                                ", \"lookahead\": %" PRIu64 ", \"cost\": [%g, %g, %g],\n  "
                                "\"results\": [",
                                o->n_lookahead, o->cost[0], o->cost[1], o->cost[2])
                   : s;
}

enum status report_json(struct buf *out, const struct sim_options *o, const struct paths *p,
                        const struct replay_result *results)
{
    enum status s = json_head(out, o, p);

    for (uint32_t i = 0; i < o->n_policies; i++)
        for (uint32_t k = 0; s == OK && k < o->n_shares; k++)
            s = json_result(out, o, p, i, k, &results[(size_t)i * o->n_shares + k]);
    return s == OK ? buf_puts(out, "\n  ]}\n") : s;
}
