/* tarn-gguf-rows - a tensor of a checkpoint as the loader reads it.
 *
 *   tarn-gguf-rows MODEL TENSOR OUT_FILE
 *
 * OUT_FILE gets the rows as raw little-endian float32; behind them, where the code is one of whole
 * numbers with scale and offset per group, all codes (u8), scales and offsets (float32). stdout
 * gets "rows K code_bits code_group". A test program: decoders in other languages are compared with
 * it. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/model/checkpoint.h"

static void die(const char *what, const char *detail)
{
    fprintf(stderr, "tarn-gguf-rows: %s %s\n", what, detail);
    exit(1);
}

static void write_all(const void *data, size_t size, size_t n, FILE *out)
{
    if (fwrite(data, size, n, out) != n)
        die("cannot write", "the rows");
}

static void write_codes(const struct tensor *t, size_t rows, size_t k, FILE *out)
{
    size_t n_groups = rows * ((k + t->code_group - 1) / t->code_group);
    uint8_t *codes = malloc(rows * k);
    float *scales = malloc(n_groups * sizeof *scales),
          *offsets = malloc(n_groups * sizeof *offsets);

    if (!codes || !scales || !offsets)
        die("out of memory", "");
    t->codec->read_codes(t, 0, (uint32_t)rows, codes, scales, offsets);
    write_all(codes, 1, rows * k, out);
    write_all(scales, sizeof *scales, n_groups, out);
    write_all(offsets, sizeof *offsets, n_groups, out);
    free(codes);
    free(scales);
    free(offsets);
}

int main(int argc, char **argv)
{
    struct checkpoint *c;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (argc != 4)
        die("usage:", "tarn-gguf-rows MODEL TENSOR OUT_FILE");
    if (checkpoint_open(&c, argv[1], &why) != OK)
        die("cannot open:", buf_str(&why));
    const struct tensor *t = checkpoint_find(c, argv[2]);
    FILE *out = fopen(argv[3], "wb");
    if (!t || !t->codec || !out)
        die("no tensor with a codec, or no output:", argv[2]);
    size_t rows = t->shape[0], k = t->n_dims == 1 ? 1 : t->shape[1];
    float *values = malloc(rows * k * sizeof *values);
    if (!values)
        die("out of memory", "");
    t->codec->read_rows(t, 0, (uint32_t)rows, values);
    write_all(values, sizeof *values, rows * k, out);
    if (t->code_bits)
        write_codes(t, rows, k, out);
    printf("%zu %zu %u %u\n", rows, k, t->code_bits, t->code_group);
    if (fclose(out) != 0)
        die("cannot write", argv[3]);
    free(values);
    checkpoint_close(c);
    buf_fini(&why);
    return 0;
}
