/* test_crc32c.c - checksums of device memory, which are those of the host, and copies of many
 * pieces of it. */
#include "tests/cuda/cuda_test.h"

#include <string.h>

#include "base/hash.h"

/* Functions of the emulation (emulation.h); NULL on a real GPU. */
void emulation_miss_batches(int miss) __attribute__((weak));
uint64_t emulation_batches(void) __attribute__((weak));

static struct device *open_device(void)
{
    struct device_config config = {
        .kind = DEVICE_CUDA, .max_rows = 128, .max_k = 4096, .max_heads = 8, .max_head_dim = 256};

    return cuda_device_for(&config);
}

/* Check n pieces of n_bytes, which lie in reverse order and with gaps of 16 bytes. */
static void check_sums(struct device *d, uint32_t n, size_t n_bytes)
{
    size_t stride = (n_bytes + 31) / 16 * 16;
    unsigned char *host = host_array(n * stride), *memory;
    struct stream *s = device_stream(d, DEVICE_COPY_PEER);
    const void *pieces[DEVICE_SUMS_MAX];
    uint32_t *sums = on_device(d, NULL, n * sizeof *sums), *got;

    for (size_t i = 0; i < n * stride; i++)
        host[i] = (unsigned char)random_below(256);
    if (n > 1)
        memset(host, 0, stride);
    memory = on_device(d, host, n * stride);
    for (uint32_t i = 0; i < n; i++)
        pieces[i] = memory + (n - 1 - i) * stride;
    assert_ok(device_crc32c_async(d, s, pieces, n, n_bytes, sums));
    assert_ok(device_stream_wait(d, s));
    got = from_device(d, sums, n * sizeof *sums);
    for (uint32_t i = 0; i < n; i++)
        if (got[i] != hash_crc32c(0, host + (n - 1 - i) * stride, n_bytes))
            fail_msg("piece %u of %u, %zu bytes", i, n, n_bytes);
    cuda_test_free_all(d);
}

static void sums_are_those_of_the_host(void **state)
{
    /* One word; less than a word per thread, as many, one more; a part, one word more, several. */
    static const size_t n_bytes[] = {4, 8, 1020, 1024, 1028, 65536, 65540, 66560, 131068, 200000};
    struct device *d = open_device();

    (void)state;
    for (size_t i = 0; i < sizeof n_bytes / sizeof *n_bytes; i++)
        check_sums(d, 1, n_bytes[i]);
    check_sums(d, 3, 66560);
    check_sums(d, DEVICE_SUMS_MAX, 4096);
    if (full_size()) {
        check_sums(d, 64, (size_t)4 << 20);
        check_sums(d, 1, (size_t)1 << 28);
    }
}

/* Copies of a batch, and one by one where the driver has no batches: from pinned memory into every
 * second block of a pool, within the pool, and back. */
static void many_copies_arrive(void **state)
{
    enum { N = 9, BLOCK = 1000 };
    struct device *d = open_device();
    unsigned char *host = device_alloc_pinned(d, N * BLOCK);
    unsigned char *pool = on_device(d, NULL, 2 * N * BLOCK);
    void *to[3][N];
    const void *from[3][N];

    (void)state;
    assert_non_null(host);
    for (unsigned missing = 0; missing < (emulation_miss_batches ? 2 : 1); missing++) {
        uint64_t n_batches = emulation_batches ? emulation_batches() : 0;

        if (missing)
            emulation_miss_batches(1);
        for (uint32_t i = 0; i < N; i++) {
            memset(host + i * BLOCK, (int)(17 * i + 1 + missing), BLOCK);
            to[0][i] = pool + 2 * i * BLOCK;
            from[0][i] = host + i * BLOCK;
            to[1][i] = pool + (2 * i + 1) * BLOCK;
            from[1][i] = to[0][i];
            to[2][i] = host + (N - 1 - i) * BLOCK;
            from[2][i] = to[1][i];
        }
        for (uint32_t i = 0; i < 3; i++)
            assert_ok(device_copies_async(d, NULL, to[i], from[i], N, BLOCK));
        assert_ok(device_stream_wait(d, NULL));
        for (uint32_t i = 0; i < N * BLOCK; i++)
            assert_int_equal(host[i], (unsigned char)(17 * (N - 1 - i / BLOCK) + 1 + missing));
        if (emulation_batches)
            assert_int_equal(emulation_batches() - n_batches, missing ? 0 : 3);
        assert_ok(device_copies_async(d, NULL, to[0], from[0], 0, BLOCK));
        assert_ok(device_copies_async(d, NULL, to[0], from[0], N, 0));
    }
    if (emulation_miss_batches)
        emulation_miss_batches(0);
    device_free_pinned(d, host);
    cuda_test_free_all(d);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_the_host),
        cmocka_unit_test(many_copies_arrive),
    };

    seed_random(17);
    return hash_init() == OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
