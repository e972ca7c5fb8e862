/* adapter_files.h - random LoRA adapters on disk, for tests.
 *
 * Owns    nothing; adapter_files_remove() removes what adapter_files_make() made.
 * Thread  one.
 * Errors  any failure ends the test with a message.
 * Units   elements. */
#ifndef TARN_TESTS_ADAPTER_FILES_H
#define TARN_TESTS_ADAPTER_FILES_H

#include <stddef.h>
#include <stdint.h>

#define ADAPTER_FILES_DIR_BYTES 64

/* A module in each layer, with shape [n, k]. */
struct adapter_module {
    const char *name; /* behind "model.layers.N." */
    uint32_t n, k;
};

struct adapter_files {
    const struct adapter_module *modules; /* [n_modules] */
    uint32_t n_modules, n_layers;
    uint32_t rank;
    uint64_t seed;
    float gain;         /* size of the addition */
    const char *config; /* adapter_config.json; NULL: the rank, and alpha twice the rank */
};

/* Make a folder with adapter_config.json and adapter_model.safetensors. */
void adapter_files_make(char dir[ADAPTER_FILES_DIR_BYTES], const struct adapter_files *f);
void adapter_files_remove(const char *dir);
/* Element i of module m's matrix in a layer, as the files have it: A [rank, k] or B [n, rank]. */
float adapter_files_at(const struct adapter_files *f, uint32_t layer, uint32_t m, int is_b,
                       size_t i);
/* Replace a file of the folder. */
void adapter_files_write(const char *dir, const char *name, const void *bytes, size_t n);

#endif
