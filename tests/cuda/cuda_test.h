/* cuda_test.h - helpers of the CUDA kernels' tests: a device, arrays on host and device,
 * comparison.
 *
 * The same tests run in two programs: under ctest with tests/cuda_emulation, on small and odd
 * shapes, and in one program for a real GPU (tests/gpu), on full-size shapes. full_size() tells
 * which. The reference computes on host copies of the same inputs.
 *
 * Owns    the device of cuda_device_for(), closed at exit; arrays until cuda_test_free_all().
 * Thread  one.
 * Errors  a failed call or comparison fails the cmocka test with a message.
 * Units   elements unless the name says bytes. */
#ifndef TARN_TESTS_CUDA_TEST_H
#define TARN_TESTS_CUDA_TEST_H

#include "tests/unit/test.h"

#include <stdbool.h>

#include "kernels/device.h"

/* Whether the test runs on a real GPU with full-size shapes (environment TARN_GPU_TEST=1). */
bool full_size(void);

/* Open the CUDA device with scratch for these sizes. There is one device at a time; it is reopened
 * when `config` differs. */
struct device *cuda_device_for(const struct device_config *config);
/* The next cuda_device_for() opens a device again. */
void cuda_test_close_device(void);

/* Allocate host memory, 64-byte aligned. cuda_test_free_all() frees it, and all arrays below. */
void *host_array(size_t n_bytes);
/* Allocate approximately normal floats from the test's seeded generator. */
float *random_array(size_t n, float scale);
uint32_t random_below(uint32_t n);

void seed_random(uint64_t seed);

/* Pack rows of floats to rows from n0 on of a quantized weight: by pack_quantize_rows(), or to
 * codes between the least and the largest element of a group, where NaN and inf give the scale NaN.
 * Any thread. */
void quantize_rows(const struct weight *w, uint32_t n0, const float *x, uint32_t n_rows);

/* Copy host memory to the device. `host` NULL: fill with 0xff (NaN floats, huge ids), so that
 * elements that a kernel does not write are noticed. */
void *on_device(struct device *d, const void *host, size_t n_bytes);
/* Copy device memory to the host. */
void *from_device(struct device *d, const void *device, size_t n_bytes);
void cuda_test_free_all(struct device *d);

/* Memory on the device for rows of K elements that an op rounds for weights of type t. */
struct rounded_rows rounded_on_device(struct device *d, uint32_t n_rows, uint32_t k, enum dtype t);
/* Round rows of floats [n_rows, K] for weights of type t, as params.h says; on the host. */
const uint16_t *round_rows(const float *x, uint32_t n_rows, uint32_t k, enum dtype t);
/* Check that the rows on the device are those of round_rows(). */
void assert_rounded(struct device *d, const struct rounded_rows *rows, const float *x,
                    uint32_t n_rows, uint32_t k);

/* Check that NaN and infinities are at the same positions, every other element is within abs_tol or
 * rel_tol of the reference, and 1 - cosine is below 1e-5 or a value derived from the tolerances.
 * Print the first element that differs and the worst one. */
void assert_close(const char *what, const float *got, const float *want, size_t n, float abs_tol,
                  float rel_tol);
/* Check that all bits are equal. Print the first element that differs. */
void assert_same_bits(const char *what, const void *got, const void *want, size_t n_bytes);

#endif
