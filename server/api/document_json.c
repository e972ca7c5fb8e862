#include "server/api/document_json.h"

#include <inttypes.h>
#include <math.h>

#include "base/check.h"
#include "base/utf8.h"

#define TTL_S_MAX (INT64_C(100) * 366 * 86400)

static const char *const members[] = {"id",     "title", "text", "metadata", "embedding",
                                      "public", "pin",   "ttl",  "prefill",  "version"};

enum status document_check_id(const char *id, size_t len, struct buf *why)
{
    uint32_t c;

    if (len == 0 || len > DOCUMENT_ID_BYTES_MAX)
        return buf_why(why, ERR_INVALID, "id: expected 1 to %d bytes, got %zu",
                       DOCUMENT_ID_BYTES_MAX, len);
    for (size_t i = 0, n; i < len; i += n) {
        n = utf8_decode(id + i, len - i, &c);
        if (n == 0)
            return buf_why(why, ERR_INVALID, "id: is no UTF-8 text");
        if (c < 0x20 || (c >= 0x7f && c < 0xa0))
            return buf_why(why, ERR_INVALID, "id: has a control character");
    }
    return OK;
}

/* Copy a string member. *is_there: it was given and is not null. */
static enum status read_text(struct buf *out, const struct json *body, const char *name,
                             size_t n_max, bool *is_there, struct buf *why)
{
    const char *text = NULL;
    size_t len = 0;
    enum status s = js_get_str(body, name, &text, &len, why);

    *is_there = text != NULL;
    buf_reset(out);
    if (s != OK || !text)
        return s;
    if (len > n_max)
        return buf_why(why, ERR_TOO_LARGE, "%s: has %zu bytes, at most %zu are taken", name, len,
                       n_max);
    /* SQLite and templates end a text at a NUL. */
    if (memchr(text, '\0', len))
        return buf_why(why, ERR_INVALID, "%s: must not contain U+0000", name);
    s = buf_append(out, text, len);
    return s == OK ? OK : buf_why(why, s, "out of memory");
}

static enum status read_metadata(struct document *d, const struct json *body, struct buf *why)
{
    const struct json *v = js_get_set(body, "metadata");

    buf_reset(&d->metadata);
    if (!v)
        return OK;
    if (!js_is(v, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "metadata: expected an object, got %s",
                       js_type_name(js_typeof(v)));
    if (js_len(v) == 0)
        return OK;
    enum status s = js_write(&d->metadata, v);
    if (s == ERR_TOO_LARGE || (s == OK && d->metadata.len > DOCUMENT_METADATA_BYTES_MAX))
        return buf_why(why, ERR_TOO_LARGE, "metadata: has more than %u bytes",
                       DOCUMENT_METADATA_BYTES_MAX);
    return s == OK ? OK : buf_why(why, s, "out of memory");
}

enum status document_read_embedding(struct buf *out, const struct json *body, struct buf *why)
{
    const struct json *v = js_get_set(body, "embedding");
    size_t n = js_len(v);
    double sum = 0;

    buf_reset(out);
    if (!v)
        return OK;
    if (!js_is(v, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "embedding: expected an array of numbers, got %s",
                       js_type_name(js_typeof(v)));
    if (n == 0 || n > DOCUMENT_DIM_MAX)
        return buf_why(why, n ? ERR_TOO_LARGE : ERR_INVALID,
                       "embedding: expected 1 to %d numbers, got %zu", DOCUMENT_DIM_MAX, n);
    enum status s = buf_reserve(out, n * sizeof(float));
    for (size_t i = 0; s == OK && i < n; i++) {
        const struct json *x = js_at(v, i);
        if (!js_is(x, JS_INT) && !js_is(x, JS_REAL))
            return buf_why(why, ERR_INVALID, "embedding[%zu]: expected a number, got %s", i,
                           js_type_name(js_typeof(x)));
        float f = (float)js_number(x);
        if (!isfinite(f))
            return buf_why(why, ERR_INVALID, "embedding[%zu]: is too large", i);
        sum += (double)f * f;
        s = buf_append(out, &f, sizeof f);
    }
    if (s == OK && sum == 0)
        return buf_why(why, ERR_INVALID, "embedding: all numbers are 0");
    return s == OK ? OK : buf_why(why, s, "out of memory");
}

static enum status read_prefill(struct document *d, struct document_change *change,
                                const struct json *body, struct buf *why)
{
    const char *word = NULL;
    enum status s = js_get_str(body, "prefill", &word, NULL, why);

    d->prefill = DOCUMENT_PREFILL_LAZY;
    change->has_prefill = word != NULL;
    if (s != OK || !word || strcmp(word, "lazy") == 0)
        return s;
    if (strcmp(word, "now") != 0)
        return buf_why(why, ERR_INVALID, "prefill: expected \"now\" or \"lazy\", got \"%.40s\"",
                       word);
    d->prefill = DOCUMENT_PREFILL_NOW;
    return OK;
}

/* Pin, expiry and prefill. */
static enum status read_keeping(struct document *d, struct document_change *change,
                                const struct json *body, int64_t now_s, struct buf *why)
{
    int64_t ttl_s = 0;

    d->is_pinned = false;
    change->has_pin = js_get_set(body, "pin") != NULL;
    change->has_expiry = js_get(body, "ttl") != NULL; /* null: never */
    enum status s = js_get_bool(body, "pin", &d->is_pinned, why);
    if (s == OK)
        s = js_get_i64(body, "ttl", 1, TTL_S_MAX, &ttl_s, why);
    d->expires_s = ttl_s > 0 ? now_s + ttl_s : 0;
    return s == OK ? read_prefill(d, change, body, why) : s;
}

static enum status read_version(struct document_change *change, const struct json *body,
                                struct buf *why)
{
    int64_t version = 0;
    enum status s = js_get_i64(body, "version", 0, UINT32_MAX, &version, why);

    change->has_version = js_get_set(body, "version") != NULL;
    change->version = (uint32_t)version;
    return s;
}

enum status document_read(struct document *d, struct document_change *change,
                          const struct json *body, int64_t now_s, struct unknown_fields *unknown,
                          struct buf *why)
{
    bool has_text, has_title;
    const char *id;

    *change = (struct document_change){0};
    if (unknown)
        unknown_fields_find(unknown, body, "", members, ARRAY_SIZE(members));
    enum status s = js_get_str(body, "id", &id, NULL, why); /* that of the path or line counts */
    if (s == OK)
        s = read_text(&d->text, body, "text", DOCUMENT_TEXT_BYTES_MAX, &has_text, why);
    if (s == OK && d->text.len == 0)
        s = buf_why(why, ERR_INVALID, "text: %s", has_text ? "must not be empty" : "is required");
    if (s == OK)
        s = read_text(&d->title, body, "title", DOCUMENT_TITLE_BYTES_MAX, &has_title, why);
    if (s == OK)
        s = read_metadata(d, body, why);
    if (s == OK)
        s = document_read_embedding(&d->embedding, body, why);
    if (s == OK)
        s = read_keeping(d, change, body, now_s, why);
    if (s == OK)
        s = js_get_bool(body, "public", &change->is_public, why);
    return s == OK ? read_version(change, body, why) : s;
}

enum status document_read_change(struct document *d, struct document_change *change,
                                 const struct json *body, int64_t now_s, struct buf *why)
{
    static const char *const known[] = {"pin", "ttl", "prefill"};

    *change = (struct document_change){0};
    for (void *it = js_first(body); it; it = js_next(body, it)) {
        bool is_known = false;
        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
            is_known |= strcmp(js_it_key(it), known[i]) == 0;
        if (!is_known)
            return buf_why(why, ERR_INVALID,
                           "%.40s: only pin, ttl and prefill can be changed without the text; "
                           "send the whole document with PUT",
                           js_it_key(it));
    }
    enum status s = read_keeping(d, change, body, now_s, why);
    if (s == OK && !change->has_pin && !change->has_expiry && !change->has_prefill)
        s = buf_why(why, ERR_INVALID, "expected pin, ttl or prefill");
    return s;
}

/* --- writing --- */

void write_time(struct writer *w, const char *name, int64_t unix_s)
{
    if (unix_s)
        write_format(w, ",\"%s\":%" PRId64, name, unix_s);
    else
        write_format(w, ",\"%s\":null", name);
}

void document_write(struct writer *w, const struct document *d, bool has_text, bool has_uses)
{
    write_puts(w, "\"object\":\"document\",\"id\":");
    write_json(w, d->id, strlen(d->id));
    write_format(w, ",\"version\":%" PRIu32 ",\"title\":", d->version);
    write_json(w, buf_str(&d->title), d->title.len);
    if (has_text) {
        write_puts(w, ",\"text\":");
        write_json(w, buf_str(&d->text), d->text.len);
    }
    write_puts(w, ",\"metadata\":");
    if (d->metadata.len)
        write_buf(w, &d->metadata);
    else
        write_puts(w, "{}");
    write_format(w, ",\"public\":%s,\"pin\":%s,\"prefill\":\"%s\",\"embedding_dim\":%zu",
                 d->tenant[0] ? "false" : "true", d->is_pinned ? "true" : "false",
                 d->prefill == DOCUMENT_PREFILL_NOW ? "now" : "lazy",
                 d->embedding.len / sizeof(float));
    write_time(w, "created_at", d->created_s);
    write_time(w, "updated_at", d->updated_s);
    write_time(w, "expires_at", d->expires_s);
    if (has_uses)
        write_format(w, ",\"uses\":%" PRIu64, d->n_uses);
}
