/* amx.h - AMX tiles: their shapes, and tile instructions that the compiler does not reorder.
 *
 * bf16 products use 2 x 2 tiles at once: C in tiles 0..3 (2 * row block + column block), A in 4 and
 * 5, B in 6 and 7. A row block has at most 16 rows, a column block 16 outputs. So B is one panel of
 * PANEL_COLS columns whose two tiles are interleaved with a stride of 128 bytes, which is the
 * layout of packed weights and KV blocks. The instructions name tiles by constants, so these are
 * macros.
 *
 * Owns    nothing. Tiles are registers of a thread: amx_shape() before use, amx_done() after.
 * Thread  any thread of the process, after amx_supported() (cpu.c) has asked for the permission.
 * Units   rows, bytes. */
#ifndef TARN_KERNELS_CPU_AMX_H
#define TARN_KERNELS_CPU_AMX_H

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/vec.h"

#define AMX_ROWS 16 /* of a tile */
#define AMX_GROUP_ROWS (2 * AMX_ROWS)
#define AMX_ROW_BYTES 64 /* of a tile's row, which is one step along K */
#define AMX_B_STRIDE (PANEL_COLS * 4)
#define AMX_STEP_BYTES (AMX_ROWS * AMX_B_STRIDE) /* of B, in one whole step along K */

struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

#ifdef AMX_EMULATED /* a test's header, which has these instructions in C */
#include AMX_EMULATED
#else
#define AMX_CONFIGURE(c) __asm__ volatile("ldtilecfg %0" ::"m"(c))
#define AMX_RELEASE() __asm__ volatile("tilerelease")
/* GCC's own intrinsic for tile loads does not declare that it reads memory. */
#define AMX_LOAD(tile, base, stride)                                                               \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(base), "r"((long)(stride))           \
                     : "memor"                                                                     \
                       "y")
#define AMX_STORE(tile, base, stride)                                                              \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(base), "r"((long)(stride))       \
                     : "memory")
#define AMX_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::)
/* C += A B: bf16, signed bytes, and signed bytes of A times unsigned bytes of B. */
#define AMX_BF16(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define AMX_I8(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define AMX_U8(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#endif

/* Set the shape: row blocks of m0 and m1 rows (either may be 0), steps of k_bytes along K. */
static inline void amx_shape_of(uint32_t m0, uint32_t m1, uint32_t k_bytes)
{
    struct amx_config c = {.palette = 1};

    for (int i = 0; i < 4; i++) {
        c.rows[i] = (uint8_t)(i < 2 ? m0 : m1);
        c.row_bytes[i] = c.rows[i] ? AMX_ROW_BYTES : 0;
    }
    for (int i = 4; i < 6; i++) {
        c.rows[i] = (uint8_t)(i == 4 ? m0 : m1);
        c.row_bytes[i] = (uint16_t)(c.rows[i] ? k_bytes : 0);
    }
    for (int i = 6; i < 8; i++) {
        c.rows[i] = (uint8_t)(k_bytes / 4);
        c.row_bytes[i] = AMX_ROW_BYTES;
    }
    AMX_CONFIGURE(c);
}

/* Set the shape for a group of n_rows. */
static inline void amx_shape(uint32_t n_rows, uint32_t k_bytes)
{
    uint32_t m0 = min_u32(n_rows, AMX_ROWS);

    amx_shape_of(m0, n_rows - m0, k_bytes);
}

static inline void amx_done(void)
{
    AMX_RELEASE();
}

/* All of C; `two`: there is a second row block. Rows of C are 128 bytes. */
ALWAYS_INLINE void amx_zero(bool two)
{
    AMX_ZERO(0);
    AMX_ZERO(1);
    if (two) {
        AMX_ZERO(2);
        AMX_ZERO(3);
    }
}

ALWAYS_INLINE void amx_load_c(const void *c, bool two)
{
    const unsigned char *p = c;

    AMX_LOAD(0, p, 128);
    AMX_LOAD(1, p + 64, 128);
    if (two) {
        AMX_LOAD(2, p + AMX_ROWS * 128, 128);
        AMX_LOAD(3, p + AMX_ROWS * 128 + 64, 128);
    }
}

ALWAYS_INLINE void amx_store_c(void *c, bool two)
{
    unsigned char *p = c;

    AMX_STORE(0, p, 128);
    AMX_STORE(1, p + 64, 128);
    if (two) {
        AMX_STORE(2, p + AMX_ROWS * 128, 128);
        AMX_STORE(3, p + AMX_ROWS * 128 + 64, 128);
    }
}

/* One step along K in bf16: C += A B. a0, a1: the row blocks. b: rows of b_stride bytes; its second
 * column block is 64 bytes behind the first. */
ALWAYS_INLINE void amx_step(bool two, const void *a0, const void *a1, const unsigned char *b,
                            size_t b_stride)
{
    AMX_LOAD(6, b, b_stride);
    AMX_LOAD(4, a0, AMX_ROW_BYTES);
    AMX_LOAD(7, b + 64, b_stride);
    AMX_BF16(0, 4, 6);
    AMX_BF16(1, 4, 7);
    if (!two)
        return;
    AMX_LOAD(5, a1, AMX_ROW_BYTES);
    AMX_BF16(2, 5, 6);
    AMX_BF16(3, 5, 7);
}

#endif
