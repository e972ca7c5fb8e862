#include "tests/unit/engine/model/made_codes.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "engine/model/checkpoint.h"

#define N_MADE_MAX 64

struct made_kind (*made_rule)(const char *name);
uint32_t made_salt[3];

static struct made {
    char name[96];
    struct tensor tensor;
} made[N_MADE_MAX];
static uint32_t n_made;

const struct tensor *__real_checkpoint_find(const struct checkpoint *c, const char *name);
const struct tensor *__wrap_checkpoint_find(const struct checkpoint *c, const char *name);

void made_reset(void)
{
    n_made = 0;
}

static uint32_t number(const struct tensor *t, uint32_t salt, uint64_t row, uint64_t i)
{
    uint64_t x = 1469598103934665603u + made_salt[salt] + 7 * salt;

    for (const char *p = t->name; *p; p++)
        x = (x ^ (unsigned char)*p) * 1099511628211u;
    x = (x ^ row) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 29 ^ i) * 0x94D049BB133111EBu;
    return (uint32_t)(x >> 32);
}

uint8_t made_code(const struct tensor *t, uint64_t row, uint64_t k)
{
    uint8_t code = (uint8_t)(number(t, 0, row, k) >> 7 & ((1u << t->code_bits) - 1));

    return t->code_is_f8 && (code & 0x7f) == 0x7f ? 0x7e : code;
}

/* Scales and offsets are numbers of f16. */
float made_scale(const struct tensor *t, uint64_t row, uint64_t group)
{
    return (float)(number(t, 1, row, group) >> 9 & 127) * (t->code_bits == 8 ? 0x1p-14f : 0x1p-10f);
}

float made_offset(const struct tensor *t, uint64_t row, uint64_t group)
{
    return t->code_is_f8 ? 0 : -(float)(number(t, 2, row, group) >> 9 & 1023) * 0x1p-10f;
}

float made_at(const struct tensor *t, uint64_t row, uint64_t k)
{
    if (!t->code_bits)
        return ((float)(number(t, 0, row, k) >> 9 & 2047) - 1000) * 0x1p-10f;
    if (t->code_is_f8)
        return kv_unrounded(DTYPE_F8, made_code(t, row, k)) * made_scale(t, row, k / t->code_group);
    return (float)made_code(t, row, k) * made_scale(t, row, k / t->code_group) +
           made_offset(t, row, k / t->code_group);
}

static void read_rows(const struct tensor *t, uint64_t row, uint32_t n_rows, float *out)
{
    for (uint64_t r = row; r < row + n_rows; r++)
        for (uint64_t k = 0; k < t->shape[1]; k++)
            *out++ = made_at(t, r, k);
}

static void read_codes(const struct tensor *t, uint64_t row, uint32_t n_rows, uint8_t *codes,
                       float *scales, float *offsets)
{
    for (uint64_t r = row; r < row + n_rows; r++) {
        for (uint64_t k = 0; k < t->shape[1]; k++)
            *codes++ = made_code(t, r, k);
        for (uint64_t g = 0; g * t->code_group < t->shape[1]; g++) {
            *scales++ = made_scale(t, r, g);
            *offsets++ = made_offset(t, r, g);
        }
    }
}

static const struct tensor *make(const struct tensor *from, const char *name, struct made_kind kind)
{
    static const struct tensor_codec codes = {"made codes", read_rows, read_codes};
    static const struct tensor_codec others = {"made numbers", read_rows, NULL};
    struct made *m;

    for (uint32_t i = 0; i < n_made; i++)
        if (!strcmp(made[i].name, name))
            return &made[i].tensor;
    ASSERT(n_made < N_MADE_MAX);
    m = &made[n_made++];
    snprintf(m->name, sizeof m->name, "%s", name);
    m->tensor = *from;
    m->tensor.name = m->name;
    bool has_codes = kind.form == MADE_CODES || kind.form == MADE_F8;
    m->tensor.codec = has_codes ? &codes : &others;
    m->tensor.code_bits = has_codes ? kind.bits : 0;
    m->tensor.code_group = has_codes ? kind.group : 0;
    m->tensor.code_is_f8 = kind.form == MADE_F8;
    m->tensor.data = NULL; /* nothing may read it */
    m->tensor.n_bytes = from->shape[0] * from->shape[1] * (kind.form == MADE_FLOATS ? 2 : 1);
    return &m->tensor;
}

const struct tensor *__wrap_checkpoint_find(const struct checkpoint *c, const char *name)
{
    const struct tensor *t = __real_checkpoint_find(c, name);
    struct made_kind kind = {.form = MADE_PLAIN};

    if (t && t->n_dims == 2 && made_rule)
        kind = made_rule(name);
    return kind.form == MADE_PLAIN ? t : make(t, name, kind);
}
