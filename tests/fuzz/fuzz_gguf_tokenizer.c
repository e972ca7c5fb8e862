/* fuzz_gguf_tokenizer.c - any metadata as those of a GGUF file, then any bytes as text: load,
 * encode, decode.
 *
 * The input has a line for each key: its name, a blank, the type of its value, a blank, the value.
 * So a mutation changes values and leaves the container whole, which fuzz_gguf.c is for. Types: s
 * string, u u32, b bool ("1" is true), S strings, F f32s, I i32s, C bytes; the elements of arrays
 * are separated by commas. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz_tokenizer.h"

#define FILE_BYTES_MAX (16u << 20)

static const char letters[] = "sSubIFC"; /* types in the input */
static const uint32_t types[] = {8, 8, 4, 7, 5, 6, 0};

static void put_bytes(struct buf *b, const void *bytes, size_t n)
{
    ASSERT(buf_append(b, bytes, n) == OK);
}

static void put_text(struct buf *b, const char *s, uint64_t len)
{
    put_bytes(b, &len, 8);
    put_bytes(b, s, len);
}

static void put_element(struct buf *b, char type, const char *s, size_t len)
{
    char number[32] = "";

    memcpy(number, s, len < sizeof number ? len : sizeof number - 1);
    float real = strtof(number, NULL);
    int64_t integer = strtoll(number, NULL, 10);
    if (type == 's' || type == 'S')
        put_text(b, s, len);
    else if (type == 'F')
        put_bytes(b, &real, 4);
    else
        put_bytes(b, type == 'b' ? &(uint8_t){*number == '1'} : (const void *)&integer,
                  type == 'C' || type == 'b' ? 1 : 4);
}

static void put_array(struct buf *b, char type, const char *s, size_t len)
{
    uint64_t n = len > 0;

    for (size_t i = 0; i < len; i++)
        n += s[i] == ',';
    put_bytes(b, &n, 8);
    for (const char *end = s + len; n > 0; n--) {
        const char *comma = memchr(s, ',', (size_t)(end - s));
        size_t part = (size_t)((comma ? comma : end) - s);
        put_element(b, type, s, part);
        s += part + (comma != NULL);
    }
}

/* Whether the line is a key. */
static bool put_line(struct buf *b, const char *line, size_t len)
{
    const char *blank = memchr(line, ' ', len);
    size_t key_len = blank ? (size_t)(blank - line) : len;

    if (key_len + 3 > len || blank[2] != ' ' || blank[1] == '\0' || !strchr(letters, blank[1]))
        return false;
    const char *value = blank + 3;
    size_t n = len - key_len - 3;
    uint32_t type = types[strchr(letters, blank[1]) - letters], array = 9;
    put_text(b, line, key_len);
    if (strchr("SIFC", blank[1])) {
        put_bytes(b, &array, 4);
        put_bytes(b, &type, 4);
        put_array(b, blank[1], value, n);
    } else {
        put_bytes(b, &type, 4);
        put_element(b, blank[1], value, n);
    }
    return true;
}

static void write_file(struct buf *b, const char *text, size_t len)
{
    static const char zeros[32];
    uint64_t n_tensors = 0, n_keys = 0;
    uint32_t version = 3;

    put_bytes(b, "GGUF", 4);
    put_bytes(b, &version, 4);
    put_bytes(b, &n_tensors, 8);
    put_bytes(b, &n_keys, 8);
    while (len > 0) {
        const char *end = memchr(text, '\n', len);
        size_t n = end ? (size_t)(end - text) : len;
        n_keys += put_line(b, text, n);
        text += n + (end != NULL);
        len -= n + (end != NULL);
    }
    memcpy(b->data + 16, &n_keys, 8);
    put_bytes(b, zeros, (32 - b->len % 32) % 32);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);
    struct tokenizer *t = NULL;
    struct buf file, why;
    char path[32];

    buf_init(&file, FILE_BYTES_MAX);
    buf_init(&why, BUF_WHY_MAX);
    if (size > FILE_BYTES_MAX / 16) /* an element of one byte becomes a string of nine */
        return 0;
    write_file(&file, in.first, in.first_len);
    int fd = memfd_create("fuzz", 0);
    ASSERT(fd >= 0 && write(fd, file.data, file.len) == (ssize_t)file.len);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    enum status s = tokenizer_load(&t, path, &why);
    ASSERT((s == OK) == (t != NULL));
    ASSERT(s == OK || why.len > 0);
    if (s == OK)
        check_tokenizer(t, in.second, in.second_len);
    tokenizer_destroy(t);
    close(fd);
    buf_fini(&file);
    buf_fini(&why);
    return 0;
}
