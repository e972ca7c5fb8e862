#include "engine/model/quantized.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/json.h"
#include "engine/model/quantized_codec.h"
#include "engine/model/quantized_config.h"

#define CONFIG_BYTES_MAX ((size_t)4 << 20)
#define NAME_BYTES_MAX 512
/* f16 holds magnitudes in this range to 11 bits. */
#define F16_NORMAL_MIN 0x1p-14f
#define F16_MAX 65504.0f
/* Elements of K that share a scale in an F8 weight. */
#define F8_GROUP 128

struct quantized {
    struct quantized_weight *weights; /* sorted by name */
    uint32_t n_weights;
};

/* The module whose parts are put together. */
struct module {
    const struct safetensors *st;
    const struct quantized_config *config;
    struct quantized_weight *w;
    const char *name; /* of the tensor of codes */
    int n_name;       /* bytes of it that are the module's */
    struct buf *why;
};

/* --- parts --- */

static enum status part_name(const struct module *m, const char *part, char out[NAME_BYTES_MAX])
{
    if (snprintf(out, NAME_BYTES_MAX, "%.*s.%s", m->n_name, m->name, part) >= NAME_BYTES_MAX)
        return buf_why(m->why, ERR_INVALID, "tensor %.64s...: the name is too long", m->name);
    return OK;
}

static enum status refuse(const struct module *m, const char *part, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static enum status refuse(const struct module *m, const char *part, const char *fmt, ...)
{
    char words[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    return buf_why(m->why, ERR_INVALID, "tensor %.*s.%s %s", m->n_name, m->name, part, words);
}

static const struct tensor *find_part(const struct module *m, const char *part)
{
    char name[NAME_BYTES_MAX];

    return part_name(m, part, name) == OK ? safetensors_find(m->st, name) : NULL;
}

static bool has_type(const struct tensor *t, const char *name)
{
    return !strcmp(t->dtype_name, name);
}

static uint64_t n_elements(const struct tensor *t)
{
    uint64_t n = 1; /* the reader of the file has checked the product */

    for (uint32_t i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

static uint64_t divide_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* Find a part with this shape; cols 0: a vector. type NULL: any float. */
static enum status need(const struct module *m, const char *part, const char *type, uint64_t rows,
                        uint64_t cols, const struct tensor **out)
{
    const struct tensor *t = find_part(m, part);

    if (!t)
        return refuse(m, part, "is missing");
    if (type ? !has_type(t, type) : !t->dtype_known)
        return refuse(m, part, "has dtype %s instead of %s", t->dtype_name,
                      type ? type : "F16, BF16 or F32");
    if (t->n_dims != (cols ? 2 : 1) || t->shape[0] != rows || (cols && t->shape[1] != cols))
        return refuse(m, part, "has another shape than [%llu%s%.0llu]", (unsigned long long)rows,
                      cols ? ", " : "", (unsigned long long)cols);
    *out = t;
    return OK;
}

/* Check the tensor of codes: a matrix that is not empty. */
static enum status check_matrix(const struct module *m, const char *part, const struct tensor *t,
                                const char *type)
{
    if (type && !has_type(t, type))
        return refuse(m, part, "has dtype %s instead of %s", t->dtype_name, type);
    if (t->n_dims != 2 || t->shape[0] == 0 || t->shape[1] == 0)
        return refuse(m, part, "is no matrix, or empty");
    return OK;
}

/* --- group indices --- */

/* Take over the group of each column, unless the groups are in order. */
static enum status take_groups(const struct module *m, const char *part)
{
    struct quantized_weight *w = m->w;
    const struct tensor *t;
    bool in_order = true, unset = m->config->method == QUANTIZED_COMPRESSED;
    enum status s = need(m, part, "I32", w->k, 0, &t);

    for (uint64_t i = 0; s == OK && unset && i < w->k; i++) /* -1 stands for no index */
        unset = quantized_i32(t, i) == -1;
    if (s != OK || unset)
        return s;
    for (uint64_t i = 0; i < w->k; i++) {
        int32_t group = quantized_i32(t, i);
        if (group < 0 || (uint64_t)group >= w->n_groups)
            return refuse(m, part, "has index %d at %llu, and there are %llu groups", group,
                          (unsigned long long)i, (unsigned long long)w->n_groups);
        in_order &= (uint64_t)group == i / w->block_cols;
    }
    w->g_idx = in_order ? NULL : t;
    return OK;
}

/* --- scales --- */

/* Check that scales are numbers, and whether f16 holds them and their offsets well. */
static enum status check_scales(const struct module *m, const char *part, bool *fit_f16)
{
    const struct quantized_weight *w = m->w;
    uint64_t n = n_elements(w->scales);
    struct quantized_weight flat = {.scales = w->scales, .block_rows = 1, .scale_per_row = 1};
    float offset_max = F16_MAX / (float)(1u << w->bits); /* zero points are below 2^bits */

    for (uint64_t i = 0; i < n; i++) {
        float scale = quantized_scale(&flat, i, 0);
        if (!isfinite(scale) || scale == 0)
            return refuse(m, part, "has the scale %g at %llu", (double)scale,
                          (unsigned long long)i);
        *fit_f16 &= fabsf(scale) >= F16_NORMAL_MIN && fabsf(scale) <= offset_max;
    }
    return OK;
}

/* The largest group that read_codes() can give; 0: groups are not whole parts of 32 elements. */
static uint32_t choose_code_group(const struct quantized_weight *w)
{
    uint64_t whole = w->block_cols < w->k ? w->block_cols : w->k;

    for (uint32_t group = 128; group >= 32; group /= 2)
        if (whole % group == 0)
            return group;
    return w->block_cols < w->k ? 0 : 128; /* one group, whose last part is shorter */
}

/* Complete w->tensor once all parts are known. */
static enum status finish(const struct module *m, const char *scales_part)
{
    struct quantized_weight *w = m->w;
    bool floats = w->codes_as == CODES_E4M3 || w->codes_as == CODES_E5M2, fit_f16 = true;
    bool whole_f8 = w->block_cols >= w->k || w->block_cols % F8_GROUP == 0;
    enum status s = w->scales ? check_scales(m, scales_part, &fit_f16) : OK;
    char name[NAME_BYTES_MAX];

    if (s == OK)
        s = part_name(m, "weight", name);
    if (s != OK)
        return s;
    const struct tensor *plain = safetensors_find(m->st, name);
    if (plain && plain != w->codes)
        return refuse(m, "weight", "stands beside %s", w->codes->name);
    w->tensor = (struct tensor){.name = strdup(name),
                                .n_dims = 2,
                                .shape = {w->n, w->k},
                                .data = w->codes->data,
                                .n_bytes = w->codes->n_bytes,
                                .file = w->codes->file,
                                .codec = quantized_codec(w),
                                .parts = {w->codes, w->scales, w->zeros, w->g_idx},
                                .own = {(uint64_t)(uintptr_t)w}};
    snprintf(w->tensor.dtype_name, sizeof w->tensor.dtype_name, "%s", w->tensor.codec->name);
    if (!floats && !w->g_idx && fit_f16)
        w->tensor.code_group = choose_code_group(w);
    if (w->codes_as == CODES_E4M3 && !w->g_idx && whole_f8) {
        w->tensor.code_is_f8 = true;
        w->tensor.code_group = F8_GROUP;
    }
    if (w->tensor.code_group)
        w->tensor.code_bits = w->bits;
    return w->tensor.name ? OK : buf_why(m->why, ERR_NOMEM, "out of memory");
}

/* --- gptq and awq --- */

/* Scales [G, N] and zero points [G, N / per] of both. */
static enum status take_packed_groups(const struct module *m, uint64_t per)
{
    struct quantized_weight *w = m->w;
    uint32_t group = m->config->schemes[0].block_cols;

    if (w->n % per != 0)
        return refuse(m, "qweight", "has %llu outputs, no multiple of %llu",
                      (unsigned long long)w->n, (unsigned long long)per);
    w->block_rows = 1;
    w->block_cols = group ? group : w->k;
    w->n_groups = divide_up(w->k, w->block_cols);
    w->scale_per_row = 1;
    w->scale_per_group = w->n;
    enum status s = need(m, "scales", NULL, w->n_groups, w->n, &w->scales);
    return s == OK ? need(m, "qzeros", "I32", w->n_groups, w->n / per, &w->zeros) : s;
}

static enum status build_gptq(const struct module *m)
{
    struct quantized_weight *w = m->w;
    uint64_t per = 32 / m->config->schemes[0].bits;
    enum status s = check_matrix(m, "qweight", w->codes, "I32");

    if (s != OK)
        return s;
    w->codes_as = CODES_ALONG_K_WORDS;
    w->zeros_as = ZEROS_ALONG_N;
    w->bits = m->config->schemes[0].bits;
    if (m->config->zeros_less_1)
        w->zeros_less = w->bits == 4 ? 0x11111111u : 0x01010101u;
    w->k = w->codes->shape[0] * per;
    w->n = w->codes->shape[1];
    s = take_packed_groups(m, per);
    if (s == OK && (m->config->reordered || find_part(m, "g_idx")))
        s = take_groups(m, "g_idx");
    return s == OK ? finish(m, "scales") : s;
}

static enum status build_awq(const struct module *m)
{
    struct quantized_weight *w = m->w;
    enum status s = check_matrix(m, "qweight", w->codes, "I32");

    if (s != OK)
        return s;
    w->codes_as = CODES_AWQ;
    w->zeros_as = ZEROS_AWQ;
    w->bits = 4;
    w->k = w->codes->shape[0];
    w->n = w->codes->shape[1] * 8;
    s = take_packed_groups(m, 8);
    return s == OK ? finish(m, "scales") : s;
}

/* --- compressed-tensors and fp8 --- */

/* Set the blocks of a scheme if the scales have its shape: [rows, groups], or [rows] with one
 * group. */
static bool fits(struct quantized_weight *w, const struct quantized_scheme *scheme,
                 const struct tensor *scales)
{
    uint64_t block_rows = scheme->block_rows ? scheme->block_rows : w->n;
    uint64_t block_cols = scheme->block_cols ? scheme->block_cols : w->k;
    uint64_t n_rows = divide_up(w->n, block_rows), n_groups = divide_up(w->k, block_cols);
    bool is_matrix = scales->n_dims == 2;

    if (is_matrix ? scales->shape[0] != n_rows || scales->shape[1] != n_groups
                  : scales->n_dims > 1 || n_groups != 1 || n_elements(scales) != n_rows)
        return false;
    w->block_rows = block_rows;
    w->block_cols = block_cols;
    w->n_groups = n_groups;
    w->scale_per_row = n_groups;
    w->scale_per_group = 1;
    return true;
}

/* Choose the scheme by the width of the codes and the shape of the scales. */
static enum status take_scales(const struct module *m, const char *part,
                               const struct quantized_scheme **out)
{
    struct quantized_weight *w = m->w;
    bool is_float = w->codes_as == CODES_E4M3 || w->codes_as == CODES_E5M2;
    const struct tensor *t = find_part(m, part);

    if (!t)
        return refuse(m, part, "is missing");
    if (!t->dtype_known)
        return refuse(m, part, "has dtype %s instead of F16, BF16 or F32", t->dtype_name);
    for (uint32_t i = 0; i < m->config->n_schemes; i++) {
        const struct quantized_scheme *scheme = &m->config->schemes[i];
        if (scheme->is_float != is_float ||
            (w->codes_as == CODES_ROWS &&
             (divide_up(w->k, 32 / scheme->bits) != w->codes->shape[1])))
            continue;
        if (fits(w, scheme, t)) {
            w->bits = w->codes_as == CODES_ROWS ? scheme->bits : 8;
            w->scales = t;
            *out = scheme;
            return OK;
        }
    }
    return refuse(m, part, "has a shape, or codes of a width, that no scheme of config.json has");
}

static enum status take_zeros(const struct module *m, const struct quantized_scheme *scheme)
{
    struct quantized_weight *w = m->w;
    const char *part = "weight_zero_point";
    const struct tensor *t = find_part(m, part);

    w->zeros_as = ZEROS_FIXED;
    w->zero = 1 << (w->bits - 1);
    if (scheme->symmetric || scheme->is_float)
        return OK;
    if (!t)
        return refuse(m, part, "is missing, and the scheme is not symmetric");
    if (has_type(t, "I8") && n_elements(t) == n_elements(w->scales)) {
        w->zeros_as = ZEROS_I8;
        w->zeros = t;
        return OK;
    }
    w->zeros_as = ZEROS_COLUMNS;
    if (w->block_rows != 1)
        return refuse(m, part, "has dtype %s, or another size than the scales", t->dtype_name);
    return need(m, part, "I32", divide_up(w->n, 32 / w->bits), w->n_groups, &w->zeros);
}

/* Read weight_shape [2], I64 or I32, into n and k. */
static enum status take_shape(const struct module *m)
{
    const char *part = "weight_shape";
    const struct tensor *t = find_part(m, part);
    int64_t shape[2];

    if (!t)
        return refuse(m, part, "is missing");
    if ((!has_type(t, "I64") && !has_type(t, "I32")) || n_elements(t) != 2)
        return refuse(m, part, "is no pair of I64 or I32");
    if (has_type(t, "I64"))
        memcpy(shape, t->data, sizeof shape);
    else
        for (uint32_t i = 0; i < 2; i++)
            shape[i] = quantized_i32(t, i);
    if (shape[0] < 1 || shape[1] < 1 || (uint64_t)shape[0] != m->w->codes->shape[0] ||
        (uint64_t)shape[1] / 8 > m->w->codes->shape[1])
        return refuse(m, part, "disagrees with weight_packed");
    m->w->n = (uint64_t)shape[0];
    m->w->k = (uint64_t)shape[1];
    return OK;
}

static enum status build_rows(const struct module *m, const char *scales_part)
{
    const struct quantized_scheme *scheme = NULL;
    enum status s = take_scales(m, scales_part, &scheme);

    if (s == OK)
        s = take_zeros(m, scheme);
    if (s == OK && m->config->method == QUANTIZED_COMPRESSED && find_part(m, "weight_g_idx"))
        s = take_groups(m, "weight_g_idx");
    return s == OK ? finish(m, scales_part) : s;
}

static enum status build_packed(const struct module *m)
{
    enum status s = check_matrix(m, "weight_packed", m->w->codes, "I32");

    m->w->codes_as = CODES_ROWS;
    if (s == OK)
        s = take_shape(m);
    return s == OK ? build_rows(m, "weight_scale") : s;
}

/* F8 numbers of a checkpoint without quantization_config. */
static enum status build_plain(const struct module *m)
{
    static const char *const parts[] = {"weight_scale", "weight_scale_inv"};

    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        if (find_part(m, parts[i]))
            return refuse(m, parts[i], "exists, but config.json has no quantization_config");
    m->w->bits = 8;
    m->w->block_rows = m->w->n;
    m->w->block_cols = m->w->k;
    m->w->n_groups = 1;
    return finish(m, "weight");
}

static enum status build_bytes(const struct module *m)
{
    struct quantized_weight *w = m->w;
    enum status s = check_matrix(m, "weight", w->codes, NULL);

    if (s != OK)
        return s;
    w->codes_as = has_type(w->codes, "I8")        ? CODES_I8
                  : has_type(w->codes, "F8_E4M3") ? CODES_E4M3
                                                  : CODES_E5M2;
    w->n = w->codes->shape[0];
    w->k = w->codes->shape[1];
    if (m->config->method == QUANTIZED_NONE)
        return build_plain(m);
    bool inverse = m->config->method == QUANTIZED_FP8 && find_part(m, "weight_scale_inv");
    return build_rows(m, inverse ? "weight_scale_inv" : "weight_scale");
}

/* --- all of a checkpoint --- */

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), n_end = strlen(end);

    return n > n_end && !strcmp(name + n - n_end, end);
}

/* The last component of the tensor's name if the tensor has the codes of a weight; else NULL. */
static const char *codes_part(const struct quantized_config *config, const struct tensor *t)
{
    bool f8 = has_type(t, "F8_E4M3") || has_type(t, "F8_E5M2");
    bool any = config->method == QUANTIZED_NONE; /* build() refuses what needs a method */

    if ((any || config->method == QUANTIZED_GPTQ || config->method == QUANTIZED_AWQ) &&
        ends_with(t->name, ".qweight"))
        return "qweight";
    if ((any || config->method == QUANTIZED_COMPRESSED) && ends_with(t->name, ".weight_packed"))
        return "weight_packed";
    if (ends_with(t->name, ".weight") &&
        (f8 || (config->method == QUANTIZED_COMPRESSED && has_type(t, "I8"))))
        return "weight";
    return NULL;
}

static enum status build(const struct module *m)
{
    if (m->config->method == QUANTIZED_NONE && !ends_with(m->name, ".weight"))
        return buf_why(m->why, ERR_INVALID,
                       "tensor %s is quantized, but config.json has no quantization_config",
                       m->name);
    if (m->config->method == QUANTIZED_GPTQ)
        return build_gptq(m);
    if (m->config->method == QUANTIZED_AWQ)
        return build_awq(m);
    return ends_with(m->name, ".weight_packed") ? build_packed(m) : build_bytes(m);
}

static int compare_weights(const void *a, const void *b)
{
    return strcmp(((const struct quantized_weight *)a)->tensor.name,
                  ((const struct quantized_weight *)b)->tensor.name);
}

static enum status build_all(struct quantized *q, const struct safetensors *st,
                             const struct quantized_config *config, struct buf *why)
{
    uint32_t n;
    const struct tensor *all = safetensors_all(st, &n);

    for (uint32_t i = 0; i < n; i++) {
        const char *part = codes_part(config, &all[i]);
        if (!part)
            continue;
        struct module m = {.st = st,
                           .config = config,
                           .w = &q->weights[q->n_weights],
                           .name = all[i].name,
                           .n_name = (int)(strlen(all[i].name) - strlen(part) - 1),
                           .why = why};
        m.w->codes = &all[i];
        enum status s = build(&m);
        if (s != OK)
            return s;
        q->n_weights++;
    }
    if (q->n_weights)
        qsort(q->weights, q->n_weights, sizeof *q->weights, compare_weights);
    for (uint32_t i = 0; i < q->n_weights; i++)
        q->weights[i].tensor.own[0] = (uint64_t)(uintptr_t)&q->weights[i];
    return OK;
}

static enum status read_config(struct quantized_config *out, const char *dir, struct buf *why)
{
    char path[4096];
    struct json *j = NULL;
    struct buf inner;

    *out = (struct quantized_config){.method = QUANTIZED_NONE};
    if (snprintf(path, sizeof path, "%s/config.json", dir) >= (int)sizeof path)
        return buf_why(why, ERR_INVALID, "model path is too long");
    enum status s = js_parse_file(&j, path, CONFIG_BYTES_MAX, why);
    if (s != OK)
        return s == ERR_NOT_FOUND ? OK : s;
    buf_init(&inner, BUF_WHY_MAX / 2);
    s = quantized_config_read(out, j, &inner);
    if (s != OK)
        buf_why(why, s, "%s: %s", path, buf_str(&inner));
    buf_fini(&inner);
    js_unref(j);
    return s;
}

enum status quantized_open(struct quantized **out, const struct safetensors *st, const char *dir,
                           struct buf *why)
{
    struct quantized_config config;
    uint32_t n, n_codes = 0;
    const struct tensor *all = safetensors_all(st, &n);
    enum status s = read_config(&config, dir, why);

    *out = NULL;
    for (uint32_t i = 0; s == OK && i < n; i++)
        n_codes += codes_part(&config, &all[i]) != NULL;
    if (s != OK || n_codes == 0)
        return s;
    struct quantized *q = calloc(1, sizeof *q);
    if (q)
        q->weights = calloc(n_codes, sizeof *q->weights);
    if (!q || !q->weights)
        s = buf_why(why, ERR_NOMEM, "out of memory");
    else
        s = build_all(q, st, &config, why);
    if (s == OK)
        *out = q;
    else
        quantized_close(q);
    return s;
}

void quantized_close(struct quantized *q)
{
    if (!q)
        return;
    for (uint32_t i = 0; q->weights && i < q->n_weights; i++)
        free((char *)(uintptr_t)q->weights[i].tensor.name);
    free(q->weights);
    free(q);
}

const struct tensor *quantized_find(const struct quantized *q, const char *name)
{
    struct quantized_weight want = {.tensor.name = name};

    if (!q)
        return NULL;
    const struct quantized_weight *w =
        bsearch(&want, q->weights, q->n_weights, sizeof want, compare_weights);
    return w ? &w->tensor : NULL;
}
