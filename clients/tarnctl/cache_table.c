#include "clients/tarnctl/cache_table.h"

#include <string.h>
#include <strings.h>

#include "base/check.h"
#include "base/json.h"
#include "clients/tarnctl/table.h"

/* --- fields --- */

static void write_size(char *out, size_t n_out, const struct json *o, const char *key)
{
    static const char *const units[] = {"", "K", "M", "G", "T", "P"};
    double v = (double)table_count_of(o, key);
    size_t i = 0;

    for (; v >= 1024 && i + 1 < sizeof units / sizeof *units; i++)
        v /= 1024;
    snprintf(out, n_out, i ? "%.1f%s" : "%.0f%s", v, units[i]);
}

/* --- GET /cache --- */

static void add_tier(struct table *t, const struct json *tier)
{
    static const char *const of_blocks[] = {"total", "in_use", "cached", "free", "in_transfer"};
    static const char *const others[] = {"nodes", "hit_tokens", "evicted_blocks",
                                         "moved_in_blocks"};
    char size[TABLE_CELL_BYTES];

    if (!table_row(t))
        return;
    write_size(size, sizeof size, tier, "bytes");
    table_cell(t, "%s", table_text_of(tier, "name"));
    table_cell(t, "%s", size);
    for (size_t i = 0; i < sizeof of_blocks / sizeof *of_blocks; i++)
        table_count(t, js_get(tier, "blocks"), of_blocks[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        table_count(t, tier, others[i]);
    table_cell(t, "%s", table_text_of(tier, "order"));
}

/* The title of the document that a span is, else its id; NULL: the span is no registered
 * document. */
static const char *document_of(const struct json *span)
{
    const struct json *d = js_get(span, "document"), *title = js_get(d, "title");

    if (js_is(title, JS_STRING) && js_string(title, NULL)[0])
        return js_string(title, NULL);
    return js_is(js_get(d, "id"), JS_STRING) ? table_text_of(d, "id") : NULL;
}

static void add_span(struct table *t, const struct json *s)
{
    static const char *const counts[] = {"depth", "tokens", "blocks"};
    static const char *const uses[] = {"children", "uses", "hit_tokens"};
    const struct json *by_tier = js_get(s, "blocks_by_tier"), *idle = js_get(s, "idle_s");

    if (!table_row(t))
        return;
    table_cell(t, "%.*s", CACHE_KEY_DIGITS_SHOWN, table_text_of(s, "key"));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        table_count(t, s, counts[i]);
    table_count(t, by_tier, "device");
    table_count(t, by_tier, "host");
    table_count(t, by_tier, "disk");
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
        table_count(t, s, uses[i]);
    if (js_is(idle, JS_INT) || js_is(idle, JS_REAL))
        table_cell(t, "%.1f", js_number(idle));
    else
        table_cell(t, "-");
    table_cell(t, "%s%s%s", table_is_yes(s, "in_use") ? "in use" : "",
               table_is_yes(s, "in_use") && table_is_yes(s, "held") ? ", " : "",
               table_is_yes(s, "held") ? "held" : "");
    if (document_of(s))
        table_cell(t, "%s", document_of(s));
}

static void print_tiers(FILE *f, struct table *t, const struct json *tiers)
{
    static const char *const names[] = {"tier",       "size",    "blocks",   "in use",
                                        "cached",     "free",    "moving",   "nodes",
                                        "hit tokens", "evicted", "moved in", "order"};

    table_reset(t, names, sizeof names / sizeof *names);
    for (size_t i = 0; i < js_len(tiers); i++)
        add_tier(t, js_at(tiers, i));
    table_print(f, t);
}

/* Print the swapped blocks, if there are any. A CPU swaps none. */
static void print_swaps(FILE *f, const struct json *root)
{
    const struct json *o = js_get(root, "swapped_blocks");
    long long out_ahead = table_count_of(o, "spilled_ahead"),
              in_ahead = table_count_of(o, "fetched_ahead");
    long long out_late = table_count_of(o, "spilled_on_demand");
    long long in_late = table_count_of(o, "fetched_on_demand"),
              lost = table_count_of(o, "expected_lost");

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
        if (table_count_of(dropped, whys[i]) == 0)
            continue;
        fprintf(f, "%s%lld %s", any ? ", " : "; ", table_count_of(dropped, whys[i]), whys[i]);
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
        if (table_count_of(disk, rows[i].key) == 0)
            continue;
        fprintf(f, "%s%lld %s", any ? ", " : "DISK: ", table_count_of(disk, rows[i].key),
                rows[i].words);
        any = true;
    }
    fputs(any ? "\n" : "", f);
    if (table_is_yes(disk, "hung"))
        fputs("DISK: it does not answer now\n", f);
}

/* Print the disk tier, if there is one. */
static void print_disk(FILE *f, const struct json *root)
{
    const struct json *disk = js_get(root, "disk"), *took = js_get(disk, "index_s");
    char io[TABLE_CELL_BYTES], in[TABLE_CELL_BYTES], out[TABLE_CELL_BYTES];

    if (!js_is(disk, JS_OBJECT))
        return;
    snprintf(io, sizeof io, "%s", table_text_of(disk, "io"));
    table_clean(io);
    write_size(in, sizeof in, disk, "read_bytes");
    write_size(out, sizeof out, disk, "written_bytes");
    fprintf(f, "disk: %s, %s; since the start %s read, %s written, %lld blocks preloaded\n", io,
            table_is_yes(disk, "direct") ? "O_DIRECT" : "page cache", in, out,
            table_count_of(disk, "preloaded_blocks"));
    fprintf(f, "disk at start: %lld blocks found", table_count_of(disk, "found_blocks"));
    if (js_is(took, JS_REAL) || js_is(took, JS_INT))
        fprintf(f, " in %.2f s", js_number(took));
    print_dropped(f, disk);
    print_trouble(f, disk);
}

/* Print the pool of instances, if the server belongs to one. */
static void print_pool(FILE *f, const struct json *root)
{
    const struct json *pool = js_get(root, "pool");
    char name[TABLE_CELL_BYTES], transport[TABLE_CELL_BYTES], in[TABLE_CELL_BYTES],
        out[TABLE_CELL_BYTES];

    if (!js_is(pool, JS_OBJECT))
        return;
    snprintf(name, sizeof name, "%s", table_text_of(pool, "name"));
    table_clean(name);
    snprintf(transport, sizeof transport, "%s", table_text_of(pool, "transport"));
    table_clean(transport);
    write_size(in, sizeof in, pool, "pulled_bytes");
    write_size(out, sizeof out, pool, "lent_bytes");
    fprintf(f,
            "pool %s: %lld instances, %lld connected, %s; %lld lookups, %lld found, %s read, %s "
            "sent\n",
            name, table_count_of(pool, "instances"), table_count_of(pool, "peers"), transport,
            table_count_of(pool, "lookups"), table_count_of(pool, "found"), in, out);
    if (table_count_of(pool, "queries") || table_count_of(pool, "attended_rows"))
        fprintf(f, "queries: %lld sent, %lld without an answer; %lld rows for others\n",
                table_count_of(pool, "queries"), table_count_of(pool, "queries_failed"),
                table_count_of(pool, "attended_rows"));
    if (!table_is_yes(pool, "directory_up"))
        fputs("POOL: the directory does not answer now\n", f);
}

/* Print leaked blocks, if there are any, which would be a bug of the server. */
static void print_leaks(FILE *f, const struct json *tiers)
{
    for (size_t i = 0; i < js_len(tiers); i++) {
        long long n = table_count_of(js_get(js_at(tiers, i), "blocks"), "leaked");
        if (n)
            fprintf(f, "LEAKED: %lld blocks of tier %zu are in no state\n", n, i + 1);
    }
}

static void print_counts(FILE *f, const struct json *root)
{
    const struct json *tokens = js_get(root, "tokens"), *tree = js_get(root, "tree");
    const struct json *rate = js_get(tokens, "hit_rate");
    char size[TABLE_CELL_BYTES], policy[TABLE_CELL_BYTES];

    snprintf(policy, sizeof policy, "%s", table_text_of(root, "policy"));
    table_clean(policy);
    write_size(size, sizeof size, root, "block_bytes");
    fprintf(f, "\npolicy: %s; a block: %lld tokens, %s\n", policy,
            table_count_of(root, "block_tokens"), size);
    fprintf(f, "prompt tokens: %lld looked up, %lld found", table_count_of(tokens, "queried"),
            table_count_of(tokens, "hit"));
    if (js_is(rate, JS_REAL) || js_is(rate, JS_INT))
        fprintf(f, " (%.1f %%)", 100 * js_number(rate));
    fprintf(f, "; %lld found again after a preemption\n", table_count_of(tokens, "restored"));
    write_size(size, sizeof size, tree, "metadata_bytes");
    fprintf(f, "tree: %lld spans, %lld nodes, %lld held blocks (%lld holds), %s of bookkeeping\n",
            table_count_of(tree, "spans"), table_count_of(tree, "nodes"),
            table_count_of(tree, "held_blocks"), table_count_of(tree, "holds"), size);
    if (table_count_of(root, "copies_failed"))
        fprintf(f, "copies that failed: %lld\n", table_count_of(root, "copies_failed"));
}

static void print_spans(FILE *f, struct table *t, const struct json *root)
{
    static const char *const names[] = {"span",   "depth", "tokens",   "blocks", "device",
                                        "host",   "disk",  "children", "uses",   "hit tokens",
                                        "idle s", "",      "document"};
    const struct json *spans = js_get(root, "top_spans");
    size_t n = js_is(spans, JS_ARRAY) ? js_len(spans) : 0, n_columns = ARRAY_SIZE(names) - 1;

    if (n == 0)
        return;
    fprintf(f, "\nspans by tokens found, %zu of %lld\n", n,
            table_count_of(js_get(root, "tree"), "spans"));
    for (size_t i = 0; i < n; i++)
        if (document_of(js_at(spans, i)))
            n_columns = ARRAY_SIZE(names);
    table_reset(t, names, n_columns);
    for (size_t i = 0; i < n; i++)
        add_span(t, js_at(spans, i));
    table_print(f, t);
}

/* Parse the answer. ERR_INVALID: its member "object" is not `object`. */
static enum status parse(const char *json, size_t len, const char *object, struct json **root)
{
    enum status s = js_parse(root, json, len, NULL);

    if (s == OK && strcmp(table_text_of(*root, "object"), object) == 0)
        return OK;
    js_unref(*root);
    *root = NULL;
    return s == ERR_NOMEM ? s : ERR_INVALID;
}

enum status cache_table_print(FILE *f, const char *json, size_t len)
{
    struct table *t = table_create();
    struct json *root = NULL;
    enum status s = t ? parse(json, len, "cache", &root) : ERR_NOMEM;

    if (s == OK && !js_is(js_get(root, "tiers"), JS_ARRAY))
        s = ERR_INVALID;
    if (s == OK) {
        print_tiers(f, t, js_get(root, "tiers"));
        print_counts(f, root);
        print_swaps(f, root);
        print_disk(f, root);
        print_pool(f, root);
        print_leaks(f, js_get(root, "tiers"));
        print_spans(f, t, root);
    }
    js_unref(root);
    table_destroy(t);
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
                table_count_of(blocks, "device"), table_count_of(blocks, "host"));
        if (js_get(blocks, "disk")) /* older servers do not report it */
            fprintf(f, "%lld on disk, ", table_count_of(blocks, "disk"));
        fprintf(f, "%lld holds\n", table_count_of(root, "holds"));
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
                table_count_of(root, "blocks"));
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
        const char *one = table_text_of(js_at(spans, i), "key");
        if (strlen(one) != CACHE_KEY_DIGITS || strncasecmp(one, first, strlen(first)) != 0)
            continue;
        if (n_found++ == 0)
            memcpy(key, one, CACHE_KEY_DIGITS + 1);
    }
    js_unref(root);
    return n_found;
}
