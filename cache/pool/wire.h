/* wire.h - the messages between two pool threads, after the handshake (docs/design/pool.md).
 *
 * The instance that opened a connection is its asker, the other one its lender: ASK, READ, CLOSE
 * and OFFER go from the asker to the lender, LENT, DATA, GONE and DONE go back. Each ASK is
 * answered by one LENT, each READ by one DATA or GONE, and each OFFER by one DONE. The numbers in
 * `id` are the asker's own.
 *
 * A message is the head of a transport message: one byte of version, one of kind, two of zeros,
 * then the fields in little-endian order, without padding. Three kinds have a payload, too: the
 * keys of ASK, the keys and the meta of OFFER, and the blocks of DATA.
 *
 * wire_decode() takes any bytes: it accepts exactly what wire_encode() writes, and every number in
 * the result is within the bounds below.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_INVALID: not a message of this version.
 * Units   blocks, tokens, milliseconds, bytes. */
#ifndef TARN_CACHE_POOL_WIRE_H
#define TARN_CACHE_POOL_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "cache/key.h"

#define WIRE_VERSION 1
#define WIRE_PATH_MAX 4096u /* blocks of a path */
#define WIRE_READ_MAX 8u    /* blocks of a READ */
#define WIRE_HEAD_MAX (32u + WIRE_PATH_MAX)
#define WIRE_KEY_BYTES 8   /* of a block's key, in DATA */
#define WIRE_META_BYTES 8u /* of a block, in the payload of OFFER */
#define WIRE_MS_MAX 600000u

enum wire_kind {
    WIRE_ASK = 1, /* lend me what you hold of this path */
    WIRE_LENT,    /* so many blocks are lent; 0: none */
    WIRE_READ,    /* send these blocks of a lease */
    WIRE_DATA,    /* blocks of a READ */
    WIRE_GONE,    /* the lease of a READ is over */
    WIRE_CLOSE,   /* the lease is not needed any more */
    WIRE_OFFER,   /* the sender leaves: ask it for this path */
    WIRE_DONE     /* an offered path has been pulled, or is refused */
};

/* Why nothing is lent. */
enum wire_reason {
    WIRE_FINE,
    WIRE_STALE, /* the lender does not hold more than the asker */
    WIRE_BUSY,  /* too many leases */
    WIRE_N_REASONS
};

struct wire_message {
    enum wire_kind kind;
    uint64_t id;   /* of the asker's lookup (ASK, LENT, READ, CLOSE), of the offer (OFFER, DONE) */
    uint64_t read; /* READ, DATA, GONE: of the read */
    uint32_t n;    /* ASK, OFFER: blocks of the path. LENT: blocks from the first one on, n_there
                         included; 0: none. READ, DATA: blocks */
    uint32_t n_there;        /* ASK, LENT: blocks that the asker has */
    uint32_t ms;             /* ASK: the asker waits for so long. LENT: the lease lasts so long */
    enum wire_reason reason; /* LENT */
    bool is_taken;           /* DONE */
    const uint8_t *n_tokens; /* LENT: [n - n_there] of the blocks; in the decoded bytes */
    uint32_t at[WIRE_READ_MAX];                 /* READ, DATA: [n] indices in the path */
    uint32_t crc[WIRE_READ_MAX];                /* DATA: CRC32C of the block */
    uint8_t key[WIRE_READ_MAX][WIRE_KEY_BYTES]; /* DATA: the first bytes of its key */
};

/* Write *m to out; returns the length. */
uint32_t wire_encode(const struct wire_message *m, uint8_t out[WIRE_HEAD_MAX]);
NODISCARD enum status wire_decode(struct wire_message *m, const void *bytes, uint32_t n);
/* The length of the payload that belongs to the message. */
uint64_t wire_payload_bytes(const struct wire_message *m, uint64_t block_bytes);

/* The description of a block of an offered path, from which the receiver builds a node of its tree.
 * */
struct wire_meta {
    uint8_t n_tokens; /* 1..KV_BLOCK_TOKENS */
    bool starts_segment, is_public, is_registered;
    uint32_t depth;
};
void wire_put_meta(const struct wire_meta *meta, uint8_t out[WIRE_META_BYTES]);
NODISCARD enum status wire_get_meta(struct wire_meta *meta, const uint8_t bytes[WIRE_META_BYTES]);

#endif
