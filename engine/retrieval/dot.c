#include "engine/retrieval/dot.h"

#include <string.h>

#include "base/check.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define LANES 16
/* Rows that are prefetched ahead: one million vectors of 128 entries are searched in 27 instead of
 * 39 ms of CPU time. A prefetch behind the end of the rows is harmless. */
#define ROWS_AHEAD 8

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float))));

typedef float half_lanes __attribute__((vector_size(LANES / 2 * sizeof(float))));
typedef float quarter_lanes __attribute__((vector_size(LANES / 4 * sizeof(float))));

/* Halves are added as vectors: sixteen additions one by one take longer than the products. */
ALWAYS_INLINE float sum_lanes(const lanes *v)
{
    half_lanes h[2], s;
    quarter_lanes q[2];

    memcpy(h, v, sizeof h);
    s = h[0] + h[1];
    memcpy(q, &s, sizeof q);
    q[0] += q[1];
    return (q[0][0] + q[0][2]) + (q[0][1] + q[0][3]);
}

/* A macro, because a function that returns such a vector differs in ABI from path to path. */
#define LOAD(x) (*(const lanes *)(const void *)(x))

ALWAYS_INLINE float dot_pair(const float *a, const float *b, size_t dim)
{
    lanes sum = {0};
    size_t i = 0;
    float out;

    for (; i + LANES <= dim; i += LANES)
        sum += LOAD(a + i) * LOAD(b + i);
    out = sum_lanes(&sum);
    for (; i < dim; i++)
        out += a[i] * b[i];
    return out;
}

/* The inner products of b with four vectors that follow each other, to out[0], out[step], ... Four
 * sums at once hide the latency of an addition. */
ALWAYS_INLINE void dot_four(float *out, size_t step, const float *a, const float *b, size_t dim)
{
    lanes sum[4] = {{0}};
    size_t i = 0;

    for (; i + LANES <= dim; i += LANES) {
        lanes y = LOAD(b + i);

        for (int k = 0; k < 4; k++) {
            __builtin_prefetch(a + (size_t)(k + ROWS_AHEAD) * dim + i);
            sum[k] += LOAD(a + (size_t)k * dim + i) * y;
        }
    }
    for (int k = 0; k < 4; k++) {
        const float *one = a + (size_t)k * dim;
        float value = sum_lanes(&sum[k]);

        for (size_t j = i; j < dim; j++)
            value += one[j] * b[j];
        out[(size_t)k * step] = value;
    }
}

ALWAYS_INLINE void dot_column(float *out, size_t step, const float *a, size_t n, const float *b,
                              size_t dim)
{
    size_t i = 0;

    for (; i + 4 <= n; i += 4)
        dot_four(out + i * step, step, a + i * dim, b, dim);
    for (; i < n; i++)
        out[i * step] = dot_pair(a + i * dim, b, dim);
}

ALWAYS_INLINE void dot_all(float *out, const float *x, size_t n_x, const float *rows, size_t n_rows,
                           size_t dim)
{
    if (n_x < 4)
        for (size_t i = 0; i < n_x; i++)
            dot_column(out + i * n_rows, 1, rows, n_rows, x + i * dim, dim);
    else
        for (size_t j = 0; j < n_rows; j++)
            dot_column(out + j, n_rows, x, n_x, rows + j * dim, dim);
}

#define PATH(name, attribute)                                                                      \
    attribute static void dot_##name(float *out, const float *x, size_t n_x, const float *rows,    \
                                     size_t n_rows, size_t dim)                                    \
    {                                                                                              \
        dot_all(out, x, n_x, rows, n_rows, dim);                                                   \
    }                                                                                              \
    attribute static float pair_##name(const float *a, const float *b, size_t dim)                 \
    {                                                                                              \
        return dot_pair(a, b, dim);                                                                \
    }

PATH(plain, )
#if defined(__x86_64__)
PATH(avx2, __attribute__((target("avx2,fma"))))
PATH(avx512, __attribute__((target("avx512f,avx512vl,avx512dq,fma,prefer-vector-width=512"))))
#endif

uint32_t dot_n_paths(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return 3;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return 2;
#endif
    return 1;
}

void dot_many_on(uint32_t path, float *out, const float *x, size_t n_x, const float *rows,
                 size_t n_rows, size_t dim)
{
    ASSERT(path < dot_n_paths());
#if defined(__x86_64__)
    if (path == 2) {
        dot_avx512(out, x, n_x, rows, n_rows, dim);
        return;
    }
    if (path == 1) {
        dot_avx2(out, x, n_x, rows, n_rows, dim);
        return;
    }
#endif
    dot_plain(out, x, n_x, rows, n_rows, dim);
}

void dot_many(float *out, const float *x, size_t n_x, const float *rows, size_t n_rows, size_t dim)
{
    dot_many_on(dot_n_paths() - 1, out, x, n_x, rows, n_rows, dim);
}

float dot_one(const float *a, const float *b, size_t dim)
{
#if defined(__x86_64__)
    switch (dot_n_paths()) {
    case 3: return pair_avx512(a, b, dim);
    case 2: return pair_avx2(a, b, dim);
    }
#endif
    return pair_plain(a, b, dim);
}
