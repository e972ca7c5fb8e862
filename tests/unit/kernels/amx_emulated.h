/* amx_emulated.h - AMX's tile instructions in C, for processors without them.
 *
 * kernels/cpu/amx.h includes this file where AMX_EMULATED names it, so that a test runs the kernels
 * of cpu_amx.c themselves. Sums are in the order of Intel's manual: tdpbf16ps adds even and odd
 * elements of a step apart, without numbers below 2^-126. Calls that a processor refuses (a tile
 * without rows, shapes that do not fit) end the test.
 *
 * Owns    the tiles of each thread.
 * Thread  any. */
#ifndef TARN_TESTS_AMX_EMULATED_H
#define TARN_TESTS_AMX_EMULATED_H

#include "base/check.h"

#define AMX_TILES 8
/* The kernels name hundreds of instructions: inlined, they would take most of a minute to
 * compile. */
#define AMX_CALL static __attribute__((noinline))

static _Thread_local struct {
    struct amx_config shape;
    _Alignas(64) unsigned char tile[AMX_TILES][AMX_ROWS][AMX_ROW_BYTES];
} amx_state;

AMX_CALL void amx_emulated_configure(const struct amx_config *c)
{
    ASSERT(c->palette == 1 && c->start_row == 0);
    for (int i = 0; i < AMX_TILES; i++)
        ASSERT(c->rows[i] <= AMX_ROWS && c->row_bytes[i] <= AMX_ROW_BYTES &&
               (c->rows[i] == 0) == (c->row_bytes[i] == 0));
    memset(&amx_state, 0, sizeof amx_state);
    amx_state.shape = *c;
}

AMX_CALL void amx_emulated_release(void)
{
    memset(&amx_state, 0, sizeof amx_state);
}

static inline uint32_t amx_emulated_rows(int tile)
{
    ASSERT(amx_state.shape.rows[tile] > 0);
    return amx_state.shape.rows[tile];
}

AMX_CALL void amx_emulated_zero(int tile)
{
    (void)amx_emulated_rows(tile);
    memset(amx_state.tile[tile], 0, sizeof amx_state.tile[tile]);
}

AMX_CALL void amx_emulated_load(int tile, const void *from, size_t stride)
{
    uint32_t n = amx_emulated_rows(tile);

    amx_emulated_zero(tile);
    for (uint32_t r = 0; r < n; r++)
        memcpy(amx_state.tile[tile][r], (const unsigned char *)from + r * stride,
               amx_state.shape.row_bytes[tile]);
}

AMX_CALL void amx_emulated_store(int tile, void *to, size_t stride)
{
    uint32_t n = amx_emulated_rows(tile);

    for (uint32_t r = 0; r < n; r++)
        memcpy((unsigned char *)to + r * stride, amx_state.tile[tile][r],
               amx_state.shape.row_bytes[tile]);
}

/* Rows of C and A; the product's steps along K are rows of B. */
static inline uint32_t amx_emulated_fit(int c, int a, int b)
{
    const struct amx_config *s = &amx_state.shape;

    ASSERT(amx_emulated_rows(c) == amx_emulated_rows(a) && s->row_bytes[c] == s->row_bytes[b] &&
           s->row_bytes[a] == 4 * amx_emulated_rows(b));
    return s->rows[c];
}

static inline vf amx_emulated_flush(vf v)
{
    vi small = (vi)((vu)v & 0x7fffffffu) < 0x00800000;

    return v_select(small, (vf)((vu)v & 0x80000000u), v);
}

AMX_CALL void amx_emulated_bf16(int c, int a, int b)
{
    uint32_t n = amx_emulated_fit(c, a, b), n_steps = amx_state.shape.rows[b];

    for (uint32_t r = 0; r < n; r++) {
        const uint32_t *pairs = (const void *)amx_state.tile[a][r];
        float *out = (void *)amx_state.tile[c][r];
        vf even = v_set1(0), odd = v_set1(0);

        for (uint32_t k = 0; k < n_steps; k++) {
            vu x = (vu){0} + pairs[k], y = (vu)b_load(amx_state.tile[b][k]);

            even = amx_emulated_flush(
                v_fma(amx_emulated_flush((vf)(x << 16)), amx_emulated_flush((vf)(y << 16)), even));
            odd = amx_emulated_flush(v_fma(amx_emulated_flush((vf)(x & 0xffff0000u)),
                                           amx_emulated_flush((vf)(y & 0xffff0000u)), odd));
        }
        v_store(out, amx_emulated_flush(amx_emulated_flush(v_load(out)) +
                                        amx_emulated_flush(even + odd)));
    }
}

/* Signed bytes of A times bytes of B; exact. */
AMX_CALL void amx_emulated_bytes(int c, int a, int b, bool b_is_signed)
{
    uint32_t n = amx_emulated_fit(c, a, b), n_steps = amx_state.shape.rows[b];
    const vb offset = (vb)v_set1_i32((int32_t)0x80808080u);

    for (uint32_t r = 0; r < n; r++) {
        const int32_t *quads = (const void *)amx_state.tile[a][r];
        unsigned char *out = amx_state.tile[c][r];
        vi sum = (vi)b_load(out);

        for (uint32_t k = 0; k < n_steps; k++) {
            vi x = v_set1_i32(quads[k]);
            vb y = b_load(amx_state.tile[b][k]);

            if (b_is_signed)
                sum = v_dot_i8(sum, y ^ offset, x) - v_dot_i8(v_set1_i32(0), offset, x);
            else
                sum = v_dot_i8(sum, y, x);
        }
        b_store(out, (vb)sum);
    }
}

#define AMX_CONFIGURE(c) amx_emulated_configure(&(c))
#define AMX_RELEASE() amx_emulated_release()
#define AMX_LOAD(tile, base, stride) amx_emulated_load(tile, base, (size_t)(stride))
#define AMX_STORE(tile, base, stride) amx_emulated_store(tile, base, (size_t)(stride))
#define AMX_ZERO(tile) amx_emulated_zero(tile)
#define AMX_BF16(c, a, b) amx_emulated_bf16(c, a, b)
#define AMX_I8(c, a, b) amx_emulated_bytes(c, a, b, true)
#define AMX_U8(c, a, b) amx_emulated_bytes(c, a, b, false)

#endif
