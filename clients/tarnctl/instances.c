#include "clients/tarnctl/instances.h"

#include <string.h>

#include "clients/tarnctl/table.h"

static void add_instance(struct table *t, const struct json *i)
{
    const struct json *blocks = js_get(i, "kv_blocks");

    if (!table_row(t))
        return;
    table_cell(t, "%s%s", table_text_of(i, "name"), table_is_yes(i, "self") ? " *" : "");
    table_cell(t, "%s", table_text_of(i, "state"));
    table_cell(t, "%s", table_text_of(i, "address"));
    table_cell(t, "%s", table_text_of(i, "http"));
    table_count(t, blocks, "total");
    table_count(t, blocks, "free");
    table_count(t, i, "running");
    table_count(t, i, "waiting");
    table_count(t, i, "load");
    table_cell(t, "%s", table_text_of(i, "version"));
}

/* Say whether all catalogs have the digest of the first instance that has one. */
static void print_documents(FILE *f, const struct json *list)
{
    const char *first = NULL;
    uint32_t n = 0, n_differ = 0;

    for (size_t i = 0; i < js_len(list); i++) {
        const struct json *value = js_get(js_at(list, i), "documents");
        if (!value || !js_is(value, JS_STRING) || js_string(value, NULL)[0] == '\0')
            continue;
        const char *digest = js_string(value, NULL);
        first = first ? first : digest;
        n++;
        n_differ += strcmp(digest, first) != 0;
    }
    if (n < 2)
        return;
    if (n_differ == 0)
        fprintf(f, "documents: the catalogs of %u instances agree\n", n);
    else
        fprintf(f, "documents: the catalogs of %u instances differ (a change arrives in seconds)\n",
                n);
}

static enum status print_list(FILE *f, const struct json *root)
{
    static const char *const names[] = {"name", "state",   "address", "http", "KV blocks",
                                        "free", "running", "waiting", "load", "version"};
    const struct json *list = js_get(root, "data");
    struct table *t;

    if (strcmp(table_text_of(root, "object"), "list") != 0 || !js_is(list, JS_ARRAY) ||
        !js_get(root, "pool"))
        return ERR_INVALID;
    if (js_len(list) == 0) {
        fputs("the server belongs to no pool (--pool)\n", f);
        return OK;
    }
    t = table_create();
    if (!t)
        return ERR_NOMEM;
    table_reset(t, names, sizeof names / sizeof *names);
    for (size_t i = 0; i < js_len(list); i++)
        add_instance(t, js_at(list, i));
    table_print(f, t);
    table_destroy(t);
    print_documents(f, list);
    const struct json *is_up = js_get(root, "directory_up");
    if (is_up && js_is(is_up, JS_BOOL) && !js_bool(is_up))
        fputs("the pool's directory (Redis) does not answer this server: the list is old, and "
              "nothing of other instances is found\n",
              f);
    return OK;
}

enum status instances_print(FILE *f, const char *json, size_t len)
{
    struct json *root = NULL;
    enum status s = js_parse(&root, json, len, NULL);

    if (s == OK)
        s = print_list(f, root);
    else if (s != ERR_NOMEM)
        s = ERR_INVALID;
    js_unref(root);
    return s;
}
