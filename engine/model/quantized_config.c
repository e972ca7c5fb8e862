#include "engine/model/quantized_config.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"

#define SUPPORTED "supported: gptq, awq, compressed-tensors, fp8, fbgemm_fp8"
#define GROUP_MAX (1 << 20)

/* Read a number of elements from 1; -1: `whole`. */
static enum status read_group(const struct json *j, const char *key, uint32_t *out, struct buf *why)
{
    int64_t group = 0;
    enum status s = js_get_i64(j, key, -1, GROUP_MAX, &group, why);

    if (s == OK && group == 0)
        s = buf_why(why, ERR_INVALID, "%s is missing or 0; expected -1 or a number of elements",
                    key);
    *out = group > 0 ? (uint32_t)group : 0;
    return s;
}

/* Read the string `key`, or `other` where `key` is absent. */
static enum status read_name(const struct json *j, const char *key, const char *other,
                             const char **out, struct buf *why)
{
    if (!js_get_set(j, key))
        key = other;
    return js_get_str(j, key, out, NULL, why);
}

static enum status read_bits(const struct json *j, bool eight, uint32_t *out, struct buf *why)
{
    const char *key = js_get_set(j, "bits") ? "bits" : "w_bit";
    int64_t bits = 0;
    enum status s = js_get_i64(j, key, 1, 64, &bits, why);

    if (s == OK && bits == 0)
        s = buf_why(why, ERR_INVALID, "bits is missing");
    if (s == OK && bits != 4 && !(bits == 8 && eight))
        s = buf_why(why, ERR_UNSUPPORTED, "bits %lld is not supported; %s", (long long)bits,
                    eight ? "4 and 8 are" : "4 is");
    *out = (uint32_t)bits;
    return s;
}

/* Keys of `dynamic` that begin with "-:" leave modules out, and other keys change their widths. */
static enum status check_dynamic(const struct json *dynamic, struct buf *why)
{
    for (void *it = js_first(dynamic); it; it = js_next(dynamic, it))
        if (strncmp(js_it_key(it), "-:", 2) != 0)
            return buf_why(
                why, ERR_UNSUPPORTED,
                "dynamic: other widths for %.64s are not supported; \"-:\", which leaves "
                "modules as floats, is",
                js_it_key(it));
    return OK;
}

static enum status read_gptq(struct quantized_config *out, const struct json *j, struct buf *why)
{
    struct quantized_scheme *scheme = &out->schemes[0];
    const char *format = "gptq";
    enum status s = read_bits(j, true, &scheme->bits, why);

    out->method = QUANTIZED_GPTQ;
    out->n_schemes = 1;
    scheme->block_rows = 1;
    if (s == OK)
        s = read_group(j, "group_size", &scheme->block_cols, why);
    if (s == OK)
        s = js_get_bool(j, "desc_act", &out->reordered, why);
    if (s == OK)
        s = read_name(j, "checkpoint_format", "format", &format, why);
    if (s == OK)
        s = check_dynamic(js_get(j, "dynamic"), why);
    if (s != OK)
        return s;
    out->zeros_less_1 = !strcmp(format, "gptq");
    if (!out->zeros_less_1 && strcmp(format, "gptq_v2") != 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "checkpoint_format %s of gptq is not supported; gptq and gptq_v2 are",
                       format);
    return OK;
}

static enum status read_awq(struct quantized_config *out, const struct json *j, struct buf *why)
{
    struct quantized_scheme *scheme = &out->schemes[0];
    const char *version = "gemm";
    bool zero_point = true;
    enum status s = read_bits(j, false, &scheme->bits, why);

    out->method = QUANTIZED_AWQ;
    out->n_schemes = 1;
    scheme->block_rows = 1;
    if (s == OK)
        s = read_group(j, js_get_set(j, "group_size") ? "group_size" : "q_group_size",
                       &scheme->block_cols, why);
    if (s == OK)
        s = js_get_bool(j, "zero_point", &zero_point, why);
    if (s == OK)
        s = read_name(j, "version", "format", &version, why);
    if (s == OK && strcasecmp(version, "gemm") != 0)
        s = buf_why(why, ERR_UNSUPPORTED, "version %s of awq is not supported; gemm is", version);
    if (s == OK && !zero_point)
        s = buf_why(why, ERR_UNSUPPORTED, "awq without zero_point is not supported");
    return s;
}

/* --- fp8 --- */

/* Read block_structure or weight_block_size: [rows, columns], or the text "ROWSxCOLUMNS". */
static enum status read_block(const struct json *v, const char *key, struct quantized_scheme *out,
                              struct buf *why)
{
    const struct json *rows = js_at(v, 0), *cols = js_at(v, 1);
    unsigned n_rows = 0, n_cols = 0;
    char end;

    if (js_is(v, JS_STRING) && sscanf(js_string(v, NULL), "%7ux%7u%c", &n_rows, &n_cols, &end) != 2)
        n_rows = 0;
    if (js_len(v) == 2 && js_is(rows, JS_INT) && js_is(cols, JS_INT) && js_int(rows) > 0 &&
        js_int(rows) <= GROUP_MAX && js_int(cols) > 0 && js_int(cols) <= GROUP_MAX) {
        n_rows = (unsigned)js_int(rows);
        n_cols = (unsigned)js_int(cols);
    }
    if (n_rows == 0 || n_cols == 0 || n_rows > GROUP_MAX || n_cols > GROUP_MAX)
        return buf_why(why, ERR_INVALID, "%s: expected two sizes", key);
    out->block_rows = n_rows;
    out->block_cols = n_cols;
    return OK;
}

static const struct quantized_scheme fp8_tensor = {.bits = 8, .is_float = true, .symmetric = true};
static const struct quantized_scheme fp8_channel = {
    .bits = 8, .is_float = true, .symmetric = true, .block_rows = 1};

static enum status read_fp8(struct quantized_config *out, const struct json *j, struct buf *why)
{
    const struct json *block = js_get_set(j, "weight_block_size");
    enum status s = OK;

    out->method = QUANTIZED_FP8;
    if (block) {
        struct quantized_scheme *scheme = &out->schemes[out->n_schemes++];
        *scheme = fp8_tensor;
        s = read_block(block, "weight_block_size", scheme, why);
    }
    out->schemes[out->n_schemes++] = fp8_tensor;
    out->schemes[out->n_schemes++] = fp8_channel;
    return s;
}

/* --- compressed-tensors --- */

static enum status read_strategy(const struct json *j, struct quantized_scheme *out,
                                 struct buf *why)
{
    bool grouped = js_get_set(j, "group_size") != NULL;
    const char *name = NULL;
    enum status s = js_get_str(j, "strategy", &name, NULL, why);

    if (s == OK && grouped)
        s = read_group(j, "group_size", &out->block_cols, why);
    if (s != OK)
        return s;
    if (!name) /* as the library infers the strategy */
        name = !grouped ? "tensor" : out->block_cols ? "group" : "channel";
    out->block_rows = strcmp(name, "tensor") != 0;
    if (!strcmp(name, "block"))
        return read_block(js_get(j, "block_structure"), "block_structure", out, why);
    if (!strcmp(name, "group"))
        return out->block_cols ? OK : buf_why(why, ERR_INVALID, "group_size is missing");
    if (strcmp(name, "tensor") != 0 && strcmp(name, "channel") != 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "strategy %s is not supported; tensor, channel, group and block are", name);
    out->block_cols = 0;
    return OK;
}

static enum status read_scheme(const struct json *j, struct quantized_scheme *out, struct buf *why)
{
    int64_t bits = 8;
    const char *type = "int";
    enum status s = js_get_i64(j, "num_bits", 1, 64, &bits, why);

    *out = (struct quantized_scheme){.symmetric = true};
    if (s == OK)
        s = js_get_str(j, "type", &type, NULL, why);
    if (s == OK)
        s = js_get_bool(j, "symmetric", &out->symmetric, why);
    if (s != OK)
        return s;
    out->is_float = !strcmp(type, "float");
    out->bits = (uint32_t)bits;
    if ((!out->is_float && strcmp(type, "int") != 0) || (bits != 8 && (bits != 4 || out->is_float)))
        return buf_why(why, ERR_UNSUPPORTED,
                       "weights of %lld bits of type %s are not supported; int of 4 and 8 bits and "
                       "float of 8 bits are",
                       (long long)bits, type);
    if (out->is_float && !out->symmetric)
        return buf_why(why, ERR_UNSUPPORTED, "floats with zero points are not supported");
    return read_strategy(j, out, why);
}

static enum status check_format(const struct json *j, struct buf *why)
{
    static const char *const known[] = {"dense",           "int-quantized",  "float-quantized",
                                        "naive-quantized", "pack-quantized", "mixed-precision"};
    const char *name = NULL;
    enum status s = js_get_str(j, "format", &name, NULL, why);

    for (size_t i = 0; s == OK && name && i < ARRAY_SIZE(known); i++)
        if (!strcmp(name, known[i]))
            return OK;
    if (s != OK || !name)
        return s;
    return buf_why(why, ERR_UNSUPPORTED,
                   "format %s of compressed-tensors is not supported; int-quantized, "
                   "float-quantized, naive-quantized and pack-quantized are",
                   name);
}

static enum status read_config_groups(struct quantized_config *out, const struct json *groups,
                                      struct buf *why)
{
    enum status s = OK;

    for (void *it = js_first(groups); s == OK && it; it = js_next(groups, it)) {
        const struct json *weights = js_get_set(js_it_value(it), "weights");
        s = check_format(js_it_value(it), why);
        if (s != OK || !weights)
            continue;
        if (out->n_schemes == QUANTIZED_N_SCHEMES_MAX)
            return buf_why(why, ERR_UNSUPPORTED, "more than %d config_groups",
                           QUANTIZED_N_SCHEMES_MAX);
        s = read_scheme(weights, &out->schemes[out->n_schemes++], why);
    }
    return s;
}

static enum status read_compressed(struct quantized_config *out, const struct json *j,
                                   struct buf *why)
{
    const struct json *sparsity = js_get_set(j, "sparsity_config");
    const struct json *transforms = js_get_set(j, "transform_config");
    const char *sparse = "dense";
    enum status s = check_format(j, why);

    out->method = QUANTIZED_COMPRESSED;
    if (s == OK)
        s = js_get_str(sparsity, "format", &sparse, NULL, why);
    if (s == OK && strcmp(sparse, "dense") != 0)
        s = buf_why(why, ERR_UNSUPPORTED, "sparsity_config: format %s is not supported", sparse);
    if (s == OK && js_len(js_get(transforms, "config_groups")) > 0)
        s = buf_why(why, ERR_UNSUPPORTED, "transform_config is not supported");
    return s == OK ? read_config_groups(out, js_get(j, "config_groups"), why) : s;
}

/* --- all --- */

static enum status refuse_method(const struct json *j, const char *name, struct buf *why)
{
    const char *kind = NULL;

    if (!strcmp(name, "bitsandbytes")) {
        bool four = false;
        if (js_get_bool(j, "load_in_4bit", &four, NULL) != OK || !four)
            kind = "int8";
        else if (js_get_str(j, "bnb_4bit_quant_type", &kind, NULL, NULL) != OK)
            kind = NULL;
    }
    return buf_why(why, ERR_UNSUPPORTED,
                   "quant_method %s%s%s%s is not supported (" SUPPORTED
                   "); take the model's float checkpoint, with {quantization} int8 or int4",
                   name, kind ? " (" : "", kind ? kind : "", kind ? ")" : "");
}

static enum status read_method(struct quantized_config *out, const struct json *j, const char *name,
                               struct buf *why)
{
    static const struct {
        const char *name;
        enum status (*read)(struct quantized_config *out, const struct json *j, struct buf *why);
    } methods[] = {{"gptq", read_gptq},
                   {"awq", read_awq},
                   {"compressed-tensors", read_compressed},
                   {"fp8", read_fp8},
                   {"fbgemm_fp8", read_fp8}};

    for (size_t i = 0; i < ARRAY_SIZE(methods); i++)
        if (!strcmp(methods[i].name, name))
            return methods[i].read(out, j, why);
    return refuse_method(j, name, why);
}

enum status quantized_config_read(struct quantized_config *out, const struct json *config,
                                  struct buf *why)
{
    const char *key =
        js_get_set(config, "quantization_config") ? "quantization_config" : "compression_config";
    const struct json *j = js_get_set(config, key);
    const char *name = NULL;
    struct buf inner;

    *out = (struct quantized_config){.method = QUANTIZED_NONE};
    if (!j)
        return OK;
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = js_get_str(j, "quant_method", &name, NULL, &inner);
    if (s == OK && !js_is(j, JS_OBJECT))
        s = buf_why(&inner, ERR_INVALID, "expected an object");
    if (s == OK && !name && js_get_set(j, "config_groups")) /* files of the library's first years */
        name = "compressed-tensors";
    if (s == OK && !name)
        s = buf_why(&inner, ERR_UNSUPPORTED, "quant_method is missing; " SUPPORTED);
    if (s == OK)
        s = read_method(out, j, name, &inner);
    if (s != OK)
        buf_why(why, s, "%s: %s", key, buf_str(&inner));
    buf_fini(&inner);
    return s;
}
