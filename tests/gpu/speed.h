/* speed.h - times single ops of a device: the frame of tests/gpu/kernel_speed.c.
 *
 * A case enqueues one op. The frame holds the stream, enqueues the op many times behind the hold,
 * and takes the time between two events (timer.h): GPU time without the host's launches. The
 * median of several such rounds is reported, beside the host's time for each launch. Inputs that
 * would fit the second-level cache are given as several copies, used in turns.
 *
 * Owns    the device and all its arrays until speed_close().
 * Thread  one.
 * Errors  a call that fails ends the program with words: there is nothing to go on with.
 * Units   bytes and operations (a multiply-add is two) that the op must move and do at least. */
#ifndef TARN_TESTS_GPU_SPEED_H
#define TARN_TESTS_GPU_SPEED_H

#include <stdbool.h>
#include <stdio.h>

#include "kernels/device.h"

/* More than any second-level cache of today. */
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
    uint64_t deadline_ns; /* no case begins after it; 0: none */
    uint32_t n_left_out;  /* cases that the deadline cost */
};

struct speed_case {
    const char *op;
    char shape[64];
    double bytes;
    double ops;
    enum status (*run)(struct speed *s, void *arg, uint32_t turn);
    void *arg;
};

/* Open the device; rates and the CSV file stay as they are. */
void speed_open(struct speed *s, bool batch_invariant);
void speed_close(struct speed *s);
/* Device memory, freed by speed_close(); filled with small pseudo-random floats in bf16 or f32, or
 * with what `host` holds. */
void *speed_array(struct speed *s, const void *host, size_t n_bytes);
void *speed_floats(struct speed *s, size_t n);
void *speed_halves(struct speed *s, size_t n);
/* Give all arrays back but keep the device. */
void speed_clear(struct speed *s);
/* Whether the deadline has passed; counts a case that is left out for it. A case asks before it
 * fills its arrays. */
bool speed_is_late(struct speed *s);
/* Seconds of GPU time of one op. Writes a line to the terminal and to the CSV file, at once. */
double speed_time(struct speed *s, const struct speed_case *c);

/* The cases, in tests/gpu/kernel_cases.c. */
/* Some forty cases: those that decide whether the kernels are good, and the cost of a launch. */
void speed_decisive(struct speed *s);
void speed_ceilings(struct speed *s); /* sets copy_rate and matrix_rate */
void speed_small_ops(struct speed *s);
void speed_products(struct speed *s);
void speed_attention(struct speed *s);
void speed_copies(struct speed *s);
void speed_sampling(struct speed *s);

#endif
