#include "server/api/preamble.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/text/jinja/jinja_text.h"
#include "engine/text/spans.h"
#include "server/api/prompt.h"
#include "server/server.h"

#define TEXT_BYTES_MAX (16u << 20) /* of one rendering */
#define WORD_BYTES 24
#define N_PLACES_MAX 8 /* places tried as the prefix's end, before the first one is taken */
#define DAY_S 86400

/* The ways in which a template may render a chat that begins with a preamble. */
enum form {
    FORM_PLAIN,
    FORM_DOCUMENTS_IN_SYSTEM,   /* at the end of the system message */
    FORM_DOCUMENTS_IN_TEMPLATE, /* at the template's own place */
    N_FORMS
};

struct preamble {
    char *name;                      /* of the file, or the id of a registered preamble */
    struct buf text;                 /* the system prompt */
    size_t n_text;                   /* length without the white space at its end */
    struct buf prefixes[2][N_FORMS]; /* [0]: without the white space at the end, [1]: with it; an
                                        empty one never matches */
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
    buf_init(&p->text, PREAMBLE_BYTES_MAX + 2 * 4096);
    for (int i = 0; i < 2 * N_FORMS; i++)
        buf_init(&p->prefixes[i / N_FORMS][i % N_FORMS], TEXT_BYTES_MAX);
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
    for (int k = 0; k < 2 * N_FORMS; k++)
        buf_fini(&p->prefixes[k / N_FORMS][k % N_FORMS]);
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

    if (p->text.len > PREAMBLE_BYTES_MAX)
        return buf_why(why, ERR_TOO_LARGE, "is larger than %u KiB", PREAMBLE_BYTES_MAX >> 10);
    for (p->n_text = p->text.len; p->n_text > 0 && is_space(text[p->n_text - 1]);)
        p->n_text--;
    if (p->n_text == 0)
        return buf_why(why, ERR_INVALID, "is empty; it should hold a system prompt");
    if (!jinja_utf8_valid(text, p->text.len) || memchr(text, '\0', p->text.len))
        return buf_why(why, ERR_INVALID, "is no UTF-8 text; convert it, for example with iconv");
    return OK;
}

static enum status read_text(struct preamble *p, struct buf *why)
{
    char piece[4096];
    enum status s = OK;
    size_t n;
    struct buf inner;
    FILE *f = fopen(p->name, "rb");

    if (!f)
        return buf_why(why, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO,
                       "--preamble: cannot open %s: %s", p->name, strerror(errno));
    /* May read more than the limit, so that check_text() sees that the file is too large. */
    while (s == OK && p->text.len <= PREAMBLE_BYTES_MAX && (n = fread(piece, 1, sizeof piece, f)))
        s = buf_append(&p->text, piece, n);
    if (s != OK)
        buf_why(why, s, "--preamble: out of memory for %s", p->name);
    else if (ferror(f))
        s = buf_why(why, ERR_IO, "--preamble: cannot read %s: %s", p->name, strerror(errno));
    fclose(f);
    if (s != OK)
        return s;
    buf_init(&inner, BUF_WHY_MAX / 2);
    s = check_text(p, &inner);
    if (s != OK)
        buf_why(why, s, "--preamble: %s %s", p->name, buf_str(&inner));
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

/* --- renderings --- */

/* A rendering with random marks in place of texts, to find where the template writes them. The
 * marks are drawn for each use, so no preamble contains one. */
struct probe {
    const struct server *srv;
    int64_t now_s;
    char mark[WORD_BYTES], user[WORD_BYTES];
    struct buf *why;
};

static void probe_init(struct probe *p, const struct server *srv, int64_t now_s, struct buf *why)
{
    char nonce[17];
    uint8_t bytes[8];

    *p = (struct probe){.srv = srv, .now_s = now_s, .why = why};
    hash_random(bytes, sizeof bytes);
    hash_hex(nonce, bytes, sizeof bytes);
    snprintf(p->mark, sizeof p->mark, "Qx%sm", nonce);
    snprintf(p->user, sizeof p->user, "Qx%su", nonce);
}

static enum status push_message(struct json *messages, const char *role, struct json *content)
{
    struct json *m = js_new_object();
    enum status s = m ? js_set(m, "content", content) : ERR_NOMEM;

    if (!m)
        js_unref(content);
    if (s == OK)
        s = js_set(m, "role", js_new_string(role, strlen(role)));
    if (s == OK)
        return js_push(messages, m);
    js_unref(m);
    return s;
}

/* Make a chat with the system message text [len], followed by `more`. */
static enum status make_body(struct json **out, const struct probe *p, const char *text, size_t len,
                             const char *more)
{
    struct json *body = js_new_object(), *messages = js_new_array();
    struct buf content;
    enum status s = body && messages ? OK : ERR_NOMEM;

    buf_init(&content, TEXT_BYTES_MAX);
    if (s == OK)
        s = buf_append(&content, text, len);
    if (s == OK)
        s = buf_puts(&content, more);
    if (s == OK)
        s = push_message(messages, "system", js_new_string(content.data, content.len));
    if (s == OK)
        s = push_message(messages, "user", js_new_string(p->user, strlen(p->user)));
    if (s == OK) {
        s = js_set(body, "messages", messages);
        messages = NULL;
    }
    buf_fini(&content);
    js_unref(messages);
    if (s == OK)
        *out = body;
    else
        js_unref(body);
    return s;
}

static enum status render(const struct probe *p, const char *text, size_t len, const char *more,
                          struct json *documents, enum form form, struct buf *out, size_t *first)
{
    struct json *body = NULL;
    enum status s = make_body(&body, p, text, len, more);

    buf_reset(out);
    if (s == OK)
        s = prompt_render_own(p->srv, body, documents, form == FORM_DOCUMENTS_IN_TEMPLATE, p->now_s,
                              out, first, p->why);
    js_unref(body);
    return s;
}

/* --- where a preamble ends --- */

static enum status tokenize(const struct probe *p, const char *text, size_t len, bool continues,
                            struct buf *ids)
{
    unsigned flags = TOKENIZE_PARSE_SPECIAL | (continues ? TOKENIZE_CONTINUES : 0);

    return tokenizer_encode(p->srv->tokenizer, text, len, flags, ids);
}

/* *same: the text has the same ids when it is cut at `at`. whole: the ids without a cut. */
static enum status keeps_ids(const struct probe *p, const struct buf *text, size_t at,
                             const struct buf *whole, bool *same)
{
    struct buf ids;

    buf_init(&ids, whole->max);
    enum status s = tokenize(p, text->data, at, false, &ids);
    if (s == OK)
        s = tokenize(p, text->data + at, text->len - at, true, &ids);
    *same = s == OK && ids.len == whole->len && memcmp(ids.data, whole->data, ids.len) == 0;
    buf_fini(&ids);
    return s;
}

/* *end: the first place in [from, to] at which a cut does not change the ids, or else the first
 * place at which a span may end; 0: there is none. */
static enum status choose_end(const struct probe *p, const struct buf *text, size_t from, size_t to,
                              size_t *end)
{
    const struct span_marks *marks = p->srv->span_marks;
    size_t at = spans_next_boundary(marks, buf_str(text), from, to);
    struct buf whole;
    bool same = false;

    *end = at;
    if (at == 0)
        return OK;
    buf_init(&whole, 4 * (size_t)TEXT_BYTES_MAX);
    enum status s = tokenize(p, text->data, text->len, false, &whole);
    for (int i = 0; s == OK && !same && at > 0 && i < N_PLACES_MAX; i++) {
        s = keeps_ids(p, text, at, &whole, &same);
        if (same)
            *end = at;
        at = spans_next_boundary(marks, buf_str(text), at + 1, to);
    }
    buf_fini(&whole);
    return s;
}

static size_t n_common(const struct buf *a, const struct buf *b)
{
    size_t n = 0;

    while (n < a->len && n < b->len && a->data[n] == b->data[n])
        n++;
    return n;
}

/* Find the prefix without documents. *plain: the rendered chat. *n_until: its length up to the end
 * of the system text, which is the common part with a rendering that has a mark there. */
static enum status find_plain(const struct probe *p, const char *text, size_t len,
                              struct buf *plain, size_t *n_until, struct buf *prefix)
{
    struct buf marked;
    size_t end = 0;

    buf_init(&marked, TEXT_BYTES_MAX);
    enum status s = render(p, text, len, "", NULL, FORM_PLAIN, plain, NULL);
    if (s == OK)
        s = render(p, text, len, p->mark, NULL, FORM_PLAIN, &marked, NULL);
    if (s == OK) {
        const char *user = memmem(buf_str(plain), plain->len, p->user, strlen(p->user));
        bool has_text = memmem(buf_str(&marked), marked.len, p->mark, strlen(p->mark)) != NULL;
        *n_until = n_common(plain, &marked);
        if (!has_text || !user)
            s = buf_why(p->why, ERR_INVALID, "the chat template does not write the %s message",
                        has_text ? "user's" : "system");
        else
            s = choose_end(p, plain, *n_until, (size_t)(user - plain->data), &end);
    }
    if (s == OK && end == 0)
        s = buf_why(p->why, ERR_INVALID,
                    "the chat template writes neither a newline nor a special "
                    "token between the system message and the user's");
    if (s == OK)
        s = buf_append(prefix, plain->data, end);
    buf_fini(&marked);
    return s;
}

/* Make [{"title": mark, "text": mark}]. */
static enum status make_documents(struct json **out, const struct probe *p)
{
    struct json *list = js_new_array(), *d = js_new_object();
    enum status s = list && d ? OK : ERR_NOMEM;

    if (s == OK)
        s = js_set(d, "title", js_new_string(p->mark, strlen(p->mark)));
    if (s == OK)
        s = js_set(d, "text", js_new_string(p->mark, strlen(p->mark)));
    if (s == OK) {
        s = js_push(list, d);
        d = NULL;
    }
    js_unref(d);
    if (s == OK)
        *out = list;
    else
        js_unref(list);
    return s;
}

/* Find the prefix with documents, which ends at the first document. No prefix if the template
 * writes documents elsewhere, if they cannot be spans, or if the template refuses them. */
static enum status find_documents(const struct probe *p, const char *text, size_t len,
                                  enum form form, const struct buf *plain, size_t n_until,
                                  struct buf *prefix)
{
    struct json *documents = NULL;
    struct buf out;
    size_t first = 0;

    buf_init(&out, TEXT_BYTES_MAX);
    enum status s = make_documents(&documents, p);
    if (s == OK)
        s = render(p, text, len, "", documents, form, &out, &first);
    if (s == OK && first > 0 && first >= n_until &&
        memcmp(buf_str(&out), buf_str(plain), n_until) == 0 &&
        !memmem(buf_str(&out), first, p->user, strlen(p->user)))
        s = buf_append(prefix, out.data, first);
    js_unref(documents);
    buf_fini(&out);
    return s == ERR_INVALID || s == ERR_UNSUPPORTED ? OK : s;
}

static enum status find_prefixes(const struct probe *p, const char *text, size_t len,
                                 struct buf prefixes[N_FORMS])
{
    struct buf plain;
    size_t n_until = 0;

    for (int form = 0; form < N_FORMS; form++)
        buf_reset(&prefixes[form]);
    buf_init(&plain, TEXT_BYTES_MAX);
    enum status s = find_plain(p, text, len, &plain, &n_until, &prefixes[FORM_PLAIN]);
    for (int form = FORM_PLAIN + 1; s == OK && form < N_FORMS; form++)
        if (form != FORM_DOCUMENTS_IN_TEMPLATE || chat_template_uses(p->srv->template, "documents"))
            s = find_documents(p, text, len, (enum form)form, &plain, n_until, &prefixes[form]);
    buf_fini(&plain);
    return s;
}

/* Find all prefixes of a preamble; *why lacks its name. */
static enum status find_forms(const struct probe *probe, struct preamble *p)
{
    enum status s = find_prefixes(probe, buf_str(&p->text), p->n_text, p->prefixes[0]);

    if (s == OK && p->n_text < p->text.len)
        s = find_prefixes(probe, buf_str(&p->text), p->text.len, p->prefixes[1]);
    return s;
}

/* Find all prefixes of all preambles. On an error *failed is the preamble's name. */
static enum status find_all(struct preambles *all, int64_t now_s, const char **failed,
                            struct buf *why)
{
    struct probe probe;
    enum status s = OK;

    all->day = -1;
    probe_init(&probe, all->srv, now_s, why);
    for (uint32_t i = 0; s == OK && i < all->n; i++) {
        *failed = all->list[i]->name;
        s = find_forms(&probe, all->list[i]);
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
    const struct buf *prefix = &p->prefixes[0][FORM_PLAIN];
    struct probe probe = {.srv = all->srv};
    uint32_t max = all->srv->info->max_model_len;
    struct buf ids;

    buf_init(&ids, (size_t)max * sizeof(uint32_t));
    enum status s = tokenize(&probe, prefix->data, prefix->len, false, &ids);
    *n_tokens = (uint32_t)(ids.len / sizeof(uint32_t));
    if (s == ERR_TOO_LARGE || (s == OK && *n_tokens >= max))
        s = buf_why(why, ERR_TOO_LARGE,
                    "has more tokens than this model's context of %u takes; shorten it or raise "
                    "--max-model-len",
                    max);
    buf_fini(&ids);
    return s;
}

/* Check that the prefix is the same half a day away: it is used for a whole day. */
static enum status check_time(const struct preambles *all, const struct preamble *p, int64_t now_s,
                              struct buf *why)
{
    int64_t begin = now_s / DAY_S * DAY_S, other = begin + (now_s - begin + DAY_S / 2) % DAY_S;
    const struct buf *prefix = &p->prefixes[0][FORM_PLAIN];
    struct buf plain, then;
    struct probe probe;
    size_t n_until;

    if (!all->has_date)
        return OK;
    buf_init(&plain, TEXT_BYTES_MAX);
    buf_init(&then, TEXT_BYTES_MAX);
    probe_init(&probe, all->srv, other, why);
    enum status s = find_plain(&probe, buf_str(&p->text), p->n_text, &plain, &n_until, &then);
    if (s == OK && (then.len != prefix->len || memcmp(then.data, prefix->data, then.len) != 0))
        s = buf_why(why, ERR_INVALID,
                    "the chat template writes the time of day before the end of "
                    "the system message");
    buf_fini(&plain);
    buf_fini(&then);
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

enum status preambles_put(struct preambles *all, const char *name, const char *text, size_t len,
                          struct buf *why)
{
    int64_t now_s = (int64_t)(clock_unix_ns() / 1000000000u);
    struct probe probe;
    struct buf inner;
    uint32_t n_tokens;

    if (!all->srv)
        return buf_why(why, ERR_UNSUPPORTED,
                       "system: this model has no chat template or no tokenizer");
    struct preamble *p = preamble_create(name, strlen(name));
    if (!p)
        return buf_why(why, ERR_NOMEM, "out of memory");
    buf_init(&inner, BUF_WHY_MAX / 2);
    probe_init(&probe, all->srv, now_s, &inner);
    enum status s = buf_append(&p->text, text, len);
    if (s == OK)
        s = check_text(p, &inner);
    if (s == OK)
        s = find_forms(&probe, p);
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
                         void (*f)(void *arg, const char *file, const char *text, size_t len),
                         void *arg)
{
    for (uint32_t i = 0; p && i < p->n_files; i++)
        f(arg, p->list[i]->name, buf_str(&p->list[i]->text), p->list[i]->n_text);
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

static size_t longest(const struct preambles *all, const char *text, size_t len)
{
    size_t end = 0;

    for (uint32_t i = 0; i < all->n; i++) {
        for (int k = 0; k < 2 * N_FORMS; k++) {
            const struct buf *prefix = &all->list[i]->prefixes[k / N_FORMS][k % N_FORMS];
            if (prefix->len > end && prefix->len <= len &&
                memcmp(text, prefix->data, prefix->len) == 0)
                end = prefix->len;
        }
    }
    return end;
}

/* Render the prefixes of a new day, unless another thread has done so. */
static enum status renew(struct preambles *p, const char *text, size_t len, int64_t now_s,
                         size_t *end)
{
    const char *failed = "";
    enum status s = OK;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    pthread_rwlock_wrlock(&p->lock);
    if (p->day != now_s / DAY_S)
        s = find_all(p, now_s, &failed, &why);
    if (s == OK)
        *end = longest(p, text, len);
    else
        log_event(LOG_ERROR, "preamble failed", "name=\"%s\" status=%s why=\"%s\"", failed,
                  status_name(s), buf_str(&why));
    pthread_rwlock_unlock(&p->lock);
    buf_fini(&why);
    return s == OK || s == ERR_NOMEM ? s : ERR_INTERNAL; /* not an error of the client */
}

enum status preambles_find(struct preambles *p, const char *text, size_t len, int64_t now_s,
                           size_t *end)
{
    *end = 0;
    if (!p)
        return OK;
    pthread_rwlock_rdlock(&p->lock);
    bool is_old = p->has_date && p->n > 0 && p->day != now_s / DAY_S;
    if (!is_old)
        *end = longest(p, text, len);
    pthread_rwlock_unlock(&p->lock);
    return is_old ? renew(p, text, len, now_s, end) : OK;
}
