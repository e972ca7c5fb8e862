/* speed.h - measures the time of single ops of a device; implemented by tests/gpu/kernel_speed.c.
 *
 * A case enqueues one op. speed_time() blocks the stream, enqueues the op many times, and takes the
 * time between two events (timer.h): GPU time without the host's launches. The result is the median
 * of several such rounds, and the host's time per launch. Inputs that would fit into the L2 cache
 * are given as several copies, used in turn.
 *
 * Owns    the device and all its arrays until speed_close().
 * Thread  one.
 * Errors  a call that fails ends the program with a message.
 * Units   bytes and operations (a multiply-add is two): the minimum that the op must move and
 * do. */
#ifndef TARN_TESTS_GPU_SPEED_H
#define TARN_TESTS_GPU_SPEED_H

#include <stdbool.h>
#include <stdio.h>

#include "kernels/device.h"

/* More than any L2 cache of today. */
#define SPEED_COLD_BYTES ((size_t)256 << 20)

struct gpu_timer;

struct speed {
    struct device *d;
    struct gpu_timer *timer;
    const struct ops *ops;
    FILE *csv;
    double copy_rate;     /* bytes per second of a device-to-device copy, read and written */
    double matrix_rate;   /* operations per second of the largest product */
    double round_s;       /* shortest round */
    uint32_t scale;       /* divides sizes: 1 on a GPU, more in the emulation */
    uint64_t deadline_ns; /* no case begins after it; 0: no deadline */
    uint32_t n_left_out;  /* cases omitted because of the deadline */
    bool without_wgmma;   /* as with --no-wgmma, from the next speed_open() on */
};

struct speed_case {
    const char *op;
    char shape[64];
    double bytes;
    double ops;
    enum status (*run)(struct speed *s, void *arg, uint32_t turn);
    void *arg;
};

/* Open the device; keeps rates and the CSV file. */
void speed_open(struct speed *s, bool batch_invariant);
void speed_close(struct speed *s);
/* Allocate device memory, freed by speed_close(): a copy of `host`, or small pseudo-random floats
 * in f32 or bf16. */
void *speed_array(struct speed *s, const void *host, size_t n_bytes);
void *speed_floats(struct speed *s, size_t n);
void *speed_halves(struct speed *s, size_t n);
/* Free all arrays but keep the device. */
void speed_clear(struct speed *s);
/* Whether the deadline has passed; then counts an omitted case. A case calls it before it fills its
 * arrays. */
bool speed_is_late(struct speed *s);
/* Measure a case: seconds of GPU time of one op. Write a line to the terminal and the CSV file. */
double speed_time(struct speed *s, const struct speed_case *c);

/* The cases, in tests/gpu/kernel_cases.c. */
/* About forty cases that matter most for a model's speed, and the cost of a launch. */
void speed_decisive(struct speed *s);
/* The prefills of the decisive cases, on a device without_wgmma. */
void speed_attention_beside(struct speed *s);
void speed_ceilings(struct speed *s); /* sets copy_rate and matrix_rate */
void speed_small_ops(struct speed *s);
void speed_products(struct speed *s);
void speed_attention(struct speed *s);
void speed_copies(struct speed *s);
void speed_sampling(struct speed *s);

#endif
