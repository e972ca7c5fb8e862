#include "cache/disk/disk_format.h"

#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/little_endian.h"
#include "cache/key.h"

#define ID_BYTES 3
#define FINGERPRINT_SHORT_BYTES 8
#define KNOWN_FLAGS (DISK_STARTS_SEGMENT | DISK_REGISTERED)

static const char super_magic[8] = {'T', 'A', 'R', 'N', 'D', 'I', 'S', 'K'};
static const char header_magic[4] = {'T', 'K', 'V', 'R'};

/* Offsets of the fields. DISK_FORMAT.md explains them. */
enum {
    SUPER_MAGIC = 0,
    SUPER_VERSION = 8,
    SUPER_PAGE_BYTES = 12,
    SUPER_HEADER_BYTES = 16,
    SUPER_BLOCK_TOKENS = 20,
    SUPER_FINGERPRINT = 24,
    SUPER_BLOCK_BYTES = 56,
    SUPER_EXTENT_BYTES = 64,
    SUPER_N_EXTENTS = 72,
    SUPER_SEGMENT_TOKENS = 76,
    SUPER_ZEROS = 80,
    SUPER_CRC = DISK_PAGE_BYTES - 4
};

enum {
    HEADER_MAGIC = 0,
    HEADER_VERSION = 4,
    HEADER_FLAGS = 6,
    HEADER_EXTENT = 8,
    HEADER_PAYLOAD_CRC = 12,
    HEADER_NO = 16,
    HEADER_FINGERPRINT = 24,
    HEADER_POS0 = 32,
    HEADER_N_TOKENS = 36,
    HEADER_DEPTH = 40,
    HEADER_N_USES = 44,
    HEADER_KEY = 48,
    HEADER_PARENT = 80,
    HEADER_SCOPE = 112,
    HEADER_IDS = 144,
    HEADER_ZEROS = HEADER_IDS + ID_BYTES * KV_BLOCK_TOKENS,
    HEADER_CRC = DISK_HEADER_BYTES - 4
};

_Static_assert(HEADER_ZEROS == 240 && HEADER_CRC == 252, "a change here is a new version");

/* --- numbers and zeros --- */

static bool is_zero(const uint8_t *p, size_t n)
{
    /* All bytes are zero if the first is and each equals the previous one. */
    return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

/* --- sizes --- */

uint64_t disk_extent_bytes(uint64_t block_bytes)
{
    return (block_bytes + DISK_PAGE_BYTES - 1) / DISK_PAGE_BYTES * DISK_PAGE_BYTES;
}

uint64_t disk_table_bytes(uint32_t n_extents)
{
    uint64_t n_pages = ((uint64_t)n_extents + DISK_HEADERS_PER_PAGE - 1) / DISK_HEADERS_PER_PAGE;

    return (1 + n_pages) * DISK_PAGE_BYTES;
}

uint32_t disk_extents_in(uint64_t n_bytes, uint64_t block_bytes)
{
    uint64_t extent_bytes = disk_extent_bytes(block_bytes), n;

    if (n_bytes < DISK_PAGE_BYTES || block_bytes == 0 || block_bytes > DISK_BLOCK_BYTES_MAX)
        return 0;
    n = (n_bytes - DISK_PAGE_BYTES) / (extent_bytes + DISK_HEADER_BYTES);
    if (n > DISK_EXTENTS_MAX)
        return DISK_EXTENTS_MAX;
    /* Rounding the table up to whole pages takes the place of at most one extent. */
    if (n > 0 && disk_table_bytes((uint32_t)n) + n * extent_bytes > n_bytes)
        n--;
    return (uint32_t)n;
}

/* --- the superblock --- */

void disk_super_encode(uint8_t *page, const struct disk_super *super)
{
    ASSERT(super->extent_bytes == disk_extent_bytes(super->block_bytes));
    memset(page, 0, DISK_PAGE_BYTES);
    memcpy(page + SUPER_MAGIC, super_magic, sizeof super_magic);
    put_u32(page + SUPER_VERSION, DISK_FORMAT_VERSION);
    put_u32(page + SUPER_PAGE_BYTES, DISK_PAGE_BYTES);
    put_u32(page + SUPER_HEADER_BYTES, DISK_HEADER_BYTES);
    put_u32(page + SUPER_BLOCK_TOKENS, KV_BLOCK_TOKENS);
    memcpy(page + SUPER_FINGERPRINT, super->fingerprint, KV_FINGERPRINT_BYTES);
    put_u64(page + SUPER_BLOCK_BYTES, super->block_bytes);
    put_u64(page + SUPER_EXTENT_BYTES, super->extent_bytes);
    put_u32(page + SUPER_N_EXTENTS, super->n_extents);
    put_u32(page + SUPER_SEGMENT_TOKENS, super->segment_tokens);
    put_u32(page + SUPER_CRC, hash_crc32c(0, page, SUPER_CRC));
}

/* Check the values of a superblock with a right checksum. */
static enum status check_super(const struct disk_super *s, const uint8_t *page, struct buf *why)
{
    if (get_u32(page + SUPER_PAGE_BYTES) != DISK_PAGE_BYTES ||
        get_u32(page + SUPER_HEADER_BYTES) != DISK_HEADER_BYTES ||
        get_u32(page + SUPER_BLOCK_TOKENS) != KV_BLOCK_TOKENS ||
        !is_zero(page + SUPER_ZEROS, SUPER_CRC - SUPER_ZEROS))
        return buf_why(why, ERR_CORRUPT,
                       "its superblock has sizes of pages, headers or blocks "
                       "that version %d does not have",
                       DISK_FORMAT_VERSION);
    if (s->block_bytes == 0 || s->block_bytes > DISK_BLOCK_BYTES_MAX ||
        s->extent_bytes != disk_extent_bytes(s->block_bytes))
        return buf_why(why, ERR_CORRUPT,
                       "its superblock says extents of %llu bytes for blocks of "
                       "%llu",
                       (unsigned long long)s->extent_bytes, (unsigned long long)s->block_bytes);
    if (s->n_extents == 0 || s->n_extents > DISK_EXTENTS_MAX)
        return buf_why(why, ERR_CORRUPT, "its superblock says %u extents; there are 1 to %u",
                       s->n_extents, DISK_EXTENTS_MAX);
    if (s->segment_tokens < KV_BLOCK_TOKENS || s->segment_tokens > KV_SEGMENT_TOKENS_MAX ||
        s->segment_tokens % KV_BLOCK_TOKENS != 0)
        return buf_why(why, ERR_CORRUPT,
                       "its superblock says segments of %u tokens; that is a "
                       "multiple of %d up to %d",
                       s->segment_tokens, KV_BLOCK_TOKENS, KV_SEGMENT_TOKENS_MAX);
    return OK;
}

enum status disk_super_decode(struct disk_super *out, const uint8_t *page, struct buf *why)
{
    uint32_t version = get_u32(page + SUPER_VERSION);
    struct disk_super s;

    if (is_zero(page, DISK_PAGE_BYTES))
        return buf_why(why, ERR_CORRUPT, "its superblock was never written");
    if (memcmp(page + SUPER_MAGIC, super_magic, sizeof super_magic) != 0)
        return buf_why(why, ERR_CORRUPT, "it does not begin with a superblock of Tarn's");
    /* Checked before the checksum, which another version may have elsewhere. */
    if (version != DISK_FORMAT_VERSION)
        return buf_why(why, ERR_CORRUPT, "it has format version %u; this program reads version %d",
                       version, DISK_FORMAT_VERSION);
    if (get_u32(page + SUPER_CRC) != hash_crc32c(0, page, SUPER_CRC))
        return buf_why(why, ERR_CORRUPT, "its superblock's checksum does not hold");
    memcpy(s.fingerprint, page + SUPER_FINGERPRINT, KV_FINGERPRINT_BYTES);
    s.block_bytes = get_u64(page + SUPER_BLOCK_BYTES);
    s.extent_bytes = get_u64(page + SUPER_EXTENT_BYTES);
    s.n_extents = get_u32(page + SUPER_N_EXTENTS);
    s.segment_tokens = get_u32(page + SUPER_SEGMENT_TOKENS);
    enum status status = check_super(&s, page, why);
    if (status == OK)
        *out = s;
    return status;
}

/* --- headers --- */

const char disk_erase_mark[DISK_HEADER_BYTES] = "Tarn: this extent is being erased";

const char *disk_verdict_name(enum disk_verdict v)
{
    static const char *const names[] = {"empty",   "valid",      "torn",
                                        "foreign", "impossible", "misnamed"};

    _Static_assert(ARRAY_SIZE(names) == DISK_N_VERDICTS, "a name for each");
    ASSERT((unsigned)v < DISK_N_VERDICTS);
    return names[v];
}

static void put_ids(uint8_t *p, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, p += ID_BYTES) {
        ASSERT(ids[i] <= KV_ID_MAX);
        p[0] = (uint8_t)ids[i];
        p[1] = (uint8_t)(ids[i] >> 8);
        p[2] = (uint8_t)(ids[i] >> 16);
    }
}

void disk_header_encode(uint8_t *header, const struct disk_record *record,
                        const uint8_t *fingerprint, uint32_t extent)
{
    ASSERT(record->n_tokens >= 1 && record->n_tokens <= KV_BLOCK_TOKENS);
    ASSERT((record->flags & ~(uint32_t)KNOWN_FLAGS) == 0);
    memset(header, 0, DISK_HEADER_BYTES);
    memcpy(header + HEADER_MAGIC, header_magic, sizeof header_magic);
    put_u16(header + HEADER_VERSION, DISK_FORMAT_VERSION);
    put_u16(header + HEADER_FLAGS, record->flags);
    put_u32(header + HEADER_EXTENT, extent);
    put_u32(header + HEADER_PAYLOAD_CRC, record->payload_crc);
    put_u64(header + HEADER_NO, record->no);
    memcpy(header + HEADER_FINGERPRINT, fingerprint, FINGERPRINT_SHORT_BYTES);
    put_u32(header + HEADER_POS0, record->pos0);
    put_u32(header + HEADER_N_TOKENS, record->n_tokens);
    put_u32(header + HEADER_DEPTH, record->depth);
    put_u32(header + HEADER_N_USES, record->n_uses);
    memcpy(header + HEADER_KEY, record->key.bytes, KV_KEY_BYTES);
    memcpy(header + HEADER_PARENT, record->parent.bytes, KV_KEY_BYTES);
    memcpy(header + HEADER_SCOPE, record->scope.bytes, KV_SCOPE_BYTES);
    put_ids(header + HEADER_IDS, record->ids, record->n_tokens);
    put_u32(header + HEADER_CRC, hash_crc32c(0, header, HEADER_CRC));
}

void disk_reader_init(struct disk_reader *r, const uint8_t *fingerprint)
{
    *r = (struct disk_reader){.has_domain = false};
    memcpy(r->fingerprint, fingerprint, KV_FINGERPRINT_BYTES);
}

static bool is_at_home(const struct disk_reader *r, const uint8_t *header, uint32_t extent)
{
    return memcmp(header + HEADER_MAGIC, header_magic, sizeof header_magic) == 0 &&
           get_u16(header + HEADER_VERSION) == DISK_FORMAT_VERSION &&
           get_u32(header + HEADER_EXTENT) == extent &&
           memcmp(header + HEADER_FINGERPRINT, r->fingerprint, FINGERPRINT_SHORT_BYTES) == 0;
}

/* False: an id is above KV_ID_MAX. n_tokens is in range. */
static bool get_ids(struct disk_record *out, const uint8_t *p)
{
    uint32_t all = 0;

    for (uint32_t i = 0; i < out->n_tokens; i++, p += ID_BYTES) {
        out->ids[i] = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
        all |= out->ids[i];
    }
    return all <= KV_ID_MAX;
}

static void get_record(struct disk_record *out, const uint8_t *header)
{
    *out = (struct disk_record){
        .flags = get_u16(header + HEADER_FLAGS),
        .pos0 = get_u32(header + HEADER_POS0),
        .n_tokens = get_u32(header + HEADER_N_TOKENS),
        .depth = get_u32(header + HEADER_DEPTH),
        .n_uses = get_u32(header + HEADER_N_USES),
        .no = get_u64(header + HEADER_NO),
        .payload_crc = get_u32(header + HEADER_PAYLOAD_CRC),
    };
    memcpy(out->key.bytes, header + HEADER_KEY, KV_KEY_BYTES);
    memcpy(out->parent.bytes, header + HEADER_PARENT, KV_KEY_BYTES);
    memcpy(out->scope.bytes, header + HEADER_SCOPE, KV_SCOPE_BYTES);
}

/* Reads the ids too. */
static bool is_possible(struct disk_record *r, const uint8_t *header)
{
    if (r->n_tokens == 0 || r->n_tokens > KV_BLOCK_TOKENS || !get_ids(r, header + HEADER_IDS))
        return false;
    uint32_t end = HEADER_IDS + ID_BYTES * r->n_tokens;

    return is_zero(header + end, HEADER_CRC - end) && /* ids behind n_tokens, and unused bytes */
           (r->flags & ~(uint32_t)KNOWN_FLAGS) == 0 && r->pos0 <= UINT32_MAX - r->n_tokens &&
           r->depth <= r->pos0 && /* a span before it has at least one token */
           is_zero(r->parent.bytes, KV_KEY_BYTES) == (r->pos0 == 0);
}

static bool is_named(struct disk_reader *r, const struct disk_record *record)
{
    struct kv_key key;

    if (!r->has_domain || memcmp(&r->scope, &record->scope, sizeof r->scope) != 0) {
        r->scope = record->scope;
        r->has_domain = true;
        key_domain(r->domain, r->fingerprint, &r->scope);
    }
    key_of_block(&key, r->domain, &record->parent, (record->flags & DISK_STARTS_SEGMENT) != 0,
                 record->ids, record->n_tokens);
    return memcmp(&key, &record->key, sizeof key) == 0;
}

enum disk_verdict disk_header_decode(struct disk_reader *r, struct disk_record *out,
                                     const uint8_t *header, uint32_t extent)
{
    struct disk_record record;

    if (is_zero(header, DISK_HEADER_BYTES))
        return DISK_EMPTY;
    if (get_u32(header + HEADER_CRC) != hash_crc32c(0, header, HEADER_CRC))
        return DISK_TORN;
    if (!is_at_home(r, header, extent))
        return DISK_FOREIGN;
    get_record(&record, header);
    if (!is_possible(&record, header))
        return DISK_IMPOSSIBLE;
    if (!is_named(r, &record))
        return DISK_MISNAMED;
    *out = record;
    return DISK_VALID;
}
