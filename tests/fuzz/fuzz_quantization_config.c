/* fuzz_quantization_config.c - any bytes as config.json, and a checkpoint of any types and shapes.
 *
 * The second part of an input has a line for each tensor: its name, type, shape such as 8,64, and
 * the hexadecimal word that fills it, or r for random bytes. The target makes a file of the lines
 * that can be part of one. A second part that begins with "{" is the header of a safetensors file
 * with 16 bytes of data, as it is.
 *
 * Checks beyond crashes: all rows of a quantized weight decode within its parts (under ASan), in
 * one piece and row by row alike, and its codes and scales give the same numbers. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "base/rng.h"
#include "engine/model/checkpoint.h"
#include "engine/model/quantized_codec.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_folder.h"

#define N_TENSORS_MAX 16
#define TENSOR_BYTES_MAX 16384u
#define FILE_BYTES_MAX (1u << 19)

struct line {
    char name[64], dtype[16], shape[40];
    uint32_t n_bytes, element, word;
    bool random;
};

static unsigned char file[FILE_BYTES_MAX];

static uint32_t element_bytes(const char *dtype)
{
    return strstr(dtype, "64") ? 8 : strstr(dtype, "32") ? 4 : strstr(dtype, "16") ? 2 : 1;
}

/* False: the line cannot be part of a file. */
static bool parse_line(const char *text, struct line *out)
{
    char word[16];
    uint64_t n = 1;
    unsigned n_dims = 0;

    if (sscanf(text, "%63[A-Za-z0-9_.] %15[A-Z0-9_a-z] %39[0-9,] %15s", out->name, out->dtype,
               out->shape, word) != 4)
        return false;
    if (!strcmp(out->shape, ","))
        out->shape[0] = '\0'; /* no dimension */
    for (const char *p = out->shape; *p; n_dims++) {
        char *end;
        unsigned long d = strtoul(p, &end, 10);
        if (end == p || d > TENSOR_BYTES_MAX || (*end && *end != ',') || end - p > 6 ||
            (*end == ',' && end[1] == '\0') || (*p == '0' && end - p > 1))
            return false;
        n *= d;
        if (n > TENSOR_BYTES_MAX)
            return false;
        p = *end ? end + 1 : end;
    }
    out->element = element_bytes(out->dtype);
    out->n_bytes = (uint32_t)n * out->element;
    out->random = word[0] == 'r';
    out->word = (uint32_t)strtoul(word, NULL, 16);
    return out->n_bytes <= TENSOR_BYTES_MAX;
}

static int compare_elements(const void *a, const void *b)
{
    const struct line *x = a, *y = b;

    return x->element != y->element ? (x->element < y->element ? 1 : -1) : strcmp(x->name, y->name);
}

static uint32_t parse_lines(const char *text, size_t len, struct line lines[N_TENSORS_MAX])
{
    uint32_t n = 0;

    while (len > 0 && n < N_TENSORS_MAX) {
        char copy[192];
        const char *end = memchr(text, '\n', len);
        size_t n_line = end ? (size_t)(end - text) : len;
        snprintf(copy, sizeof copy, "%.*s", (int)(n_line < 190 ? n_line : 190), text);
        bool known = !parse_line(copy, &lines[n]);
        for (uint32_t i = 0; !known && i < n; i++)
            known = !strcmp(lines[i].name, lines[n].name);
        n += !known;
        text += n_line + (end != NULL);
        len -= n_line + (end != NULL);
    }
    qsort(lines, n, sizeof *lines, compare_elements);
    return n;
}

static size_t put_header(const char *header, size_t n_header)
{
    uint64_t n = n_header;

    ASSERT(n_header + 8 < FILE_BYTES_MAX / 2);
    memcpy(file, &n, 8);
    memcpy(file + 8, header, n_header);
    return 8 + n_header;
}

static void write_checkpoint(const struct line *lines, uint32_t n)
{
    struct buf header;
    size_t begin = 0;

    buf_init(&header, FILE_BYTES_MAX / 4);
    enum status s = buf_putc(&header, '{');
    for (uint32_t i = 0; s == OK && i < n; begin += lines[i++].n_bytes)
        s = buf_printf(&header,
                       "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                       i ? "," : "", lines[i].name, lines[i].dtype, lines[i].shape, begin,
                       begin + lines[i].n_bytes);
    ASSERT(s == OK && buf_putc(&header, '}') == OK);
    size_t at = put_header(header.data, header.len);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < lines[i].n_bytes; j++) {
            uint32_t word = lines[i].random ? rng_u32(3, j / 4) : lines[i].word;
            file[at++] = (unsigned char)(word >> (8 * (j % 4)));
        }
    fuzz_write_file("model.safetensors", file, at);
    buf_fini(&header);
}

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void check_codes(const struct tensor *t, const float *rows)
{
    uint64_t n = t->shape[0], k = t->shape[1];
    uint64_t n_groups = (k + t->code_group - 1) / t->code_group;
    uint8_t *codes = malloc(n * k);
    float *scales = malloc(n * n_groups * sizeof *scales);
    float *offsets = malloc(n * n_groups * sizeof *offsets);

    ASSERT(codes && scales && offsets && t->code_group % (t->code_is_f8 ? 128 : 32) == 0);
    t->codec->read_codes(t, 0, (uint32_t)n, codes, scales, offsets);
    for (uint64_t i = 0; i < n * k; i++) {
        uint64_t g = i / k * n_groups + i % k / t->code_group;
        double value = (double)codes[i] * (double)scales[g] + (double)offsets[g];
        ASSERT(codes[i] < 1u << t->code_bits);
        if (t->code_is_f8) /* the scale of a group with a NaN is NaN */
            ASSERT(isnan(scales[g]) || quantized_e4m3(codes[i]) * scales[g] == rows[i]);
        else
            ASSERT(fabs(value - (double)rows[i]) <= 1e-3 * fabs((double)scales[g]));
    }
    free(codes);
    free(scales);
    free(offsets);
}

static void check_tensor(const struct tensor *t)
{
    uint64_t n = t->shape[0], k = t->shape[1];
    float *rows = malloc(n * k * sizeof *rows), *row = malloc(k * sizeof *row);

    ASSERT(rows && row && t->n_dims == 2 && n > 0 && k > 0);
    t->codec->read_rows(t, 0, (uint32_t)n, rows);
    for (uint64_t r = 0; r < n; r += n / 7 + 1) {
        t->codec->read_rows(t, r, 1, row);
        for (uint64_t i = 0; i < k; i++)
            ASSERT(same(row[i], rows[r * k + i]));
    }
    ASSERT(t->code_bits == 0 || t->code_bits == 4 || t->code_bits == 8);
    if (t->code_bits)
        check_codes(t, rows);
    free(rows);
    free(row);
}

/* Decode the weight of the module that a tensor's name begins with. */
static void check_module(const struct checkpoint *c, const char *name)
{
    const char *end = strrchr(name, '.');
    char weight[80];

    snprintf(weight, sizeof weight, "%.*s.weight", end ? (int)(end - name) : 0, name);
    const struct tensor *t = checkpoint_find(c, weight);
    if (t && t->codec)
        check_tensor(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);
    struct line lines[N_TENSORS_MAX];
    struct checkpoint *c;
    struct buf why;
    uint32_t n = 0;

    fuzz_write_file("config.json", in.first, in.first_len);
    if (in.second && in.second_len > 0 && in.second[0] == '{') {
        size_t at = put_header(in.second, in.second_len);
        memset(file + at, 0x3c, 16);
        fuzz_write_file("model.safetensors", file, at + 16);
    } else {
        n = parse_lines(in.second, in.second_len, lines);
        write_checkpoint(lines, n);
    }
    buf_init(&why, BUF_WHY_MAX);
    enum status s = checkpoint_open(&c, fuzz_make_folder(), &why);
    ASSERT((s == OK) == (c != NULL) && (s == OK || why.len > 0));
    for (uint32_t i = 0; s == OK && i < n; i++)
        check_module(c, lines[i].name);
    checkpoint_close(c);
    buf_fini(&why);
    return 0;
}
