/* gguf_file.h - makes the bytes of GGUF files, right and wrong ones. Include it once.
 *
 * Owns    struct gguf_file owns its bytes until gguf_file_write().
 * Thread  one at a time.
 * Errors  any failure ends the test.
 * Units   bytes. */
#ifndef TARN_TESTS_UNIT_GGUF_FILE_H
#define TARN_TESTS_UNIT_GGUF_FILE_H

#include <stdio.h>
#include <string.h>

#include "base/gguf.h"
#include "base/little_endian.h"
#include "tests/unit/test.h"

struct gguf_file {
    struct buf bytes;
    size_t n_keys_at; /* where the number of keys stands */
    uint64_t n_keys;
};

static inline void gguf_file_add(struct gguf_file *f, const void *bytes, size_t n)
{
    assert_int_equal(buf_append(&f->bytes, bytes, n), OK);
}

static inline void gguf_file_u32(struct gguf_file *f, uint32_t v)
{
    uint8_t b[4];

    put_u32(b, v);
    gguf_file_add(f, b, sizeof b);
}

static inline void gguf_file_u64(struct gguf_file *f, uint64_t v)
{
    uint8_t b[8];

    put_u64(b, v);
    gguf_file_add(f, b, sizeof b);
}

static inline void gguf_file_string(struct gguf_file *f, const char *s)
{
    gguf_file_u64(f, strlen(s));
    gguf_file_add(f, s, strlen(s));
}

static inline void gguf_file_begin(struct gguf_file *f, uint64_t n_tensors, uint64_t n_keys)
{
    *f = (struct gguf_file){0};
    buf_init(&f->bytes, (size_t)1 << 24);
    gguf_file_add(f, "GGUF", 4);
    gguf_file_u32(f, 3);
    gguf_file_u64(f, n_tensors);
    f->n_keys_at = f->bytes.len;
    gguf_file_u64(f, n_keys);
}

/* Begin a key; its value is to follow. */
static inline void gguf_file_key(struct gguf_file *f, const char *name, enum gguf_type type)
{
    gguf_file_string(f, name);
    gguf_file_u32(f, type);
    f->n_keys++;
}

static inline void gguf_file_key_u32(struct gguf_file *f, const char *name, uint32_t v)
{
    gguf_file_key(f, name, GGUF_U32);
    gguf_file_u32(f, v);
}

static inline void gguf_file_key_f32(struct gguf_file *f, const char *name, float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof bits);
    gguf_file_key(f, name, GGUF_F32);
    gguf_file_u32(f, bits);
}

static inline void gguf_file_key_string(struct gguf_file *f, const char *name, const char *v)
{
    gguf_file_key(f, name, GGUF_STRING);
    gguf_file_string(f, v);
}

/* Begin a key with an array; its elements are to follow. */
static inline void gguf_file_key_array(struct gguf_file *f, const char *name, enum gguf_type type,
                                       uint64_t n)
{
    gguf_file_key(f, name, GGUF_ARRAY);
    gguf_file_u32(f, type);
    gguf_file_u64(f, n);
}

/* Write the number of keys so far into the header. */
static inline void gguf_file_count_keys(struct gguf_file *f)
{
    put_u64((uint8_t *)f->bytes.data + f->n_keys_at, f->n_keys);
}

static inline void gguf_file_info(struct gguf_file *f, const char *name, uint32_t type,
                                  uint64_t columns, uint64_t rows, uint64_t offset)
{
    gguf_file_string(f, name);
    gguf_file_u32(f, 2);
    gguf_file_u64(f, columns);
    gguf_file_u64(f, rows);
    gguf_file_u32(f, type);
    gguf_file_u64(f, offset);
}

/* Pad to the alignment and add n bytes 0, 1, 2, ... */
static inline void gguf_file_data(struct gguf_file *f, size_t alignment, size_t n)
{
    while (f->bytes.len % alignment)
        assert_int_equal(buf_putc(&f->bytes, '\0'), OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(buf_putc(&f->bytes, (char)i), OK);
}

static inline void gguf_file_save(const char *path, const void *bytes, size_t n)
{
    FILE *out = fopen(path, "wb");

    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
}

/* Save the file and free its bytes. */
static inline void gguf_file_write(struct gguf_file *f, const char *path)
{
    gguf_file_save(path, f->bytes.data, f->bytes.len);
    buf_fini(&f->bytes);
}

#endif
