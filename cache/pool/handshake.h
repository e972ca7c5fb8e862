/* handshake.h - two instances prove to each other that they know the pool's secret and compute the
 * same KV, before any other message is accepted.
 *
 *   A -> B   HELLO  version, id, fingerprint, block bytes, nonce
 *   B -> A   HELLO
 *   A -> B   PROOF  BLAKE2b-256 keyed with the secret over "tarn pool proof", the role of the
 *                   sender, both HELLO messages
 *   B -> A   PROOF
 *
 * Each side sends its PROOF only after the other's HELLO, and never the proof of the other role, so
 * that a stranger cannot have one instance answer for another one. A wrong proof, another
 * fingerprint or another version ends the connection; the words say which. The nonces make every
 * proof different. Nothing is encrypted: the network between instances must be private, or a
 * tunnel.
 *
 * Owns    nothing; a state per connection, embedded by its owner.
 * Thread  any; the pool thread.
 * Errors  ERR_FORBIDDEN: wrong secret. ERR_INVALID: broken message. ERR_UNSUPPORTED: other version,
 *         fingerprint or block size; *why in words (static).
 * Units   bytes. */
#ifndef TARN_CACHE_POOL_HANDSHAKE_H
#define TARN_CACHE_POOL_HANDSHAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "cache/key.h"

#define POOL_SECRET_BYTES 32
#define HANDSHAKE_MESSAGE_MAX 128u

struct handshake_self {
    uint8_t secret[POOL_SECRET_BYTES];
    uint64_t id;
    uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    uint64_t block_bytes;
};

struct handshake {
    const struct handshake_self *self;
    bool is_connector;                                                  /* A */
    uint8_t mine[HANDSHAKE_MESSAGE_MAX], theirs[HANDSHAKE_MESSAGE_MAX]; /* HELLO messages */
    uint32_t n_mine, n_theirs;
    bool is_done;
    uint64_t peer_id; /* once it is done */
};

/* *self is borrowed. */
void handshake_init(struct handshake *h, const struct handshake_self *self, bool is_connector);
/* A's first message; B has none. Returns its length. */
uint32_t handshake_begin(struct handshake *h, uint8_t out[HANDSHAKE_MESSAGE_MAX]);
/* Take a message of the peer. *n_out bytes of out are to be sent back (0: none). h->is_done: the
 * peer is a member. Any error: disconnect. */
NODISCARD enum status handshake_take(struct handshake *h, const void *message, uint32_t n,
                                     uint8_t out[HANDSHAKE_MESSAGE_MAX], uint32_t *n_out,
                                     const char **why);

#endif
