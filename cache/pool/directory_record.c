#include "cache/pool/directory_inner.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"

void directory_id_write(char out[ID_HEX_BYTES + 1], uint64_t id)
{
    snprintf(out, ID_HEX_BYTES + 1, "%016" PRIx64, id);
}

static bool read_hex(uint8_t *out, const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < 2 * n_bytes; i++) {
        const char *digits = "0123456789abcdef", *at = text[i] ? strchr(digits, text[i]) : NULL;
        if (!at)
            return false;
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | (at - digits));
    }
    return true;
}

bool directory_id_read(uint64_t *id, const char *text, size_t n)
{
    uint8_t bytes[8] = {0};
    uint64_t v = 0;

    if (n != ID_HEX_BYTES || !read_hex(bytes, text, sizeof bytes))
        return false;
    for (int i = 0; i < 8; i++)
        v = v << 8 | bytes[i];
    *id = v;
    return v != 0;
}

static enum status put_text(struct json *o, const char *name, const char *text)
{
    struct json *v = js_new_string(text, strlen(text));

    return js_set(o, name, v ? v : js_new_string("", 0)); /* not UTF-8: left out */
}

enum status directory_record_write(struct buf *out, const struct directory_instance *i)
{
    struct json *o = js_new_object();
    char id[ID_HEX_BYTES + 1], fingerprint[2 * sizeof i->fingerprint + 1];
    const struct {
        const char *name, *text;
    } texts[] = {{"id", id},
                 {"name", i->name},
                 {"address", i->address},
                 {"http", i->http},
                 {"version", i->version},
                 {"fingerprint", fingerprint},
                 {"documents", i->documents},
                 {"machine", i->machine},
                 {"member", i->member}};
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {{"blocks", i->n_blocks},
                   {"free", i->n_free_blocks},
                   {"waiting", i->n_waiting},
                   {"running", i->n_running},
                   {"load", i->load}};
    enum status s = o ? OK : ERR_NOMEM;

    directory_id_write(id, i->id);
    hash_hex(fingerprint, i->fingerprint, sizeof i->fingerprint);
    for (size_t k = 0; k < sizeof texts / sizeof *texts && s == OK; k++)
        s = put_text(o, texts[k].name, texts[k].text);
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers && s == OK; k++)
        s = js_set(o, numbers[k].name, js_new_int(numbers[k].value));
    if (s == OK)
        s = js_set(o, "leaving", js_new_bool(i->is_leaving));
    buf_reset(out);
    if (s == OK)
        s = js_write(out, o);
    js_unref(o);
    return s;
}

/* Copy a text of a record. Control characters would reach terminals and logs: refused. */
static enum status get_text(const struct json *o, const char *name, char *out, size_t n_out)
{
    const char *text = "";
    enum status s = js_get_str(o, name, &text, NULL, NULL);

    if (s == OK && strlen(text) >= n_out)
        s = ERR_TOO_LARGE;
    for (const char *c = text; s == OK && *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            s = ERR_INVALID;
    if (s == OK)
        memcpy(out, text, strlen(text) + 1);
    return s;
}

static enum status get_number(const struct json *o, const char *name, uint32_t *out)
{
    int64_t v = 0;
    enum status s = js_get_i64(o, name, 0, UINT32_MAX, &v, NULL);

    *out = (uint32_t)v;
    return s;
}

static enum status read_fields(struct directory_instance *r, const struct json *o)
{
    char id[ID_HEX_BYTES + 1] = "", mine[ID_HEX_BYTES + 1];
    char fingerprint[2 * sizeof r->fingerprint + 1] = "";
    enum status s = get_text(o, "id", id, sizeof id);
    const struct {
        const char *name;
        char *out;
        size_t n;
    } texts[] = {{"name", r->name, sizeof r->name},
                 {"address", r->address, sizeof r->address},
                 {"http", r->http, sizeof r->http},
                 {"version", r->version, sizeof r->version},
                 {"documents", r->documents, sizeof r->documents},
                 {"machine", r->machine, sizeof r->machine},
                 {"member", r->member, sizeof r->member},
                 {"fingerprint", fingerprint, sizeof fingerprint}};
    const struct {
        const char *name;
        uint32_t *out;
    } numbers[] = {{"blocks", &r->n_blocks},
                   {"free", &r->n_free_blocks},
                   {"waiting", &r->n_waiting},
                   {"running", &r->n_running},
                   {"load", &r->load}};

    for (size_t k = 0; k < sizeof texts / sizeof *texts && s == OK; k++)
        s = get_text(o, texts[k].name, texts[k].out, texts[k].n);
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers && s == OK; k++)
        s = get_number(o, numbers[k].name, numbers[k].out);
    if (s == OK)
        s = js_get_bool(o, "leaving", &r->is_leaving, NULL);
    directory_id_write(mine, r->id);
    if (s == OK && (strcmp(id, mine) != 0 || strlen(fingerprint) != 2 * sizeof r->fingerprint ||
                    !read_hex(r->fingerprint, fingerprint, sizeof r->fingerprint)))
        s = ERR_INVALID;
    return s;
}

enum status directory_record_read(struct directory_instance *out, uint64_t id, const char *text,
                                  size_t n)
{
    const struct js_limits limits = {.n_values_max = 256, .n_bytes_max = 256u << 10};
    struct directory_instance r = {.id = id};
    struct json *o = NULL;
    enum status s =
        n > RECORD_BYTES_MAX ? ERR_TOO_LARGE : js_parse_limited(&o, text, n, &limits, NULL);

    if (s == OK && !js_is(o, JS_OBJECT))
        s = ERR_INVALID;
    if (s == OK)
        s = read_fields(&r, o);
    js_unref(o);
    if (s == OK)
        *out = r;
    return s == OK ? OK : ERR_INVALID;
}
