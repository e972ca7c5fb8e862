/* test_crc32c.c - checksums of device memory, which are those of the host. */
#include "tests/cuda/cuda_test.h"

#include <string.h>

#include "base/hash.h"

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

static void copies_within_the_device_have_equal_bytes(void **state)
{
    struct device *d = open_device();
    struct stream *s = device_stream(d, DEVICE_COPY_PEER);
    uint32_t host[1000];
    void *from, *to = on_device(d, NULL, sizeof host);

    (void)state;
    for (uint32_t i = 0; i < 1000; i++)
        host[i] = random_below(UINT32_MAX);
    from = on_device(d, host, sizeof host);
    assert_ok(device_copy_async(d, s, to, from, sizeof host));
    assert_ok(device_stream_wait(d, s));
    assert_same_bits("the copy", from_device(d, to, sizeof host), host, sizeof host);
    cuda_test_free_all(d);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_the_host),
        cmocka_unit_test(copies_within_the_device_have_equal_bytes),
    };

    seed_random(17);
    return hash_init() == OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
