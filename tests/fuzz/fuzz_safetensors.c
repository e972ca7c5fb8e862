/* fuzz_safetensors.c - any bytes as model.safetensors and, in the second part of the input, as the
 * index that names the files of a checkpoint.
 *
 * The first 16 bytes are the header's length in hexadecimal digits. Where they begin with "=", the
 * header ends at the first "}" that a new line follows: mutations change such a header and leave
 * the container whole.
 *
 * Checks beyond crashes: what is refused has a reason; every byte of every tensor can be read, the
 * tensors are sorted, found by name, and lie in the file at the place that the file tells. */
#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "engine/model/safetensors.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_folder.h"

#define FILE_BYTES_MAX (1u << 17)
#define LENGTH_DIGITS 16u

static unsigned char file[FILE_BYTES_MAX];
static volatile unsigned sum; /* so that reads are not left out */

/* Make the file; return its bytes. */
static size_t make_file(const char *text, size_t len)
{
    char digits[LENGTH_DIGITS + 1] = "";
    uint64_t n;

    if (len < LENGTH_DIGITS || len > FILE_BYTES_MAX / 2) { /* as it is */
        len = len < FILE_BYTES_MAX ? len : FILE_BYTES_MAX;
        memcpy(file, text, len);
        return len;
    }
    memcpy(digits, text, LENGTH_DIGITS);
    text += LENGTH_DIGITS;
    len -= LENGTH_DIGITS;
    if (*digits == '=') {
        const char *end = memmem(text, len, "}\n", 2);
        n = end ? (uint64_t)(end - text) + 1 : len;
    } else {
        n = strtoull(digits, NULL, 16);
    }
    for (unsigned i = 0; i < 8; i++)
        file[i] = (unsigned char)(n >> (8 * i));
    memcpy(file + 8, text, len);
    return 8 + len;
}

static void check_tensors(struct safetensors *st, struct buf *why)
{
    uint32_t n;
    const struct tensor *all = safetensors_all(st, &n);

    for (uint32_t i = 0; i < n; i++) {
        const unsigned char *bytes = all[i].data;
        uint64_t offset;
        int fd;
        ASSERT(all[i].n_dims <= TENSOR_N_DIMS_MAX && safetensors_find(st, all[i].name) == &all[i]);
        ASSERT(i == 0 || strcmp(all[i - 1].name, all[i].name) < 0);
        for (uint64_t k = 0; k < all[i].n_bytes; k++)
            sum += bytes[k];
        ASSERT(safetensors_file(st, &all[i], &fd, &offset, why) == OK);
        unsigned char first;
        ASSERT(all[i].n_bytes == 0 ||
               (pread(fd, &first, 1, (off_t)offset) == 1 && first == bytes[0]));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);
    const char *folder = fuzz_make_folder();
    struct safetensors *st;
    struct buf why;
    char index[96];

    fuzz_write_file("model.safetensors", file, make_file(in.first, in.first_len));
    fuzz_write_file("b.safetensors", file, make_file(in.first, in.first_len));
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", folder);
    if (in.second)
        fuzz_write_file("model.safetensors.index.json", in.second, in.second_len);
    else
        unlink(index);
    buf_init(&why, BUF_WHY_MAX);
    enum status s = safetensors_open(&st, folder, &why);
    ASSERT((s == OK) == (st != NULL) && (s == OK || why.len > 0));
    if (st)
        check_tensors(st, &why);
    safetensors_close(st);
    buf_fini(&why);
    return 0;
}
