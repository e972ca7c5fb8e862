/* limits_loops.c - written in assembly, so that nothing is spilled, fused or left out. Operands are
 * small normal numbers: zeros would draw less power than a model's, and raise the clock. */
#include "loadgen/bench/engine/limits_loops.h"

#include <stddef.h>

#include "base/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_TILE_DATA 18

/* The chain: %1 is its accumulator, %2 a constant. Multiplications use a port that the vector
 * instructions of 512 bits leave alone; of register and register, as some cores add a constant
 * without taking a cycle. */
// clang-format off
#define NONE ""
#define CYCLE_1 "add %2, %1\n\t"
#define CYCLES_3 "imul %2, %1\n\t"
#define CYCLES_6 CYCLES_3 CYCLES_3
#define CYCLES_12 CYCLES_6 CYCLES_6

/* A turn: six times four instructions (VECTOR_4) with a piece of the chain behind each four. */
#define TURN_24(VECTOR_4, op, c0, c1, c2, c3, c4, c5)                                              \
    VECTOR_4(op, 0, 1, 2, 3) c0 VECTOR_4(op, 4, 5, 6, 7) c1 VECTOR_4(op, 8, 9, 10, 11) c2          \
        VECTOR_4(op, 12, 13, 14, 15) c3 VECTOR_4(op, 16, 17, 18, 19) c4                            \
            VECTOR_4(op, 20, 21, 22, 23) c5

#define CHAIN_0 NONE, NONE, NONE, NONE, NONE, NONE
#define CHAIN_13 CYCLES_3, NONE, CYCLES_3, CYCLES_3, NONE, CYCLES_3 CYCLE_1
#define CHAIN_25 CYCLES_3, CYCLES_6, CYCLES_3, CYCLES_6, CYCLES_3, CYCLES_3 CYCLE_1
#define CHAIN_49                                                                                   \
    CYCLES_6 CYCLES_3, CYCLES_6, CYCLES_6 CYCLES_3, CYCLES_6, CYCLES_6 CYCLES_3,                   \
        CYCLES_6 CYCLES_3 CYCLE_1

/* --- 512 bits, and 256 bits with the same two dozen registers --- */

#define VECTOR_CLOBBERS                                                                            \
    "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
#define ZMM_CLOBBERS                                                                               \
    VECTOR_CLOBBERS, "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23",       \
        "xmm30", "xmm31"
#define ZMM_1(op, a) op " %%zmm30, %%zmm31, %%zmm" #a "\n\t"
#define ZMM_4(op, a, b, c, d) ZMM_1(op, a) ZMM_1(op, b) ZMM_1(op, c) ZMM_1(op, d)
#define ZERO_1(a) "vpxord %%zmm" #a ", %%zmm" #a ", %%zmm" #a "\n\t"
#define ZERO_4(op, a, b, c, d) ZERO_1(a) ZERO_1(b) ZERO_1(c) ZERO_1(d)
#define TURN(...) TURN_24(__VA_ARGS__) /* CHAIN_n must be seen as six arguments */

/* `pattern` fills both operands, 32 bits at a time. */
#define ZMM_LOOP(name, op, pattern, chain)                                                         \
    __attribute__((target("avx512f"))) static void name(uint64_t n_turns)                          \
    {                                                                                              \
        uint64_t sum = n_turns, three = 3;                                                         \
        uint32_t bits = pattern;                                                                   \
                                                                                                   \
        __asm__ volatile("vpbroadcastd %3, %%zmm30\n\tvpbroadcastd %3, %%zmm31\n\t"                \
                         TURN(ZERO_4, "", CHAIN_0)                                                 \
                         ".p2align 6\n1:\n\t" TURN(ZMM_4, op, chain) "dec %0\n\tjnz 1b\n\t"        \
                         "vzeroupper"                                                              \
                         : "+r"(n_turns), "+r"(sum)                                                \
                         : "r"(three), "r"(bits)                                                   \
                         : ZMM_CLOBBERS);                                                          \
    }
#define ZMM_LOOPS(name, op, pattern)                                                               \
    ZMM_LOOP(name, op, pattern, CHAIN_0)                                                           \
    ZMM_LOOP(name##_13, op, pattern, CHAIN_13)                                                     \
    ZMM_LOOP(name##_25, op, pattern, CHAIN_25) ZMM_LOOP(name##_49, op, pattern, CHAIN_49)

ZMM_LOOPS(fp32_zmm, "vfmadd231ps", 0x3c23d70au) /* 0.01f */
ZMM_LOOPS(bf16_zmm, "vdpbf16ps", 0x3c243c24u)   /* 0.01 twice */
ZMM_LOOPS(int8_zmm, "vpdpbusd", 0x11f3250du)

/* --- 256 bits, 16 registers: a turn has 12 instructions twice, or 6 products of three --- */

#define YMM_ZERO(a) "vpxor %%ymm" #a ", %%ymm" #a ", %%ymm" #a "\n\t"
#define YMM_FMA(a) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #a "\n\t"
#define YMM_4(op, a, b, c, d) YMM_FMA(a) YMM_FMA(b) YMM_FMA(c) YMM_FMA(d)
#define YMM_TURN(c0, c1, c2, c3, c4, c5)                                                           \
    YMM_4(, 0, 1, 2, 3) c0 YMM_4(, 4, 5, 6, 7) c1 YMM_4(, 8, 9, 10, 11) c2                         \
        YMM_4(, 0, 1, 2, 3) c3 YMM_4(, 4, 5, 6, 7) c4 YMM_4(, 8, 9, 10, 11) c5
#define YMM_TURN_OF(...) YMM_TURN(__VA_ARGS__)
/* Products of unsigned and signed bytes, as kernels without VNNI form them; t is scratch. */
#define YMM_MADD(a, t)                                                                             \
    "vpmaddubsw %%ymm14, %%ymm15, %%ymm" #t "\n\tvpmaddwd %%ymm13, %%ymm" #t ", %%ymm" #t          \
    "\n\tvpaddd %%ymm" #t ", %%ymm" #a ", %%ymm" #a "\n\t"
#define YMM_MADDS                                                                                  \
    YMM_MADD(0, 6) YMM_MADD(1, 7) YMM_MADD(2, 8) YMM_MADD(3, 9) YMM_MADD(4, 10) YMM_MADD(5, 11)
#define YMM_ZEROS                                                                                  \
    YMM_ZERO(0) YMM_ZERO(1) YMM_ZERO(2) YMM_ZERO(3) YMM_ZERO(4) YMM_ZERO(5) YMM_ZERO(6)            \
    YMM_ZERO(7) YMM_ZERO(8) YMM_ZERO(9) YMM_ZERO(10) YMM_ZERO(11)

#define YMM_LOOP(name, pattern, turn)                                                              \
    __attribute__((target("avx2"))) static void name(uint64_t n_turns)                             \
    {                                                                                              \
        uint64_t sum = n_turns, three = 3;                                                         \
        uint32_t bits = pattern;                                                                   \
                                                                                                   \
        __asm__ volatile("vmovd %3, %%xmm14\n\tvpbroadcastd %%xmm14, %%ymm14\n\t"                  \
                         "vmovdqa %%ymm14, %%ymm15\n\tvpsrlw $15, %%ymm14, %%ymm13\n\t" YMM_ZEROS  \
                         ".p2align 6\n1:\n\t" turn "dec %0\n\tjnz 1b\n\tvzeroupper"                \
                         : "+r"(n_turns), "+r"(sum)                                                \
                         : "r"(three), "r"(bits)                                                   \
                         : VECTOR_CLOBBERS);                                                       \
    }

/* 256 bits also take the port of multiplications: here the chain is of additions alone. */
#define ADDS_2 CYCLE_1 CYCLE_1
#define ADDS_4 ADDS_2 ADDS_2
#define ADDS_8 ADDS_4 ADDS_4
#define ADDS_13 ADDS_2, ADDS_2, ADDS_2, ADDS_2, ADDS_2, ADDS_2 CYCLE_1
#define ADDS_25 ADDS_4, ADDS_4, ADDS_4, ADDS_4, ADDS_4, ADDS_4 CYCLE_1
#define ADDS_49 ADDS_8, ADDS_8, ADDS_8, ADDS_8, ADDS_8, ADDS_8 CYCLE_1

YMM_LOOP(fp32_ymm, 0x3c23d70au, YMM_TURN_OF(CHAIN_0))
YMM_LOOP(fp32_ymm_13, 0x3c23d70au, YMM_TURN_OF(ADDS_13))
YMM_LOOP(fp32_ymm_25, 0x3c23d70au, YMM_TURN_OF(ADDS_25))
YMM_LOOP(fp32_ymm_49, 0x3c23d70au, YMM_TURN_OF(ADDS_49))
YMM_LOOP(int8_ymm, 0x11f3250du, YMM_MADDS)

/* --- AMX: four accumulators over two tiles of rows and two of columns, the blocking of a product;
 * one product per 16 cycles is the fastest there is --- */

/* The operand of LDTILECFG. */
struct tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void begin_tiles(void)
{
    struct tile_config config = {.palette = 1};
    uint32_t data[256];
    uint64_t stride = 64;

    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    for (int i = 0; i < 256; i++)
        data[i] = 0x3c243c24u;
    __asm__ volatile("ldtilecfg %0\n\t"
                     "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"
                     "tileloadd (%1,%2,1), %%tmm4\n\ttileloadd (%1,%2,1), %%tmm5\n\t"
                     "tileloadd (%1,%2,1), %%tmm6\n\ttileloadd (%1,%2,1), %%tmm7"
                     :
                     : "m"(config), "r"(data), "r"(stride)
                     : "memory");
}

static void end_tiles(void)
{
    __asm__ volatile("tilerelease" ::: "memory");
}

#define CYCLES_66 CYCLES_12 CYCLES_12 CYCLES_12 CYCLES_12 CYCLES_12 CYCLES_6
#define CYCLES_132 CYCLES_66 CYCLES_66

#define TILE_LOOP(name, op, chain)                                                                 \
    static void name(uint64_t n_turns)                                                             \
    {                                                                                              \
        uint64_t sum = n_turns, three = 3;                                                         \
                                                                                                   \
        __asm__ volatile(".p2align 6\n1:\n\t" op " %%tmm6, %%tmm4, %%tmm0\n\t" op                  \
                         " %%tmm7, %%tmm4, %%tmm1\n\t" op " %%tmm6, %%tmm5, %%tmm2\n\t" op         \
                         " %%tmm7, %%tmm5, %%tmm3\n\t" chain "dec %0\n\tjnz 1b"                    \
                         : "+r"(n_turns), "+r"(sum)                                                \
                         : "r"(three)                                                              \
                         : "cc");                                                                  \
    }
#define TILE_LOOPS(name, op)                                                                       \
    TILE_LOOP(name, op, NONE)                                                                      \
    TILE_LOOP(name##_66, op, CYCLES_66)                                                            \
    TILE_LOOP(name##_132, op, CYCLES_132) TILE_LOOP(name##_264, op, CYCLES_132 CYCLES_132)
// clang-format on

TILE_LOOPS(amx_bf16, "tdpbf16ps")
TILE_LOOPS(amx_int8, "tdpbusd")

/* --- what this machine has --- */

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f");
}

static bool has_avx512_bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

static bool has_avx512_vnni(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

/* Linux hands out tile registers on request only, once for the process. */
static bool has_amx(unsigned edx_bit)
{
    unsigned a, b, c, d;

    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return false;
    if (!(d >> 24 & 1) || !(d >> edx_bit & 1)) /* amx-tile, and the product itself */
        return false;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}

static bool has_amx_bf16(void)
{
    return has_amx(22);
}

static bool has_amx_int8(void)
{
    return has_amx(25);
}

#define VECTOR_PACES(name)                                                                         \
    {                                                                                              \
        {name##_13, 13, 12}, {name##_25, 25, 24},                                                  \
        {                                                                                          \
            name##_49, 49, 48                                                                      \
        }                                                                                          \
    }
#define TILE_PACES(name)                                                                           \
    {                                                                                              \
        {name##_66, 66, 64}, {name##_132, 132, 128},                                               \
        {                                                                                          \
            name##_264, 264, 256                                                                   \
        }                                                                                          \
    }

/* fp32 comes in two widths; the first that is supported counts. */
static const struct limit_loop loops[] = {
    {LIMIT_FP32, 24 * 32, has_avx512, NULL, fp32_zmm, NULL, VECTOR_PACES(fp32_zmm)},
    {LIMIT_FP32, 24 * 16, has_avx2, NULL, fp32_ymm, NULL, VECTOR_PACES(fp32_ymm)},
    {LIMIT_BF16, 24 * 64, has_avx512_bf16, NULL, bf16_zmm, NULL, VECTOR_PACES(bf16_zmm)},
    {LIMIT_INT8, 24 * 128, has_avx512_vnni, NULL, int8_zmm, NULL, VECTOR_PACES(int8_zmm)},
    {LIMIT_AMX_BF16, 4 * 16384, has_amx_bf16, begin_tiles, amx_bf16, end_tiles,
     TILE_PACES(amx_bf16)},
    {LIMIT_AMX_INT8, 4 * 32768, has_amx_int8, begin_tiles, amx_int8, end_tiles,
     TILE_PACES(amx_int8)},
    {LIMIT_AVX2_FP32, 24 * 16, has_avx2, NULL, fp32_ymm, NULL, VECTOR_PACES(fp32_ymm)},
    {LIMIT_AVX2_INT8, 6 * 64, has_avx2, NULL, int8_ymm, NULL, {{NULL, 0, 0}}},
};

const struct limit_loop *limits_loops(uint32_t *n_out)
{
    *n_out = ARRAY_SIZE(loops);
    return loops;
}

#else

/* Elsewhere only reading is measured. */
const struct limit_loop *limits_loops(uint32_t *n_out)
{
    *n_out = 0;
    return NULL;
}

#endif
