/* fuzz.h - the interface of the fuzz targets.
 *
 * A target defines LLVMFuzzerTestOneInput(), which libFuzzer (clang) or driver.c (any compiler)
 * calls with one input after another. Text inputs have two parts, separated by a line "=====": the
 * file to load (such as a template) and the text to process with it.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  a target that finds something wrong aborts.
 * Units   bytes. */
#ifndef TARN_TESTS_FUZZ_FUZZ_H
#define TARN_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FUZZ_SEPARATOR "\n=====\n"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz_input {
    const char *first, *second; /* second is NULL when there is no separator */
    size_t first_len, second_len;
};

static inline struct fuzz_input fuzz_split(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {.first = (const char *)data, .first_len = size};
    const char *line = size ? memmem(data, size, FUZZ_SEPARATOR, strlen(FUZZ_SEPARATOR)) : NULL;

    if (!size)
        in.first = "";
    if (line) {
        in.first_len = (size_t)(line - in.first);
        in.second = line + strlen(FUZZ_SEPARATOR);
        in.second_len = size - in.first_len - strlen(FUZZ_SEPARATOR);
    }
    return in;
}

#endif
