/* fuzz_follow.c - any bytes as a message between the catalogs of a pool
 * (server/api/follow_message.h) and, in the second part of the input, as records
 * (catalog_records.h). Items lie within the bytes, and a record that is accepted is exactly what
 * the encoder writes. */
#include "base/check.h"
#include "server/api/follow_message.h"
#include "tests/fuzz/fuzz.h"

static void check_message(const uint8_t *bytes, size_t n)
{
    struct follow_message m;
    struct catalog_entry e;
    uint8_t last = 0;

    if (follow_read(&m, bytes, n) != OK)
        return;
    for (uint32_t i = 0; m.type == FOLLOW_STAMPS && i < m.n; i++) {
        follow_stamp(&m, i, &e);
        ASSERT(e.stamp.counter >= 1 && e.stamp.counter < CATALOG_COUNTER_MAX);
    }
    if (m.type == FOLLOW_WANT)
        last = follow_item(&m, m.n - 1)[CATALOG_NAME_BYTES - 1];
    if (m.type == FOLLOW_ERASE)
        last = follow_item(&m, m.n - 1)[DOCUMENT_KEY_BYTES - 1];
    ASSERT(last == 0 || last == bytes[n - 1]);
    ASSERT(m.items >= bytes && m.items <= bytes + n);
}

static void check_records(const uint8_t *bytes, size_t n)
{
    struct catalog_record r;
    struct buf again;
    size_t n_used;

    catalog_record_init(&r);
    buf_init(&again, CATALOG_RECORD_BYTES_MAX);
    while (n > 0 && catalog_record_read(&r, bytes, n, &n_used) == OK) {
        ASSERT(n_used > 0 && n_used <= n);
        buf_reset(&again);
        ASSERT(catalog_record_write(&again, &r) == OK);
        ASSERT(again.len == n_used && memcmp(again.data, bytes, n_used) == 0);
        bytes += n_used;
        n -= n_used;
    }
    buf_fini(&again);
    catalog_record_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);

    check_message((const uint8_t *)in.first, in.first_len);
    check_records((const uint8_t *)in.first, in.first_len);
    if (in.second)
        check_records((const uint8_t *)in.second, in.second_len);
    return 0;
}
