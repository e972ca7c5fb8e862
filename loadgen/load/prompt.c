#include "loadgen/load/prompt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "loadgen/load/words.h"

#define TEXT_BYTES_MAX (256u << 20)

/* A body under construction. Offsets instead of pointers: the text moves while it grows. */
struct piece {
    enum part_role role;
    const char *title;
    size_t from, to; /* in text */
};

struct layout {
    const struct prompt_style *style;
    const struct load_request *r;
    const struct prompt_answers *answers;
    struct buf text;
    struct piece *messages, *documents; /* [n_...] room for every part each, and one more */
    uint32_t n_messages, n_documents;
    bool documents_open; /* plain text: "Documents:" was written and not ended */
};

/* The last part is shorter by the tokens that the template adds: the sum is that of the request. */
static uint32_t n_words_of(const struct layout *y, uint32_t i)
{
    const struct part *p = &y->r->parts[i];
    double n = p->n_tokens;

    if (i + 1 == y->r->n_parts)
        n -= y->style->overhead_tokens;
    n = round(n / y->style->tokens_per_word);
    return n < 1 ? 1 : n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

static enum status write_part(struct layout *y, uint32_t i)
{
    const struct part *p = &y->r->parts[i];
    const struct prompt_answers *a = y->answers;

    if (p->answer_of != NO_TURN && a && p->answer_of < a->n && a->turns[p->answer_of].data)
        return buf_append(&y->text, a->turns[p->answer_of].data, a->turns[p->answer_of].len);
    if (p->text)
        return buf_append(&y->text, p->text, p->text_len);
    return words_write(&y->text, p->id, n_words_of(y, i));
}

/* --- plain text --- */

static enum status end_documents(struct layout *y)
{
    if (!y->documents_open)
        return OK;
    y->documents_open = false;
    return buf_puts(&y->text, "### End of documents\n\n");
}

/* The format in which a Tarn server writes documents into a system message, so that both ways of
 * sending them ask the model the same. */
static enum status write_document_text(struct layout *y, uint32_t i)
{
    const char *title = y->r->parts[i].title;
    enum status s = OK;

    if (!y->documents_open)
        s = buf_puts(&y->text, y->text.len ? "\n\nDocuments:\n" : "Documents:\n");
    y->documents_open = true;
    if (s == OK)
        s = buf_printf(&y->text, "### %s\n", title ? title : "Document");
    if (s == OK)
        s = write_part(y, i);
    return s == OK ? buf_putc(&y->text, '\n') : s;
}

static enum status lay_out_text(struct layout *y)
{
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < y->r->n_parts; i++) {
        if (y->r->parts[i].role == PART_DOCUMENT) {
            s = write_document_text(y, i);
            continue;
        }
        s = end_documents(y);
        if (s == OK)
            s = write_part(y, i);
    }
    return s == OK ? end_documents(y) : s;
}

/* --- chat --- */

static void begin(struct layout *y, enum part_role role)
{
    y->messages[y->n_messages++] = (struct piece){role, NULL, y->text.len, y->text.len};
}

static enum status add_message_part(struct layout *y, uint32_t i)
{
    const struct part *p = &y->r->parts[i];
    bool is_document = p->role == PART_DOCUMENT;
    enum part_role role = is_document ? PART_SYSTEM : p->role;
    struct piece *last = y->n_messages ? &y->messages[y->n_messages - 1] : NULL;
    enum status s = OK;

    /* Documents as text join whatever message stands before them. */
    if (!is_document)
        s = end_documents(y);
    if (last)
        last->to = y->text.len;
    if (!last || (!is_document && (last->role != role || p->starts_message)))
        begin(y, role);
    if (s == OK)
        s = is_document ? write_document_text(y, i) : write_part(y, i);
    y->messages[y->n_messages - 1].to = y->text.len;
    return s;
}

static enum status add_document_piece(struct layout *y, uint32_t i)
{
    struct piece *d = &y->documents[y->n_documents++];

    *d = (struct piece){PART_DOCUMENT, y->r->parts[i].title, y->text.len, 0};
    enum status s = write_part(y, i);
    d->to = y->text.len;
    return s;
}

static enum status lay_out_chat(struct layout *y)
{
    bool has_user = false;
    enum status s = OK;

    /* Documents first, so that no message is cut in two by their text. */
    for (uint32_t i = 0; s == OK && y->style->documents_field && i < y->r->n_parts; i++)
        if (y->r->parts[i].role == PART_DOCUMENT)
            s = add_document_piece(y, i);
    for (uint32_t i = 0; s == OK && i < y->r->n_parts; i++) {
        has_user |= y->r->parts[i].role == PART_USER;
        if (y->r->parts[i].role != PART_DOCUMENT || !y->style->documents_field)
            s = add_message_part(y, i);
    }
    if (s == OK && y->documents_open) {
        s = end_documents(y);
        y->messages[y->n_messages - 1].to = y->text.len;
    }
    if (s == OK && !has_user) { /* most templates want one */
        begin(y, PART_USER);
        s = buf_putc(&y->text, '.');
        y->messages[y->n_messages - 1].to = y->text.len;
    }
    return s;
}

/* --- token ids --- */

static enum status lay_out_ids(struct layout *y, struct buf *why)
{
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < y->r->n_parts; i++) {
        const struct part *p = &y->r->parts[i];
        if (p->text)
            return buf_why(why, ERR_INVALID,
                           "this workload has text: --prompt-format ids cannot "
                           "send it");
        s = words_write_ids(&y->text, p->id, p->n_tokens, y->style->id_lo, y->style->id_hi);
    }
    return s;
}

/* --- the body --- */

/* Merge two objects; members of the request win. Two NULLs give NULL. */
static enum status merge_extra(const char *all, const char *own, char **out, struct buf *why)
{
    struct json *a = NULL, *b = NULL;
    struct buf text;

    *out = NULL;
    buf_init(&text, TEXT_BYTES_MAX);
    enum status s = js_parse(&a, all, strlen(all), why);
    if (s == OK)
        s = js_parse(&b, own, strlen(own), why);
    for (void *it = js_first(b); s == OK && it; it = js_next(b, it))
        s = js_set(a, js_it_key(it), js_ref(js_it_value(it)));
    if (s == OK)
        s = js_write(&text, a);
    if (s == OK && !(*out = strdup(text.data)))
        s = ERR_NOMEM;
    js_unref(a);
    js_unref(b);
    buf_fini(&text);
    return s;
}

static void fill_sampling(struct tarn_request *q, const struct prompt_style *style,
                          const struct load_request *r)
{
    q->model = style->model;
    q->stream = style->stream;
    q->include_usage = style->stream;
    if (r->n_output_tokens)
        q->max_tokens = r->n_output_tokens;
    q->temperature = r->verify ? 0 : style->temperature;
    q->top_p = r->verify ? TARN_UNSET_REAL : style->top_p;
    q->seed = style->sampling_seed;
    if (style->ignore_eos)
        q->ignore_eos = 1;
    if (r->has_priority)
        q->priority = r->priority;
}

static const char *role_name(enum part_role role)
{
    static const char *const names[] = {"system", "system", "user", "assistant"};

    return names[role];
}

static struct tarn_text text_of(const struct layout *y, size_t from, size_t to)
{
    /* Never NULL, so an empty text is sent as one. */
    return (struct tarn_text){to > from ? y->text.data + from : "", to - from};
}

static enum status build_chat(struct tarn_body *out, struct layout *y, struct tarn_request *q,
                              char *words, size_t n_words)
{
    struct tarn_message *messages = calloc(y->n_messages, sizeof *messages);
    struct tarn_document *documents = calloc(y->n_documents + 1u, sizeof *documents);
    enum tarn_error e = TARN_ERR_NOMEM;

    if (messages && documents) {
        for (uint32_t i = 0; i < y->n_messages; i++) {
            const struct piece *p = &y->messages[i];
            messages[i] = (struct tarn_message){role_name(p->role), text_of(y, p->from, p->to)};
        }
        for (uint32_t i = 0; i < y->n_documents; i++) {
            const struct piece *p = &y->documents[i];
            documents[i].title = (struct tarn_text){p->title, 0};
            documents[i].text = text_of(y, p->from, p->to);
        }
        q->messages = messages;
        q->n_messages = y->n_messages;
        q->documents = documents;
        q->n_documents = y->n_documents;
        e = tarn_body_build(out, q, words, n_words);
    }
    free(messages);
    free(documents);
    return e == TARN_OK ? OK : e == TARN_ERR_NOMEM ? ERR_NOMEM : ERR_INVALID;
}

static enum status build(struct tarn_body *out, struct layout *y, struct tarn_request *q,
                         struct buf *why)
{
    char words[512] = "out of memory";
    enum status s = OK;

    if (y->style->kind == TARN_CHAT) {
        s = build_chat(out, y, q, words, sizeof words);
    } else {
        if (y->style->ids) {
            q->prompt_ids = (const uint32_t *)(const void *)buf_str(&y->text);
            q->n_prompt_ids = y->text.len / sizeof(uint32_t);
        } else {
            q->prompt = text_of(y, 0, y->text.len);
        }
        enum tarn_error e = tarn_body_build(out, q, words, sizeof words);
        s = e == TARN_OK ? OK : e == TARN_ERR_NOMEM ? ERR_NOMEM : ERR_INVALID;
    }
    return s == OK ? OK : buf_why(why, s, "%s", words);
}

enum status prompt_build(struct tarn_body *out, const struct prompt_style *style,
                         const struct load_request *r, const struct prompt_answers *answers,
                         struct buf *why)
{
    struct layout y = {.style = style, .r = r, .answers = answers};
    struct tarn_request q;
    char *merged = NULL, session[32];
    enum status s = OK;

    memset(out, 0, sizeof *out);
    buf_init(&y.text, TEXT_BYTES_MAX);
    y.messages = calloc(r->n_parts + 2u, sizeof *y.messages);
    y.documents = calloc(r->n_parts + 1u, sizeof *y.documents);
    if (!y.messages || !y.documents)
        s = ERR_NOMEM;
    else if (style->kind == TARN_CHAT)
        s = lay_out_chat(&y);
    else
        s = style->ids ? lay_out_ids(&y, why) : lay_out_text(&y);
    tarn_request_init(&q, style->kind);
    fill_sampling(&q, style, r);
    if (style->send_session && r->session) {
        snprintf(session, sizeof session, "loadgen-%016llx", (unsigned long long)r->session);
        q.session_id = session;
    }
    q.extra_body = r->extra ? r->extra : style->extra_body;
    if (s == OK && r->extra && style->extra_body) {
        s = merge_extra(style->extra_body, r->extra, &merged, why);
        q.extra_body = merged;
    }
    if (s == OK)
        s = build(out, &y, &q, why);
    else if (s != ERR_INVALID)
        buf_why(why, s, "the prompt cannot be built: %s", status_name(s));
    free(merged);
    free(y.messages);
    free(y.documents);
    buf_fini(&y.text);
    return s;
}
