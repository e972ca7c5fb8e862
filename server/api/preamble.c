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
    char *file;
    struct buf text;                 /* the file */
    size_t n_text;                   /* length without the white space at its end */
    struct buf prefixes[2][N_FORMS]; /* [0]: without the white space at the end, [1]: with it; an
                                        empty one never matches */
};

struct preambles {
    const struct server *srv;
    struct preamble list[PREAMBLES_N_MAX];
    uint32_t n;
    bool has_date;        /* the template may write a date, so prefixes are valid for one day */
    pthread_mutex_t lock; /* guards prefixes and day if has_date */
    int64_t day;          /* of the prefixes, since 1970; -1: the last rendering failed */
};

/* --- files --- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static enum status check_text(struct preamble *p, struct buf *why)
{
    const char *text = buf_str(&p->text);

    if (p->text.len > PREAMBLE_BYTES_MAX)
        return buf_why(why, ERR_TOO_LARGE, "--preamble: %s is larger than %u KiB", p->file,
                       PREAMBLE_BYTES_MAX >> 10);
    for (p->n_text = p->text.len; p->n_text > 0 && is_space(text[p->n_text - 1]);)
        p->n_text--;
    if (p->n_text == 0)
        return buf_why(why, ERR_INVALID, "--preamble: %s is empty; it should hold a system prompt",
                       p->file);
    if (!jinja_utf8_valid(text, p->text.len) || memchr(text, '\0', p->text.len))
        return buf_why(why, ERR_INVALID,
                       "--preamble: %s is no UTF-8 text; convert it, for example "
                       "with iconv",
                       p->file);
    return OK;
}

static enum status read_text(struct preamble *p, struct buf *why)
{
    char piece[4096];
    enum status s = OK;
    size_t n;
    FILE *f = fopen(p->file, "rb");

    if (!f)
        return buf_why(why, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO,
                       "--preamble: cannot open %s: %s", p->file, strerror(errno));
    /* May read more than the limit, so that check_text() sees that the file is too large. */
    while (s == OK && p->text.len <= PREAMBLE_BYTES_MAX && (n = fread(piece, 1, sizeof piece, f)))
        s = buf_append(&p->text, piece, n);
    if (s != OK)
        buf_why(why, s, "--preamble: out of memory for %s", p->file);
    else if (ferror(f))
        s = buf_why(why, ERR_IO, "--preamble: cannot read %s: %s", p->file, strerror(errno));
    fclose(f);
    return s == OK ? check_text(p, why) : s;
}

static enum status add_file(struct preambles *all, const char *name, size_t n, struct buf *why)
{
    if (all->n == PREAMBLES_N_MAX)
        return buf_why(why, ERR_INVALID, "--preamble: more than %d files", PREAMBLES_N_MAX);
    struct preamble *p = &all->list[all->n];
    p->file = strndup(name, n);
    if (!p->file)
        return buf_why(why, ERR_NOMEM, "out of memory");
    all->n++;
    buf_init(&p->text, PREAMBLE_BYTES_MAX + 2 * 4096);
    for (int i = 0; i < 2 * N_FORMS; i++)
        buf_init(&p->prefixes[i / N_FORMS][i % N_FORMS], TEXT_BYTES_MAX);
    return read_text(p, why);
}

enum status preambles_open(struct preambles **out, const char *files, struct buf *why)
{
    enum status s = OK;

    *out = NULL;
    if (!files || files[strspn(files, ",")] == '\0')
        return OK;
    struct preambles *p = calloc(1, sizeof *p);
    if (!p)
        return buf_why(why, ERR_NOMEM, "out of memory");
    pthread_mutex_init(&p->lock, NULL);
    p->day = -1;
    while (s == OK && *files) {
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
    for (uint32_t i = 0; i < p->n; i++) {
        free(p->list[i].file);
        buf_fini(&p->list[i].text);
        for (int k = 0; k < 2 * N_FORMS; k++)
            buf_fini(&p->list[i].prefixes[k / N_FORMS][k % N_FORMS]);
    }
    pthread_mutex_destroy(&p->lock);
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

/* Find all prefixes of all preambles. On an error *failed is the file's name; *why lacks it. */
static enum status find_all(struct preambles *all, int64_t now_s, const char **failed,
                            struct buf *why)
{
    struct probe probe;
    enum status s = OK;

    all->day = -1;
    probe_init(&probe, all->srv, now_s, why);
    for (uint32_t i = 0; s == OK && i < all->n; i++) {
        struct preamble *p = &all->list[i];
        *failed = p->file;
        s = find_prefixes(&probe, buf_str(&p->text), p->n_text, p->prefixes[0]);
        if (s == OK && p->n_text < p->text.len)
            s = find_prefixes(&probe, buf_str(&p->text), p->text.len, p->prefixes[1]);
    }
    if (s == OK)
        all->day = now_s / DAY_S;
    return s;
}

/* --- at start --- */

/* Check that the preamble is shorter than the model's context, and log its length. */
static enum status check_length(const struct preambles *all, const struct preamble *p,
                                struct buf *why)
{
    const struct buf *prefix = &p->prefixes[0][FORM_PLAIN];
    struct probe probe = {.srv = all->srv};
    uint32_t max = all->srv->info->max_model_len;
    struct buf ids;

    buf_init(&ids, (size_t)max * sizeof(uint32_t));
    enum status s = tokenize(&probe, prefix->data, prefix->len, false, &ids);
    uint32_t n = (uint32_t)(ids.len / sizeof(uint32_t));
    if (s == ERR_TOO_LARGE || (s == OK && n >= max))
        s = buf_why(why, ERR_TOO_LARGE,
                    "--preamble: %s has more tokens than this model's context "
                    "of %u takes; shorten it or raise --max-model-len",
                    p->file, max);
    else if (s == OK)
        log_event(LOG_INFO, "preamble", "file=\"%s\" n_tokens=%u", p->file, n);
    buf_fini(&ids);
    return s;
}

/* Check that the prefixes are the same half a day away: they are used for a whole day. */
static enum status check_time(struct preambles *all, int64_t now_s, const char **failed,
                              struct buf *why)
{
    int64_t begin = now_s / DAY_S * DAY_S, other = begin + (now_s - begin + DAY_S / 2) % DAY_S;
    struct buf before;

    buf_init(&before, TEXT_BYTES_MAX);
    const struct buf *prefix = &all->list[0].prefixes[0][FORM_PLAIN];
    enum status s = buf_append(&before, prefix->data, prefix->len);
    if (s == OK)
        s = find_all(all, other, failed, why);
    if (s == OK &&
        (before.len != prefix->len || memcmp(before.data, prefix->data, before.len) != 0))
        s = buf_why(why, ERR_INVALID,
                    "the chat template writes the time of day before the end of "
                    "the system message");
    buf_fini(&before);
    return s;
}

enum status preambles_prepare(struct preambles *p, const struct server *srv, struct buf *why)
{
    int64_t now_s = (int64_t)(clock_unix_ns() / 1000000000u);
    const char *failed = "";
    struct buf inner;

    if (!p)
        return OK;
    if (!srv->template || !srv->tokenizer)
        return buf_why(why, ERR_UNSUPPORTED,
                       "--preamble: this model has no %s, so there are no "
                       "chats that begin with a system message; %s",
                       srv->template ? "tokenizer" : "chat template",
                       srv->template ? "leave --preamble out" : "give --chat-template");
    p->srv = srv;
    p->has_date = chat_template_uses(srv->template, "strftime_now");
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = find_all(p, now_s, &failed, &inner);
    if (s == OK && p->has_date)
        s = check_time(p, now_s, &failed, &inner);
    if (s != OK)
        buf_why(why, s,
                "--preamble: %s cannot be shared: %s; leave it out or give another "
                "--chat-template",
                failed, inner.len ? buf_str(&inner) : status_words(s));
    for (uint32_t i = 0; s == OK && i < p->n; i++)
        s = check_length(p, &p->list[i], why);
    buf_fini(&inner);
    return s;
}

/* --- at each chat --- */

static size_t longest(const struct preambles *all, const char *text, size_t len)
{
    size_t end = 0;

    for (uint32_t i = 0; i < all->n; i++) {
        for (int k = 0; k < 2 * N_FORMS; k++) {
            const struct buf *prefix = &all->list[i].prefixes[k / N_FORMS][k % N_FORMS];
            if (prefix->len > end && prefix->len <= len &&
                memcmp(text, prefix->data, prefix->len) == 0)
                end = prefix->len;
        }
    }
    return end;
}

enum status preambles_find(struct preambles *p, const char *text, size_t len, int64_t now_s,
                           size_t *end)
{
    const char *failed;
    enum status s = OK;
    struct buf why;

    *end = 0;
    if (!p)
        return OK;
    if (!p->has_date) {
        *end = longest(p, text, len);
        return OK;
    }
    buf_init(&why, BUF_WHY_MAX);
    pthread_mutex_lock(&p->lock);
    if (p->day != now_s / DAY_S)
        s = find_all(p, now_s, &failed, &why);
    if (s == OK)
        *end = longest(p, text, len);
    pthread_mutex_unlock(&p->lock);
    if (s != OK)
        log_event(LOG_ERROR, "preamble failed", "file=\"%s\" status=%s why=\"%s\"", failed,
                  status_name(s), buf_str(&why));
    buf_fini(&why);
    return s == OK || s == ERR_NOMEM ? s : ERR_INTERNAL; /* not an error of the client */
}
