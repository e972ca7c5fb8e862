/* gguf_rope.c - rotary positions in the metadata and in tensors of factors.
 *
 * llama.cpp stores Llama 3's scaling as a tensor of divisors, one per pair, instead of the settings
 * that they follow from. The settings of the released models are tried first: they give the same
 * configuration as config.json. Any other divisors become the factors of a LongRoPE that has the
 * same ones for short and long contexts and leaves cosines and sines as they are. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/gguf_members.h"
#include "engine/model/model.h"

#define PI 3.14159265358979323846
#define LLAMA3_LOW 1.0
#define LLAMA3_HIGH 4.0
#define LLAMA3_CONTEXT 8192.0
#define CLOSE 1e-5 /* relative; factors and magnitudes are stored as f32 */

static bool is_close(double a, double b)
{
    return fabs(a - b) <= CLOSE * fabs(b);
}

static void set_real(struct gguf_members *m, struct json *r, const char *name, double v)
{
    gguf_member_put(m, r, name, js_new_real(v));
}

static struct json *new_scaling(struct gguf_members *m, const char *type)
{
    struct json *r = js_new_object();

    gguf_member_put(m, r, "rope_type", js_new_string(type, strlen(type)));
    return r;
}

static double read_or(struct gguf_members *m, const char *key, double otherwise)
{
    double v = otherwise;

    gguf_member_fail(m, gguf_member_read(m, key, &v));
    return v;
}

/* Read a vector of factors, one per rotated pair, into out; false: absent, or an error is kept. */
static bool read_factors(struct gguf_members *m, const char *name, uint64_t n,
                         double out[MODEL_ROPE_PAIRS_MAX])
{
    const struct gguf_tensor *from = gguf_find(m->g, name);
    float factor;

    if (!from)
        return false;
    if (from->type != 0 || from->n_dims != 1 || from->shape[0] != n || n > MODEL_ROPE_PAIRS_MAX) {
        gguf_member_fail(m, buf_why(m->why, ERR_INVALID,
                                    "tensor %s: expected %llu factors of type F32", name,
                                    (unsigned long long)n));
        return false;
    }
    for (uint64_t i = 0; i < n; i++) {
        memcpy(&factor, (const unsigned char *)from->data + i * sizeof factor, sizeof factor);
        if (!isfinite(factor)) {
            gguf_member_fail(
                m, buf_why(m->why, ERR_INVALID, "tensor %s: a factor is not finite", name));
            return false;
        }
        out[i] = gguf_member_shortest(factor);
    }
    return true;
}

static void set_factors(struct gguf_members *m, struct json *r, const char *name,
                        const double *factors, uint64_t n)
{
    struct json *list = js_new_array();

    for (uint64_t i = 0; i < n; i++)
        gguf_member_push(m, list, js_new_real(factors[i]));
    gguf_member_put(m, r, name, list);
}

/* The divisor of a pair by Llama 3's rule. */
static double llama3_divisor(double theta, uint64_t rot_dim, uint64_t i, double factor)
{
    double wavelength = 2 * PI * pow(theta, 2.0 * (double)i / (double)rot_dim);

    if (wavelength < LLAMA3_CONTEXT / LLAMA3_HIGH)
        return 1;
    if (wavelength > LLAMA3_CONTEXT / LLAMA3_LOW)
        return factor;
    double smooth = (LLAMA3_CONTEXT / wavelength - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW);
    return 1 / ((1 - smooth) / factor + smooth);
}

static struct json *scaling_of_divisors(struct gguf_members *m, const double *divisors, uint64_t n,
                                        double theta)
{
    double factor = divisors[n - 1];
    bool known = true;
    struct json *r;

    for (uint64_t i = 0; i < n; i++)
        known = known && is_close(divisors[i], llama3_divisor(theta, 2 * n, i, factor));
    if (known) {
        r = new_scaling(m, "llama3");
        set_real(m, r, "factor", factor);
        set_real(m, r, "low_freq_factor", LLAMA3_LOW);
        set_real(m, r, "high_freq_factor", LLAMA3_HIGH);
        set_real(m, r, "original_max_position_embeddings", LLAMA3_CONTEXT);
        return r;
    }
    r = new_scaling(m, "longrope");
    set_factors(m, r, "short_factor", divisors, n);
    set_factors(m, r, "long_factor", divisors, n);
    set_real(m, r, "attention_factor", 1);
    return r;
}

static struct json *long_scaling(struct gguf_members *m, const double *factors_short,
                                 const double *factors_long, uint64_t n)
{
    struct json *r = new_scaling(m, "longrope");
    double context = read_or(m, "context_length", 0);
    double original = read_or(m, "rope.scaling.original_context_length", context);
    double magnitude = read_or(m, "rope.scaling.attn_factor", 0);
    double usual = 1;

    set_factors(m, r, "short_factor", factors_short, n);
    set_factors(m, r, "long_factor", factors_long, n);
    set_real(m, r, "original_max_position_embeddings", original);
    if (context > original && original > 1)
        usual = sqrt(1 + log(context / original) / log(original));
    if (magnitude > 0 && !is_close(magnitude, usual))
        set_real(m, r, "attention_factor", magnitude);
    return r;
}

static struct json *yarn_scaling(struct gguf_members *m, double factor)
{
    static const struct {
        const char *key, *name;
    } rows[] = {{"rope.scaling.original_context_length", "original_max_position_embeddings"},
                {"rope.scaling.yarn_attn_factor", "attention_factor"},
                {"rope.scaling.yarn_beta_fast", "beta_fast"},
                {"rope.scaling.yarn_beta_slow", "beta_slow"}};
    struct json *r = new_scaling(m, "yarn");

    set_real(m, r, "factor", factor);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double v = read_or(m, rows[i].key, NAN);
        if (!isnan(v))
            set_real(m, r, rows[i].name, v);
    }
    if (read_or(m, "rope.scaling.yarn_ext_factor", 1) != 1 ||
        read_or(m, "rope.scaling.yarn_log_multiplier", 0) != 0)
        gguf_member_fail(m, buf_why(m->why, ERR_UNSUPPORTED,
                                    "keys %s.rope.scaling.yarn_ext_factor and yarn_log_multiplier "
                                    "are not supported",
                                    m->a->name));
    return r;
}

/* The object of the scaling; NULL: none. */
static struct json *make_scaling(struct gguf_members *m, uint64_t rot_dim, double theta)
{
    double shorts[MODEL_ROPE_PAIRS_MAX], longs[MODEL_ROPE_PAIRS_MAX];
    char key[KEY_BYTES_MAX];
    const char *type = "linear"; /* without the key */
    double factor = read_or(m, "rope.scaling.factor", read_or(m, "rope.scale_linear", 1));

    snprintf(key, sizeof key, "%s.rope.scaling.type", m->a->name);
    gguf_member_fail(m, gguf_get_str(m->g, key, &type, NULL, m->why));
    if (factor == 0)
        factor = 1;
    if (read_factors(m, "rope_factors_short.weight", rot_dim / 2, shorts) &&
        read_factors(m, "rope_factors_long.weight", rot_dim / 2, longs))
        return long_scaling(m, shorts, longs, rot_dim / 2);
    if (rot_dim >= 2 && read_factors(m, "rope_freqs.weight", rot_dim / 2, shorts)) {
        if (factor != 1)
            gguf_member_fail(m, buf_why(m->why, ERR_UNSUPPORTED,
                                        "tensor rope_freqs.weight together with key "
                                        "%s.rope.scaling.factor is not supported",
                                        m->a->name));
        return scaling_of_divisors(m, shorts, rot_dim / 2, theta);
    }
    if (!strcmp(type, "yarn"))
        return yarn_scaling(m, factor);
    if (!strcmp(type, "linear") && factor != 1) {
        struct json *r = new_scaling(m, "linear");
        set_real(m, r, "factor", factor);
        return r;
    }
    if (strcmp(type, "linear") != 0 && strcmp(type, "none") != 0)
        gguf_member_fail(m, buf_why(m->why, ERR_UNSUPPORTED,
                                    "key %s: %.32s is not supported; none, linear, yarn, and "
                                    "longrope with tensors of factors are",
                                    key, type));
    return NULL;
}

void gguf_add_rope(struct gguf_members *m)
{
    uint64_t rot_dim = m->head_dim;
    double theta = read_or(m, "rope.freq_base", 10000);
    double local = read_or(m, "rope.freq_base_swa", NAN);
    struct json *scaling;

    gguf_member_fail(
        m, gguf_config_number(m->g, m->a, "rope.dimension_count", m->head_dim, &rot_dim, m->why));
    gguf_member_set(m, "rope_theta", js_new_real(theta));
    if (!isnan(local) && !strcmp(m->a->name, "gemma3"))
        gguf_member_set(m, "rope_local_base_freq", js_new_real(local));
    /* The half keeps the product from rounding below rot_dim. */
    if (m->head_dim > 0 && (rot_dim < m->head_dim || !strcmp(m->a->name, "stablelm"))) {
        double share = ((double)rot_dim + 0.5) / (double)m->head_dim;
        gguf_member_set(m, "partial_rotary_factor", js_new_real(share < 1 ? share : 1));
    }
    if (m->status != OK)
        return;
    scaling = make_scaling(m, rot_dim, theta);
    if (scaling)
        gguf_member_set(m, "rope_scaling", scaling);
}
