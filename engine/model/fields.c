#include "engine/model/fields.h"

#include <string.h>

static size_t element_bytes(enum field_type t)
{
    return t == FIELD_F64     ? sizeof(double)
           : t == FIELD_NAMED ? sizeof(const char *const *)
                              : sizeof(uint32_t);
}

static enum status read_u32(const struct field *f, const struct json *j, void *at, struct buf *why)
{
    uint32_t v;
    int64_t wide;

    memcpy(&v, at, sizeof v);
    wide = v;
    enum status s = js_get_i64(j, f->name, (int64_t)f->min, (int64_t)f->max, &wide, why);
    v = (uint32_t)wide;
    memcpy(at, &v, sizeof v);
    return s;
}

static enum status read_flag(const struct field *f, const struct json *j, void *at, struct buf *why)
{
    uint32_t v;

    memcpy(&v, at, sizeof v);
    bool flag = v != 0;
    enum status s = js_get_bool(j, f->name, &flag, why);
    v = flag;
    memcpy(at, &v, sizeof v);
    return s;
}

static enum status read_float(const struct field *f, const struct json *j, void *at,
                              struct buf *why)
{
    double v;
    float narrow;

    if (f->type == FIELD_F64) {
        memcpy(&v, at, sizeof v);
    } else {
        memcpy(&narrow, at, sizeof narrow);
        v = (double)narrow;
    }
    enum status s = js_get_f64(j, f->name, f->min, f->max, &v, why);
    narrow = (float)v;
    memcpy(at, f->type == FIELD_F64 ? (void *)&v : (void *)&narrow, element_bytes(f->type));
    return s;
}

static enum status read_field(const struct field *f, const struct json *j, void *at,
                              struct buf *why)
{
    if (!js_get_set(j, f->name))
        return f->required ? buf_why(why, ERR_INVALID, "%s is missing", f->name) : OK;
    switch (f->type) {
    case FIELD_U32: return read_u32(f, j, at, why);
    case FIELD_FLAG: return read_flag(f, j, at, why);
    default: return read_float(f, j, at, why);
    }
}

enum status fields_read(struct field_table t, enum field_file file, const struct json *j,
                        void *base, struct buf *why)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < t.n; i++)
        if (t.rows[i].file == file)
            s = read_field(&t.rows[i], j, (char *)base + t.rows[i].offset, why);
    return s;
}

static enum status write_element(enum field_type type, const char *at, struct buf *out)
{
    uint32_t u;
    float f;
    double d;
    const char *const *named;

    switch (type) {
    case FIELD_NAMED: memcpy(&named, at, sizeof named); return buf_puts(out, *named);
    case FIELD_F32: memcpy(&f, at, sizeof f); return buf_printf(out, "%a", (double)f);
    case FIELD_F64: memcpy(&d, at, sizeof d); return buf_printf(out, "%a", d);
    default: memcpy(&u, at, sizeof u); return buf_printf(out, "%u", u);
    }
}

enum status fields_write(struct field_table t, const void *base, bool only_kv, struct buf *out)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < t.n; i++) {
        const struct field *f = &t.rows[i];
        size_t size = element_bytes(f->type);

        if (only_kv && f->not_of_kv)
            continue;
        s = buf_printf(out, " %s=", f->name);
        for (size_t at = 0; s == OK && at < f->n_bytes; at += size) {
            if (at > 0)
                s = buf_putc(out, ',');
            if (s == OK)
                s = write_element(f->type, (const char *)base + f->offset + at, out);
        }
    }
    return s;
}
