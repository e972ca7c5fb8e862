#include "engine/model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/json.h"
#include "base/mapfile.h"

#define HEADER_BYTES_MAX ((uint64_t)100 << 20)
#define INDEX_BYTES_MAX ((size_t)64 << 20)
#define N_FILES_MAX 1024
#define N_TENSORS_MAX 1000000u

struct shard {
    struct mapfile file;
    struct json *header; /* owns the tensors' names and shapes */
    char *path;
    int fd; /* -1: not opened for reads yet */
};

struct safetensors {
    struct shard shards[N_FILES_MAX];
    uint32_t n_shards;
    struct tensor *tensors; /* sorted by name */
    uint32_t n_tensors, cap;
    size_t copy_bytes_max; /* of a file that is copied; 0: files are mapped */
};

/* Bytes of one element of each type of the format; 0: an unknown type. */
static uint32_t element_bytes(const char *dtype_name)
{
    static const struct {
        const char *name;
        uint32_t n_bytes;
    } types[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
                 {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
                 {"U32", 4},  {"F32", 4}, {"I64", 8}, {"U64", 8},     {"F64", 8}};

    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if (!strcmp(types[i].name, dtype_name))
            return types[i].n_bytes;
    return 0;
}

static enum status read_dtype(struct tensor *t, const struct json *j, struct buf *why)
{
    const char *name = NULL;
    enum status s = js_get_str(j, "dtype", &name, NULL, why);

    if (s != OK)
        return s;
    if (!name)
        return buf_why(why, ERR_INVALID, "dtype is missing");
    snprintf(t->dtype_name, sizeof t->dtype_name, "%s", name);
    t->dtype_known = 1;
    if (!strcmp(name, "F32"))
        t->dtype = DTYPE_F32;
    else if (!strcmp(name, "F16"))
        t->dtype = DTYPE_F16;
    else if (!strcmp(name, "BF16"))
        t->dtype = DTYPE_BF16;
    else
        t->dtype_known = 0;
    return OK;
}

/* The number of elements of a shape; an overflow is an error. */
static enum status read_shape(struct tensor *t, const struct json *j, uint64_t *n_elements,
                              struct buf *why)
{
    const struct json *shape = js_get(j, "shape");

    if (!js_is(shape, JS_ARRAY) || js_len(shape) > TENSOR_N_DIMS_MAX)
        return buf_why(why, ERR_INVALID, "shape: expected an array of at most %d numbers",
                       TENSOR_N_DIMS_MAX);
    *n_elements = 1;
    t->n_dims = (uint32_t)js_len(shape);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        const struct json *d = js_at(shape, i);
        if (!js_is(d, JS_INT) || js_int(d) < 0)
            return buf_why(why, ERR_INVALID, "shape[%u]: expected a size", i);
        t->shape[i] = (uint64_t)js_int(d);
        if (__builtin_mul_overflow(*n_elements, t->shape[i], n_elements))
            return buf_why(why, ERR_INVALID, "shape: too many elements");
    }
    return OK;
}

static enum status read_extent(struct tensor *t, const struct json *j, uint64_t n_elements,
                               const unsigned char *data, uint64_t n_data, struct buf *why)
{
    const struct json *o = js_get(j, "data_offsets");
    const struct json *b = js_at(o, 0), *e = js_at(o, 1);
    uint64_t bytes, size = element_bytes(t->dtype_name);

    if (js_len(o) != 2 || !js_is(b, JS_INT) || !js_is(e, JS_INT) || js_int(b) < 0 ||
        js_int(e) < js_int(b))
        return buf_why(why, ERR_INVALID, "data_offsets: expected [begin, end]");
    if ((uint64_t)js_int(e) > n_data)
        return buf_why(why, ERR_INVALID,
                       "data ends at byte %lld, behind the file's end (%llu): "
                       "the file is cut short",
                       (long long)js_int(e), (unsigned long long)n_data);
    t->data = data + js_int(b);
    t->n_bytes = (uint64_t)(js_int(e) - js_int(b));
    if (size && (__builtin_mul_overflow(n_elements, size, &bytes) || bytes != t->n_bytes))
        return buf_why(why, ERR_INVALID, "shape and data_offsets disagree");
    if (size && (uint64_t)js_int(b) % size != 0)
        return buf_why(why, ERR_INVALID,
                       "data begins at byte %lld, which is no multiple of the "
                       "%llu bytes of an element",
                       (long long)js_int(b), (unsigned long long)size);
    return OK;
}

static enum status add_tensor(struct safetensors *st, const char *name, const struct json *j,
                              const unsigned char *data, uint64_t n_data, struct buf *why)
{
    struct tensor t = {.name = name, .file = st->n_shards - 1};
    uint64_t n_elements = 0;
    enum status s;

    if (!js_is(j, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "expected an object");
    s = read_dtype(&t, j, why);
    if (s == OK)
        s = read_shape(&t, j, &n_elements, why);
    if (s == OK)
        s = read_extent(&t, j, n_elements, data, n_data, why);
    if (s != OK)
        return s;
    if (st->n_tensors == st->cap) {
        uint32_t cap = st->cap ? st->cap * 2 : 256;
        if (cap > N_TENSORS_MAX)
            return buf_why(why, ERR_TOO_LARGE, "more than %u tensors", N_TENSORS_MAX);
        struct tensor *more = realloc(st->tensors, cap * sizeof *more);
        if (!more)
            return buf_why(why, ERR_NOMEM, "out of memory");
        st->tensors = more;
        st->cap = cap;
    }
    st->tensors[st->n_tensors++] = t;
    return OK;
}

/* --- the layout of a file --- */

static int compare_places(const void *a, const void *b)
{
    const struct tensor *x = *(const struct tensor *const *)a;
    const struct tensor *y = *(const struct tensor *const *)b;
    uintptr_t x_at = (uintptr_t)x->data, y_at = (uintptr_t)y->data;

    if (x_at != y_at)
        return x_at < y_at ? -1 : 1;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes; /* an empty tensor goes first */
}

/* Check that the tensors, sorted by place, cover the data of their file: the first begins at 0,
 * each next one where the previous one ends, and the last ends at the end of the file. The format
 * and its official library demand it. */
static enum status check_places(const struct tensor *const *sorted, uint32_t n,
                                const unsigned char *data, uint64_t n_data, struct buf *why)
{
    uint64_t end = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t begin = (uint64_t)((const unsigned char *)sorted[i]->data - data);
        if (begin < end)
            return buf_why(why, ERR_INVALID,
                           "tensor %s begins at byte %llu, but tensor %s before "
                           "it ends at byte %llu: they overlap",
                           sorted[i]->name, (unsigned long long)begin, sorted[i - 1]->name,
                           (unsigned long long)end);
        if (begin > end)
            return buf_why(why, ERR_INVALID,
                           "tensor %s begins at byte %llu, and the %llu bytes "
                           "before it belong to no tensor",
                           sorted[i]->name, (unsigned long long)begin,
                           (unsigned long long)(begin - end));
        end = begin + sorted[i]->n_bytes;
    }
    if (end < n_data)
        return buf_why(why, ERR_INVALID, "the last %llu bytes of data belong to no tensor",
                       (unsigned long long)(n_data - end));
    return OK;
}

/* The tensors from `first` on are those of one file. */
static enum status check_layout(const struct safetensors *st, uint32_t first,
                                const unsigned char *data, uint64_t n_data, struct buf *why)
{
    uint32_t n = st->n_tensors - first;
    const struct tensor **sorted = malloc((n + 1) * sizeof *sorted);

    if (!sorted)
        return buf_why(why, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = &st->tensors[first + i];
    qsort(sorted, n, sizeof *sorted, compare_places);
    enum status s = check_places(sorted, n, data, n_data, why);
    free(sorted);
    return s;
}

static enum status read_tensors(struct safetensors *st, const struct shard *sh,
                                const unsigned char *data, uint64_t n_data, struct buf *why)
{
    uint32_t first = st->n_tensors;
    struct buf inner;
    enum status s = OK;

    buf_init(&inner, BUF_WHY_MAX / 2);
    for (void *it = js_first(sh->header); s == OK && it; it = js_next(sh->header, it)) {
        const char *name = js_it_key(it);
        if (!strcmp(name, "__metadata__"))
            continue;
        s = add_tensor(st, name, js_it_value(it), data, n_data, &inner);
        if (s != OK)
            buf_why(why, s, "%s: tensor %s: %s", sh->path, name, buf_str(&inner));
    }
    if (s == OK && (s = check_layout(st, first, data, n_data, &inner)) != OK)
        buf_why(why, s, "%s: %s", sh->path, buf_str(&inner));
    buf_fini(&inner);
    return s;
}

static enum status read_header(struct safetensors *st, struct shard *sh, const char *path,
                               struct buf *why)
{
    struct buf inner;
    uint64_t n = 0;
    enum status s;

    for (unsigned i = 0; i < 8 && i < sh->file.n_bytes; i++)
        n |= (uint64_t)sh->file.data[i] << (8 * i);
    if (sh->file.n_bytes < 8 || n > HEADER_BYTES_MAX || n > sh->file.n_bytes - 8)
        return buf_why(why, ERR_INVALID, "%s is no safetensors file, or cut short", path);
    buf_init(&inner, BUF_WHY_MAX / 2);
    s = js_parse(&sh->header, (const char *)sh->file.data + 8, n, &inner);
    if (s == OK && !js_is(sh->header, JS_OBJECT))
        s = buf_why(&inner, ERR_INVALID, "the header is no object");
    if (s != OK)
        buf_why(why, s, "%s: %s", path, buf_str(&inner));
    buf_fini(&inner);
    return s == OK ? read_tensors(st, sh, sh->file.data + 8 + n, sh->file.n_bytes - 8 - n, why) : s;
}

static enum status open_shard(struct safetensors *st, const char *dir, const char *name,
                              struct buf *why)
{
    char path[4096];

    if (st->n_shards == N_FILES_MAX)
        return buf_why(why, ERR_TOO_LARGE, "more than %d checkpoint files", N_FILES_MAX);
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return buf_why(why, ERR_INVALID, "model path is too long");
    struct shard *sh = &st->shards[st->n_shards];
    enum status s = st->copy_bytes_max ? mapfile_copy(&sh->file, path, st->copy_bytes_max, why)
                                       : mapfile_open(&sh->file, path, why);
    if (s != OK)
        return s;
    st->n_shards++;
    sh->fd = -1;
    sh->path = strdup(path);
    return sh->path ? read_header(st, sh, path, why) : buf_why(why, ERR_NOMEM, "out of memory");
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct files of an index, in name order. */
static enum status open_index(struct safetensors *st, const char *dir, const struct json *index,
                              struct buf *why)
{
    const struct json *map = js_get(index, "weight_map");
    const char **names = calloc(js_len(map) + 1, sizeof *names);
    size_t n = 0;
    enum status s = OK;

    if (!names)
        return buf_why(why, ERR_NOMEM, "out of memory");
    if (!js_is(map, JS_OBJECT) || js_len(map) == 0)
        s = buf_why(why, ERR_INVALID, "%s/model.safetensors.index.json: weight_map is missing",
                    dir);
    for (void *it = js_first(map); s == OK && it; it = js_next(map, it)) {
        const struct json *v = js_it_value(it);
        /* A file name, not a path: an index must not reach out of its directory. */
        if (!js_is(v, JS_STRING) || strchr(js_string(v, NULL), '/'))
            s = buf_why(why, ERR_INVALID,
                        "%s/model.safetensors.index.json: weight_map.%s: "
                        "expected a file name",
                        dir, js_it_key(it));
        else
            names[n++] = js_string(v, NULL);
    }
    qsort(names, n, sizeof *names, compare_names);
    for (size_t i = 0; s == OK && i < n; i++)
        if (i == 0 || strcmp(names[i], names[i - 1]))
            s = open_shard(st, dir, names[i], why);
    free(names);
    return s;
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static enum status sort_tensors(struct safetensors *st, struct buf *why)
{
    if (st->n_tensors)
        qsort(st->tensors, st->n_tensors, sizeof *st->tensors, compare_tensors);
    for (uint32_t i = 1; i < st->n_tensors; i++)
        if (!strcmp(st->tensors[i].name, st->tensors[i - 1].name))
            return buf_why(why, ERR_INVALID, "tensor %s stands in two files", st->tensors[i].name);
    return OK;
}

/* Open the checkpoint of the directory, or copy one file, whose limit is n_bytes_max. */
static enum status open_files(struct safetensors **out, const char *dir, const char *name,
                              size_t n_bytes_max, struct buf *why)
{
    struct safetensors *st = calloc(1, sizeof *st);
    struct json *index = NULL;
    char path[4096];
    enum status s;

    *out = NULL;
    if (!st)
        return buf_why(why, ERR_NOMEM, "out of memory");
    st->copy_bytes_max = n_bytes_max;
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    if (!name && access(path, F_OK) == 0) {
        s = js_parse_file(&index, path, INDEX_BYTES_MAX, why);
        if (s == OK)
            s = open_index(st, dir, index, why);
        js_unref(index);
    } else {
        s = open_shard(st, dir, name ? name : "model.safetensors", why);
    }
    if (s == OK)
        s = sort_tensors(st, why);
    if (s != OK) {
        safetensors_close(st);
        return s;
    }
    *out = st;
    return OK;
}

enum status safetensors_open(struct safetensors **out, const char *dir, struct buf *why)
{
    return open_files(out, dir, NULL, 0, why);
}

enum status safetensors_copy_file(struct safetensors **out, const char *dir, const char *name,
                                  size_t n_bytes_max, struct buf *why)
{
    return open_files(out, dir, name, n_bytes_max, why);
}

void safetensors_close(struct safetensors *st)
{
    if (!st)
        return;
    for (uint32_t i = 0; i < st->n_shards; i++) {
        js_unref(st->shards[i].header);
        if (st->shards[i].fd >= 0)
            close(st->shards[i].fd);
        free(st->shards[i].path);
        mapfile_close(&st->shards[i].file);
    }
    free(st->tensors);
    free(st);
}

const struct tensor *safetensors_find(const struct safetensors *st, const char *name)
{
    struct tensor want = {.name = name};

    if (st->n_tensors == 0)
        return NULL;
    return bsearch(&want, st->tensors, st->n_tensors, sizeof want, compare_tensors);
}

const struct tensor *safetensors_all(const struct safetensors *st, uint32_t *n)
{
    *n = st->n_tensors;
    return st->tensors;
}

enum status safetensors_file(struct safetensors *st, const struct tensor *t, int *fd,
                             uint64_t *offset, struct buf *why)
{
    struct shard *sh = &st->shards[t->file];
    enum status s = sh->fd < 0 ? mapfile_reopen(&sh->file, sh->path, &sh->fd, why) : OK;

    *fd = sh->fd;
    *offset = (uint64_t)((const unsigned char *)t->data - sh->file.data);
    return s;
}

const struct mapfile *safetensors_map(const struct safetensors *st, uint32_t i)
{
    return i < st->n_shards ? &st->shards[i].file : NULL;
}
