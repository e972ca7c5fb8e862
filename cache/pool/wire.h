/* wire.h - the messages between two pool threads, after the handshake (docs/design/pool.md).
 *
 * The instance that opened a connection is its asker, the other one its lender: ASK, READ, QUERY,
 * CLOSE, OFFER, NOTE, MAP and MAPPED go from the asker to the lender, LENT, DATA, PLACES, GONE,
 * TILES, REFUSED, DONE and HANDLE go back. Each ASK is answered by one LENT, each READ by one DATA,
 * PLACES or GONE, each QUERY by one TILES or REFUSED, and each OFFER by one DONE. The numbers in
 * `id`, `read` and `query` are the asker's own.
 *
 * MAP, HANDLE, MAPPED and PLACES are about device memory (pool_map.c). An instance sends MAP only
 * to one whose record in the directory says that it understands it, so older ones see none of them.
 *
 * A message is the head of a transport message: one byte of version, one of kind, two of zeros,
 * then the fields in little-endian order, without padding. Six kinds have a payload, too: the
 * keys of ASK, the keys and the meta of OFFER, the blocks of DATA, the fp32 numbers of QUERY and
 * TILES, and the bytes of NOTE.
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

#define WIRE_VERSION 4
#define WIRE_PATH_MAX 4096u /* blocks of a path */
#define WIRE_READ_MAX 8u    /* blocks of a READ */
#define WIRE_SEGMENTS_MAX 512u
#define WIRE_SEGMENT_BYTES 8u /* of a segment, in QUERY */
#define WIRE_ROWS_MAX 64u
#define WIRE_LAYERS_MAX 65536u
#define WIRE_FLOATS_BYTES_MAX (4u << 20) /* the payload of QUERY, and that of TILES */
#define WIRE_HEAD_MAX (64u + WIRE_SEGMENTS_MAX * WIRE_SEGMENT_BYTES)
#define WIRE_KEY_BYTES 8   /* of a block's key, in DATA */
#define WIRE_META_BYTES 8u /* of a block, in the payload of OFFER */
#define WIRE_MS_MAX 600000u
#define WIRE_NOTE_MAX (5u << 20)
#define WIRE_HANDLE_BYTES 64
#define WIRE_MACHINE_BYTES 32
/* In n_tokens of LENT: the block lies in device memory, and is read by PLACES. */
#define WIRE_ON_DEVICE 0x80u

enum wire_kind {
    WIRE_ASK = 1, /* lend me what you hold of this path */
    WIRE_LENT,    /* so many blocks are lent; 0: none */
    WIRE_READ,    /* send these blocks of a lease */
    WIRE_DATA,    /* blocks of a READ */
    WIRE_GONE,    /* the lease of a READ is over */
    WIRE_CLOSE,   /* the lease is not needed any more */
    WIRE_OFFER,   /* the sender leaves: ask it for this path */
    WIRE_DONE,    /* an offered path has been pulled, or is refused */
    WIRE_QUERY,   /* attend to these segments of a lease */
    WIRE_TILES,   /* the result of a QUERY */
    WIRE_REFUSED, /* a QUERY is not computed */
    WIRE_NOTE,    /* a message of other parts of the program: pool_note.h */
    WIRE_MAP,     /* the asker runs on this machine, and can map device memory */
    WIRE_HANDLE,  /* the lender's device memory; without one: unmap it */
    WIRE_MAPPED,  /* whether the asker has mapped it */
    WIRE_PLACES   /* where the blocks of a READ lie in that memory */
};

/* Why nothing is lent, or a query is not computed. */
enum wire_reason {
    WIRE_FINE,
    WIRE_STALE, /* the lender does not hold more than the asker; QUERY: the lease is over */
    WIRE_BUSY,  /* too many leases; QUERY: too many queries, or too late */
    WIRE_N_REASONS
};

struct wire_message {
    enum wire_kind kind;
    uint64_t id;      /* of the asker's lookup (ASK, LENT, READ, CLOSE, QUERY), of the offer (OFFER,
                       DONE) */
    uint64_t read;    /* READ, DATA, PLACES, GONE: of the read */
    uint64_t query;   /* QUERY, TILES, REFUSED: of the query */
    uint32_t n;       /* ASK, OFFER: blocks of the path. LENT: blocks from the first one on, n_there
                       included; 0: none. READ, DATA, PLACES: blocks. QUERY: segments */
    uint32_t n_there; /* ASK, LENT: blocks that the asker has */
    uint32_t ms;      /* ASK, QUERY: the asker waits for so long. LENT: the lease lasts so long, and
                         so it does after each QUERY */
    uint32_t disk_ms; /* ASK: of this, reading from disk may take so long; 0: not at all */
    enum wire_reason reason;     /* LENT, REFUSED */
    bool is_taken;               /* DONE */
    bool attends;                /* LENT: queries are answered */
    bool keeps, was_awaited;     /* LENT: as struct pool_found */
    uint32_t layer, n_rows;      /* QUERY */
    uint32_t n_bytes;            /* QUERY, TILES, NOTE: the payload */
    uint32_t floats_crc;         /* QUERY, TILES: CRC32C of the payload */
    const uint8_t *segments;     /* QUERY: [n * WIRE_SEGMENT_BYTES]; in the decoded bytes */
    const uint8_t *n_tokens;     /* LENT: [n - n_there] of the blocks, or'ed with WIRE_ON_DEVICE;
                                    in the decoded bytes */
    uint32_t at[WIRE_READ_MAX];  /* READ, DATA, PLACES: [n] indices in the path */
    uint32_t crc[WIRE_READ_MAX]; /* DATA, PLACES: CRC32C of the block. NOTE: [1] of the bytes */
    uint8_t key[WIRE_READ_MAX][WIRE_KEY_BYTES]; /* DATA, PLACES: the first bytes of its key */
    uint32_t place[WIRE_READ_MAX]; /* PLACES: blocks from the beginning of the mapped memory on */
    uint8_t machine[WIRE_MACHINE_BYTES]; /* MAP: pool_map.c */
    uint8_t handle[WIRE_HANDLE_BYTES];   /* HANDLE */
    uint64_t n_memory; /* HANDLE: bytes of the memory; 0: there is no handle, all of it is 0 */
    bool is_mapped;    /* MAPPED */
};

/* Write *m to out; returns the length. */
uint32_t wire_encode(const struct wire_message *m, uint8_t out[WIRE_HEAD_MAX]);
NODISCARD enum status wire_decode(struct wire_message *m, const void *bytes, uint32_t n);
/* Whether the lender sends messages of this kind. */
bool wire_is_answer(enum wire_kind kind);
/* The length of the payload that belongs to the message. */
uint64_t wire_payload_bytes(const struct wire_message *m, uint64_t block_bytes);

/* A segment of a QUERY. In a message segments ascend and do not overlap. */
struct wire_segment {
    uint32_t at;                 /* its first block's index in the path */
    uint16_t n_blocks, n_tokens; /* all blocks but the last one have KV_BLOCK_TOKENS tokens */
};
void wire_put_segment(const struct wire_segment *s, uint8_t out[WIRE_SEGMENT_BYTES]);
struct wire_segment wire_get_segment(const uint8_t bytes[WIRE_SEGMENT_BYTES]);

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
