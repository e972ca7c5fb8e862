#include "loadgen/load/trace.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/check.h"
#include "base/flags.h"
#include "loadgen/load/dist.h"
#include "loadgen/load/lines.h"

#define N_ROWS_MAX 20000000u
#define N_PARTS_MAX 200000000u
#define TRACE_S_MAX 1e10
#define RAGPULSE_ID_MAX (1 << 24)

/* Names of parts of different traces must not be equal. */
#define ID_BLOCK UINT64_C(0x6d6f6f6e)
#define ID_RAGPULSE UINT64_C(0x72616770)

void trace_fini(struct trace *t)
{
    free(t->rows);
    free(t->parts);
    memset(t, 0, sizeof *t);
}

static enum status add_row(struct trace *t, const struct trace_row *row)
{
    if (t->n_rows == t->cap_rows) {
        size_t cap = t->cap_rows ? 2 * t->cap_rows : 1024;
        struct trace_row *rows =
            cap <= N_ROWS_MAX * 2ull ? realloc(t->rows, cap * sizeof *rows) : NULL;
        if (!rows)
            return ERR_NOMEM;
        t->rows = rows;
        t->cap_rows = cap;
    }
    t->rows[t->n_rows++] = *row;
    return OK;
}

static enum status add_part(struct trace *t, struct trace_part part)
{
    if (t->n_parts == t->cap_parts) {
        size_t cap = t->cap_parts ? 2 * t->cap_parts : 4096;
        struct trace_part *parts =
            cap <= N_PARTS_MAX * 2ull ? realloc(t->parts, cap * sizeof *parts) : NULL;
        if (!parts)
            return ERR_NOMEM;
        t->parts = parts;
        t->cap_parts = cap;
    }
    t->parts[t->n_parts++] = part;
    return OK;
}

static int compare_rows(const void *a, const void *b)
{
    const struct trace_row *x = a, *y = b;

    if (x->at_s != y->at_s)
        return x->at_s < y->at_s ? -1 : 1;
    return x->line < y->line ? -1 : x->line > y->line;
}

static void sort_rows(struct trace *t)
{
    if (t->n_rows > 1)
        qsort(t->rows, t->n_rows, sizeof *t->rows, compare_rows);
    for (size_t i = t->n_rows; i > 0; i--)
        t->rows[i - 1].at_s -= t->rows[0].at_s;
}

/* --- what the JSON formats share --- */

/* Put file:line before the words of a getter that failed. */
static enum status get_u32(const struct lines *l, const struct json *o, const char *key,
                           uint32_t min, uint32_t *out, struct buf *why)
{
    struct buf words;
    int64_t v = -1;

    buf_init(&words, BUF_WHY_MAX);
    enum status s = js_get_i64(o, key, min, DIST_MAX, &v, &words);
    if (s == OK && v < 0)
        s = buf_why(&words, ERR_INVALID, "%s: is missing", key);
    *out = s == OK ? (uint32_t)v : 0;
    if (s != OK)
        lines_why(l, why, s, "%s", buf_str(&words));
    buf_fini(&words);
    return s;
}

/* A number, or a string that holds one: RAGPulse writes strings. */
static enum status get_time(const struct lines *l, const struct json *o, double *out,
                            struct buf *why)
{
    const struct json *v = js_get(o, "timestamp");
    bool good = false;

    if (js_is(v, JS_INT) || js_is(v, JS_REAL)) {
        *out = js_number(v);
        good = true;
    } else if (js_is(v, JS_STRING)) {
        good = flag_parse_number(js_string(v, NULL), out) == OK;
    }
    if (!good || !(*out >= 0) || *out > TRACE_S_MAX * 1000)
        return lines_why(l, why, ERR_INVALID, "timestamp: expected a number that is not negative");
    return OK;
}

static enum status get_id(const struct lines *l, const struct json *v, int64_t max, uint64_t *out,
                          struct buf *why)
{
    if (!js_is(v, JS_INT) || js_int(v) < 0 || js_int(v) > max)
        return lines_why(l, why, ERR_INVALID, "hash_ids: expected whole numbers in [0, %lld]",
                         (long long)max);
    *out = (uint64_t)js_int(v);
    return OK;
}

static enum status get_row(const struct lines *l, const struct json *o, struct trace_row *row,
                           struct buf *why)
{
    enum status s = get_time(l, o, &row->at_s, why);

    if (s == OK)
        s = get_u32(l, o, "input_length", 0, &row->input_len, why);
    if (s == OK)
        s = get_u32(l, o, "output_length", 0, &row->output_len, why);
    /* A recorded 0 is an aborted request; it cannot be asked for, so it becomes 1. */
    row->input_len += row->input_len == 0;
    row->output_len += row->output_len == 0;
    row->line = l->n;
    return s;
}

/* --- blocks: mooncake, timed_trace --- */

static enum status add_blocks(struct trace *t, const struct lines *l, const struct json *ids,
                              uint32_t block, struct trace_row *row, struct buf *why)
{
    uint64_t left = row->input_len, id = 0;
    enum status s = OK;

    row->first_part = t->n_parts;
    for (size_t i = 0; s == OK && i < js_len(ids) && left > 0; i++) {
        uint32_t n = left < block ? (uint32_t)left : block;
        s = get_id(l, js_at(ids, i), INT64_MAX, &id, why);
        if (s == OK)
            s = add_part(t, (struct trace_part){draw_mix(ID_BLOCK, id), n, PART_USER});
        left -= n;
        row->n_parts++;
    }
    /* Tokens behind the last named block are the row's own. */
    if (s == OK && left > 0 && row->n_parts > 0) {
        uint64_t own = draw_mix(draw_mix(ID_BLOCK, l->n), UINT64_MAX);
        s = add_part(t, (struct trace_part){own, (uint32_t)left, PART_USER});
        row->n_parts++;
    }
    return s;
}

static enum status read_blocks_line(struct trace *t, const struct lines *l,
                                    const struct trace_options *options, struct buf *why)
{
    struct trace_row row = {0};
    struct json *o = NULL;
    enum status s = lines_json(l, &o, why);

    if (s == OK)
        s = get_row(l, o, &row, why);
    row.at_s *= options->time_unit_s;
    if (s == OK && row.at_s > TRACE_S_MAX)
        s = lines_why(l, why, ERR_INVALID, "timestamp: more than %g s", TRACE_S_MAX);
    const struct json *ids = js_get_set(o, "hash_ids");
    if (s == OK && ids && !js_is(ids, JS_ARRAY))
        s = lines_why(l, why, ERR_INVALID, "hash_ids: expected an array");
    if (s == OK)
        s = add_blocks(t, l, ids, options->block_tokens, &row, why);
    if (s == OK)
        s = add_row(t, &row);
    js_unref(o);
    return s;
}

static enum status load_blocks(struct trace *t, const char *path,
                               const struct trace_options *options, struct buf *why)
{
    struct lines l;
    bool more = true;
    enum status s = lines_open(&l, path, why);

    if (s != OK)
        return s;
    while (s == OK && more) {
        s = lines_next(&l, &more, why);
        if (s == OK && more)
            s = read_blocks_line(t, &l, options, why);
    }
    lines_close(&l);
    t->has_times = true;
    return s;
}

/* --- RAGPulse --- */

/* Lengths by id, of all five files: ids are unique over them. */
static enum status load_part_lengths(uint32_t *len_of, const char *dir, const char *file,
                                     const char *id_key, struct buf *why)
{
    char path[4096];
    struct lines l;
    struct json *o = NULL;
    bool more = true;
    uint32_t id = 0, n = 0;

    snprintf(path, sizeof path, "%s/%s", dir, file);
    enum status s = lines_open(&l, path, why);
    if (s != OK)
        return s;
    while (s == OK && more) {
        s = lines_next(&l, &more, why);
        if (s != OK || !more)
            break;
        s = lines_json(&l, &o, why);
        if (s == OK)
            s = get_u32(&l, o, id_key, 0, &id, why);
        if (s == OK)
            s = get_u32(&l, o, "token_length", 0, &n, why);
        if (s == OK && id < RAGPULSE_ID_MAX)
            len_of[id] = n + 1; /* 0 stays for: not known */
        js_unref(o);
        o = NULL;
    }
    lines_close(&l);
    return s;
}

/* Parts [from, to) of one list of hash_ids. */
static enum status add_list(struct trace *t, const struct lines *l, const struct json *list,
                            size_t from, size_t to, enum part_role role, const uint32_t *len_of,
                            struct trace_row *row, struct buf *why)
{
    enum status s = OK;
    uint64_t id = 0;

    for (size_t i = from; s == OK && i < to && i < js_len(list); i++) {
        s = get_id(l, js_at(list, i), RAGPULSE_ID_MAX - 1, &id, why);
        if (s != OK)
            break;
        if (len_of[id] == 0)
            return lines_why(l, why, ERR_INVALID, "hash_ids: no length is known for id %llu",
                             (unsigned long long)id);
        if (len_of[id] == 1)
            continue;
        s = add_part(t, (struct trace_part){draw_mix(ID_RAGPULSE, id), len_of[id] - 1, role});
        row->n_parts++;
    }
    return s;
}

static enum status add_ragpulse_parts(struct trace *t, const struct lines *l,
                                      const struct json *ids, enum trace_order order,
                                      const uint32_t *len_of, struct trace_row *row,
                                      struct buf *why)
{
    const struct json *sys = js_get(ids, "sys_prompt");
    size_t n_first = order == TRACE_ORDER_REUSE ? 2 : SIZE_MAX;
    const struct {
        const struct json *list;
        size_t from, to;
        enum part_role role;
    } lists[] = {
        {sys, 0, n_first, PART_SYSTEM},
        {js_get(ids, "passages_ids"), 0, SIZE_MAX, PART_DOCUMENT},
        {sys, n_first, SIZE_MAX, PART_USER},
        {js_get(ids, "history"), 0, SIZE_MAX, PART_USER},
        {js_get(ids, "web_search"), 0, SIZE_MAX, PART_USER},
        {js_get(ids, "user_input"), 0, SIZE_MAX, PART_USER},
    };
    enum status s = OK;

    row->first_part = t->n_parts;
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(lists); i++)
        s = add_list(t, l, lists[i].list, lists[i].from, lists[i].to, lists[i].role, len_of, row,
                     why);
    return s;
}

static uint64_t hash_text(const char *text)
{
    uint64_t h = 1;

    for (; *text; text++)
        h = draw_mix(h, (unsigned char)*text);
    return h | 1; /* never 0, which means none */
}

static enum status read_ragpulse_line(struct trace *t, const struct lines *l,
                                      enum trace_order order, const uint32_t *len_of,
                                      struct buf *why)
{
    struct trace_row row = {0};
    struct json *o = NULL;
    enum status s = lines_json(l, &o, why);

    if (s == OK)
        s = get_row(l, o, &row, why);
    const struct json *ids = js_get(o, "hash_ids"), *session = js_get(o, "session_id");
    if (s == OK && !js_is(ids, JS_OBJECT))
        s = lines_why(l, why, ERR_INVALID, "hash_ids: expected an object");
    if (s == OK && js_is(session, JS_STRING))
        row.session = hash_text(js_string(session, NULL));
    if (s == OK)
        s = add_ragpulse_parts(t, l, ids, order, len_of, &row, why);
    if (s == OK)
        s = add_row(t, &row);
    js_unref(o);
    return s;
}

static enum status load_ragpulse_rows(struct trace *t, const char *dir, enum trace_order order,
                                      const uint32_t *len_of, struct buf *why)
{
    char path[4096];
    struct lines l;
    bool more = true;

    snprintf(path, sizeof path, "%s/0_trace.jsonl", dir);
    enum status s = lines_open(&l, path, why);
    if (s != OK)
        return s;
    while (s == OK && more) {
        s = lines_next(&l, &more, why);
        if (s == OK && more)
            s = read_ragpulse_line(t, &l, order, len_of, why);
    }
    lines_close(&l);
    return s;
}

static enum status load_ragpulse(struct trace *t, const char *dir, enum trace_order order,
                                 struct buf *why)
{
    static const char *const files[][2] = {
        {"1_sys_prompt.jsonl", "sys_prompt_id"}, {"2_passages.jsonl", "passage_id"},
        {"3_history.jsonl", "history_id"},       {"4_user_input.jsonl", "user_input_id"},
        {"5_web_search.jsonl", "web_search_id"},
    };
    uint32_t *len_of = calloc(RAGPULSE_ID_MAX, sizeof *len_of);
    enum status s = len_of ? OK : buf_why(why, ERR_NOMEM, "%s: out of memory", dir);

    for (size_t i = 0; s == OK && i < ARRAY_SIZE(files); i++)
        s = load_part_lengths(len_of, dir, files[i][0], files[i][1], why);
    if (s == OK)
        s = load_ragpulse_rows(t, dir, order, len_of, why);
    free(len_of);
    t->has_times = true;
    return s;
}

/* --- CSV --- */

/* "2023-11-16 18:17:03.9799600" as seconds since 1970. */
static bool parse_wall_clock(const char *text, double *out)
{
    struct tm tm = {0};
    double seconds;
    int used = 0;

    if (sscanf(text, "%4d-%2d-%2d %2d:%2d:%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour,
               &tm.tm_min, &used) != 5 ||
        used == 0)
        return false;
    if (flag_parse_number(text + used, &seconds) != OK || seconds < 0 || seconds >= 61)
        return false;
    if (tm.tm_mon < 1 || tm.tm_mon > 12 || tm.tm_mday < 1 || tm.tm_mday > 31)
        return false;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    *out = (double)timegm(&tm) + seconds;
    return true;
}

struct csv_columns {
    int input, output, offset_ns, wall;
};

static enum status find_columns(const struct csv *c, struct csv_columns *at, struct buf *why)
{
    static const char *const inputs[] = {"ContextTokens", "context_tokens", "num_prefill_tokens",
                                         "input_length"};
    static const char *const outputs[] = {"GeneratedTokens", "generated_tokens",
                                          "num_decode_tokens", "output_length"};
    static const char *const offsets[] = {"start_offset_ns"};
    static const char *const walls[] = {"TIMESTAMP"};

    at->input = csv_column(c, inputs, ARRAY_SIZE(inputs));
    at->output = csv_column(c, outputs, ARRAY_SIZE(outputs));
    at->offset_ns = csv_column(c, offsets, ARRAY_SIZE(offsets));
    at->wall = csv_column(c, walls, ARRAY_SIZE(walls));
    if (at->input < 0 || at->output < 0)
        return lines_why(&c->lines, why, ERR_INVALID,
                         "no columns of lengths: expected "
                         "ContextTokens and GeneratedTokens, context_tokens and generated_tokens, "
                         "or num_prefill_tokens and num_decode_tokens");
    return OK;
}

static enum status read_csv_row(const struct csv *c, const struct csv_columns *at,
                                struct trace_row *row, struct buf *why)
{
    uint64_t input = 0, output = 0, ns = 0;
    enum status s = csv_u64(c, at->input, 0, DIST_MAX, &input, why);

    if (s == OK)
        s = csv_u64(c, at->output, 0, DIST_MAX, &output, why);
    if (s == OK && at->offset_ns >= 0)
        s = csv_u64(c, at->offset_ns, 0, UINT64_C(1) << 62, &ns, why);
    row->at_s = (double)ns / 1e9;
    if (s == OK && at->wall >= 0 && !parse_wall_clock(c->fields[at->wall], &row->at_s))
        s = lines_why(&c->lines, why, ERR_INVALID,
                      "TIMESTAMP: expected YYYY-MM-DD HH:MM:SS.SSS, "
                      "got \"%.40s\"",
                      c->fields[at->wall]);
    row->input_len = input ? (uint32_t)input : 1;
    row->output_len = output ? (uint32_t)output : 1;
    row->line = c->lines.n;
    return s;
}

static enum status load_csv(struct trace *t, const char *path, struct buf *why)
{
    struct csv_columns at;
    struct csv c;
    bool more = true;
    enum status s = csv_open(&c, path, why);

    if (s != OK)
        return s;
    s = find_columns(&c, &at, why);
    while (s == OK && more) {
        struct trace_row row = {0};
        s = csv_next(&c, &more, why);
        if (s == OK && more)
            s = read_csv_row(&c, &at, &row, why);
        if (s == OK && more)
            s = add_row(t, &row);
    }
    t->has_times = at.offset_ns >= 0 || at.wall >= 0;
    csv_close(&c);
    return s;
}

static enum trace_format guess(const char *path)
{
    struct stat st;
    size_t n = strlen(path);

    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return TRACE_RAGPULSE;
    return n > 4 && strcmp(path + n - 4, ".csv") == 0 ? TRACE_CSV : TRACE_MOONCAKE;
}

enum status trace_load(struct trace *t, const char *path, const struct trace_options *options,
                       struct buf *why)
{
    enum trace_format format = options->format == TRACE_AUTO ? guess(path) : options->format;
    bool is_timed = format == TRACE_TIMED;
    struct trace_options blocks = *options;
    enum status s;

    if (blocks.block_tokens == 0)
        blocks.block_tokens = is_timed ? 16 : 512;
    if (blocks.time_unit_s == 0)
        blocks.time_unit_s = is_timed ? 1 : 0.001;
    memset(t, 0, sizeof *t);
    if (format == TRACE_RAGPULSE)
        s = load_ragpulse(t, path, options->order, why);
    else if (format == TRACE_CSV)
        s = load_csv(t, path, why);
    else
        s = load_blocks(t, path, &blocks, why);
    if (s == ERR_NOMEM)
        buf_why(why, s, "%s: out of memory, or more rows than are supported", path);
    if (s == OK && t->n_rows == 0)
        s = buf_why(why, ERR_INVALID, "%s: has no rows", path);
    if (s != OK) {
        trace_fini(t);
        return s;
    }
    sort_rows(t);
    return OK;
}
