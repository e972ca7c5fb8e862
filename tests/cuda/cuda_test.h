/* cuda_test.h - what the tests of CUDA kernels share: a device, arrays on both sides, comparison.
 *
 * The same files run twice: as ctest programs against tests/cuda_emulation on small and odd shapes,
 * and as parts of the one GPU program on full-size ones. A test asks full_size() which it is. The
 * reference gets host copies of the same inputs.
 *
 * Owns    device_of() the device, closed at exit; arrays until cuda_test_free_all().
 * Thread  one.
 * Errors  a failed call or comparison fails the cmocka test with words.
 * Units   elements unless the name says bytes. */
#ifndef TARN_TESTS_CUDA_TEST_H
#define TARN_TESTS_CUDA_TEST_H

#include "tests/unit/test.h"

#include <stdbool.h>

#include "kernels/device.h"

/* Real GPU, full-size shapes (environment TARN_GPU_TEST=1). */
bool full_size(void);

/* The CUDA device with scratch for these sizes; one at a time, reopened when `config` differs. */
struct device *cuda_device_for(const struct device_config *config);

/* Host memory, 64-byte aligned, freed by cuda_test_free_all() like all below. */
void *host_array(size_t n_bytes);
/* Floats, about normal, from the test's own seeded generator. */
float *random_array(size_t n, float scale);
uint32_t random_below(uint32_t n);
void seed_random(uint64_t seed);

/* Device copy of host memory; on_device(NULL, n) is filled with 0xff (NaN floats, huge ids), so
 * that what a kernel leaves unwritten shows. */
void *on_device(struct device *d, const void *host, size_t n_bytes);
/* Host copy of device memory. */
void *from_device(struct device *d, const void *device, size_t n_bytes);
void cuda_test_free_all(struct device *d);

/* Equal positions of NaN and of each infinity; every element within abs_tol or rel_tol of the
 * reference; 1 - cosine below 1e-5 or below what the tolerance allows. Prints the first element
 * that differs and the worst one. */
void assert_close(const char *what, const float *got, const float *want, size_t n, float abs_tol,
                  float rel_tol);
/* The same bits; prints the first element that differs. */
void assert_same_bits(const char *what, const void *got, const void *want, size_t n_bytes);

#endif
