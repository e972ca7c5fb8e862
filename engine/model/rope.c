/* rope.c - rotary positions: what config.json says about them, and the frequencies of the pairs. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "engine/model/family.h"

#define PI 3.14159265358979323846

static enum status read_original(const struct json *j, const struct json *r, uint32_t otherwise,
                                 uint32_t *out, struct buf *why)
{
    double v = otherwise;
    enum status s = js_get_f64(j, "original_max_position_embeddings", 1, 1e9, &v, why);

    if (s == OK)
        s = js_get_f64(r, "original_max_position_embeddings", 1, 1e9, &v, why);
    *out = (uint32_t)v;
    return s;
}

static enum status read_llama3(const struct json *r, struct rope_config *rope, struct buf *why)
{
    enum status s;

    rope->low_freq_factor = 1;
    rope->high_freq_factor = 4;
    s = js_get_f64(r, "low_freq_factor", 1e-3, 1e6, &rope->low_freq_factor, why);
    if (s == OK)
        s = js_get_f64(r, "high_freq_factor", 1e-3, 1e6, &rope->high_freq_factor, why);
    if (s == OK)
        s = read_original(r, r, 8192, &rope->original_max_pos, why);
    if (s == OK && rope->high_freq_factor <= rope->low_freq_factor)
        s = buf_why(why, ERR_INVALID,
                    "rope_scaling.high_freq_factor must be above "
                    "low_freq_factor");
    return s;
}

/* The growth of cosines and sines that Peng et al., "YaRN", recommend for a context grown by
 * `factor`. */
static double yarn_magnitude(double factor, double weight)
{
    return factor <= 1 ? 1 : 0.1 * weight * log(factor) + 1;
}

static enum status read_yarn(const struct json *r, const struct model_config *m,
                             struct rope_config *rope, struct buf *why)
{
    double weight = 0, weight_all = 0;
    bool truncate = true;
    enum status s = read_original(r, r, m->max_pos, &rope->original_max_pos, why);

    rope->beta_fast = 32;
    rope->beta_slow = 1;
    if (s == OK)
        s = js_get_f64(r, "beta_fast", 1e-3, 1e6, &rope->beta_fast, why);
    if (s == OK)
        s = js_get_f64(r, "beta_slow", 1e-3, 1e6, &rope->beta_slow, why);
    if (s == OK)
        s = js_get_f64(r, "mscale", 0, 1e3, &weight, why);
    if (s == OK)
        s = js_get_f64(r, "mscale_all_dim", 0, 1e3, &weight_all, why);
    if (s == OK)
        s = js_get_bool(r, "truncate", &truncate, why);
    if (s == OK && !truncate)
        s = buf_why(why, ERR_UNSUPPORTED, "rope_scaling.truncate false is not supported");
    rope->magnitude = weight > 0 && weight_all > 0 ? yarn_magnitude(rope->factor, weight) /
                                                         yarn_magnitude(rope->factor, weight_all)
                                                   : yarn_magnitude(rope->factor, 1);
    if (s == OK)
        s = js_get_f64(r, "attention_factor", 1e-3, 1e3, &rope->magnitude, why);
    return s;
}

static enum status read_factors(const struct json *r, const char *name, uint32_t n, double *out,
                                struct buf *why)
{
    const struct json *list = js_get_set(r, name);

    if (!js_is(list, JS_ARRAY) || js_len(list) != n)
        return buf_why(why, ERR_INVALID, "rope_scaling.%s: expected an array of %u numbers", name,
                       n);
    for (uint32_t i = 0; i < n; i++) {
        const struct json *v = js_at(list, i);
        if (!js_is(v, JS_INT) && !js_is(v, JS_REAL))
            return buf_why(why, ERR_INVALID, "rope_scaling.%s: not a number", name);
        out[i] = js_number(v);
        if (!(out[i] >= 1e-3 && out[i] <= 1e6))
            return buf_why(why, ERR_INVALID, "rope_scaling.%s: a factor is out of range", name);
    }
    return OK;
}

static enum status read_long(const struct json *j, const struct json *r, struct model_config *m,
                             struct buf *why)
{
    struct rope_config *rope = &m->rope;
    uint32_t n = model_rot_dim(m) / 2;
    enum status s = read_original(j, r, m->max_pos, &rope->original_max_pos, why);

    if (s == OK)
        s = read_factors(r, "short_factor", n, m->rope_factors[0], why);
    if (s == OK)
        s = read_factors(r, "long_factor", n, m->rope_factors[1], why);
    if (s != OK)
        return s;
    if (m->max_pos > rope->original_max_pos)
        rope->factor = (double)m->max_pos / rope->original_max_pos;
    rope->magnitude = 1;
    if (rope->factor > 1)
        rope->magnitude = sqrt(1 + log(rope->factor) / log(rope->original_max_pos));
    return js_get_f64(r, "attention_factor", 1e-3, 1e3, &rope->magnitude, why);
}

/* r: an object with the type and its settings. */
static enum status read_scaling(const struct json *j, const struct json *r, struct model_config *m,
                                struct rope_config *rope, struct buf *why)
{
    const char *kind = "default";
    enum status s = js_get_f64(r, "rope_theta", 1, 1e12, &rope->theta, why);

    if (s == OK)
        s = js_get_str(r, js_get_set(r, "rope_type") ? "rope_type" : "type", &kind, NULL, why);
    if (s == OK)
        s = js_get_f64(r, "factor", 1e-3, 1e6, &rope->factor, why);
    if (s != OK || !strcmp(kind, "default"))
        return s;
    if (!strcmp(kind, "linear")) {
        rope->kind = ROPE_LINEAR;
        return OK;
    }
    if (!strcmp(kind, "llama3")) {
        rope->kind = ROPE_LLAMA3;
        return read_llama3(r, rope, why);
    }
    if (!strcmp(kind, "yarn")) {
        rope->kind = ROPE_YARN;
        return read_yarn(r, m, rope, why);
    }
    if ((!strcmp(kind, "longrope") || !strcmp(kind, "su")) && rope == &m->rope) {
        rope->kind = ROPE_LONG;
        return read_long(j, r, m, why);
    }
    return buf_why(why, ERR_UNSUPPORTED,
                   "rope_scaling type %s is not supported; default, linear, llama3, yarn and "
                   "longrope are",
                   kind);
}

static enum status read_rot_dim(const struct json *j, const struct json *r, struct model_config *m,
                                struct buf *why)
{
    double share = 1;
    enum status s = js_get_f64(j, "partial_rotary_factor", 1e-3, 1, &share, why);

    if (s == OK && js_is(r, JS_OBJECT))
        s = js_get_f64(r, "partial_rotary_factor", 1e-3, 1, &share, why);
    if (s != OK || share == 1)
        return s;
    m->rot_dim = (uint32_t)(m->head_dim * share);
    if (m->rot_dim < 2 || m->rot_dim % 2)
        return buf_why(why, ERR_UNSUPPORTED,
                       "partial_rotary_factor %g rotates %u dimensions of a head; an even number "
                       "is supported",
                       share, m->rot_dim);
    return OK;
}

enum status model_read_rope(const struct json *j, struct model_config *m, struct buf *why)
{
    /* Newer files keep everything in rope_parameters, per kind of layer where there are two; older
     * ones have rope_theta beside rope_scaling. */
    const struct json *params = js_get_set(j, "rope_parameters");
    const struct json *full = js_get_set(params, "full_attention");
    const struct json *local = js_get_set(params, "sliding_attention");
    const struct json *r = full ? full : params ? params : js_get_set(j, "rope_scaling");
    enum status s;

    m->rope.kind = ROPE_PLAIN;
    m->rope.factor = 1;
    if (m->rope.theta == 0)
        m->rope.theta = 10000;
    s = js_get_f64(j, "rope_theta", 1, 1e12, &m->rope.theta, why);
    if (s == OK)
        s = read_rot_dim(j, r, m, why);
    if (s != OK || !r)
        return s;
    if (!js_is(r, JS_OBJECT) || (local && !js_is(local, JS_OBJECT)))
        return buf_why(why, ERR_INVALID, "rope_scaling: expected an object");
    s = read_scaling(j, r, m, &m->rope, why);
    if (s == OK && local) {
        m->rope_local = (struct rope_config){.theta = 10000, .factor = 1};
        s = read_scaling(j, local, m, &m->rope_local, why);
    }
    return s;
}

void model_set_context(struct model_config *m, uint32_t n_tokens)
{
    m->rope_long = m->rope.kind == ROPE_LONG && n_tokens > m->rope.original_max_pos;
}

static double llama3_freq(const struct rope_config *r, double f)
{
    double wavelength = 2 * PI / f;

    if (wavelength < r->original_max_pos / r->high_freq_factor)
        return f;
    if (wavelength > r->original_max_pos / r->low_freq_factor)
        return f / r->factor;
    double smooth = (r->original_max_pos / wavelength - r->low_freq_factor) /
                    (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * f / r->factor + smooth * f;
}

/* The dimension whose pair turns `n_turns` times within the original context. */
static double yarn_dim(const struct rope_config *r, uint32_t rot_dim, double n_turns)
{
    return rot_dim * log(r->original_max_pos / (n_turns * 2 * PI)) / (2 * log(r->theta));
}

static double yarn_freq(const struct rope_config *r, uint32_t rot_dim, uint32_t i, double f)
{
    double low = floor(yarn_dim(r, rot_dim, r->beta_fast));
    double high = ceil(yarn_dim(r, rot_dim, r->beta_slow));

    low = low < 0 ? 0 : low;
    high = high > rot_dim - 1 ? rot_dim - 1 : high;
    double ramp = (i - low) / (high == low ? 0.001 : high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return f / r->factor * ramp + f * (1 - ramp);
}

uint32_t model_rope_freqs(const struct model_config *m, bool local, double *out)
{
    const struct rope_config *r = local && m->rope_local.theta > 0 ? &m->rope_local : &m->rope;
    uint32_t rot_dim = model_rot_dim(m);

    ASSERT(rot_dim / 2 <= MODEL_ROPE_PAIRS_MAX);
    for (uint32_t i = 0; i < rot_dim / 2; i++) {
        double f = pow(r->theta, -2.0 * i / rot_dim);
        if (r->kind == ROPE_LINEAR)
            f /= r->factor;
        else if (r->kind == ROPE_LLAMA3)
            f = llama3_freq(r, f);
        else if (r->kind == ROPE_YARN)
            f = yarn_freq(r, rot_dim, i, f);
        else if (r->kind == ROPE_LONG)
            f /= m->rope_factors[m->rope_long][i];
        out[i] = f;
    }
    return rot_dim / 2;
}
