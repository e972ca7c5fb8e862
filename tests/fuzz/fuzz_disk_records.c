/* fuzz_disk_records.c - damages a small directory of the disk tier by the input; disk_verify must
 * find all damage.
 *
 * The directory has sixteen records (tests/unit/cache/disk/disk_files.h). The input is a list of
 * damages of four bytes each: the kind (see damage()), a number of 16 bits and one of 8 bits.
 *
 * Checks beyond crashes: the report agrees, for every extent, with a naive check of the files; and
 * every record that it calls good has the key, ids and payload of a record that was written. */
#include <stdbool.h>

#include "base/buf.h"
#include "cache/disk/disk_verify.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/cache/disk/disk_files.h"

#define BLOCK_BYTES 300u
#define N DISK_FILES_EXTENTS
#define N_DAMAGES_MAX 64u

static struct disk_files sound, other, now; /* undamaged; of another model; damaged */

static void remove_files(void)
{
    disk_files_fini(&sound);
    disk_files_fini(&other);
    free(now.table);
    free(now.data);
}

static void make_files(void)
{
    if (sound.table)
        return;
    ASSERT(hash_init() == OK);
    disk_files_init(&sound, BLOCK_BYTES, 0x11);
    disk_files_init(&other, BLOCK_BYTES, 0x22);
    now.table = malloc(sound.n_table_bytes);
    now.data = malloc(sound.n_data_bytes);
    ASSERT(now.table && now.data);
    atexit(remove_files);
}

/* --- damage --- */

static void begin(void)
{
    uint8_t *table = now.table, *data = now.data;

    now = sound;
    now.table = table;
    now.data = data;
    memcpy(now.table, sound.table, sound.n_table_bytes);
    memcpy(now.data, sound.data, sound.n_data_bytes);
}

static void exchange(uint8_t *a, uint8_t *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = a[i];
        a[i] = b[i];
        b[i] = byte;
    }
}

static uint8_t *header(uint32_t e)
{
    return disk_files_header(&now, e % N);
}

static uint8_t *payload(uint32_t e)
{
    return disk_files_payload(&now, e % N);
}

static void damage(uint8_t what, uint32_t a, uint32_t b)
{
    switch (what % 16) {
    case 0: now.table[a % sound.n_table_bytes] ^= (uint8_t)(1u << b % 8); break;
    case 1: header(b)[a % DISK_HEADER_BYTES] ^= (uint8_t)(a >> 8); break;
    case 2: payload(b)[a % BLOCK_BYTES] ^= (uint8_t)(1 + (a >> 8)); break;
    case 3: payload(b)[a % now.super.extent_bytes] ^= (uint8_t)(1 + (a >> 8)); break;
    case 4: memset(header(a), 0, DISK_HEADER_BYTES); break;
    case 5: memmove(header(a), header(b), DISK_HEADER_BYTES); break;
    case 6: memmove(payload(a), payload(b), now.super.extent_bytes); break;
    case 7: exchange(header(a), header(b), a % N == b % N ? 0 : DISK_HEADER_BYTES); break;
    case 8: exchange(payload(a), payload(b), a % N == b % N ? 0 : now.super.extent_bytes); break;
    case 9: exchange(header(0), header(16), 4 * DISK_HEADER_BYTES); break;
    case 10: disk_files_seal(header(a)); break;
    case 11: /* a second copy of a record, in another extent */
        disk_files_put(&now, &now.records[b % DISK_FILES_RECORDS], a % N);
        header(a)[16] ^= (uint8_t)(a >> 8);
        disk_files_seal(header(a));
        break;
    case 12: memcpy(header(a), disk_files_header(&other, a % N), DISK_HEADER_BYTES); break;
    case 13: memcpy(payload(a), disk_files_payload(&other, b % N), BLOCK_BYTES); break;
    case 14: now.n_data_bytes = (now.n_data_bytes + 1) * a / 65536; break;
    default:
        if (b == 2)
            memcpy(header(a), disk_erase_mark, DISK_HEADER_BYTES);
        else if (b == 0)
            memcpy(now.table, other.table, now.n_table_bytes); /* the other model's table */
        else if (b == 1)
            now.n_table_bytes = (now.n_table_bytes + 1) * a / 65536;
        else
            memset(now.table + a % sound.n_table_bytes, (int)b,
                   b % (sound.n_table_bytes - a % sound.n_table_bytes));
    }
}

/* --- a naive check --- */

enum { EMPTY = -2, GOOD = -1 }; /* else enum disk_fault */

static struct {
    bool is_valid[N];
    struct disk_record records[N];
    int states[N];
} seen;

static const struct disk_record *find(const struct kv_key *key, uint32_t *extent)
{
    for (*extent = 0; *extent < N; (*extent)++)
        if (seen.is_valid[*extent] && memcmp(&seen.records[*extent].key, key, sizeof *key) == 0)
            return &seen.records[*extent];
    return NULL;
}

/* The record before r; NULL: none that r can follow. */
static const struct disk_record *before(const struct disk_record *r)
{
    uint32_t extent;
    const struct disk_record *p = find(&r->parent, &extent);

    if (!p || p->pos0 + p->n_tokens != r->pos0 || p->depth > r->depth)
        return NULL;
    if (!(r->flags & DISK_STARTS_SEGMENT) && (p->n_tokens < KV_BLOCK_TOKENS || p->depth < r->depth))
        return NULL;
    return p;
}

static bool has_start(const struct disk_record *r)
{
    while (r && r->pos0 > 0)
        r = before(r);
    return r && (r->flags & DISK_STARTS_SEGMENT);
}

static bool is_doubled(uint32_t e)
{
    const struct disk_record *a = &seen.records[e];

    for (uint32_t i = 0; i < N; i++) {
        const struct disk_record *b = &seen.records[i];
        if (i != e && seen.is_valid[i] && memcmp(&a->key, &b->key, sizeof a->key) == 0 &&
            (b->no > a->no || (b->no == a->no && i < e)))
            return true;
    }
    return false;
}

static int state_of_valid(uint32_t e)
{
    if ((e + 1) * now.super.extent_bytes > now.n_data_bytes)
        return DISK_FAULT_UNREADABLE;
    if (hash_crc32c(0, payload(e), BLOCK_BYTES) != seen.records[e].payload_crc)
        return DISK_FAULT_PAYLOAD;
    if (is_doubled(e))
        return DISK_FAULT_DOUBLED;
    return has_start(&seen.records[e]) ? GOOD : DISK_FAULT_ORPHANED;
}

static void look(void)
{
    static const int states[DISK_N_VERDICTS] = {EMPTY,
                                                GOOD,
                                                DISK_FAULT_TORN,
                                                DISK_FAULT_FOREIGN,
                                                DISK_FAULT_IMPOSSIBLE,
                                                DISK_FAULT_MISNAMED};

    for (uint32_t e = 0; e < N; e++) {
        struct disk_reader reader;
        disk_reader_init(&reader, sound.super.fingerprint);
        enum disk_verdict v = disk_header_decode(&reader, &seen.records[e], header(e), e);
        seen.is_valid[e] = v == DISK_VALID;
        seen.states[e] = states[v];
        if (memcmp(header(e), disk_erase_mark, DISK_HEADER_BYTES) == 0)
            seen.states[e] = DISK_FAULT_ERASING;
    }
    for (uint32_t e = 0; e < N; e++)
        if (seen.is_valid[e])
            seen.states[e] = state_of_valid(e);
}

/* --- the report --- */

/* Check that a good extent equals a record that was written. */
static void check_good(uint32_t e)
{
    const struct disk_record *r = &seen.records[e];
    uint32_t k = 0;

    while (k < DISK_FILES_RECORDS && memcmp(&sound.records[k].key, &r->key, sizeof r->key) != 0)
        k++;
    ASSERT(k < DISK_FILES_RECORDS);
    ASSERT(memcmp(sound.records[k].ids, r->ids, r->n_tokens * sizeof *r->ids) == 0);
    ASSERT(memcmp(payload(e), disk_files_payload(&sound, disk_files_extent(k)), BLOCK_BYTES) == 0);
}

static void check_report(const struct disk_report *r)
{
    uint32_t n_empty = 0, n_good = 0, n_places = 0;

    look();
    _Static_assert(DISK_REPORT_PLACES_MAX >= N, "every fault has a place");
    for (uint32_t e = 0; e < N; e++) {
        n_empty += seen.states[e] == EMPTY;
        if (seen.states[e] == GOOD) {
            check_good(e);
            n_good++;
        }
        if (seen.states[e] < 0)
            continue;
        ASSERT(n_places < r->n_places && r->places[n_places].extent == e);
        ASSERT((int)r->places[n_places].fault == seen.states[e]);
        n_places++;
    }
    ASSERT(n_places == r->n_places && n_good == r->n_good && n_empty == r->n_empty);
    ASSERT(r->n_changed == 0 && !r->is_in_use);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct disk_report r;
    struct buf why;

    make_files();
    begin();
    for (uint32_t i = 0; i < N_DAMAGES_MAX && size >= 4; i++, data += 4, size -= 4)
        damage(data[0], data[1] | (uint32_t)data[2] << 8, data[3]);
    disk_files_write(&now);
    buf_init(&why, BUF_WHY_MAX);
    enum status s = disk_verify(&r, now.dir, NULL, &why);
    if (s == OK) {
        ASSERT(now.n_table_bytes == sound.n_table_bytes);
        ASSERT(memcmp(now.table, sound.table, DISK_PAGE_BYTES) == 0);
        check_report(&r);
    } else {
        ASSERT(s == ERR_CORRUPT && strstr(buf_str(&why), now.dir));
        ASSERT(now.n_table_bytes < sound.n_table_bytes ||
               memcmp(now.table, sound.table, DISK_PAGE_BYTES) != 0);
    }
    buf_fini(&why);
    return 0;
}
