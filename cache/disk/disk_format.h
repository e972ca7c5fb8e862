/* disk_format.h - the bytes of the disk tier: layout and validity. DISK_FORMAT.md beside this file
 * describes the same for readers without this code.
 *
 * A directory holds one fingerprint's KV in two files:
 *   table   a page with the superblock, then one header of 256 bytes for each extent
 *   data    extents of equal size, one KV block each
 * A record is a header and its extent. It is valid only if the header's checksum, place,
 * fingerprint and key are right and, when it is read, the checksum of the payload. Each header
 * names the previous record of its path; a record whose predecessor is missing cannot be used.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  a verdict, or words. All input is untrusted.
 * Units   bytes; all numbers little-endian. */
#ifndef TARN_CACHE_DISK_DISK_FORMAT_H
#define TARN_CACHE_DISK_DISK_FORMAT_H

#include "base/buf.h"
#include "cache/key.h"

/* Incremented when anything below changes. The version is part of a directory's name, so versions
 * never share a directory. */
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
/* Bytes of a table of n_extents headers: whole pages, including the superblock's. */
uint64_t disk_table_bytes(uint32_t n_extents);
/* The number of extents that fit into n_bytes, table included; at most DISK_EXTENTS_MAX. 0 also if
 * block_bytes is out of range. */
uint32_t disk_extents_in(uint64_t n_bytes, uint64_t block_bytes);

/* page [DISK_PAGE_BYTES] */
void disk_super_encode(uint8_t *page, const struct disk_super *super);
/* ERR_CORRUPT, with words: not a superblock of this version, or an inconsistent one. */
NODISCARD enum status disk_super_decode(struct disk_super *out, const uint8_t *page,
                                        struct buf *why);

/* --- a header --- */

enum {
    DISK_STARTS_SEGMENT = 1, /* the block starts a segment; part of its key */
    DISK_REGISTERED = 2      /* the operator registered it: preloaded at start */
};

struct disk_record {
    struct kv_key key;
    struct kv_key parent;  /* key of the previous block; zero for the first of a sequence */
    struct kv_scope scope; /* under which the key was computed */
    uint32_t flags;
    uint32_t pos0;                 /* position of its first token in the sequence */
    uint32_t n_tokens;             /* 1 .. KV_BLOCK_TOKENS */
    uint32_t depth;                /* spans before its own */
    uint32_t n_uses;               /* at the time of the write */
    uint64_t no;                   /* number of the write: later writes have larger numbers */
    uint32_t payload_crc;          /* CRC32C of the extent's first block_bytes */
    uint32_t ids[KV_BLOCK_TOKENS]; /* [n_tokens] */
};

enum disk_verdict {
    DISK_EMPTY, /* all zero: no record */
    DISK_VALID,
    DISK_TORN,       /* wrong checksum */
    DISK_FOREIGN,    /* written for another place, fingerprint or version */
    DISK_IMPOSSIBLE, /* a value that cannot be: 0 tokens, an id above KV_ID_MAX, ... */
    DISK_MISNAMED,   /* the key is not the hash of the content */
    DISK_N_VERDICTS
};
const char *disk_verdict_name(enum disk_verdict v);

/* Encode the header [DISK_HEADER_BYTES] of extent number `extent`. The key is not computed again.
 * flags, n_tokens and ids are in range (ASSERT). */
void disk_header_encode(uint8_t *header, const struct disk_record *record,
                        const uint8_t *fingerprint, uint32_t extent);

/* The header of an extent that is being erased: part of its payload may not be zero yet. The next
 * process that opens the directory continues the erasure. Its verdict is DISK_TORN. */
extern const char disk_erase_mark[DISK_HEADER_BYTES];

/* The state of reading many headers. It keeps the domain of the last scope: hashing a domain for
 * each header would double the time. */
struct disk_reader {
    uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    struct kv_scope scope; /* the scope of `domain` */
    uint8_t domain[KV_DOMAIN_BYTES];
    bool has_domain;
};
void disk_reader_init(struct disk_reader *r, const uint8_t *fingerprint);
/* Decode a header, computing its key again. *out is written only if the verdict is DISK_VALID. */
enum disk_verdict disk_header_decode(struct disk_reader *r, struct disk_record *out,
                                     const uint8_t *header, uint32_t extent);

#endif
