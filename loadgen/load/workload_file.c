/* workload_file.c - requests read from JSON lines, each an object with
 *
 *     prompt       text, or
 *     messages     [{role: system | user | assistant, content: text}, ...]
 *     documents    [{title, text}, ...] (optional, as all below)
 *     output_len   or max_tokens: how many to generate
 *     timestamp    seconds, for --arrival trace
 *     tenant       a name given by --tenant
 *     priority     a whole number
 *     body         an object whose members are added to the request as they are */
#include <stdlib.h>
#include <string.h>

#include "loadgen/load/lines.h"
#include "loadgen/load/workload_inner.h"

#define N_ROWS_MAX 10000000u
#define EXTRA_BYTES_MAX (16u << 20)

void workload_file_close(struct workload *w)
{
    for (size_t i = 0; i < w->n_rows; i++) {
        js_unref(w->rows[i].o);
        free(w->rows[i].extra);
    }
    free(w->rows);
    w->rows = NULL;
    w->n_rows = 0;
}

enum status workload_file_add(struct workload *w, const struct file_row *row)
{
    if (w->n_rows == w->cap_rows) {
        size_t cap = w->cap_rows ? 2 * w->cap_rows : 256;
        struct file_row *rows =
            cap <= N_ROWS_MAX * 2ull ? realloc(w->rows, cap * sizeof *rows) : NULL;
        if (!rows)
            return ERR_NOMEM;
        w->rows = rows;
        w->cap_rows = cap;
    }
    w->rows[w->n_rows++] = *row;
    return OK;
}

static bool is_text_list(const struct json *list, const char *key)
{
    if (!js_is(list, JS_ARRAY))
        return false;
    for (size_t i = 0; i < js_len(list); i++)
        if (!js_is(js_get(js_at(list, i), key), JS_STRING))
            return false;
    return true;
}

static enum status find_role(const char *name, enum part_role *role)
{
    static const char *const names[] = {"system", "user", "assistant"};
    static const enum part_role roles[] = {PART_SYSTEM, PART_USER, PART_ASSISTANT};

    for (size_t i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) {
            *role = roles[i];
            return OK;
        }
    return ERR_INVALID;
}

/* Check the types of all members that fill() reads. */
static enum status check_texts(const struct lines *l, const struct json *o, struct buf *why)
{
    const struct json *prompt = js_get_set(o, "prompt"), *messages = js_get_set(o, "messages");
    const struct json *documents = js_get_set(o, "documents");
    enum part_role role;

    if (!prompt == !messages)
        return lines_why(l, why, ERR_INVALID, "expected either prompt or messages");
    if (prompt && !js_is(prompt, JS_STRING))
        return lines_why(l, why, ERR_INVALID, "prompt: expected a string");
    if (messages && (!is_text_list(messages, "content") || !is_text_list(messages, "role") ||
                     js_len(messages) == 0))
        return lines_why(l, why, ERR_INVALID, "messages: expected objects with role and content");
    for (size_t i = 0; i < js_len(messages); i++)
        if (find_role(js_string(js_get(js_at(messages, i), "role"), NULL), &role) != OK)
            return lines_why(l, why, ERR_INVALID,
                             "messages[%zu].role: expected system, user or "
                             "assistant",
                             i);
    if (documents && !is_text_list(documents, "text"))
        return lines_why(l, why, ERR_INVALID, "documents: expected objects with text");
    return OK;
}

static enum status copy_extra(const struct lines *l, const struct json *o, char **out,
                              struct buf *why)
{
    const struct json *body = js_get_set(o, "body");
    struct buf text;

    if (!body)
        return OK;
    if (!js_is(body, JS_OBJECT))
        return lines_why(l, why, ERR_INVALID, "body: expected an object");
    buf_init(&text, EXTRA_BYTES_MAX);
    enum status s = js_write(&text, body);
    *out = s == OK ? strdup(text.data) : NULL;
    buf_fini(&text);
    return s == OK && !*out ? ERR_NOMEM : s;
}

static enum status find_tenant(const struct workload *w, const char *name, uint32_t *out,
                               struct buf *why)
{
    for (uint32_t i = 0; i < w->config.n_tenants; i++)
        if (strcmp(w->config.tenants[i].name, name) == 0) {
            *out = i;
            return OK;
        }
    return buf_why(why, ERR_INVALID, "tenant: \"%.40s\" was not named by --tenant", name);
}

static enum status read_fields(const struct workload *w, const struct json *o, struct file_row *row,
                               struct buf *words)
{
    int64_t n = 0, priority = 0;
    const char *tenant = NULL;
    enum status s = js_get_i64(o, "max_tokens", 1, DIST_MAX, &n, words);

    if (s == OK)
        s = js_get_i64(o, "output_len", 1, DIST_MAX, &n, words);
    if (s == OK)
        s = js_get_f64(o, "timestamp", 0, 1e12, &row->at_s, words);
    if (s == OK)
        s = js_get_i64(o, "priority", INT32_MIN, INT32_MAX, &priority, words);
    if (s == OK)
        s = js_get_str(o, "tenant", &tenant, NULL, words);
    row->n_output = (uint32_t)n;
    row->tenant = UINT32_MAX;
    if (s != OK || !tenant)
        return s;
    return find_tenant(w, tenant, &row->tenant, words);
}

static enum status read_row(struct workload *w, const struct lines *l, struct buf *why)
{
    struct file_row row = {.line = l->n};
    struct buf words;

    buf_init(&words, BUF_WHY_MAX);
    enum status s = lines_json(l, &row.o, why);
    if (s == OK) {
        s = read_fields(w, row.o, &row, &words);
        if (s != OK)
            lines_why(l, why, s, "%s", buf_str(&words));
    }
    if (s == OK)
        s = check_texts(l, row.o, why);
    if (s == OK)
        s = copy_extra(l, row.o, &row.extra, why);
    if (s == OK)
        s = workload_file_add(w, &row);
    if (s != OK) {
        js_unref(row.o);
        free(row.extra);
    }
    buf_fini(&words);
    return s;
}

static int compare_rows(const void *a, const void *b)
{
    const struct file_row *x = a, *y = b;

    if (x->at_s != y->at_s)
        return x->at_s < y->at_s ? -1 : 1;
    return x->line < y->line ? -1 : x->line > y->line;
}

static enum status read_lines(struct workload *w, struct buf *why)
{
    struct lines l;
    bool more = true;
    enum status s = lines_open(&l, w->config.data, why);

    while (s == OK && more) {
        s = lines_next(&l, &more, why);
        if (s == OK && more)
            s = read_row(w, &l, why);
    }
    lines_close(&l);
    if (s == OK && w->n_rows == 0)
        return buf_why(why, ERR_INVALID, "%s: has no lines", w->config.data);
    return s;
}

static enum status shuffle_rows(struct workload *w)
{
    struct draw d;

    w->order = malloc(w->n_rows * sizeof *w->order);
    if (!w->order)
        return ERR_NOMEM;
    for (size_t i = 0; i < w->n_rows; i++)
        w->order[i] = (uint32_t)i;
    w->n_order = (uint32_t)w->n_rows;
    draw_init(&d, w->config.seed, DRAW_SHUFFLE, 0);
    draw_shuffle_u32(&d, w->order, w->n_rows);
    return OK;
}

enum status workload_file_open(struct workload *w, struct buf *why)
{
    struct file_options *f = &w->config.file;
    enum status s =
        f->format == FILE_SHAREGPT ? workload_sharegpt_read(w, why) : read_lines(w, why);

    if (s != OK)
        return s;
    if (w->config.arrival.kind == ARRIVAL_TRACE) { /* the rows' times give order and end */
        qsort(w->rows, w->n_rows, sizeof *w->rows, compare_rows);
        f->shuffle = f->repeats = false;
    }
    return f->shuffle ? shuffle_rows(w) : OK;
}

/* Find the row of the request. ERR_NOT_FOUND after the last one. */
static enum status choose_row(const struct workload *w, const struct load_request *r, size_t *k)
{
    struct draw d;

    *k = r->index;
    if (r->index >= w->n_rows) {
        if (!w->config.file.repeats)
            return ERR_NOT_FOUND;
        draw_init(&d, w->config.seed, DRAW_RETRIEVAL, r->index);
        *k = draw_below(&d, w->n_rows);
    }
    if (w->order)
        *k = w->order[*k];
    return OK;
}

/* Add a part whose text is borrowed from row k. */
static enum status add_text(struct workload *w, struct load_request *r, size_t k,
                            enum part_role role, const struct json *text, const struct json *title)
{
    struct part *p = load_request_add(r, role, 0, 0);

    if (!p)
        return ERR_NOMEM;
    p->id = workload_id(w, ID_LINE, draw_mix(k, r->n_parts));
    p->text = js_string(text, &p->text_len);
    p->title = js_is(title, JS_STRING) ? js_string(title, NULL) : NULL;
    p->starts_message = true;
    return OK;
}

static enum status add_messages(struct workload *w, struct load_request *r, size_t k,
                                const struct json *messages)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < js_len(messages); i++) {
        const struct json *m = js_at(messages, i);
        enum part_role role = PART_USER;
        s = find_role(js_string(js_get(m, "role"), NULL), &role);
        if (s == OK)
            s = add_text(w, r, k, role, js_get(m, "content"), NULL);
    }
    return s;
}

/* Fill the request from a line; its members were checked when the line was read. */
static enum status fill_line(struct workload *w, struct load_request *r, size_t k)
{
    const struct file_row *row = &w->rows[k];
    const struct json *documents = js_get_set(row->o, "documents");
    const struct json *priority = js_get_set(row->o, "priority");
    enum status s = OK;

    if (priority) {
        r->priority = (int32_t)js_int(priority);
        r->has_priority = true;
    }
    r->extra = row->extra;
    for (size_t i = 0; s == OK && i < js_len(documents); i++)
        s = add_text(w, r, k, PART_DOCUMENT, js_get(js_at(documents, i), "text"),
                     js_get(js_at(documents, i), "title"));
    if (s == OK && js_get_set(row->o, "prompt"))
        return add_text(w, r, k, PART_USER, js_get(row->o, "prompt"), NULL);
    return s == OK ? add_messages(w, r, k, js_get(row->o, "messages")) : s;
}

enum status workload_file_fill(struct workload *w, struct load_request *r)
{
    struct draw d;
    size_t k;
    enum status s = choose_row(w, r, &k);

    if (s != OK)
        return s;
    const struct file_row *row = &w->rows[k];
    if (w->config.arrival.kind == ARRIVAL_TRACE)
        r->arrival_s = (row->at_s - w->rows[0].at_s) / w->config.trace_speed;
    if (row->tenant != UINT32_MAX)
        r->tenant = row->tenant;
    draw_init(&d, w->config.seed, DRAW_LENGTH, r->index);
    r->n_output_tokens =
        row->n_output && !w->config.output_given ? row->n_output : workload_draw_output(w, r, &d);
    if (w->config.file.format == FILE_SHAREGPT)
        return add_text(w, r, k, PART_USER, workload_sharegpt_prompt(row->o), NULL);
    return fill_line(w, r, k);
}
