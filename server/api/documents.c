#include "server/api/documents.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/flags.h"
#include "engine/retrieval/catalog.h"
#include "server/server.h"

#define N_DOCUMENTS_MAX 1024
#define PROBE_BYTES_MAX (1u << 20)
/* Few tokens have more bytes, so texts beyond this bound do not fit into the context. */
#define TOKEN_BYTES 64
#define TITLE_BYTES_MAX (16u << 20)

/* --- the list --- */

void documents_init(struct documents *d, const struct server *srv, bool in_template)
{
    *d = (struct documents){.in_template = in_template,
                            .template_leads = srv->kit.documents_lead,
                            .n_bytes_max = ((size_t)srv->info->max_model_len + 1024) * TOKEN_BYTES};
}

static void use_init(struct document_use *u)
{
    buf_init(&u->id, TITLE_BYTES_MAX);
    buf_init(&u->title, TITLE_BYTES_MAX);
}

void document_uses_free(struct document_use *uses, uint32_t n)
{
    for (uint32_t i = 0; uses && i < n; i++) {
        buf_fini(&uses[i].id);
        buf_fini(&uses[i].title);
        js_unref(uses[i].text);
    }
    free(uses);
}

void documents_fini(struct documents *d)
{
    js_unref(d->list);
    document_uses_free(d->uses, d->n);
    d->list = NULL;
    d->uses = NULL;
    d->n = 0;
}

static enum status copy_use(struct document_use *out, const struct document_use *u)
{
    *out = *u;
    use_init(out);
    if (out->text)
        js_ref(out->text);
    enum status s = buf_append(&out->id, buf_str(&u->id), u->id.len);
    return s == OK ? buf_append(&out->title, buf_str(&u->title), u->title.len) : s;
}

/* Make room for one more document; NULL: out of memory. */
static struct document_use *next_use(struct documents *d)
{
    struct document_use *uses = realloc(d->uses, (d->n + (size_t)1) * sizeof *uses);

    if (!d->list)
        d->list = js_new_array();
    if (uses)
        d->uses = uses;
    return uses && d->list ? &uses[d->n] : NULL;
}

/* Append a document. Takes over `shown`, the object for the template. */
static enum status push(struct documents *d, struct json *shown, const struct document_use *use,
                        struct buf *why)
{
    struct document_use *u = shown ? next_use(d) : NULL;
    size_t title_len = 0, text_len = 0;
    enum status s = u ? copy_use(u, use) : ERR_NOMEM;

    if (s == OK) {
        const char *title = js_string(js_get(shown, "title"), &title_len);
        s = buf_append(&u->title, title, title_len);
    }
    if (s == OK)
        s = js_push(d->list, js_ref(shown));
    if (s == OK) {
        js_string(js_get(shown, "text"), &text_len);
        if (u->wants_text && !u->text)
            u->text = js_ref(js_get(shown, "text"));
        d->n_bytes += title_len + text_len;
        u->given = d->n++;
    } else if (u) {
        buf_fini(&u->id);
        buf_fini(&u->title);
        js_unref(u->text);
    }
    js_unref(shown);
    if (s != OK)
        return buf_why(why, s, "out of memory");
    if (d->n_bytes > d->n_bytes_max)
        return buf_why(why, ERR_TOO_LARGE,
                       "documents: their texts have more than %zu bytes, which do not fit into "
                       "the context of this model",
                       d->n_bytes_max);
    return OK;
}

enum status documents_copy(struct documents *out, const struct documents *d)
{
    enum status s = OK;

    *out = *d;
    out->n = 0;
    out->list = d->list ? js_new_array() : NULL;
    out->uses = calloc(d->n + (size_t)1, sizeof *out->uses);
    if (!out->uses || (d->list && !out->list))
        s = ERR_NOMEM;
    for (uint32_t i = 0; s == OK && i < d->n; i++) {
        s = copy_use(&out->uses[out->n++], &d->uses[i]);
        if (s == OK)
            s = js_push(out->list, js_ref(js_at(d->list, i)));
    }
    if (s != OK)
        documents_fini(out);
    return s;
}

/* Add a title to the object if it has none: templates use the title without checking that it
 * exists, and in the server's own format all documents then have a heading. */
static enum status add_title(const struct documents *d, struct json *shown)
{
    const struct json *title = js_get_set(shown, "title");
    const char *otherwise = d->in_template ? "" : "Document";
    size_t len = 0;

    if (title)
        js_string(title, &len);
    if (title && (len > 0 || d->in_template))
        return OK;
    return js_set(shown, "title", js_new_string(otherwise, strlen(otherwise)));
}

static bool has_row(const struct documents *d, int64_t row)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (d->uses[i].is_registered && d->uses[i].row == row)
            return true;
    return false;
}

enum status documents_add(struct documents *d, const struct document *registered,
                          const struct document_use *found, struct buf *why)
{
    struct document_use use = found ? *found : (struct document_use){0};
    struct json *shown = NULL;

    if (has_row(d, registered->row))
        return OK;
    use.is_registered = true;
    use.is_public = registered->tenant[0] == '\0';
    use.row = registered->row;
    use.version = registered->version;
    use_init(&use);
    enum status s = buf_puts(&use.id, registered->id);
    if (s == OK)
        s = (shown = js_new_object()) ? OK : ERR_NOMEM;
    if (s == OK && registered->title.len > 0)
        s = js_set(shown, "title", js_new_string(registered->title.data, registered->title.len));
    if (s == OK)
        s = js_set(shown, "text", js_new_string(buf_str(&registered->text), registered->text.len));
    if (s == OK)
        s = add_title(d, shown);
    if (s == OK) {
        s = push(d, shown, &use, why);
    } else {
        js_unref(shown);
        buf_why(why, s, "out of memory");
    }
    buf_fini(&use.id);
    return s;
}

/* --- the entries of a request --- */

static enum status check_inline(const struct json *d, size_t i, struct buf *why)
{
    static const char *const keys[] = {"title", "text", "id"};
    size_t len;

    for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
        const struct json *v = js_get_set(d, keys[k]);
        if ((v || k == 1) && !js_is(v, JS_STRING))
            return buf_why(why, ERR_INVALID, "documents[%zu].%s: expected a string, got %s", i,
                           keys[k], js_type_name(js_typeof(v)));
    }
    js_string(js_get(d, "text"), &len);
    if (len == 0)
        return buf_why(why, ERR_INVALID, "documents[%zu].text: must not be empty", i);
    return OK;
}

static enum status add_inline(struct documents *d, const struct json *given, size_t i,
                              struct buf *why)
{
    enum status s = check_inline(given, i, why);
    struct document_use use = {0};

    if (s != OK)
        return s;
    struct json *shown = js_copy_deep(given);
    const struct json *id = js_get_set(given, "id");
    size_t len = 0;
    const char *text = id ? js_string(id, &len) : "";
    use_init(&use);
    s = shown ? add_title(d, shown) : ERR_NOMEM;
    if (s == OK)
        s = buf_append(&use.id, text, len);
    if (s == OK) {
        s = push(d, shown, &use, why);
    } else {
        js_unref(shown);
        buf_why(why, s, "out of memory");
    }
    buf_fini(&use.id);
    return s;
}

static enum status add_named(struct documents *d, const struct json *id, size_t i,
                             const struct documents_finder *finder, struct buf *why)
{
    struct document found;
    struct buf inner;
    const char *name;
    char field[48];

    snprintf(field, sizeof field, "documents[%zu]", i);
    enum status s = js_read_cstr(id, field, &name, why);
    if (s != OK)
        return s;
    if (name[0] == '\0' || strlen(name) > DOCUMENT_ID_BYTES_MAX)
        return buf_why(why, ERR_INVALID, "%s: an id has 1 to %d bytes, got %zu", field,
                       DOCUMENT_ID_BYTES_MAX, strlen(name));
    if (!finder)
        return buf_why(why, ERR_UNSUPPORTED,
                       "%s: ids of documents are taken in chat and text completions only", field);
    buf_init(&inner, BUF_WHY_MAX / 2);
    document_init(&found);
    s = finder->find(finder->arg, name, &found, &inner);
    if (s == OK)
        s = documents_add(d, &found, NULL, why);
    else if (s == ERR_NOT_FOUND)
        buf_why(why, s, "%s: there is no document \"%.256s\"", field, name);
    else
        buf_why(why, s, "%s: %s", field, inner.len ? buf_str(&inner) : status_words(s));
    document_fini(&found);
    buf_fini(&inner);
    return s;
}

/* The id of an entry that names a registered document; NULL: the entry is inline. */
static const struct json *id_of(const struct json *entry)
{
    if (js_is(entry, JS_STRING))
        return entry;
    return js_is(entry, JS_OBJECT) && !js_get_set(entry, "text") ? js_get_set(entry, "id") : NULL;
}

bool documents_have_ids(const struct json *body)
{
    const struct json *given = js_get(body, "documents");

    for (size_t i = 0; js_is(given, JS_ARRAY) && i < js_len(given); i++)
        if (id_of(js_at(given, i)))
            return true;
    return false;
}

static enum status add_entry(struct documents *d, const struct json *entry, size_t i,
                             const struct documents_finder *finder, struct buf *why)
{
    const struct json *id = id_of(entry);

    if (id)
        return add_named(d, id, i, finder, why);
    if (js_is(entry, JS_OBJECT))
        return add_inline(d, entry, i, why);
    return buf_why(why, ERR_INVALID, "documents[%zu]: expected an id or an object, got %s", i,
                   js_type_name(js_typeof(entry)));
}

static enum status choose_place(struct documents *d, const struct chat_kit *kit,
                                const struct json *body, bool is_chat, struct buf *why)
{
    const char *place = NULL;
    enum status s = js_get_str(body, "documents_placement", &place, NULL, why);

    d->template_leads = kit->documents_lead;
    d->in_template = is_chat && kit->documents_lead;
    if (s != OK || !place)
        return s;
    d->in_template = strcmp(place, "template") == 0;
    if (!d->in_template && strcmp(place, "system") != 0)
        return buf_why(why, ERR_INVALID,
                       "documents_placement: expected \"system\" or \"template\", got \"%.40s\"",
                       place);
    if (!is_chat)
        return buf_why(why, ERR_INVALID, "documents_placement: only chats have a choice");
    if (d->in_template && !chat_template_uses(kit->template, "documents"))
        return buf_why(why, ERR_INVALID,
                       "documents_placement: the chat template of this model renders no documents");
    return OK;
}

static enum status choose_order(struct documents *d, const struct json *body, struct buf *why)
{
    const char *order = "given";
    enum status s = js_get_str(body, "documents_order", &order, NULL, why);

    if (s != OK)
        return s;
    if (!flag_is_choice(DOCUMENTS_ORDER_NAMES, order))
        return buf_why(why, ERR_INVALID,
                       "documents_order: expected \"given\", \"cache\" or \"id\", got \"%.40s\"",
                       order);
    d->order = (enum documents_order)flag_choice_at(DOCUMENTS_ORDER_NAMES, order);
    return OK;
}

enum status documents_read(struct documents *d, const struct server *srv, const struct json *body,
                           bool is_chat, const struct documents_finder *finder, struct buf *why)
{
    const struct json *given = js_get_set(body, "documents");
    size_t n = js_len(given);
    bool echo = false;

    documents_init(d, srv, false);
    const struct chat_kit *kit;
    enum status s = chat_kit_get(&kit, srv, body, why);
    if (s == OK)
        s = choose_place(d, kit, body, is_chat, why);
    chat_kit_put(srv, kit);
    if (s == OK)
        s = choose_order(d, body, why);
    if (s == OK)
        s = js_get_bool(body, "citations", &d->wants_citations, why);
    if (s == OK && !is_chat)
        s = js_get_bool(body, "echo", &echo, why);
    if (s == OK && echo && d->wants_citations)
        s = buf_why(why, ERR_INVALID, "citations: not beside echo, whose text has the titles too");
    if (s != OK || !given)
        return s;
    if (!js_is(given, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "documents: expected an array, got %s",
                       js_type_name(js_typeof(given)));
    if (n > N_DOCUMENTS_MAX)
        return buf_why(why, ERR_INVALID, "documents: %zu entries, at most %d are taken", n,
                       N_DOCUMENTS_MAX);
    for (size_t i = 0; s == OK && i < n; i++)
        s = add_entry(d, js_at(given, i), i, finder, why);
    if (s == OK && d->order == DOCUMENTS_BY_ID && documents_sort(d) != OK)
        s = buf_why(why, ERR_NOMEM, "out of memory");
    return s;
}

/* --- order --- */

enum status documents_reorder(struct documents *d, const uint32_t *order)
{
    struct json *list = js_new_array();
    struct document_use *uses = calloc(d->n + (size_t)1, sizeof *uses);
    enum status s = list && uses ? OK : ERR_NOMEM;

    for (uint32_t i = 0; s == OK && i < d->n; i++) {
        s = js_push(list, js_ref(js_at(d->list, order[i])));
        uses[i] = d->uses[order[i]];
    }
    if (s == OK && d->n > 0) {
        js_unref(d->list);
        free(d->uses); /* the bufs have moved */
        d->list = list;
        d->uses = uses;
    } else {
        js_unref(list);
        free(uses);
    }
    return s;
}

/* Compare two documents for the order "id"; equal ones keep their order. */
static int compare_ids(const void *left, const void *right, void *arg)
{
    const struct documents *d = arg;
    uint32_t i = *(const uint32_t *)left, k = *(const uint32_t *)right;
    const struct buf *a = &d->uses[i].id, *b = &d->uses[k].id;
    size_t n = a->len < b->len ? a->len : b->len;

    if (!a->len != !b->len)
        return a->len ? -1 : 1;
    int by_bytes = n ? memcmp(a->data, b->data, n) : 0;
    if (by_bytes == 0 && a->len != b->len)
        by_bytes = a->len < b->len ? -1 : 1;
    return by_bytes ? by_bytes : (i > k) - (i < k);
}

enum status documents_sort(struct documents *d)
{
    uint32_t *order = calloc(d->n + (size_t)1, sizeof *order);
    enum status s = order ? OK : ERR_NOMEM;

    for (uint32_t i = 0; s == OK && i < d->n; i++)
        order[i] = i;
    if (s == OK && d->n > d->n_fixed)
        qsort_r(order + d->n_fixed, d->n - d->n_fixed, sizeof *order, compare_ids, d);
    if (s == OK)
        s = documents_reorder(d, order);
    free(order);
    return s;
}

/* --- the block in the prompt --- */

static enum status write_own(const struct json *d, const char *key, struct buf *out,
                             struct ranges *own)
{
    size_t len;
    const char *text = js_string(js_get(d, key), &len);
    enum status s = buf_append(out, text, len);

    return s == OK && own ? ranges_add(own, out->len - len, out->len) : s;
}

static enum status write_document(const struct json *d, struct buf *out, struct ranges *own)
{
    enum status s = buf_puts(out, "### ");

    if (s == OK)
        s = write_own(d, "title", out, own);
    if (s == OK)
        s = buf_putc(out, '\n');
    if (s == OK)
        s = write_own(d, "text", out, own);
    return s == OK ? buf_putc(out, '\n') : s;
}

enum status documents_write(const struct json *list, bool wants_citations, struct buf *out,
                            struct ranges *own)
{
    enum status s = buf_puts(out, "Documents:\n");

    for (size_t i = 0; s == OK && i < js_len(list); i++)
        s = write_document(js_at(list, i), out, own);
    /* Templates strip white space from a system message. Without this line, that would remove the
     * last document's newline. */
    if (s == OK)
        s = buf_puts(out, "### End of documents\n");
    return s == OK && wants_citations ? buf_puts(out, DOCUMENTS_CITATION_LINE) : s;
}

bool documents_lead(const struct chat_template *template)
{
    static const char probe[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"Probe-system\"},"
        "{\"role\":\"user\",\"content\":\"Probe-user\"}],\"add_generation_prompt\":true,"
        "\"documents\":[{\"title\":\"Probe-title\",\"text\":\"Probe-text\"}],"
        "\"tools\":null,\"bos_token\":\"\",\"eos_token\":\"\"}";
    struct json *context = NULL;
    struct buf out;
    bool lead = false;

    if (!template || !chat_template_uses(template, "documents"))
        return false;
    buf_init(&out, PROBE_BYTES_MAX);
    if (js_parse(&context, probe, sizeof probe - 1, NULL) == OK &&
        chat_template_render(template, context, 0, &out, NULL) == OK) {
        const char *text = strstr(buf_str(&out), "Probe-text");
        const char *user = strstr(buf_str(&out), "Probe-user");
        lead = text && (!user || text < user);
    }
    js_unref(context);
    buf_fini(&out);
    return lead;
}
