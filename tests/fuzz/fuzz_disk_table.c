/* fuzz_disk_table.c - any bytes as the table of a directory of the disk tier.
 *
 * The first part of an input is a byte of switches, the first 80 bytes of a superblock, and
 * headers, filled up with zeros. Random bytes have no valid checksum, so each switch repairs a
 * guard: 1 the checksums, 2 a header's place, 4 its key. The second part changes a valid header by
 * pairs of an offset and a mask.
 *
 * Checks beyond crashes: an accepted header is written back with the same bits, and its key is the
 * documented hash; a refused one leaves *out unchanged; a valid header that was changed is either
 * refused or has the same key and content. */
#include <stdbool.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/hash.h"
#include "cache/disk/disk_format.h"
#include "cache/key.h"
#include "tests/fuzz/fuzz.h"

#define SUPER_BYTES 80u
#define N_HEADERS_MAX 16u

enum { REPAIR_CRC = 1, REPAIR_PLACE = 2, REPAIR_KEY = 4 };
/* Offsets from cache/disk/DISK_FORMAT.md. */
enum {
    AT_VERSION = 4,
    AT_FLAGS = 6,
    AT_EXTENT = 8,
    AT_FINGERPRINT = 24,
    AT_POS0 = 32,
    AT_N_TOKENS = 36,
    AT_DEPTH = 40,
    AT_KEY = 48,
    AT_PARENT = 80,
    AT_SCOPE = 112,
    AT_IDS = 144,
    AT_CRC = 252
};

static void put(uint8_t *p, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static uint32_t get(const uint8_t *p, int n)
{
    uint32_t v = 0;

    for (int i = 0; i < n; i++)
        v |= (uint32_t)p[i] << 8 * i;
    return v;
}

/* --- the superblock --- */

static void check_super(const uint8_t *page)
{
    uint8_t again[DISK_PAGE_BYTES];
    struct disk_super super, untouched;
    struct buf why;

    memset(&untouched, 0x5A, sizeof untouched);
    memcpy(&super, &untouched, sizeof super);
    buf_init(&why, BUF_WHY_MAX);
    if (disk_super_decode(&super, page, &why) == OK) {
        ASSERT(super.n_extents > 0 && super.n_extents <= DISK_EXTENTS_MAX);
        ASSERT(super.extent_bytes == disk_extent_bytes(super.block_bytes));
        ASSERT(disk_extents_in(disk_table_bytes(super.n_extents) +
                                   super.n_extents * super.extent_bytes,
                               super.block_bytes) == super.n_extents);
        disk_super_encode(again, &super);
        ASSERT(memcmp(again, page, sizeof again) == 0);
    } else {
        ASSERT(buf_str(&why)[0] != '\0');
        ASSERT(memcmp(&super, &untouched, sizeof super) == 0);
    }
    buf_fini(&why);
}

/* --- headers --- */

/* The key as cache/key.h documents it, implemented a second time. */
static void documented_key(uint8_t *key, const uint8_t *header, const uint8_t *fingerprint)
{
    uint8_t domain[32], message[32 + 3 * KV_BLOCK_TOKENS];
    uint32_t n = get(header + AT_N_TOKENS, 4);

    hash_blake2b(domain, 32, header + AT_SCOPE, 32, fingerprint, 32);
    memcpy(message, header + AT_PARENT, 32);
    memcpy(message + 32, header + AT_IDS, 3 * n);
    if (header[AT_FLAGS] & DISK_STARTS_SEGMENT)
        message[34] |= 0x80;
    hash_blake2b_domain(key, 32, message, 32 + 3 * n, domain);
}

static bool decode(struct disk_record *out, const uint8_t *header, const uint8_t *fingerprint,
                   uint32_t extent)
{
    struct disk_reader reader;
    struct disk_record untouched;

    memset(&untouched, 0x5A, sizeof untouched);
    memcpy(out, &untouched, sizeof untouched);
    disk_reader_init(&reader, fingerprint);
    if (disk_header_decode(&reader, out, header, extent) == DISK_VALID)
        return true;
    ASSERT(memcmp(out, &untouched, sizeof untouched) == 0);
    return false;
}

static void check_header(const uint8_t *header, const uint8_t *fingerprint, uint32_t extent)
{
    uint8_t again[DISK_HEADER_BYTES], key[KV_KEY_BYTES];
    struct disk_record r;

    if (!decode(&r, header, fingerprint, extent))
        return;
    ASSERT(r.n_tokens >= 1 && r.n_tokens <= KV_BLOCK_TOKENS);
    disk_header_encode(again, &r, fingerprint, extent);
    ASSERT(memcmp(again, header, sizeof again) == 0);
    documented_key(key, header, fingerprint);
    ASSERT(memcmp(key, header + AT_KEY, sizeof key) == 0);
    ASSERT(memcmp(key, r.key.bytes, sizeof key) == 0);
}

/* Replace the header's impossible values by possible ones. */
static void make_possible(uint8_t *header)
{
    static const uint8_t zeros[KV_KEY_BYTES];
    uint32_t n = 1 + get(header + AT_N_TOKENS, 4) % KV_BLOCK_TOKENS;

    put(header + AT_FLAGS, header[AT_FLAGS] & 3, 2);
    put(header + AT_N_TOKENS, n, 4);
    header[AT_POS0 + 3] &= 0x7F;
    if (memcmp(header + AT_PARENT, zeros, sizeof zeros) == 0)
        put(header + AT_POS0, 0, 4);
    else
        header[AT_POS0] |= 1;
    if (get(header + AT_DEPTH, 4) > get(header + AT_POS0, 4))
        put(header + AT_DEPTH, get(header + AT_POS0, 4), 4);
    for (uint32_t i = 0; i < n; i++)
        header[AT_IDS + 3 * i + 2] &= 0x7F;
    memset(header + AT_IDS + 3 * n, 0, AT_CRC - AT_IDS - 3 * n);
}

static void repair(uint8_t *header, const uint8_t *fingerprint, uint32_t extent, uint32_t how)
{
    if (how & REPAIR_PLACE) {
        memcpy(header, "TKVR", 4);
        put(header + AT_VERSION, DISK_FORMAT_VERSION, 2);
        put(header + AT_EXTENT, extent, 4);
        memcpy(header + AT_FINGERPRINT, fingerprint, 8);
    }
    if (how & REPAIR_KEY) {
        make_possible(header);
        documented_key(header + AT_KEY, header, fingerprint);
    }
    if (how & REPAIR_CRC)
        put(header + AT_CRC, hash_crc32c(0, header, AT_CRC), 4);
}

/* Change a valid header and check the result. pairs [n]: offset, mask. */
static void check_changed(const uint8_t *header, const uint8_t *fingerprint, uint32_t extent,
                          const uint8_t *pairs, size_t n, bool seal)
{
    uint8_t valid[DISK_HEADER_BYTES], changed[DISK_HEADER_BYTES];
    struct disk_record before, after;

    memcpy(valid, header, sizeof valid);
    repair(valid, fingerprint, extent, REPAIR_CRC | REPAIR_PLACE | REPAIR_KEY);
    ASSERT(decode(&before, valid, fingerprint, extent));
    memcpy(changed, valid, sizeof changed);
    for (size_t i = 0; i + 1 < n; i += 2)
        changed[pairs[i]] ^= pairs[i + 1];
    if (seal)
        repair(changed, fingerprint, extent, REPAIR_CRC);
    if (!decode(&after, changed, fingerprint, extent))
        return;
    if (!seal) /* holds except for one in 4 billion changes, as the checksum has 32 bits */
        ASSERT(memcmp(changed, valid, sizeof valid) == 0);
    ASSERT(memcmp(&after.key, &before.key, sizeof after.key) == 0);
    ASSERT(memcmp(&after.parent, &before.parent, sizeof after.parent) == 0);
    ASSERT(memcmp(&after.scope, &before.scope, sizeof after.scope) == 0);
    ASSERT(after.n_tokens == before.n_tokens);
    ASSERT(memcmp(after.ids, before.ids, after.n_tokens * sizeof *after.ids) == 0);
    ASSERT(((after.flags ^ before.flags) & DISK_STARTS_SEGMENT) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);
    const uint8_t *bytes = (const uint8_t *)in.first;
    uint8_t page[DISK_PAGE_BYTES] = {0}, header[DISK_HEADER_BYTES];
    size_t n = in.first_len;

    if (n == 0)
        return 0;
    uint32_t how = bytes[0];
    bytes++;
    n--;
    size_t n_super = n < SUPER_BYTES ? n : SUPER_BYTES;
    memcpy(page, bytes, n_super);
    if (how & REPAIR_CRC)
        put(page + DISK_PAGE_BYTES - 4, hash_crc32c(0, page, DISK_PAGE_BYTES - 4), 4);
    check_super(page);
    bytes += n_super;
    n -= n_super;
    for (uint32_t e = 0; e < N_HEADERS_MAX && n > 0; e++) {
        size_t n_here = n < sizeof header ? n : sizeof header;
        memset(header, 0, sizeof header);
        memcpy(header, bytes, n_here);
        bytes += n_here;
        n -= n_here;
        repair(header, page + AT_FINGERPRINT, e, how);
        check_header(header, page + AT_FINGERPRINT, e);
        if (in.second)
            check_changed(header, page + AT_FINGERPRINT, e, (const uint8_t *)in.second,
                          in.second_len, how & REPAIR_CRC);
    }
    return 0;
}
