/* gguf.c - the container: keys, tensor infos, and the files of a split model.
 *
 * Layout of a file, all numbers little-endian: "GGUF"; u32 version; u64 number of tensors; u64
 * number of keys; keys: a string (u64 length, bytes), u32 type, the value; tensor infos: a string,
 * u32 number of dimensions, u64 for each, u32 type, u64 offset of the data; padding up to a
 * multiple of general.alignment; data. An array is u32 type of its elements, u64 number, elements.
 * Offsets count from the beginning of the data.
 *
 * Every number of things is compared with the bytes that are left before memory is taken for them,
 * so the memory is bounded by a small multiple of the file's header. Keys and tensors are sorted by
 * name: duplicates then stand side by side, and a lookup is a binary search. gguf_values.c reads
 * values. */
#include "base/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/file.h"
#include "base/gguf_inner.h"
#include "base/little_endian.h"

#define VERSION_MIN 2
#define VERSION_MAX 3
#define ALIGNMENT_DEFAULT 32
#define ALIGNMENT_MAX ((uint64_t)1 << 20)
#define N_FILES_MAX 1024
#define N_KEYS_MAX 65536
#define N_TENSORS_MAX 1000000
#define KEY_BYTES_MAX 65535
#define NAME_BYTES_MAX 127
/* The least that a key and a tensor info take in a file. */
#define KEY_BYTES_MIN (8 + 1 + 4 + 1)
#define INFO_BYTES_MIN (8 + 1 + 4 + 8 + 4 + 8)
#define PATH_BYTES_MAX 4096

/* Bytes that are still to be read. */
struct cursor {
    const unsigned char *at;
    size_t left;
};

static const struct gguf_code codes[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},      [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},
    [8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 36},      [10] = {"Q2_K", 256, 84},
    [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66},
    [17] = {"IQ2_XS", 256, 74},  [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},
    [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},
    [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},
    [29] = {"IQ1_M", 256, 56},   [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},
    [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},
};

const struct gguf_code *gguf_code(uint32_t type)
{
    return type < ARRAY_SIZE(codes) && codes[type].name ? &codes[type] : NULL;
}

/* --- reading bytes --- */

static enum status cut_short(struct buf *why)
{
    return buf_why(why, ERR_INVALID, "the file is cut short");
}

static bool take(struct cursor *c, uint64_t n, const unsigned char **out)
{
    if (n > c->left)
        return false;
    *out = c->at;
    c->at += n;
    c->left -= n;
    return true;
}

static bool take_u32(struct cursor *c, uint32_t *out)
{
    const unsigned char *p;

    if (!take(c, 4, &p))
        return false;
    *out = get_u32(p);
    return true;
}

static bool take_u64(struct cursor *c, uint64_t *out)
{
    const unsigned char *p;

    if (!take(c, 8, &p))
        return false;
    *out = get_u64(p);
    return true;
}

static bool take_string(struct cursor *c, const unsigned char **text, uint64_t *len)
{
    return take_u64(c, len) && take(c, *len, text);
}

/* Names go into messages and logs, so control characters are refused. */
static bool is_printable(const unsigned char *s, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (s[i] < 0x20 || s[i] == 0x7f)
            return false;
    return true;
}

static enum status take_name(struct cursor *c, struct arena *arena, const char *what,
                             uint64_t max_bytes, const char **out, struct buf *why)
{
    const unsigned char *text;
    uint64_t len;

    if (!take_string(c, &text, &len))
        return cut_short(why);
    if (len == 0 || len > max_bytes || !is_printable(text, len))
        return buf_why(why, ERR_INVALID,
                       "a name of a %s has %llu bytes or control characters; up to %llu printable "
                       "ones are allowed",
                       what, (unsigned long long)len, (unsigned long long)max_bytes);
    *out = arena_dup(arena, (const char *)text, len);
    return *out ? OK : buf_why(why, ERR_NOMEM, "out of memory");
}

/* --- keys --- */

/* Find where each string of an array begins, so that gguf_array_str() takes constant time. */
static enum status index_strings(struct cursor *c, struct arena *arena, struct gguf_array *a,
                                 struct buf *why)
{
    const unsigned char *text;
    uint64_t len;

    if (a->n > c->left / 8)
        return cut_short(why);
    uint32_t *places = arena_alloc(arena, a->n * sizeof *places);
    if (!places)
        return buf_why(why, ERR_NOMEM, "out of memory");
    for (uint64_t i = 0; i < a->n; i++) {
        uint64_t place = (uint64_t)(c->at - (const unsigned char *)a->data);
        if (place > UINT32_MAX)
            return buf_why(why, ERR_TOO_LARGE, "an array of strings has more than 4 GiB");
        places[i] = (uint32_t)place;
        if (!take_string(c, &text, &len))
            return cut_short(why);
    }
    a->places = places;
    return OK;
}

static enum status take_array(struct cursor *c, struct arena *arena, struct gguf_array *a,
                              struct buf *why)
{
    const unsigned char *end;
    uint32_t type;

    if (!take_u32(c, &type) || !take_u64(c, &a->n))
        return cut_short(why);
    if (type >= GGUF_N_TYPES)
        return buf_why(why, ERR_INVALID, "an array of type %u, which is unknown", type);
    if (type == GGUF_ARRAY)
        return buf_why(why, ERR_UNSUPPORTED, "an array of arrays is not supported");
    a->type = (enum gguf_type)type;
    a->data = c->at;
    if (type == GGUF_STRING)
        return index_strings(c, arena, a, why);
    if (a->n > c->left / gguf_number_bytes[type])
        return cut_short(why);
    (void)take(c, a->n * gguf_number_bytes[type], &end);
    return OK;
}

static enum status take_value(struct cursor *c, struct arena *arena, struct gguf_value *v,
                              struct buf *why)
{
    const unsigned char *text;
    uint64_t len;
    uint32_t type;

    if (!take_u32(c, &type))
        return cut_short(why);
    if (type >= GGUF_N_TYPES)
        return buf_why(why, ERR_INVALID, "type %u is unknown", type);
    v->type = (enum gguf_type)type;
    if (type == GGUF_ARRAY)
        return take_array(c, arena, &v->array, why);
    if (type != GGUF_STRING) {
        if (!take(c, gguf_number_bytes[type], &v->data))
            return cut_short(why);
        return type == GGUF_BOOL && *v->data > 1
                   ? buf_why(why, ERR_INVALID, "a bool is %u", *v->data)
                   : OK;
    }
    if (!take_string(c, &text, &len))
        return cut_short(why);
    v->len = len;
    v->text = arena_dup(arena, (const char *)text, len);
    return v->text ? OK : buf_why(why, ERR_NOMEM, "out of memory");
}

static enum status read_keys(struct gguf_part *p, struct cursor *c, uint64_t n, struct buf *why)
{
    struct buf inner;
    enum status s = OK;

    if (n > N_KEYS_MAX || n > c->left / KEY_BYTES_MIN)
        return buf_why(why, ERR_INVALID, "%llu keys do not fit, or are more than %d",
                       (unsigned long long)n, N_KEYS_MAX);
    p->values = calloc(n + 1, sizeof *p->values);
    if (!p->values)
        return buf_why(why, ERR_NOMEM, "out of memory");
    buf_init(&inner, BUF_WHY_MAX / 2);
    for (uint64_t i = 0; s == OK && i < n; i++) {
        struct gguf_value *v = &p->values[i];
        s = take_name(c, &p->arena, "key", KEY_BYTES_MAX, &v->key, why);
        if (s == OK && (s = take_value(c, &p->arena, v, &inner)) != OK)
            buf_why(why, s, "key %s: %s", v->key, buf_str(&inner));
        p->n_values += s == OK;
    }
    buf_fini(&inner);
    if (s != OK)
        return s;
    qsort(p->values, n, sizeof *p->values, gguf_compare_keys);
    for (uint64_t i = 1; i < n; i++)
        if (!gguf_compare_keys(&p->values[i - 1], &p->values[i]))
            return buf_why(why, ERR_INVALID, "key %s stands twice", p->values[i].key);
    return OK;
}

/* --- tensors --- */

/* The number of bytes of a tensor whose type is known. */
static enum status measure(struct gguf_tensor *t, struct buf *why)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->n_dims; i++)
        if (t->shape[i] == 0 || __builtin_mul_overflow(n, t->shape[i], &n) || n > INT64_MAX)
            return buf_why(why, ERR_INVALID, "tensor %s: no elements, or too many", t->name);
    t->code = gguf_code(t->type);
    if (!t->code)
        return OK;
    if (t->shape[0] % t->code->block_elements)
        return buf_why(why, ERR_INVALID, "tensor %s: rows of %llu elements are no blocks of %s",
                       t->name, (unsigned long long)t->shape[0], t->code->name);
    if (__builtin_mul_overflow(n / t->code->block_elements, t->code->block_bytes, &t->n_bytes))
        return buf_why(why, ERR_INVALID, "tensor %s: too many elements", t->name);
    return OK;
}

/* Read a tensor's info; `data` becomes an offset from the beginning of the data. */
static enum status take_info(struct gguf_part *p, struct cursor *c, struct gguf_tensor *t,
                             uint64_t *offset, struct buf *why)
{
    enum status s = take_name(c, &p->arena, "tensor", NAME_BYTES_MAX, &t->name, why);

    if (s != OK)
        return s;
    if (!take_u32(c, &t->n_dims))
        return cut_short(why);
    if (t->n_dims == 0 || t->n_dims > GGUF_N_DIMS_MAX)
        return buf_why(why, ERR_INVALID, "tensor %s: %u dimensions; 1 to %d are supported", t->name,
                       t->n_dims, GGUF_N_DIMS_MAX);
    for (uint32_t i = 0; i < GGUF_N_DIMS_MAX; i++)
        t->shape[i] = 1;
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!take_u64(c, &t->shape[i]))
            return cut_short(why);
    if (!take_u32(c, &t->type) || !take_u64(c, offset))
        return cut_short(why);
    return measure(t, why);
}

static int compare_places(const void *a, const void *b)
{
    const struct gguf_tensor *x = a, *y = b;

    if (x->data != y->data)
        return (uintptr_t)x->data < (uintptr_t)y->data ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Check the places of one file's tensors, and sort the tensors by place. The file may have gaps
 * between tensors, which writers fill up to the alignment. */
static enum status check_places(struct gguf_tensor *t, uint64_t n, const unsigned char *end,
                                struct buf *why)
{
    qsort(t, n, sizeof *t, compare_places);
    for (uint64_t i = 0; i < n; i++) {
        const unsigned char *next = i + 1 < n ? t[i + 1].data : end;
        uint64_t room = (uint64_t)(next - (const unsigned char *)t[i].data);
        if (t[i].n_bytes > room)
            return buf_why(why, ERR_INVALID, "tensor %s takes %llu bytes, but %s after %llu",
                           t[i].name, (unsigned long long)t[i].n_bytes,
                           i + 1 < n ? "another tensor begins" : "the file ends",
                           (unsigned long long)room);
        if (!t[i].code)
            t[i].n_bytes = room;
    }
    return OK;
}

static enum status read_alignment(const struct gguf_part *p, uint64_t *out, struct buf *why)
{
    const struct gguf_value *v = gguf_find_value(p, "general.alignment");

    *out = ALIGNMENT_DEFAULT;
    if (!v)
        return OK;
    if (v->type == GGUF_U32)
        *out = get_u32(v->data);
    else if (v->type == GGUF_U64)
        *out = get_u64(v->data);
    else
        *out = 0;
    if (*out == 0 || *out & (*out - 1) || *out > ALIGNMENT_MAX)
        return buf_why(why, ERR_INVALID,
                       "key general.alignment: expected a power of two up to %llu",
                       (unsigned long long)ALIGNMENT_MAX);
    return OK;
}

static enum status read_tensors(struct gguf *g, struct gguf_part *p, struct cursor *c, uint64_t n,
                                struct buf *why)
{
    uint64_t alignment;
    enum status s = read_alignment(p, &alignment, why);

    if (s != OK)
        return s;
    if (n > N_TENSORS_MAX - g->n_tensors || n > c->left / INFO_BYTES_MIN)
        return buf_why(why, ERR_INVALID, "%llu tensors do not fit, or are more than %d",
                       (unsigned long long)n, N_TENSORS_MAX);
    struct gguf_tensor *more = realloc(g->tensors, (g->n_tensors + n + 1) * sizeof *more);
    uint64_t *offsets = calloc(n + 1, sizeof *offsets);
    if (more)
        g->tensors = more;
    if (!more || !offsets) {
        free(offsets);
        return buf_why(why, ERR_NOMEM, "out of memory");
    }
    struct gguf_tensor *t = g->tensors + g->n_tensors;
    for (uint64_t i = 0; s == OK && i < n; i++) {
        t[i] = (struct gguf_tensor){.file = (uint32_t)(p - g->parts)};
        s = take_info(p, c, &t[i], &offsets[i], why);
    }
    /* The data begins at the next multiple of the alignment. */
    uint64_t begin = (p->map.n_bytes - c->left + alignment - 1) / alignment * alignment;
    for (uint64_t i = 0; s == OK && i < n; i++) {
        if (offsets[i] % alignment || begin > p->map.n_bytes || offsets[i] > p->map.n_bytes - begin)
            s = buf_why(why, ERR_INVALID,
                        "tensor %s: data at offset %llu is no multiple of %llu, or behind the "
                        "end: the file is cut short",
                        t[i].name, (unsigned long long)offsets[i], (unsigned long long)alignment);
        else
            t[i].data = p->map.data + begin + offsets[i];
    }
    free(offsets);
    if (s == OK)
        s = check_places(t, n, p->map.data + p->map.n_bytes, why);
    if (s == OK)
        g->n_tensors += n;
    return s;
}

/* --- files --- */

static enum status read_part(struct gguf *g, struct gguf_part *p, struct buf *why)
{
    struct cursor c = {p->map.data, p->map.n_bytes};
    const unsigned char *magic;
    uint64_t n_tensors, n_keys;
    uint32_t version;

    if (!take(&c, 4, &magic) || memcmp(magic, "GGUF", 4) != 0)
        return buf_why(why, ERR_INVALID, "not a GGUF file");
    if (!take_u32(&c, &version))
        return cut_short(why);
    if ((version & 0xffff) == 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "version 0x%08x: a big-endian file, which is not supported", version);
    if (version < VERSION_MIN || version > VERSION_MAX)
        return buf_why(why, ERR_UNSUPPORTED, "GGUF version %u is not supported; %d to %d are",
                       version, VERSION_MIN, VERSION_MAX);
    if (!take_u64(&c, &n_tensors) || !take_u64(&c, &n_keys))
        return cut_short(why);
    enum status s = read_keys(p, &c, n_keys, why);
    return s == OK ? read_tensors(g, p, &c, n_tensors, why) : s;
}

static enum status open_part(struct gguf *g, const char *path, struct buf *why)
{
    struct gguf_part *p = &g->parts[g->n_parts];
    struct buf inner;
    enum status s = mapfile_open(&p->map, path, why);

    if (s != OK)
        return s;
    g->n_parts++;
    p->fd = -1;
    arena_init(&p->arena, SIZE_MAX);
    p->path = strdup(path);
    if (!p->path)
        return buf_why(why, ERR_NOMEM, "out of memory");
    buf_init(&inner, BUF_WHY_MAX / 2);
    s = read_part(g, p, &inner);
    if (s != OK)
        buf_why(why, s, "%s: %s", path, buf_str(&inner));
    buf_fini(&inner);
    return s;
}

static enum status part_u64(const struct gguf_part *p, const char *key, uint64_t max, uint64_t *out,
                            struct buf *why)
{
    const struct gguf_value *v = gguf_find_value(p, key);

    return v ? gguf_value_u64(v, 0, max, out, why) : OK;
}

/* Open parts 2 to n of a split model: PREFIX-00002-of-0000n.gguf. */
static enum status open_others(struct gguf *g, const char *path, uint64_t n, struct buf *why)
{
    char suffix[64], other[PATH_BYTES_MAX];
    size_t len = strlen(path);
    enum status s = OK;

    int n_suffix = snprintf(suffix, sizeof suffix, "-00001-of-%05u.gguf", (unsigned)n);
    if (len <= (size_t)n_suffix || len >= sizeof other - 16 ||
        strcmp(path + len - (size_t)n_suffix, suffix) != 0)
        return buf_why(why, ERR_INVALID,
                       "%s is the first of %u files; its name must end with %s, and the others "
                       "must stand beside it",
                       path, (unsigned)n, suffix);
    for (uint64_t i = 1; s == OK && i < n; i++) {
        uint64_t no = UINT64_MAX;
        snprintf(other, sizeof other, "%.*s-%05u-of-%05u.gguf", (int)(len - (size_t)n_suffix), path,
                 (unsigned)i + 1, (unsigned)n);
        s = open_part(g, other, why);
        if (s == OK)
            s = part_u64(&g->parts[i], "split.no", UINT64_MAX, &no, why);
        if (s == OK && no != i)
            s = buf_why(why, ERR_INVALID, "%s: key split.no is not %u", other, (unsigned)i);
    }
    return s;
}

static enum status open_all(struct gguf *g, const char *path, struct buf *why)
{
    uint64_t n = 1, no = 0, n_tensors = 0;
    enum status s = open_part(g, path, why);

    if (s == OK)
        s = part_u64(&g->parts[0], "split.count", N_FILES_MAX, &n, why);
    if (s == OK)
        s = part_u64(&g->parts[0], "split.no", N_FILES_MAX, &no, why);
    if (s == OK)
        s = part_u64(&g->parts[0], "split.tensors.count", N_TENSORS_MAX, &n_tensors, why);
    if (s == OK && no != 0)
        s = buf_why(why, ERR_INVALID,
                    "%s is file %u of a split model; open the first, whose name has -00001-of-",
                    path, (unsigned)no + 1);
    if (s == OK && n > 1) {
        struct gguf_part *more = realloc(g->parts, n * sizeof *more);
        if (!more)
            return buf_why(why, ERR_NOMEM, "out of memory");
        g->parts = more;
        memset(more + 1, 0, (n - 1) * sizeof *more);
        s = open_others(g, path, n, why);
        if (s == OK && n_tensors && n_tensors != g->n_tensors)
            s = buf_why(why, ERR_INVALID, "%s: %llu tensors in all files, %llu expected", path,
                        (unsigned long long)g->n_tensors, (unsigned long long)n_tensors);
    }
    return s;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct gguf_tensor *)a)->name, ((const struct gguf_tensor *)b)->name);
}

enum status gguf_open(struct gguf **out, const char *path, struct buf *why)
{
    struct gguf *g = calloc(1, sizeof *g);
    enum status s;

    *out = NULL;
    if (g)
        g->parts = calloc(1, sizeof *g->parts);
    if (!g || !g->parts) {
        free(g);
        return buf_why(why, ERR_NOMEM, "out of memory");
    }
    s = open_all(g, path, why);
    if (s == OK && g->n_tensors) {
        qsort(g->tensors, g->n_tensors, sizeof *g->tensors, compare_names);
        for (uint64_t i = 1; s == OK && i < g->n_tensors; i++)
            if (!compare_names(&g->tensors[i - 1], &g->tensors[i]))
                s = buf_why(why, ERR_INVALID, "%s: tensor %s stands twice", path,
                            g->tensors[i].name);
    }
    if (s == OK)
        *out = g;
    else
        gguf_close(g);
    return s;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; i < g->n_parts; i++) {
        struct gguf_part *p = &g->parts[i];
        if (p->fd >= 0)
            close(p->fd);
        free(p->values);
        free(p->path);
        arena_fini(&p->arena);
        mapfile_close(&p->map);
    }
    free(g->parts);
    free(g->tensors);
    free(g);
}

bool gguf_is(const char *path)
{
    unsigned char magic[4];
    struct stat st;
    int fd;

    if (file_open(&fd, &st, path, NULL) != OK)
        return false;
    bool is = pread(fd, magic, sizeof magic, 0) == sizeof magic &&
              memcmp(magic, "GGUF", sizeof magic) == 0;
    close(fd);
    return is;
}

/* --- tensors, for callers --- */

uint64_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, uint64_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name)
{
    struct gguf_tensor want = {.name = name};

    return g->n_tensors ? bsearch(&want, g->tensors, g->n_tensors, sizeof want, compare_names)
                        : NULL;
}

enum status gguf_file(struct gguf *g, const struct gguf_tensor *t, int *fd, uint64_t *offset,
                      struct buf *why)
{
    struct gguf_part *p = &g->parts[t->file];
    enum status s = p->fd < 0 ? mapfile_reopen(&p->map, p->path, &p->fd, why) : OK;

    *fd = p->fd;
    *offset = (uint64_t)((const unsigned char *)t->data - p->map.data);
    return s;
}

const struct mapfile *gguf_map(const struct gguf *g, uint32_t i)
{
    return i < g->n_parts ? &g->parts[i].map : NULL;
}
