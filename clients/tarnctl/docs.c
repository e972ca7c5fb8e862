#include "clients/tarnctl/docs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/json.h"
#include "clients/tarnctl/import.h"
#include "clients/tarnctl/table.h"

#define SHOWN_BYTES 1100 /* of an id or title */

/* Print a text of the server's without what a terminal could obey. */
static const char *shown(const char *text)
{
    static char copy[SHOWN_BYTES];

    snprintf(copy, sizeof copy, "%s", text);
    table_clean(copy);
    return copy;
}

/* Parse the answer of a call, or print its error. NULL: the exit code is 1. */
static struct json *parse(const struct ctl_options *o, const struct tarn_answer *a)
{
    struct json *root = NULL;

    if (a->error != TARN_OK)
        ctl_fail(o, a);
    else if (js_parse(&root, a->text, a->text_len, NULL) != OK)
        fputs("tarnctl: this is not an answer of Tarn: --json prints it\n", stderr);
    return root;
}

static const char *id_of(const struct ctl_options *o, const char *file)
{
    if (o->id)
        return o->id;
    if (strcmp(file, "-") == 0)
        ctl_die("%s add -: standard input has no name, --id is missing", o->words[0]);
    const char *slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}

/* Read the FILE of the command line, or exit. */
static void read_file(const char *path, struct buf *text)
{
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    buf_init(text, CTL_INPUT_BYTES_MAX);
    if (ctl_read(path, text, &why) != OK)
        ctl_die("%s", buf_str(&why));
    buf_fini(&why);
}

/* Print the answer to a PUT and free it. */
static int end_put(const struct ctl_options *o, struct tarn_answer *a, const char *id)
{
    struct json *root = NULL;
    int code = 1;

    if (a->error == TARN_OK && o->json) {
        ctl_print(a->text, a->text_len);
        code = 0;
    } else if ((root = parse(o, a)) != NULL) {
        const char *status = table_text_of(root, "status");
        printf("%s: ", shown(status));
        printf("%s, version %lld\n", shown(id), table_count_of(root, "version"));
        code = 0;
    }
    js_unref(root);
    tarn_answer_fini(a);
    return code;
}

int docs_add(const struct ctl_options *o, const struct tarn_client *client)
{
    struct tarn_document_fields f = o->fields;
    const char *file = o->words[2], *id = id_of(o, file);
    struct tarn_answer a;
    struct buf text;

    read_file(file, &text);
    f.text = (struct tarn_text){buf_str(&text), text.len};
    if (!f.title.data && strcmp(file, "-") != 0)
        f.title = (struct tarn_text){import_title(file, buf_str(&text)), 0};
    tarn_document_put(&a, client, id, &f);
    buf_fini(&text);
    return end_put(o, &a, id);
}

/* --- list --- */

static void write_state(char *out, size_t n_out, const struct json *d)
{
    const struct json *expires = js_get(d, "expires_at");
    size_t n = 0;

    out[0] = '\0';
    if (table_is_yes(d, "public"))
        n += (size_t)snprintf(out, n_out, "public");
    if (table_is_yes(d, "pin"))
        n += (size_t)snprintf(out + n, n_out - n, "%spinned", n ? ", " : "");
    if (js_is(expires, JS_INT))
        snprintf(out + n, n_out - n, "%sexpires in %lld s", n ? ", " : "",
                 (long long)(js_int(expires) - (int64_t)time(NULL)));
}

static void print_documents(struct table *t, const struct json *list)
{
    static const char *const heads[] = {"id", "version", "uses", "prefill", "", "title"};
    char state[96];

    table_reset(t, heads, ARRAY_SIZE(heads));
    for (size_t i = 0; i < js_len(list) && table_row(t); i++) {
        const struct json *d = js_at(list, i);
        table_cell(t, "%s", table_text_of(d, "id"));
        table_count(t, d, "version");
        table_count(t, d, "uses");
        table_cell(t, "%s", table_text_of(d, "prefill"));
        write_state(state, sizeof state, d);
        table_cell(t, "%s", state);
        table_cell(t, "%s", table_text_of(d, "title"));
    }
    table_print(stdout, t);
}

static void print_preambles(struct table *t, const struct json *list)
{
    static const char *const heads[] = {"id", "version", "", "system"};

    table_reset(t, heads, ARRAY_SIZE(heads));
    for (size_t i = 0; i < js_len(list) && table_row(t); i++) {
        const struct json *p = js_at(list, i);
        table_cell(t, "%s", table_text_of(p, "id"));
        table_count(t, p, "version");
        table_cell(t, "%s", table_is_yes(p, "public") ? "public" : "");
        const char *text = table_text_of(p, "system"); /* its first line */
        table_cell(t, "%.*s", (int)strcspn(text, "\n"), text);
    }
    table_print(stdout, t);
}

/* Print a list and free its answer. */
static int end_list(const struct ctl_options *o, struct tarn_answer *a,
                    void (*print)(struct table *t, const struct json *list))
{
    struct table *t = NULL;
    struct json *root = NULL;
    int code = 1;

    if (a->error == TARN_OK && o->json) {
        ctl_print(a->text, a->text_len);
        code = 0;
    } else if ((root = parse(o, a)) != NULL) {
        if ((t = table_create()) == NULL) {
            fputs("tarnctl: out of memory\n", stderr);
        } else {
            print(t, js_get(root, "data"));
            code = 0;
        }
        if (table_is_yes(root, "has_more"))
            fprintf(stderr, "there are more: --after %s\n", shown(table_text_of(root, "last_id")));
    }
    table_destroy(t);
    js_unref(root);
    tarn_answer_fini(a);
    return code;
}

int docs_list(const struct ctl_options *o, const struct tarn_client *client)
{
    struct tarn_answer a;

    tarn_documents_list(&a, client, o->after, o->limit);
    return end_list(o, &a, print_documents);
}

int preambles_list(const struct ctl_options *o, const struct tarn_client *client)
{
    struct tarn_answer a;

    tarn_preambles_list(&a, client);
    return end_list(o, &a, print_preambles);
}

/* --- show --- */

static void print_time(const char *name, const struct json *d, const char *key)
{
    const struct json *v = js_get(d, key);
    time_t t = js_is(v, JS_INT) ? (time_t)js_int(v) : 0;
    struct tm tm;
    char text[32];

    if (t == 0 || !gmtime_r(&t, &tm) || !strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm))
        return;
    printf("%-9s %s\n", name, text);
}

static void print_metadata(const struct json *metadata)
{
    struct buf text;

    if (js_len(metadata) == 0)
        return;
    buf_init(&text, SHOWN_BYTES);
    if (js_write(&text, metadata) == OK)
        printf("%-9s %s\n", "metadata", shown(buf_str(&text)));
    buf_fini(&text);
}

static void print_paths(struct table *t, const struct json *paths)
{
    static const char *const heads[] = {"behind", "place", "version", "tokens",  "device", "host",
                                        "disk",   "uses",  "hits",    "saved s", "state"};

    if (js_len(paths) == 0)
        return;
    printf("\n");
    table_reset(t, heads, ARRAY_SIZE(heads));
    for (size_t i = 0; i < js_len(paths) && table_row(t); i++) {
        const struct json *p = js_at(paths, i), *tiers = js_get(p, "tiers");
        const struct json *saved = js_get(p, "seconds_saved");
        table_cell(t, "%s", table_text_of(p, "preamble"));
        table_count(t, p, "place");
        table_count(t, p, "version");
        table_count(t, p, "tokens");
        table_count(t, tiers, "device");
        table_count(t, tiers, "host");
        table_count(t, tiers, "disk");
        table_count(t, p, "uses");
        table_count(t, p, "hit_tokens");
        if (js_is(saved, JS_REAL) || js_is(saved, JS_INT))
            table_cell(t, "%.3f", js_number(saved));
        else
            table_cell(t, "-");
        table_cell(t, "%s", table_is_yes(p, "ready") ? "ready" : "not computed");
    }
    table_print(stdout, t);
}

static void print_document(struct table *t, const struct json *d)
{
    const struct json *prefill = js_get(d, "prefill_state");
    char state[96];

    write_state(state, sizeof state, d);
    printf("%-9s %s\n", "id", shown(table_text_of(d, "id")));
    printf("%-9s %s\n", "title", shown(table_text_of(d, "title")));
    printf("%-9s %lld%s%s\n", "version", table_count_of(d, "version"), state[0] ? ", " : "", state);
    printf("%-9s %lld bytes, %lld tokens\n", "text", table_count_of(d, "bytes"),
           table_count_of(d, "tokens"));
    printf("%-9s %lld\n", "uses", table_count_of(d, "uses"));
    printf("%-9s %s", "prefill", shown(table_text_of(d, "prefill")));
    if (js_is(prefill, JS_OBJECT)) {
        const char *why = table_text_of(prefill, "why");
        printf("; %lld ready, %lld queued, %lld wait for room, %lld failed",
               table_count_of(prefill, "ready"), table_count_of(prefill, "queued"),
               table_count_of(prefill, "waiting_for_room"), table_count_of(prefill, "failed"));
        if (why[0] && strcmp(why, "-") != 0)
            printf(" (%s)", shown(why));
    }
    printf("\n");
    print_metadata(js_get(d, "metadata"));
    print_time("created", d, "created_at");
    print_time("updated", d, "updated_at");
    print_paths(t, js_get(d, "paths"));
}

int docs_show(const struct ctl_options *o, const struct tarn_client *client)
{
    struct table *t = table_create();
    struct json *root = NULL;
    struct tarn_answer a;
    int code = 1;

    tarn_document_get(&a, client, o->words[2]);
    if (a.error == TARN_OK && o->json) {
        ctl_print(a.text, a.text_len);
        code = 0;
    } else if (t && (root = parse(o, &a)) != NULL) {
        print_document(t, root);
        code = 0;
    }
    js_unref(root);
    table_destroy(t);
    tarn_answer_fini(&a);
    return code;
}

/* --- commands about several ids --- */

typedef enum tarn_error id_call(struct tarn_answer *a, const struct tarn_client *client,
                                const char *id);

/* Call f for each ID of the command line; go on after errors. */
static int each_id(const struct ctl_options *o, const struct tarn_client *client, id_call *f,
                   const char *done)
{
    int code = 0;

    for (size_t i = 2; i < o->n_words; i++) {
        struct tarn_answer a;
        if (f(&a, client, o->words[i]) != TARN_OK) {
            code = ctl_fail(o, &a);
        } else if (o->json) {
            ctl_print(a.text, a.text_len);
        } else {
            printf("%s: %s\n", done, o->words[i]);
        }
        tarn_answer_fini(&a);
    }
    return code;
}

static enum tarn_error warm(struct tarn_answer *a, const struct tarn_client *client, const char *id)
{
    struct tarn_document_fields f;

    tarn_document_fields_init(&f);
    f.prefill = "now";
    return tarn_document_change(a, client, id, &f);
}

static enum tarn_error set_pin(struct tarn_answer *a, const struct tarn_client *client,
                               const char *id, int64_t is_pinned)
{
    struct tarn_document_fields f;

    tarn_document_fields_init(&f);
    f.is_pinned = is_pinned;
    return tarn_document_change(a, client, id, &f);
}

static enum tarn_error pin(struct tarn_answer *a, const struct tarn_client *client, const char *id)
{
    return set_pin(a, client, id, 1);
}

static enum tarn_error unpin(struct tarn_answer *a, const struct tarn_client *client,
                             const char *id)
{
    return set_pin(a, client, id, 0);
}

int docs_warm(const struct ctl_options *o, const struct tarn_client *client)
{
    return each_id(o, client, warm, "will be prefilled");
}

int docs_pin(const struct ctl_options *o, const struct tarn_client *client)
{
    return each_id(o, client, pin, "pinned");
}

int docs_unpin(const struct ctl_options *o, const struct tarn_client *client)
{
    return each_id(o, client, unpin, "unpinned");
}

int docs_rm(const struct ctl_options *o, const struct tarn_client *client)
{
    return each_id(o, client, tarn_document_delete, "removed");
}

/* --- preambles --- */

static bool is_json(const char *file)
{
    size_t n = strlen(file);

    return n > 5 && strcmp(file + n - 5, ".json") == 0;
}

/* Read {"system", "tools"} into a text and a JSON array (empty: no tools), or exit. */
static void read_preamble(const char *file, struct buf *text, struct buf *tools)
{
    struct json *o = NULL;
    const char *system_text = NULL;
    struct buf why;
    size_t len = 0;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = js_parse(&o, buf_str(text), text->len, &why);
    for (void *it = js_first(o); s == OK && it; it = js_next(o, it))
        if (strcmp(js_it_key(it), "system") != 0 && strcmp(js_it_key(it), "tools") != 0)
            s = buf_why(&why, ERR_INVALID, "\"%.40s\" is neither \"system\" nor \"tools\"",
                        js_it_key(it));
    if (s == OK)
        s = js_get_str(o, "system", &system_text, &len, &why);
    if (s == OK && !system_text)
        s = buf_why(&why, ERR_INVALID, "expected an object with \"system\"");
    buf_reset(text); /* the object has copies of its texts */
    if (s == OK)
        s = buf_append(text, system_text, len);
    if (s == OK && js_get_set(o, "tools"))
        s = js_write(tools, js_get(o, "tools"));
    if (s != OK)
        ctl_die("%s: %s", file, why.len ? buf_str(&why) : status_words(s));
    js_unref(o);
    buf_fini(&why);
}

int preambles_add(const struct ctl_options *o, const struct tarn_client *client)
{
    const char *id = id_of(o, o->words[2]);
    struct tarn_answer a;
    struct buf text, tools;

    buf_init(&tools, CTL_INPUT_BYTES_MAX);
    read_file(o->words[2], &text);
    if (is_json(o->words[2]))
        read_preamble(o->words[2], &text, &tools);
    const struct tarn_text system_text = {buf_str(&text), text.len};
    tarn_preamble_put(&a, client, id, &system_text, tools.len ? buf_str(&tools) : NULL,
                      o->fields.is_public);
    buf_fini(&text);
    buf_fini(&tools);
    return end_put(o, &a, id);
}

int preambles_rm(const struct ctl_options *o, const struct tarn_client *client)
{
    return each_id(o, client, tarn_preamble_delete, "removed");
}
