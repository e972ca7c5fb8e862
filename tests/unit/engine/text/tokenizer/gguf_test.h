/* gguf_test.h - makes small GGUF files that have metadata only, for tests. */
#ifndef TARN_TESTS_UNIT_ENGINE_GGUF_TEST_H
#define TARN_TESTS_UNIT_ENGINE_GGUF_TEST_H

#include "tests/unit/engine/text/tokenizer/tokenizer_test.h"

/* One key. type: s string, u u32, b bool ("1"), S strings, F f32s, I i32s, C bytes; the elements of
 * arrays are separated by commas. 0: the key is left out, or the end of a list. */
struct member {
    const char *key;
    char type;
    const char *value;
};

#define N_MEMBERS_MAX 32

static inline void put_number(struct buf *b, uint64_t v, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        assert_ok(buf_putc(b, (char)(v >> 8 * i)));
}

static inline void put_text(struct buf *b, const char *s, size_t len)
{
    put_number(b, len, 8);
    assert_ok(buf_append(b, s, len));
}

static inline void put_element(struct buf *b, char type, const char *s, size_t len)
{
    float f = strtof(s, NULL);
    uint32_t bits;

    memcpy(&bits, &f, 4);
    if (type == 'S' || type == 's')
        put_text(b, s, len);
    else if (type == 'F')
        put_number(b, bits, 4);
    else
        put_number(b, (uint64_t)strtoll(s, NULL, 10), type == 'C' || type == 'b' ? 1 : 4);
}

static inline void put_member(struct buf *b, const struct member *m)
{
    static const char letters[] = "sSubIFC";
    static const uint32_t types[] = {8, 8, 4, 7, 5, 6, 0};
    uint32_t type = types[strchr(letters, m->type) - letters];
    uint64_t n = m->value[0] != '\0';

    put_text(b, m->key, strlen(m->key));
    if (!strchr("SFIC", m->type)) {
        put_number(b, type, 4);
        put_element(b, m->type, m->value, strlen(m->value));
        return;
    }
    for (const char *p = m->value; (p = strchr(p, ',')); p++)
        n++;
    put_number(b, 9, 4);
    put_number(b, type, 4);
    put_number(b, n, 8);
    for (const char *p = m->value; n > 0; n--) {
        size_t len = strcspn(p, ",");
        put_element(b, m->type, p, len);
        p += len + 1;
    }
}

/* Write the file of the keys of `base` as `change` (may be NULL) changes them: a key of both has
 * the value in `change`. Both end with a member without a key. */
static inline void write_members(struct buf *b, const struct member *base,
                                 const struct member *change)
{
    struct member all[N_MEMBERS_MAX];
    size_t n = 0, n_set = 0;

    for (; base->key; base++)
        all[n++] = *base;
    for (; change && change->key; change++) {
        size_t at = 0;
        while (at < n && strcmp(all[at].key, change->key) != 0)
            at++;
        assert_true(at < N_MEMBERS_MAX);
        n += at == n;
        all[at] = *change;
    }
    for (size_t i = 0; i < n; i++)
        n_set += all[i].type != 0;
    assert_ok(buf_puts(b, "GGUF"));
    put_number(b, 3, 4);
    put_number(b, 0, 8);
    put_number(b, n_set, 8);
    for (size_t i = 0; i < n; i++)
        if (all[i].type)
            put_member(b, &all[i]);
    while (b->len % 32)
        assert_ok(buf_putc(b, '\0'));
}

/* Load the file of these keys. */
static inline enum status load_members(struct tokenizer **t, const struct member *base,
                                       const struct member *change, struct buf *why)
{
    char path[128];
    struct buf file;

    temp_path(path, sizeof path, "x.gguf");
    buf_init(&file, 1 << 24);
    write_members(&file, base, change);
    write_temp("x.gguf", file.data, file.len);
    buf_fini(&file);
    enum status s = tokenizer_load(t, path, why);
    unlink(path);
    return s;
}

#endif
