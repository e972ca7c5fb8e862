/* draw.h - random numbers of many kinds from base/rng.h, in independent streams.
 *
 * A stream is named by a purpose and a number (of a request, a document, a session). The draws of
 * one request never depend on how many another request made: two runs with one seed generate the
 * same requests in any order.
 *
 * Owns    nothing.
 * Thread  any; a struct draw belongs to one thread.
 * Errors  none.
 * Units   draw_unit() is in [0, 1), draw_open() in (0, 1), both with 53 random bits. */
#ifndef TARN_LOADGEN_LOAD_DRAW_H
#define TARN_LOADGEN_LOAD_DRAW_H

#include <stddef.h>
#include <stdint.h>

enum draw_purpose {
    DRAW_ARRIVAL = 1,
    DRAW_LENGTH,
    DRAW_TENANT,
    DRAW_PREFIX,
    DRAW_SESSION,
    DRAW_DOCUMENT,
    DRAW_RETRIEVAL,
    DRAW_TROUBLE, /* disconnects and slow readers */
    DRAW_VERIFY,
    DRAW_SHUFFLE,
    DRAW_WORDS,
    DRAW_BOOTSTRAP,
};

struct draw {
    uint64_t seed;
    uint64_t stream;
    uint64_t n; /* numbers drawn so far */
};

void draw_init(struct draw *d, uint64_t seed, enum draw_purpose purpose, uint64_t number);
uint64_t draw_u64(struct draw *d);
double draw_unit(struct draw *d);
double draw_open(struct draw *d);
uint64_t draw_below(struct draw *d, uint64_t n); /* [0, n); 0 for n = 0 */
double draw_exp(struct draw *d);                 /* mean 1 */
double draw_normal(struct draw *d);              /* mean 0, variance 1 */
/* Log-normal with this mean and CV. */
double draw_lognormal(struct draw *d, double mean, double cv);
double draw_gamma(struct draw *d, double shape); /* scale 1, mean `shape`; shape > 0 */
/* Fisher-Yates. */
void draw_shuffle_u32(struct draw *d, uint32_t *a, size_t n);

/* A 64-bit name made of two others: ids of parts, stable for ever. */
uint64_t draw_mix(uint64_t a, uint64_t b);

#endif
