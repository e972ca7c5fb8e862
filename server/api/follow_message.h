/* follow_message.h - the messages by which catalogs of a pool become equal: pure.
 *
 *   DIGEST    digest of the sender's catalog, once a second
 *   DIGESTS   digests of its buckets, to a peer whose digest differs
 *   STAMPS    names and stamps: of buckets that differ, or of what was just changed
 *   WANT      names of records that are newer at the peer
 *   RECORDS   records for the first names of a WANT
 *   ERASE     keys of blocks whose document was deleted or replaced
 *
 * A message is one byte of version, one of type, two of zeros, and the items; numbers are
 * little-endian. follow_read() takes any bytes; what it accepts is within the bounds below.
 *
 * Owns    nothing: items lie in the bytes that were read.
 * Thread  any.
 * Errors  ERR_INVALID: no message of this version; ERR_TOO_LARGE, ERR_NOMEM: of the buffer.
 * Units   bytes. */
#ifndef TARN_SERVER_API_FOLLOW_MESSAGE_H
#define TARN_SERVER_API_FOLLOW_MESSAGE_H

#include "base/buf.h"
#include "engine/retrieval/catalog_records.h"

#define FOLLOW_N_STAMPS_MAX 32768u
#define FOLLOW_N_WANTED_MAX 256u
#define FOLLOW_N_ERASED_MAX 64u
/* RECORDS has no further record once it is as long as this. */
#define FOLLOW_RECORDS_BYTES (512u << 10)

enum follow_type {
    FOLLOW_DIGEST = 1,
    FOLLOW_DIGESTS,
    FOLLOW_STAMPS,
    FOLLOW_WANT,
    FOLLOW_RECORDS,
    FOLLOW_ERASE
};

struct follow_message {
    enum follow_type type;
    const uint8_t *items;
    uint32_t n; /* items; RECORDS: bytes of all records, as catalog_record_read() takes them */
    uint32_t n_answered; /* RECORDS: names of the WANT that this message answers */
};

/* Begin a message in an empty buffer; the items follow. RECORDS gets its n_answered at the end. */
NODISCARD enum status follow_begin(struct buf *out, enum follow_type type);
NODISCARD enum status follow_add_digest(struct buf *out, uint64_t digest);
NODISCARD enum status follow_add_stamp(struct buf *out, const struct catalog_entry *e);
void follow_set_answered(struct buf *out, uint32_t n_answered);

NODISCARD enum status follow_read(struct follow_message *m, const void *bytes, size_t n);
uint64_t follow_digest(const struct follow_message *m, uint32_t i);
void follow_stamp(const struct follow_message *m, uint32_t i, struct catalog_entry *out);
/* Item i of WANT (a name) or of ERASE (a key). */
const uint8_t *follow_item(const struct follow_message *m, uint32_t i);

#endif
