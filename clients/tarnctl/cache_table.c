#include "clients/tarnctl/cache_table.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"

#define N_COLUMNS_MAX 12
#define N_ROWS_MAX 300 /* /cache lists at most 256 spans */
#define CELL_BYTES 24

/* --- tables: the first and the last column are aligned left, the others right --- */

struct table {
    uint32_t n_columns, n_rows, at; /* at: index of the next cell in the last row */
    char cells[N_ROWS_MAX][N_COLUMNS_MAX][CELL_BYTES];
};

/* False when no more rows fit. */
static bool begin_row(struct table *t)
{
    if (t->n_rows == N_ROWS_MAX)
        return false;
    t->n_rows++;
    t->at = 0;
    return true;
}

/* Replace unprintable characters: a server must not send control sequences to the terminal. */
static void clean(char *text)
{
    for (; *text; text++)
        if (!isprint((unsigned char)*text))
            *text = '?';
}

__attribute__((format(printf, 2, 3))) static void cell(struct table *t, const char *format, ...)
{
    va_list ap;

    if (t->at == N_COLUMNS_MAX)
        return;
    char *text = t->cells[t->n_rows - 1][t->at++];
    va_start(ap, format);
    vsnprintf(text, CELL_BYTES, format, ap);
    va_end(ap);
    clean(text);
    if (t->at > t->n_columns)
        t->n_columns = t->at;
}

static void heads(struct table *t, const char *const *names, size_t n)
{
    (void)begin_row(t);
    for (size_t i = 0; i < n; i++)
        cell(t, "%s", names[i]);
}

static void print(FILE *f, const struct table *t)
{
    int width[N_COLUMNS_MAX] = {0};

    for (uint32_t r = 0; r < t->n_rows; r++)
        for (uint32_t c = 0; c < t->n_columns; c++)
            if ((int)strlen(t->cells[r][c]) > width[c])
                width[c] = (int)strlen(t->cells[r][c]);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        fprintf(f, "%-*s", width[0], t->cells[r][0]);
        for (uint32_t c = 1; c + 1 < t->n_columns; c++)
            fprintf(f, "  %*s", width[c], t->cells[r][c]);
        const char *last = t->cells[r][t->n_columns - 1];
        fprintf(f, "%s%s\n", last[0] ? "  " : "", last);
    }
}

/* --- fields --- */

static const char *text_of(const struct json *o, const char *key)
{
    const struct json *v = js_get(o, key);

    return js_is(v, JS_STRING) ? js_string(v, NULL) : "-";
}

static void count_cell(struct table *t, const struct json *o, const char *key)
{
    const struct json *v = js_get(o, key);

    if (js_is(v, JS_INT))
        cell(t, "%lld", (long long)js_int(v));
    else
        cell(t, "-");
}

/* The count of this name; 0 if it is absent. */
static long long count_of(const struct json *o, const char *key)
{
    const struct json *v = js_get(o, key);

    return js_is(v, JS_INT) ? (long long)js_int(v) : 0;
}

static void write_size(char *out, size_t n_out, const struct json *o, const char *key)
{
    static const char *const units[] = {"", "K", "M", "G", "T", "P"};
    double v = (double)count_of(o, key);
    size_t i = 0;

    for (; v >= 1024 && i + 1 < sizeof units / sizeof *units; i++)
        v /= 1024;
    snprintf(out, n_out, i ? "%.1f%s" : "%.0f%s", v, units[i]);
}

static bool is_yes(const struct json *o, const char *key)
{
    const struct json *v = js_get(o, key);

    return js_is(v, JS_BOOL) && js_bool(v);
}

/* --- GET /cache --- */

static void add_tier(struct table *t, const struct json *tier)
{
    static const char *const of_blocks[] = {"total", "in_use", "cached", "free", "in_transfer"};
    static const char *const others[] = {"nodes", "hit_tokens", "evicted_blocks",
                                         "moved_in_blocks"};
    char size[CELL_BYTES];

    if (!begin_row(t))
        return;
    write_size(size, sizeof size, tier, "bytes");
    cell(t, "%s", text_of(tier, "name"));
    cell(t, "%s", size);
    for (size_t i = 0; i < sizeof of_blocks / sizeof *of_blocks; i++)
        count_cell(t, js_get(tier, "blocks"), of_blocks[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        count_cell(t, tier, others[i]);
    cell(t, "%s", text_of(tier, "order"));
}

static void add_span(struct table *t, const struct json *s)
{
    static const char *const counts[] = {"depth", "tokens", "blocks"};
    static const char *const uses[] = {"children", "uses", "hit_tokens"};
    const struct json *by_tier = js_get(s, "blocks_by_tier"), *idle = js_get(s, "idle_s");

    if (!begin_row(t))
        return;
    cell(t, "%.*s", CACHE_KEY_DIGITS_SHOWN, text_of(s, "key"));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        count_cell(t, s, counts[i]);
    count_cell(t, by_tier, "device");
    count_cell(t, by_tier, "host");
    count_cell(t, by_tier, "disk");
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
        count_cell(t, s, uses[i]);
    if (js_is(idle, JS_INT) || js_is(idle, JS_REAL))
        cell(t, "%.1f", js_number(idle));
    else
        cell(t, "-");
    cell(t, "%s%s%s", is_yes(s, "in_use") ? "in use" : "",
         is_yes(s, "in_use") && is_yes(s, "held") ? ", " : "", is_yes(s, "held") ? "held" : "");
}

static void print_tiers(FILE *f, struct table *t, const struct json *tiers)
{
    static const char *const names[] = {"tier",       "size",    "blocks",   "in use",
                                        "cached",     "free",    "moving",   "nodes",
                                        "hit tokens", "evicted", "moved in", "order"};

    memset(t, 0, sizeof *t);
    heads(t, names, sizeof names / sizeof *names);
    for (size_t i = 0; i < js_len(tiers); i++)
        add_tier(t, js_at(tiers, i));
    print(f, t);
}

/* Print the swapped blocks, if there are any. A CPU swaps none. */
static void print_swaps(FILE *f, const struct json *root)
{
    const struct json *o = js_get(root, "swapped_blocks");
    long long out_ahead = count_of(o, "spilled_ahead"), in_ahead = count_of(o, "fetched_ahead");
    long long out_late = count_of(o, "spilled_on_demand");
    long long in_late = count_of(o, "fetched_on_demand"), lost = count_of(o, "expected_lost");

    if (out_ahead || out_late || in_ahead || in_late || lost)
        fprintf(f,
                "swapped blocks: %lld out ahead, %lld on demand; %lld in ahead, %lld on demand; "
                "%lld lost although expected\n",
                out_ahead, out_late, in_ahead, in_late, lost);
}

/* Print the records ignored at start, as in "; 3 torn, 1 orphaned not used". */
static void print_dropped(FILE *f, const struct json *disk)
{
    static const char *const whys[] = {"torn",     "foreign",  "impossible",
                                       "misnamed", "orphaned", "doubled"};
    const struct json *dropped = js_get(disk, "dropped_records");
    bool any = false;

    for (size_t i = 0; i < sizeof whys / sizeof *whys; i++) {
        if (count_of(dropped, whys[i]) == 0)
            continue;
        fprintf(f, "%s%lld %s", any ? ", " : "; ", count_of(dropped, whys[i]), whys[i]);
        any = true;
    }
    fputs(any ? " not used\n" : "\n", f);
}

/* Print the failures of the disk, if there are any. */
static void print_trouble(FILE *f, const struct json *disk)
{
    static const struct {
        const char *key, *words;
    } rows[] = {{"reads_failed", "reads failed"},
                {"writes_failed", "writes failed"},
                {"timeouts", "took too long"},
                {"corrupt_blocks", "corrupt blocks"}};
    bool any = false;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (count_of(disk, rows[i].key) == 0)
            continue;
        fprintf(f, "%s%lld %s", any ? ", " : "DISK: ", count_of(disk, rows[i].key), rows[i].words);
        any = true;
    }
    fputs(any ? "\n" : "", f);
    if (is_yes(disk, "hung"))
        fputs("DISK: it does not answer now\n", f);
}

/* Print the disk tier, if there is one. */
static void print_disk(FILE *f, const struct json *root)
{
    const struct json *disk = js_get(root, "disk"), *took = js_get(disk, "index_s");
    char io[CELL_BYTES], in[CELL_BYTES], out[CELL_BYTES];

    if (!js_is(disk, JS_OBJECT))
        return;
    snprintf(io, sizeof io, "%s", text_of(disk, "io"));
    clean(io);
    write_size(in, sizeof in, disk, "read_bytes");
    write_size(out, sizeof out, disk, "written_bytes");
    fprintf(f, "disk: %s, %s; since the start %s read, %s written, %lld blocks preloaded\n", io,
            is_yes(disk, "direct") ? "O_DIRECT" : "page cache", in, out,
            count_of(disk, "preloaded_blocks"));
    fprintf(f, "disk at start: %lld blocks found", count_of(disk, "found_blocks"));
    if (js_is(took, JS_REAL) || js_is(took, JS_INT))
        fprintf(f, " in %.2f s", js_number(took));
    print_dropped(f, disk);
    print_trouble(f, disk);
}

/* Print leaked blocks, if there are any, which would be a bug of the server. */
static void print_leaks(FILE *f, const struct json *tiers)
{
    for (size_t i = 0; i < js_len(tiers); i++) {
        long long n = count_of(js_get(js_at(tiers, i), "blocks"), "leaked");
        if (n)
            fprintf(f, "LEAKED: %lld blocks of tier %zu are in no state\n", n, i + 1);
    }
}

static void print_counts(FILE *f, const struct json *root)
{
    const struct json *tokens = js_get(root, "tokens"), *tree = js_get(root, "tree");
    const struct json *rate = js_get(tokens, "hit_rate");
    char size[CELL_BYTES], policy[CELL_BYTES];

    snprintf(policy, sizeof policy, "%s", text_of(root, "policy"));
    clean(policy);
    write_size(size, sizeof size, root, "block_bytes");
    fprintf(f, "\npolicy: %s; a block: %lld tokens, %s\n", policy, count_of(root, "block_tokens"),
            size);
    fprintf(f, "prompt tokens: %lld looked up, %lld found", count_of(tokens, "queried"),
            count_of(tokens, "hit"));
    if (js_is(rate, JS_REAL) || js_is(rate, JS_INT))
        fprintf(f, " (%.1f %%)", 100 * js_number(rate));
    fprintf(f, "; %lld found again after a preemption\n", count_of(tokens, "restored"));
    write_size(size, sizeof size, tree, "metadata_bytes");
    fprintf(f, "tree: %lld spans, %lld nodes, %lld held blocks (%lld holds), %s of bookkeeping\n",
            count_of(tree, "spans"), count_of(tree, "nodes"), count_of(tree, "held_blocks"),
            count_of(tree, "holds"), size);
    if (count_of(root, "copies_failed"))
        fprintf(f, "copies that failed: %lld\n", count_of(root, "copies_failed"));
}

static void print_spans(FILE *f, struct table *t, const struct json *root)
{
    static const char *const names[] = {"span",   "depth",      "tokens", "blocks",
                                        "device", "host",       "disk",   "children",
                                        "uses",   "hit tokens", "idle s", ""};
    const struct json *spans = js_get(root, "top_spans");
    size_t n = js_is(spans, JS_ARRAY) ? js_len(spans) : 0;

    if (n == 0)
        return;
    fprintf(f, "\nspans by tokens found, %zu of %lld\n", n,
            count_of(js_get(root, "tree"), "spans"));
    memset(t, 0, sizeof *t);
    heads(t, names, sizeof names / sizeof *names);
    for (size_t i = 0; i < n; i++)
        add_span(t, js_at(spans, i));
    print(f, t);
}

/* Parse the answer. ERR_INVALID: its member "object" is not `object`. */
static enum status parse(const char *json, size_t len, const char *object, struct json **root)
{
    enum status s = js_parse(root, json, len, NULL);

    if (s == OK && strcmp(text_of(*root, "object"), object) == 0)
        return OK;
    js_unref(*root);
    *root = NULL;
    return s == ERR_NOMEM ? s : ERR_INVALID;
}

enum status cache_table_print(FILE *f, const char *json, size_t len)
{
    struct table *t = malloc(sizeof *t);
    struct json *root = NULL;
    enum status s = t ? parse(json, len, "cache", &root) : ERR_NOMEM;

    if (s == OK && !js_is(js_get(root, "tiers"), JS_ARRAY))
        s = ERR_INVALID;
    if (s == OK) {
        print_tiers(f, t, js_get(root, "tiers"));
        print_counts(f, root);
        print_swaps(f, root);
        print_disk(f, root);
        print_leaks(f, js_get(root, "tiers"));
        print_spans(f, t, root);
    }
    js_unref(root);
    free(t);
    return s;
}

/* --- DELETE /cache --- */

enum status cache_reset_print(FILE *f, const char *json, size_t len)
{
    struct json *root = NULL;
    enum status s = parse(json, len, "cache.reset", &root);
    const struct json *blocks = js_get(root, "cached_blocks");

    if (s != OK)
        return s;
    if (js_is(blocks, JS_OBJECT)) {
        fprintf(f, "forgotten: %lld blocks on the device, %lld in host memory, ",
                count_of(blocks, "device"), count_of(blocks, "host"));
        if (js_get(blocks, "disk")) /* older servers do not report it */
            fprintf(f, "%lld on disk, ", count_of(blocks, "disk"));
        fprintf(f, "%lld holds\n", count_of(root, "holds"));
    } else {
        fputs("forgotten\n", f);
    }
    js_unref(root);
    return OK;
}

/* --- DELETE /cache?span=KEY --- */

enum status cache_erase_print(FILE *f, const char *json, size_t len)
{
    struct json *root = NULL;
    enum status s = parse(json, len, "cache.erase", &root);

    if (s == OK)
        fprintf(f, "erased: a span and what was behind it, %lld blocks\n",
                count_of(root, "blocks"));
    js_unref(root);
    return s;
}

size_t cache_key_find(char *key, const char *json, size_t len, const char *first)
{
    struct json *root = NULL;
    const struct json *spans;
    size_t n_found = 0;

    key[0] = '\0';
    if (parse(json, len, "cache", &root) != OK)
        return 0;
    spans = js_get(root, "top_spans");
    for (size_t i = 0; js_is(spans, JS_ARRAY) && i < js_len(spans); i++) {
        const char *one = text_of(js_at(spans, i), "key");
        if (strlen(one) != CACHE_KEY_DIGITS || strncasecmp(one, first, strlen(first)) != 0)
            continue;
        if (n_found++ == 0)
            memcpy(key, one, CACHE_KEY_DIGITS + 1);
    }
    js_unref(root);
    return n_found;
}
