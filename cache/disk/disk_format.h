/* disk_format.h - the bytes of the disk tier: what stands where, and what makes it valid.
 * DISK_FORMAT.md beside this file writes it down for those who read it without this code.
 *
 * A directory holds one fingerprint's KV in two files:
 *   table   a page with the superblock, then one header of 256 bytes for each extent
 *   data    extents of equal size, one KV block each
 * A record is a header and its extent. It is valid only if the header's checksum, place,
 * fingerprint and key hold and, once it was read, the extent's checksum. Each header says which
 * record comes before it in its path; a record whose predecessor is missing cannot be reached.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  a verdict, or words. Any bytes may come in: nothing here trusts them.
 * Units   bytes; all numbers little-endian. */
#ifndef TARN_CACHE_DISK_DISK_FORMAT_H
#define TARN_CACHE_DISK_DISK_FORMAT_H

#include "base/buf.h"
#include "cache/key.h"

/* Counts up when anything below changes. It is part of a directory's name, so another version is
 * another directory: nothing is ever misread. */
#define DISK_FORMAT_VERSION 1

#define DISK_PAGE_BYTES 4096u
#define DISK_HEADER_BYTES 256u
#define DISK_HEADERS_PER_PAGE (DISK_PAGE_BYTES / DISK_HEADER_BYTES)
#define DISK_EXTENTS_MAX (1u << 27)
#define DISK_BLOCK_BYTES_MAX (UINT64_C(1) << 30)

/* --- the superblock: page 0 of the table --- */

struct disk_super {
    uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    uint64_t block_bytes;  /* payload of an extent */
    uint64_t extent_bytes; /* that, rounded up to whole pages */
    uint32_t n_extents;
    uint32_t segment_tokens;
};

/* block_bytes [1, DISK_BLOCK_BYTES_MAX] in whole pages. */
uint64_t disk_extent_bytes(uint64_t block_bytes);
/* Bytes of the table with so many headers: whole pages, the superblock's included. */
uint64_t disk_table_bytes(uint32_t n_extents);
/* Extents for which there is room in n_bytes, table included; at most DISK_EXTENTS_MAX. 0 also for
 * a block_bytes out of range. */
uint32_t disk_extents_in(uint64_t n_bytes, uint64_t block_bytes);

/* page [DISK_PAGE_BYTES] */
void disk_super_encode(uint8_t *page, const struct disk_super *super);
/* ERR_CORRUPT, with words: no superblock of this version, or one that contradicts itself. */
NODISCARD enum status disk_super_decode(struct disk_super *out, const uint8_t *page,
                                        struct buf *why);

/* --- a header --- */

enum {
    DISK_STARTS_SEGMENT = 1, /* the block begins a segment: part of its key */
    DISK_REGISTERED = 2      /* somebody asked for it to stay ready: read back at start */
};

struct disk_record {
    struct kv_key key;
    struct kv_key parent;  /* of the block before it; zero: it is the first of its sequence */
    struct kv_scope scope; /* of its key */
    uint32_t flags;
    uint32_t pos0;                 /* of its first token in its sequence */
    uint32_t n_tokens;             /* 1 .. KV_BLOCK_TOKENS */
    uint32_t depth;                /* spans before its own */
    uint32_t n_uses;               /* when it was written */
    uint64_t no;                   /* of the write: later ones have larger numbers */
    uint32_t payload_crc;          /* CRC32C of the extent's first block_bytes */
    uint32_t ids[KV_BLOCK_TOKENS]; /* [n_tokens] */
};

enum disk_verdict {
    DISK_EMPTY, /* all zero: there is no record */
    DISK_VALID,
    DISK_TORN,       /* its checksum does not hold */
    DISK_FOREIGN,    /* written for another place, fingerprint or version */
    DISK_IMPOSSIBLE, /* says what cannot be: 0 tokens, an id above KV_ID_MAX, ... */
    DISK_MISNAMED,   /* its key is not the hash of what it says */
    DISK_N_VERDICTS
};
const char *disk_verdict_name(enum disk_verdict v);

/* header [DISK_HEADER_BYTES], of the extent with this number. The record's key is taken as it is;
 * flags, n_tokens and ids are in their ranges (ASSERT). */
void disk_header_encode(uint8_t *header, const struct disk_record *record,
                        const uint8_t *fingerprint, uint32_t extent);

/* Stands where the header of a record was that is being erased: zeros may not have gone over all of
 * its payload yet. Who opens the directory goes on with that. Its verdict is DISK_TORN. */
extern const char disk_erase_mark[DISK_HEADER_BYTES];

/* What a reader of many headers knows: hashing a domain for each would double the time. */
struct disk_reader {
    uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    struct kv_scope scope; /* of `domain` */
    uint8_t domain[KV_DOMAIN_BYTES];
    bool has_domain;
};
void disk_reader_init(struct disk_reader *r, const uint8_t *fingerprint);
/* *out is written when the verdict is DISK_VALID. The key has been computed again. */
enum disk_verdict disk_header_decode(struct disk_reader *r, struct disk_record *out,
                                     const uint8_t *header, uint32_t extent);

#endif
