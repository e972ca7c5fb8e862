#include "loadgen/bench/policy/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/flags.h"

#define POLICIES "contest,pgdsf,gdsf,lru,lfu,belady"

static const struct flag_row rows[] = {
    {"Trace", "trace-format", false, "auto|mooncake|ragpulse|timed_trace", "what the trace is",
     "auto"},
    {NULL, "order", false, "reuse|given", "ragpulse: what differs in each request last; or as is",
     "reuse"},
    {NULL, "parts", false, "auto|all|documents",
     "what a path is made of; auto: documents, where there are any", "auto"},
    {NULL, "rows", false, "FROM:TO", "only these rows, in order of time", "0:"},
    {"Cache", "policies", false, "A,B,...", "replacement policies", POLICIES},
    {NULL, "memory", false, "P,Q,...", "sizes, in percent of the distinct tokens",
     "5,10,20,50,100"},
    {NULL, "history", false, "F|all",
     "entries remembered after they left, as a multiple of those that fit", "4"},
    {NULL, "lookahead", false, "N", "waiting requests the policy knows of", "0"},
    {NULL, "cost", false, "A:B:C", "seconds: A + B new + C new (cached + new / 2)",
     "5e-3:4e-5:1.3e-9"},
    {"Output", "json", true, NULL, "JSON instead of a table", ""},
    {NULL, "quiet", true, NULL, "no progress", ""},
    {NULL, "checks", true, NULL, "recount the policy's books after each request (slow)", ""},
};

void sim_options_help(FILE *f)
{
    fputs("usage: tarn-cachesim TRACE [options]\n\n"
          "Replays a trace through the policies that decide what a KV cache keeps.\n",
          f);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        flag_print(f, &rows[i]);
}

static const struct flag_row *find(const char *name, size_t n)
{
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0)
            return &rows[i];
    return NULL;
}

/* The place of `text` among the words of the option's choice, or ERR_INVALID. */
static enum status read_choice(const struct flag_row *row, const char *text, int *out,
                               struct buf *why)
{
    const char *word = row->value;

    for (*out = 0; flag_is_choice(row->value, text); (*out)++) {
        size_t n = strcspn(word, "|");

        if (strlen(text) == n && memcmp(word, text, n) == 0)
            return OK;
        word += n + 1;
    }
    return buf_why(why, ERR_INVALID, "--%s: \"%s\" is not known (one of %s)", row->name, text,
                   row->value);
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

static enum status set(struct sim_options *o, const struct flag_row *row, const char *text,
                       struct buf *why)
{
    static const enum trace_format formats[] = {TRACE_AUTO, TRACE_MOONCAKE, TRACE_RAGPULSE,
                                                TRACE_TIMED};
    const char *name = row->name;
    uint64_t n;
    int i = 0;
    enum status s;

    if (strcmp(name, "rows") == 0)
        return read_rows(o, text, why);
    if (strcmp(name, "policies") == 0)
        return read_policies(o, text, why);
    if (strcmp(name, "memory") == 0)
        return read_memory(o, text, why);
    if (strcmp(name, "history") == 0)
        return read_history(o, text, why);
    if (strcmp(name, "cost") == 0)
        return read_cost(o, text, why);
    if (strcmp(name, "lookahead") == 0) {
        s = flag_parse(FLAG_COUNT, "--lookahead", text, 0, 100000, &n, why);
        o->n_lookahead = s == OK ? (uint32_t)n : 0;
        return s;
    }
    s = read_choice(row, text, &i, why);
    if (s != OK)
        return s;
    if (strcmp(name, "trace-format") == 0)
        o->format = formats[i];
    else if (strcmp(name, "order") == 0)
        o->order = i == 0 ? TRACE_ORDER_REUSE : TRACE_ORDER_GIVEN;
    else
        o->parts = (enum paths_parts)i; /* in the order of the enum */
    return OK;
}

static void set_switch(struct sim_options *o, const char *name, bool value)
{
    bool *at = strcmp(name, "json") == 0    ? &o->json
               : strcmp(name, "quiet") == 0 ? &o->quiet
                                            : &o->checks;

    *at = value;
}

/* argv[*i], which starts with "--", and its value. */
static enum status read_flag(struct sim_options *o, int argc, char **argv, int *i, struct buf *why)
{
    bool no = strncmp(argv[*i], "--no-", 5) == 0;
    const char *name = argv[*i] + (no ? 5 : 2);
    size_t n = strcspn(name, "=");
    const struct flag_row *row = find(name, n);

    if (!row || (no && !row->is_switch))
        return buf_why(why, ERR_INVALID, "%s: unknown option, see --help", argv[*i]);
    if (row->is_switch) {
        set_switch(o, row->name, !no);
        return name[n] ? buf_why(why, ERR_INVALID, "--%s takes no value", row->name) : OK;
    }
    if (name[n])
        return set(o, row, name + n + 1, why);
    if (*i + 1 >= argc)
        return buf_why(why, ERR_INVALID, "--%s: a value is missing", row->name);
    return set(o, row, argv[++*i], why);
}

enum status sim_options_parse(struct sim_options *o, int argc, char **argv, struct buf *why)
{
    enum status s = OK;

    *o = (struct sim_options){0};
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(rows); i++)
        if (!rows[i].is_switch)
            s = set(o, &rows[i], rows[i].preset, why);
    for (int i = 1; s == OK && i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            o->help = true;
        else if (strcmp(argv[i], "--version") == 0)
            o->version = true;
        else if (strncmp(argv[i], "--", 2) == 0)
            s = read_flag(o, argc, argv, &i, why);
        else if (!o->trace)
            o->trace = argv[i];
        else
            s = buf_why(why, ERR_INVALID, "\"%s\": one trace at a time", argv[i]);
    }
    if (s == OK && !o->trace && !o->help && !o->version)
        s = buf_why(why, ERR_INVALID, "which trace? see --help");
    return s;
}
