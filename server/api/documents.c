#include "server/api/documents.h"

#include <string.h>

#include "base/check.h"
#include "server/server.h"

#define N_DOCUMENTS_MAX 1024
#define PROBE_BYTES_MAX (1u << 20)

static enum status check_document(const struct json *d, size_t i, struct buf *why)
{
    static const char *const keys[] = {"title", "text"};
    size_t len;

    if (!js_is(d, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "documents[%zu]: expected an object, got %s", i,
                       js_type_name(js_typeof(d)));
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

/* Append a document to the list. A missing title is added: templates use the title without checking
 * that it exists, and in the server's own format all documents then have a heading. */
static enum status push_document(struct documents *d, const struct json *given)
{
    const struct json *title = js_get_set(given, "title");
    const char *otherwise = d->in_template ? "" : "Document";
    struct json *copy = js_copy_deep(given);
    size_t len = 0;
    enum status s = copy ? OK : ERR_NOMEM;

    if (title)
        js_string(title, &len);
    if (s == OK && (!title || (len == 0 && !d->in_template)))
        s = js_set(copy, "title", js_new_string(otherwise, strlen(otherwise)));
    if (s == OK)
        return js_push(d->list, copy);
    js_unref(copy);
    return s;
}

static enum status choose_place(struct documents *d, const struct server *srv,
                                const struct json *body, struct buf *why)
{
    const char *place = NULL;
    enum status s = js_get_str(body, "documents_placement", &place, NULL, why);

    d->in_template = srv->documents_lead;
    if (s != OK || !place)
        return s;
    d->in_template = strcmp(place, "template") == 0;
    if (!d->in_template && strcmp(place, "system") != 0)
        return buf_why(why, ERR_INVALID,
                       "documents_placement: expected \"system\" or \"template\", got \"%.40s\"",
                       place);
    if (d->in_template && !chat_template_uses(srv->template, "documents"))
        return buf_why(why, ERR_INVALID,
                       "documents_placement: the chat template of this model renders no documents");
    return OK;
}

static enum status choose_order(struct documents *d, const struct json *body, struct buf *why)
{
    const char *order = NULL;
    enum status s = js_get_str(body, "documents_order", &order, NULL, why);

    if (s != OK || !order)
        return s;
    d->by_cache = strcmp(order, "cache") == 0;
    if (!d->by_cache && strcmp(order, "given") != 0)
        return buf_why(why, ERR_INVALID,
                       "documents_order: expected \"given\" or \"cache\", got \"%.40s\"", order);
    return OK;
}

enum status documents_reorder(struct documents *d, const uint32_t *order)
{
    struct json *list = js_new_array();
    enum status s = list ? OK : ERR_NOMEM;

    for (size_t i = 0; s == OK && i < js_len(d->list); i++)
        s = js_push(list, js_ref(js_at(d->list, order[i])));
    if (s == OK) {
        js_unref(d->list);
        d->list = list;
    } else {
        js_unref(list);
    }
    return s;
}

enum status documents_read(struct documents *d, const struct server *srv, const struct json *body,
                           struct buf *why)
{
    const struct json *given = js_get_set(body, "documents");
    size_t n = js_len(given);

    *d = (struct documents){0};
    enum status s = choose_place(d, srv, body, why);
    if (s == OK)
        s = choose_order(d, body, why);
    if (s != OK || !given)
        return s;
    if (!js_is(given, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "documents: expected an array, got %s",
                       js_type_name(js_typeof(given)));
    if (n > N_DOCUMENTS_MAX)
        return buf_why(why, ERR_INVALID, "documents: %zu entries, at most %d are taken", n,
                       N_DOCUMENTS_MAX);
    for (size_t i = 0; s == OK && i < n; i++)
        s = check_document(js_at(given, i), i, why);
    if (s != OK || n == 0)
        return s;
    s = (d->list = js_new_array()) ? OK : ERR_NOMEM;
    for (size_t i = 0; s == OK && i < n; i++)
        s = push_document(d, js_at(given, i));
    if (s == ERR_NOMEM)
        buf_why(why, s, "out of memory");
    return s;
}

void documents_fini(struct documents *d)
{
    js_unref(d->list);
    d->list = NULL;
}

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

enum status documents_write(const struct json *list, struct buf *out, struct ranges *own)
{
    enum status s = buf_puts(out, "Documents:\n");

    for (size_t i = 0; s == OK && i < js_len(list); i++)
        s = write_document(js_at(list, i), out, own);
    /* Templates strip white space from a system message. Without this line, that would remove the
     * last document's newline. */
    return s == OK ? buf_puts(out, "### End of documents\n") : s;
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
