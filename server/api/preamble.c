#include "server/api/preamble.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/text/jinja/jinja_text.h"
#include "server/api/tools.h"
#include "server/server.h"

#define DAY_S 86400

struct preamble {
    char *name;         /* of the file, or the id of a registered preamble */
    struct buf text;    /* the system prompt */
    size_t n_text;      /* length without the white space at its end */
    struct json *tools; /* NULL: none */
    struct preamble_prefixes
        prefixes[2]; /* [0]: without the white space at the end, [1]: with it */
};

#define LIST_N_MAX (PREAMBLES_N_MAX + PREAMBLES_N_REGISTERED_MAX)

struct preambles {
    const struct server *srv; /* NULL: chats begin with no system message here */
    bool has_date;            /* the template may write a date, so prefixes are valid for one day */
    uint32_t n_files;         /* at the begin of the list; constant after open */
    pthread_rwlock_t lock;    /* guards what follows, but for names and texts of files */
    struct preamble *list[LIST_N_MAX];
    uint32_t n;
    int64_t day; /* of the prefixes, since 1970; -1: the last rendering failed */
};

static struct preamble *preamble_create(const char *name, size_t n)
{
    struct preamble *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    buf_init(&p->text, PREAMBLE_BYTES_MAX);
    for (int i = 0; i < 2; i++)
        preamble_prefixes_init(&p->prefixes[i]);
    p->name = strndup(name, n);
    if (p->name)
        return p;
    free(p);
    return NULL;
}

static void preamble_free(struct preamble *p)
{
    if (!p)
        return;
    free(p->name);
    buf_fini(&p->text);
    js_unref(p->tools);
    for (int i = 0; i < 2; i++)
        preamble_prefixes_fini(&p->prefixes[i]);
    free(p);
}

/* --- files --- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Find n_text, and check the text. The words lack the preamble's name. */
static enum status check_text(struct preamble *p, struct buf *why)
{
    const char *text = buf_str(&p->text);

    for (p->n_text = p->text.len; p->n_text > 0 && is_space(text[p->n_text - 1]);)
        p->n_text--;
    if (p->n_text == 0)
        return buf_why(why, ERR_INVALID, "is empty; it should hold a system prompt");
    if (!jinja_utf8_valid(text, p->text.len) || memchr(text, '\0', p->text.len))
        return buf_why(why, ERR_INVALID, "is no UTF-8 text; convert it, for example with iconv");
    return OK;
}

/* Take a copy of the text and the tools. */
static enum status set_text(struct preamble *p, const struct preamble_text *text)
{
    buf_reset(&p->text);
    if (text->tools && !(p->tools = js_copy_deep(text->tools)))
        return ERR_NOMEM;
    return buf_append(&p->text, text->system, text->len);
}

enum status preamble_read(const struct json *body, struct preamble_text *out, struct buf *why)
{
    const struct json *tools = js_get_set(body, "tools");
    enum status s;

    *out = (struct preamble_text){0};
    if (!js_is(body, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "expected a JSON object, got %s",
                       js_type_name(js_typeof(body)));
    s = js_get_str(body, "system", &out->system, &out->len, why);
    if (s == OK && out->len == 0)
        s = buf_why(why, ERR_INVALID, "system: %s",
                    out->system ? "must not be empty" : "is required");
    if (s == OK && out->len > PREAMBLE_BYTES_MAX)
        s = buf_why(why, ERR_TOO_LARGE, "system: has %zu bytes, at most %u are taken", out->len,
                    PREAMBLE_BYTES_MAX);
    if (s == OK && tools && !js_is(tools, JS_ARRAY))
        s = buf_why(why, ERR_INVALID, "tools: expected an array, got %s",
                    js_type_name(js_typeof(tools)));
    if (s == OK && js_len(tools) > 0)
        out->tools = tools;
    return s;
}

static bool is_json_file(const char *name)
{
    size_t n = strlen(name);

    return n > 5 && strcmp(name + n - 5, ".json") == 0;
}

/* The text is the body of a PUT: read it. The words lack the preamble's name. */
static enum status read_object(struct preamble *p, struct buf *why)
{
    struct preamble_text text;
    struct json *body = NULL;
    struct buf inner;

    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = js_parse(&body, buf_str(&p->text), p->text.len, &inner);
    if (s == OK)
        s = preamble_read(body, &text, &inner);
    if (s != OK)
        buf_why(why, s, "is no preamble: %s", inner.len ? buf_str(&inner) : status_words(s));
    else
        s = set_text(p, &text);
    js_unref(body);
    buf_fini(&inner);
    return s;
}

/* The words lack the preamble's name. */
static enum status check_content(struct preamble *p, struct buf *why)
{
    enum status s = is_json_file(p->name) ? read_object(p, why) : OK;

    return s == OK ? check_text(p, why) : s;
}

static enum status read_text(struct preamble *p, struct buf *why)
{
    struct buf inner;

    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = file_read(&p->text, p->name, &inner);
    if (s == ERR_TOO_LARGE)
        buf_why(why, s, "--preamble: %s is larger than %u KiB", p->name, PREAMBLE_BYTES_MAX >> 10);
    else if (s != OK)
        buf_why(why, s, "--preamble: %s", buf_str(&inner));
    else if ((s = check_content(p, &inner)) != OK)
        buf_why(why, s, "--preamble: %s %s", p->name,
                inner.len ? buf_str(&inner) : status_words(s));
    buf_fini(&inner);
    return s;
}

static enum status add_file(struct preambles *all, const char *name, size_t n, struct buf *why)
{
    if (all->n == PREAMBLES_N_MAX)
        return buf_why(why, ERR_INVALID, "--preamble: more than %d files", PREAMBLES_N_MAX);
    struct preamble *p = preamble_create(name, n);
    if (!p)
        return buf_why(why, ERR_NOMEM, "out of memory");
    all->list[all->n++] = p;
    all->n_files = all->n;
    return read_text(p, why);
}

enum status preambles_open(struct preambles **out, const char *files, struct buf *why)
{
    struct preambles *p = calloc(1, sizeof *p);
    enum status s = OK;

    *out = NULL;
    if (!p)
        return buf_why(why, ERR_NOMEM, "out of memory");
    pthread_rwlock_init(&p->lock, NULL);
    p->day = -1;
    while (s == OK && files && *files) {
        size_t n = strcspn(files, ",");
        if (n > 0)
            s = add_file(p, files, n, why);
        files += n + (files[n] == ',');
    }
    if (s == OK)
        *out = p;
    else
        preambles_destroy(p);
    return s;
}

void preambles_destroy(struct preambles *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->n; i++)
        preamble_free(p->list[i]);
    pthread_rwlock_destroy(&p->lock);
    free(p);
}

/* --- prefixes --- */

/* Find all prefixes of a preamble; *why lacks its name. */
static enum status find_forms(const struct server *srv, int64_t now_s, struct preamble *p,
                              struct buf *why)
{
    struct preamble_text text = {buf_str(&p->text), p->n_text, p->tools};
    enum status s = preamble_prefixes_find(&p->prefixes[0], srv, &text, now_s, why);

    if (s != OK || p->n_text == p->text.len)
        return s;
    text.len = p->text.len;
    return preamble_prefixes_find(&p->prefixes[1], srv, &text, now_s, why);
}

/* Find all prefixes of all preambles. On an error *failed is the preamble's name. */
static enum status find_all(struct preambles *all, int64_t now_s, const char **failed,
                            struct buf *why)
{
    enum status s = OK;

    all->day = -1;
    for (uint32_t i = 0; s == OK && i < all->n; i++) {
        *failed = all->list[i]->name;
        s = find_forms(all->srv, now_s, all->list[i], why);
    }
    if (s == OK)
        all->day = now_s / DAY_S;
    return s;
}

/* --- at start, and when one is registered --- */

/* Check that the preamble is shorter than the model's context. *n_tokens: its length. */
static enum status check_length(const struct preambles *all, const struct preamble *p,
                                uint32_t *n_tokens, struct buf *why)
{
    uint32_t max = all->srv->info->max_model_len;
    enum status s = preamble_prefixes_count(&p->prefixes[0], all->srv, max, n_tokens);

    if (s == ERR_TOO_LARGE || (s == OK && *n_tokens >= max))
        s = buf_why(why, ERR_TOO_LARGE,
                    "has more tokens than this model's context of %u takes; shorten it or raise "
                    "--max-model-len",
                    max);
    return s;
}

/* Check that the prefix is the same half a day away: it is used for a whole day. */
static enum status check_time(const struct preambles *all, const struct preamble *p, int64_t now_s,
                              struct buf *why)
{
    int64_t begin = now_s / DAY_S * DAY_S, other = begin + (now_s - begin + DAY_S / 2) % DAY_S;
    const struct preamble_text text = {buf_str(&p->text), p->n_text, p->tools};
    struct preamble_prefixes then;

    if (!all->has_date)
        return OK;
    preamble_prefixes_init(&then);
    enum status s = preamble_prefixes_find(&then, all->srv, &text, other, why);
    if (s == OK &&
        !preamble_prefix_same(&then.forms[PREAMBLE_PLAIN], &p->prefixes[0].forms[PREAMBLE_PLAIN]))
        s = buf_why(why, ERR_INVALID,
                    "the chat template writes the time of day before the end of "
                    "the system message");
    preamble_prefixes_fini(&then);
    return s;
}

static enum status check_model(const struct server *srv, const char *what, struct buf *why)
{
    if (srv->template && srv->tokenizer)
        return OK;
    return buf_why(why, ERR_UNSUPPORTED,
                   "%s: this model has no %s, so there are no chats that begin with a system "
                   "message; %s",
                   what, srv->template ? "tokenizer" : "chat template",
                   srv->template ? "leave it out" : "give --chat-template");
}

static enum status check_file(struct preambles *all, const struct preamble *p, int64_t now_s,
                              struct buf *why)
{
    struct buf inner;
    uint32_t n_tokens;

    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = check_time(all, p, now_s, &inner);
    if (s != OK)
        buf_why(why, s,
                "--preamble: %s cannot be shared: %s; leave it out or give another "
                "--chat-template",
                p->name, inner.len ? buf_str(&inner) : status_words(s));
    if (s == OK && (s = check_length(all, p, &n_tokens, &inner)) != OK)
        buf_why(why, s, "--preamble: %s %s", p->name,
                inner.len ? buf_str(&inner) : status_words(s));
    if (s == OK)
        log_event(LOG_INFO, "preamble", "file=\"%s\" n_tokens=%u", p->name, n_tokens);
    buf_fini(&inner);
    return s;
}

enum status preambles_prepare(struct preambles *p, const struct server *srv, struct buf *why)
{
    int64_t now_s = (int64_t)(clock_unix_ns() / 1000000000u);
    const char *failed = "";
    struct buf inner;

    if (!p || (p->n == 0 && (!srv->template || !srv->tokenizer)))
        return OK;
    enum status s = check_model(srv, "--preamble", why);
    if (s != OK)
        return s;
    p->srv = srv;
    p->has_date = chat_template_uses(srv->template, "strftime_now");
    buf_init(&inner, BUF_WHY_MAX / 2);
    s = find_all(p, now_s, &failed, &inner);
    if (s != OK)
        buf_why(why, s,
                "--preamble: %s cannot be shared: %s; leave it out or give another "
                "--chat-template",
                failed, inner.len ? buf_str(&inner) : status_words(s));
    for (uint32_t i = 0; s == OK && i < p->n; i++)
        s = check_file(p, p->list[i], now_s, why);
    buf_fini(&inner);
    return s;
}

/* --- registered preambles --- */

/* The place of the registered preamble of this name; all->n: there is none. */
static uint32_t find_registered(const struct preambles *all, const char *name)
{
    uint32_t i = all->n_files;

    while (i < all->n && strcmp(all->list[i]->name, name) != 0)
        i++;
    return i;
}

/* Replace or append. Returns what is to be freed: the preamble of before, or p where there is no
 * room. */
static struct preamble *enter(struct preambles *all, struct preamble *p, int64_t day,
                              enum status *status)
{
    struct preamble *old = p;

    pthread_rwlock_wrlock(&all->lock);
    uint32_t i = find_registered(all, p->name);
    *status = i < all->n || all->n - all->n_files < PREAMBLES_N_REGISTERED_MAX ? OK : ERR_TOO_LARGE;
    if (*status == OK) {
        old = all->list[i];
        all->list[i] = p;
        if (all->n == 0 || all->day != day) /* another day's are rendered anew at the next chat */
            all->day = all->n == 0 ? day : -1;
        all->n += i == all->n;
    }
    pthread_rwlock_unlock(&all->lock);
    return old;
}

enum status preambles_put(struct preambles *all, const char *name, const struct preamble_text *text,
                          struct buf *why)
{
    int64_t now_s = (int64_t)(clock_unix_ns() / 1000000000u);
    struct buf inner;
    uint32_t n_tokens;

    if (!all->srv)
        return buf_why(why, ERR_UNSUPPORTED,
                       "system: this model has no chat template or no tokenizer");
    struct preamble *p = preamble_create(name, strlen(name));
    if (!p)
        return buf_why(why, ERR_NOMEM, "out of memory");
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = set_text(p, text);
    if (s == OK)
        s = check_text(p, &inner);
    if (s == OK)
        s = find_forms(all->srv, now_s, p, &inner);
    if (s == OK)
        s = check_time(all, p, now_s, &inner);
    if (s == OK)
        s = check_length(all, p, &n_tokens, &inner);
    if (s != OK)
        buf_why(why, s, "system: %s", inner.len ? buf_str(&inner) : status_words(s));
    else
        p = enter(all, p, now_s / DAY_S, &s);
    if (s == ERR_TOO_LARGE && inner.len == 0)
        buf_why(why, s, "there are %d public preambles already; delete one",
                PREAMBLES_N_REGISTERED_MAX);
    preamble_free(p);
    buf_fini(&inner);
    return s;
}

void preambles_remove(struct preambles *all, const char *name)
{
    struct preamble *old = NULL;

    pthread_rwlock_wrlock(&all->lock);
    uint32_t i = find_registered(all, name);
    if (i < all->n) {
        old = all->list[i];
        all->list[i] = all->list[--all->n];
        all->list[all->n] = NULL;
    }
    pthread_rwlock_unlock(&all->lock);
    preamble_free(old);
}

void preambles_each_file(const struct preambles *p,
                         void (*f)(void *arg, const char *file, const struct preamble_text *text),
                         void *arg)
{
    for (uint32_t i = 0; p && i < p->n_files; i++) {
        const struct preamble *one = p->list[i];
        const struct preamble_text text = {buf_str(&one->text), one->n_text, one->tools};
        f(arg, one->name, &text);
    }
}

void preamble_file_name(const char *file, char *out, size_t n_out)
{
    const char *slash = strrchr(file, '/');

    snprintf(out, n_out, "file:%s", slash ? slash + 1 : file);
}

bool preambles_have_date(const struct preambles *p)
{
    return p && p->has_date;
}

/* --- at each chat --- */

static size_t longest(const struct preambles *all, const char *text, size_t len,
                      const struct ranges *untrusted)
{
    size_t end = 0;

    for (uint32_t i = 0; i < 2 * all->n; i++) {
        const struct preamble_prefixes *p = &all->list[i / 2]->prefixes[i % 2];
        size_t n = preamble_prefixes_match(p, text, len, untrusted);
        end = n > end ? n : end;
    }
    return end;
}

/* Render the prefixes of a new day, unless another thread has done so. */
static enum status renew(struct preambles *p, const char *text, size_t len,
                         const struct ranges *untrusted, int64_t now_s, size_t *end)
{
    const char *failed = "";
    enum status s = OK;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    pthread_rwlock_wrlock(&p->lock);
    if (p->day != now_s / DAY_S)
        s = find_all(p, now_s, &failed, &why);
    if (s == OK)
        *end = longest(p, text, len, untrusted);
    else
        log_event(LOG_ERROR, "preamble failed", "name=\"%s\" status=%s why=\"%s\"", failed,
                  status_name(s), buf_str(&why));
    pthread_rwlock_unlock(&p->lock);
    buf_fini(&why);
    return s == OK || s == ERR_NOMEM ? s : ERR_INTERNAL; /* not an error of the client */
}

enum status preambles_find(struct preambles *p, const char *text, size_t len,
                           const struct ranges *untrusted, int64_t now_s, size_t *end)
{
    *end = 0;
    if (!p)
        return OK;
    pthread_rwlock_rdlock(&p->lock);
    bool is_old = p->has_date && p->n > 0 && p->day != now_s / DAY_S;
    if (!is_old)
        *end = longest(p, text, len, untrusted);
    pthread_rwlock_unlock(&p->lock);
    return is_old ? renew(p, text, len, untrusted, now_s, end) : OK;
}
