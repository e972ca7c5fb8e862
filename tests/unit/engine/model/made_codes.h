/* made_codes.h - makes tensors of a checkpoint look quantized, by a codec of made numbers.
 *
 * The test's link wraps checkpoint_find(): a tensor that the rule names keeps its shape and gets a
 * codec, whose numbers depend on its name, the place and made_salt. All others stay as they are.
 *
 * Owns    the made tensors, until made_reset().
 * Thread  one load at a time; the codec itself: any.
 * Errors  any failure ends the test.
 * Units   bits, elements. */
#ifndef TARN_TESTS_ENGINE_MADE_CODES_H
#define TARN_TESTS_ENGINE_MADE_CODES_H

#include "engine/model/tensor.h"

struct made_kind {
    /* FLOATS: 16 bits an element; F8: with codes of 8 bits */
    enum { MADE_PLAIN, MADE_CODES, MADE_OTHER, MADE_FLOATS, MADE_F8 } form;
    uint32_t bits, group; /* of codes */
};

/* How a matrix of that name is stored. NULL: all are plain. */
extern struct made_kind (*made_rule)(const char *name);
/* Other numbers come from another salt: of codes and other elements, scales, offsets. */
extern uint32_t made_salt[3];

/* Forget made tensors; before each load under another rule. */
void made_reset(void);
/* An element of a made tensor, its code, and the scale and the offset of a group. */
float made_at(const struct tensor *t, uint64_t row, uint64_t k);
uint8_t made_code(const struct tensor *t, uint64_t row, uint64_t k);
float made_scale(const struct tensor *t, uint64_t row, uint64_t group);
float made_offset(const struct tensor *t, uint64_t row, uint64_t group);

#endif
