#include "server/api/preamble_use.h"

#include <stdlib.h>
#include <string.h>

#include "server/api/call.h"
#include "server/api/document_json.h"
#include "server/api/library.h"
#include "server/api/preamble.h"
#include "server/api/wait.h"
#include "server/auth/auth.h"
#include "server/server.h"

struct preamble_use {
    struct wait wait;
    struct server *srv;
    enum preamble_api api;
    struct json *body;       /* of the client */
    const char *id;          /* in body */
    struct account *account; /* a reference */
};

/* --- the new body --- */

static enum status push_system(struct json *messages, const struct preamble_text *text)
{
    struct json *m = js_new_object();
    enum status s = m ? js_set(m, "role", js_new_string("system", 6)) : ERR_NOMEM;

    if (s == OK)
        s = js_set(m, "content", js_new_string(text->system, text->len));
    if (s == OK)
        return js_push(messages, m);
    js_unref(m);
    return s;
}

static bool is_system(const struct json *message)
{
    const struct json *role = js_get(message, "role");
    const char *name = js_is(role, JS_STRING) ? js_string(role, NULL) : "";

    return strcmp(name, "system") == 0 || strcmp(name, "developer") == 0;
}

/* Make the messages of the new body: the preamble's, then the client's. */
static enum status join_messages(struct json **out, const struct json *given,
                                 const struct preamble_text *text, struct buf *why)
{
    struct json *messages;

    if (!js_is(given, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "messages: expected an array, got %s",
                       js_type_name(js_typeof(given)));
    if (is_system(js_at(given, 0)))
        return buf_why(why, ERR_INVALID,
                       "messages[0]: the preamble is the system message; leave out this one, or "
                       "the preamble");
    messages = js_new_array();
    enum status s = messages ? push_system(messages, text) : ERR_NOMEM;
    for (size_t i = 0; s == OK && i < js_len(given); i++)
        s = js_push(messages, js_ref(js_at(given, i)));
    if (s == OK)
        *out = messages;
    else
        js_unref(messages);
    return s == OK ? OK : buf_why(why, s, "out of memory");
}

/* Put the text into the field that has the system prompt in this API. */
static enum status set_system(struct json *body, const char *field, const struct json *given,
                              const struct preamble_text *text, struct buf *why)
{
    if (js_get_set(given, field))
        return buf_why(why, ERR_INVALID,
                       "%s: the preamble is the system prompt; leave out this one, or the preamble",
                       field);
    return js_set(body, field, js_new_string(text->system, text->len));
}

static enum status set_messages(struct json *body, const struct json *given,
                                const struct preamble_text *text, struct buf *why)
{
    struct json *messages = NULL;
    enum status s = join_messages(&messages, js_get(given, "messages"), text, why);

    return s == OK ? js_set(body, "messages", messages) : s;
}

/* Make the body in which the text stands for the name. */
static enum status make_body(struct preamble_use *u, const struct preamble_text *text)
{
    struct json *body = js_new_object();
    enum status s = body ? OK : ERR_NOMEM;

    for (void *it = js_first(u->body); s == OK && it; it = js_next(u->body, it))
        if (strcmp(js_it_key(it), "preamble") != 0)
            s = js_set(body, js_it_key(it), js_ref(js_it_value(it)));
    if (s == OK && text->tools && !js_get_set(u->body, "tools") &&
        !js_get_set(u->body, "functions"))
        s = (u->wait.tools = js_copy_deep(text->tools)) ? OK : ERR_NOMEM;
    if (s == OK && u->api == PREAMBLE_CHAT)
        s = set_messages(body, u->body, text, &u->wait.why);
    else if (s == OK)
        s = set_system(body, u->api == PREAMBLE_MESSAGES ? "system" : "instructions", u->body, text,
                       &u->wait.why);
    if (s == OK && u->api == PREAMBLE_CHAT && u->wait.tools)
        s = js_set(body, "tools", js_ref(u->wait.tools));
    if (s == OK) {
        u->wait.body = body;
        return OK;
    }
    js_unref(body);
    return u->wait.why.len ? s : buf_why(&u->wait.why, s, "out of memory");
}

/* --- the preamble --- */

struct search_file {
    struct preamble_use *use;
    bool found;
    enum status status;
};

static void try_file(void *arg, const char *file, const struct preamble_text *text)
{
    char name[DOCUMENT_ID_BYTES_MAX + 1];
    struct search_file *f = arg;

    preamble_file_name(file, name, sizeof name);
    if (f->found || strcmp(name, f->use->id) != 0)
        return;
    f->found = true;
    f->status = make_body(f->use, text);
}

static enum status use_record(struct preamble_use *u, const struct preamble_record *p)
{
    struct preamble_text text;
    struct json *body = NULL;
    enum status s = js_parse(&body, buf_str(&p->body), p->body.len, &u->wait.why);

    if (s == OK)
        s = preamble_read(body, &text, &u->wait.why);
    if (s == OK)
        s = make_body(u, &text);
    js_unref(body);
    return s;
}

static enum status use_registered(struct preamble_use *u)
{
    struct library_parts parts;
    struct preamble_record p;
    struct buf inner;

    if (!u->srv->library)
        return buf_why(&u->wait.why, ERR_UNSUPPORTED,
                       "preamble: this server keeps no preambles (--documents-path none)");
    buf_init(&inner, BUF_WHY_MAX / 2);
    preamble_record_init(&p);
    enum status s = library_use(u->srv->library, &parts, &inner);
    if (s == OK)
        s = catalog_get_preamble(parts.catalog, u->account->owner, u->id, &p, &inner);
    if (s != OK)
        buf_why(&u->wait.why, s, "preamble: %s", inner.len ? buf_str(&inner) : status_words(s));
    else
        s = use_record(u, &p);
    preamble_record_fini(&p);
    buf_fini(&inner);
    return s;
}

static void run(void *arg)
{
    struct preamble_use *u = arg;
    struct search_file file = {.use = u};

    preambles_each_file(u->srv->preambles, try_file, &file);
    wait_resume(&u->wait, file.found ? file.status : use_registered(u));
}

/* --- the call --- */

static void use_free(struct wait *w)
{
    struct preamble_use *u = (struct preamble_use *)w;

    account_unref(u->account);
    js_unref(u->body);
    wait_fini(w);
    free(u);
}

bool preamble_is_named(const struct json *body)
{
    return js_get_set(body, "preamble") != NULL;
}

enum status preamble_add_tools(const struct call *call, struct json *chat, struct buf *why)
{
    enum status s = OK;

    if (call->preamble_tools && !js_get_set(chat, "tools"))
        s = js_set(chat, "tools", js_copy_deep(call->preamble_tools));
    return s == OK ? OK : buf_why(why, s, "out of memory");
}

enum status preamble_use_begin(struct call *call, enum preamble_api api, const struct json *body,
                               struct buf *why)
{
    const char *id;
    enum status s = js_read_cstr(js_get(body, "preamble"), "preamble", &id, why);
    struct preamble_use *u;

    if (s != OK)
        return s;
    u = calloc(1, sizeof *u);
    if (!u)
        return buf_why(why, ERR_NOMEM, "out of memory");
    wait_init(&u->wait);
    u->wait.job = (struct http_job){run, u};
    u->wait.free = use_free;
    u->wait.name = "preamble";
    u->wait.not_found = "preamble_not_found";
    u->wait.makes_body = true;
    u->srv = call->srv;
    u->api = api;
    u->body = js_ref((struct json *)(uintptr_t)body);
    u->id = id;
    u->account = call->account;
    account_ref(u->account);
    call_wait_for(call, &u->wait);
    return OK;
}
