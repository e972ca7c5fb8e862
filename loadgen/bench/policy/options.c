#include "loadgen/bench/policy/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/flags.h"
#include "base/option_rows.h"

#define FORMATS "auto|mooncake|ragpulse|timed_trace"
#define ORDERS "reuse|given"
#define PARTS "auto|all|documents"
#define POLICIES "contest,pgdsf,gdsf,lru,lfu,belady"
#define OPTIONS_OF struct sim_options

static const struct option_row rows[] = {
    CHOICE("Trace", "trace-format", given.format, "auto", FORMATS, "what the trace is"),
    CHOICE(NULL, "order", given.order, "reuse", ORDERS,
           "ragpulse: what differs in each request last; or as is"),
    CHOICE(NULL, "parts", given.parts, "auto", PARTS,
           "what a path is made of; auto: documents, where there are any"),
    TEXT(NULL, "rows", given.rows, "0:", "FROM:TO", "only these rows, in order of time"),
    TEXT("Cache", "policies", given.policies, POLICIES, "A,B,...", "replacement policies"),
    TEXT(NULL, "memory", given.memory, "5,10,20,50,100", "P,Q,...",
         "sizes, in percent of the distinct tokens"),
    TEXT(NULL, "history", given.history, "4", "F|all",
         "entries remembered after they left, as a multiple of those that fit"),
    COUNT(NULL, "lookahead", n_lookahead, 0, 100000, "0", "waiting requests the policy knows of"),
    TEXT(NULL, "cost", given.cost, "5e-3:4e-5:1.3e-9", "A:B:C",
         "seconds: A + B new + C new (cached + new / 2)"),
    BOOL("Output", "json", json, "", "JSON instead of a table"),
    BOOL(NULL, "quiet", quiet, "", "no progress"),
    BOOL(NULL, "checks", checks, "", "recount the policy's books after each request (slow)"),
};

static const struct option_table table = {
    .rows = rows,
    .n_rows = ARRAY_SIZE(rows),
    .help = OPTION_AT(help),
    .version = OPTION_AT(version),
    .operand = OPTION_AT(trace),
};

void sim_options_help(FILE *f)
{
    fputs("usage: tarn-cachesim TRACE [options]\n\n"
          "Replays a trace through the policies that decide what a KV cache keeps.\n",
          f);
    option_table_help(&table, f);
}

static enum status read_rows(struct sim_options *o, const char *text, struct buf *why)
{
    char *end;

    o->from = strtoull(text, &end, 10);
    o->to = UINT64_MAX;
    if (*end == ':' && end[1])
        o->to = strtoull(end + 1, &end, 10);
    else if (*end == ':')
        end++;
    if (*end || o->from >= o->to)
        return buf_why(why, ERR_INVALID, "--rows: expected FROM:TO, FROM below TO");
    return OK;
}

static enum status read_policies(struct sim_options *o, const char *text, struct buf *why)
{
    for (o->n_policies = 0; *text; text += *text == ',') {
        char name[FLAG_NAME_BYTES_MAX];
        size_t n = strcspn(text, ",");

        snprintf(name, sizeof name, "%.*s", (int)n, text);
        if (o->n_policies == REPLACE_N_POLICIES ||
            replace_policy_parse(name, &o->policies[o->n_policies]) != OK)
            return buf_why(why, ERR_INVALID, "--policies: \"%s\" is none of %s, or too many", name,
                           POLICIES);
        o->n_policies++;
        text += n;
    }
    return o->n_policies ? OK : buf_why(why, ERR_INVALID, "--policies: none given");
}

static enum status read_memory(struct sim_options *o, const char *text, struct buf *why)
{
    for (o->n_shares = 0; *text; text += *text == ',') {
        char *end;
        double percent = strtod(text, &end);

        if (end == text || (*end && *end != ',') || !(percent > 0 && percent <= 100) ||
            o->n_shares == SIM_N_SHARES_MAX)
            return buf_why(why, ERR_INVALID,
                           "--memory: expected up to %d numbers above 0, at most "
                           "100",
                           SIM_N_SHARES_MAX);
        o->shares[o->n_shares++] = percent / 100;
        text = end;
    }
    return o->n_shares ? OK : buf_why(why, ERR_INVALID, "--memory: none given");
}

static enum status read_history(struct sim_options *o, const char *text, struct buf *why)
{
    char *end;

    if (strcmp(text, "all") == 0) {
        o->history = (double)INFINITY;
        return OK;
    }
    o->history = strtod(text, &end);
    if (end == text || *end || !(o->history >= 0) || isinf(o->history))
        return buf_why(why, ERR_INVALID, "--history: expected a number or \"all\"");
    return OK;
}

static enum status read_cost(struct sim_options *o, const char *text, struct buf *why)
{
    for (int i = 0; i < 3; i++) {
        char *end;

        o->cost[i] = strtod(text, &end);
        if (end == text || *end != (i < 2 ? ':' : '\0') || !isfinite(o->cost[i]) || o->cost[i] < 0)
            return buf_why(why, ERR_INVALID, "--cost: expected three numbers A:B:C, none below 0");
        text = end + 1;
    }
    if (o->cost[0] + o->cost[1] + o->cost[2] <= 0)
        return buf_why(why, ERR_INVALID, "--cost: all are 0");
    return OK;
}

static enum status resolve(struct sim_options *o, struct buf *why)
{
    static const enum trace_format formats[] = {TRACE_AUTO, TRACE_MOONCAKE, TRACE_RAGPULSE,
                                                TRACE_TIMED};
    static const enum trace_order orders[] = {TRACE_ORDER_REUSE, TRACE_ORDER_GIVEN};
    static const enum paths_parts parts[] = {PARTS_AUTO, PARTS_ALL, PARTS_DOCUMENTS};

    o->format = formats[flag_choice_at(FORMATS, o->given.format)];
    o->order = orders[flag_choice_at(ORDERS, o->given.order)];
    o->parts = parts[flag_choice_at(PARTS, o->given.parts)];
    enum status s = read_rows(o, o->given.rows, why);
    if (s == OK)
        s = read_policies(o, o->given.policies, why);
    if (s == OK)
        s = read_memory(o, o->given.memory, why);
    if (s == OK)
        s = read_history(o, o->given.history, why);
    return s == OK ? read_cost(o, o->given.cost, why) : s;
}

enum status sim_options_parse(struct sim_options *o, int argc, char **argv, struct buf *why)
{
    *o = (struct sim_options){0};
    enum status s = option_table_presets(&table, o, why);

    if (s == OK)
        s = option_table_read_args(&table, o, argc, argv, 1, why);
    if (s != OK || o->help || o->version)
        return s;
    if (!o->trace)
        return buf_why(why, ERR_INVALID, "which trace? see --help");
    return resolve(o, why);
}

void sim_options_fini(struct sim_options *o)
{
    option_table_fini(&table, o);
}
