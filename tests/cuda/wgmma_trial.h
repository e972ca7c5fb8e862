/* wgmma_trial.h - checks of the choice between mma.sync and wgmma, for products and for attention.
 *
 * Owns    a folder, while a check runs.
 * Thread  one.
 * Errors  a failed call or comparison fails the cmocka test.
 * Units   none. */
#ifndef TARN_TESTS_CUDA_WGMMA_TRIAL_H
#define TARN_TESTS_CUDA_WGMMA_TRIAL_H

#include "tests/cuda/cuda_test.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Functions of the emulation (emulation.h); NULL on a real GPU. */
void emulation_make_wgmma_fast(int fast) __attribute__((weak));
void emulation_fail_call(uint64_t n, int error) __attribute__((weak));
uint64_t emulation_calls(void) __attribute__((weak));

#define OUT_OF_MEMORY 2 /* cudaErrorMemoryAllocation, which a context survives */

/* Check that a device keeps its choice in the named file, and that a damaged file is measured and
 * written again. Settings of `config` that do not matter to the choice are changed. */
static inline void check_kept_choice(struct device_config config, const char *file,
                                     bool (*has_wgmma)(struct device *d))
{
    char dir[] = "/tmp/tarn-wgmma-XXXXXX", path[sizeof dir + 64];

    if (!emulation_make_wgmma_fast)
        skip(); /* a real GPU may choose otherwise */
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/%s", dir, file);
    config.measure_dir = dir;
    config.max_heads = 5; /* that of no other test */
    emulation_make_wgmma_fast(1);
    assert_true(has_wgmma(cuda_device_for(&config)));
    emulation_make_wgmma_fast(0);
    config.max_heads = 2; /* opened again */
    assert_true(has_wgmma(cuda_device_for(&config)));
    assert_int_equal(truncate(path, 20), 0);
    config.max_heads = 3;
    assert_false(has_wgmma(cuda_device_for(&config)));
    config.max_heads = 2;
    emulation_make_wgmma_fast(1);
    assert_false(has_wgmma(cuda_device_for(&config)));
    emulation_make_wgmma_fast(0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

#endif
