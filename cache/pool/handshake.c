/* The messages, all numbers little-endian:
 *
 *   HELLO, 88 bytes                        PROOF, 40 bytes
 *   offset bytes what                      offset bytes what
 *   0      4     "TPHI"                    0      4     "TPPR"
 *   4      4     HANDSHAKE_VERSION         4      4     HANDSHAKE_VERSION
 *   8      8     id of the instance        8      32    the proof
 *   16     32    fingerprint
 *   48     8     bytes of a block
 *   56     32    nonce, random
 *
 * proof = BLAKE2b-256 keyed with the secret over "tarn pool proof", one byte for the role of its
 * sender ('A': the connector, 'B': the acceptor), A's HELLO, B's HELLO. */
#include "cache/pool/handshake.h"

#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/little_endian.h"

#define HANDSHAKE_VERSION 1u
#define HELLO_BYTES 88u
#define PROOF_BYTES 40u
#define NONCE_BYTES 32u
#define DIGEST_BYTES 32u

enum { AT_VERSION = 4, AT_ID = 8, AT_FINGERPRINT = 16, AT_BLOCK_BYTES = 48, AT_NONCE = 56 };
enum { AT_PROOF = 8 };

_Static_assert(AT_NONCE + NONCE_BYTES == HELLO_BYTES, "layout of HELLO");
_Static_assert(AT_PROOF + DIGEST_BYTES == PROOF_BYTES, "layout of PROOF");
_Static_assert(HELLO_BYTES <= HANDSHAKE_MESSAGE_MAX, "room for HELLO");

static const char hello_magic[4] = {'T', 'P', 'H', 'I'};
static const char proof_magic[4] = {'T', 'P', 'P', 'R'};
static const char domain[] = "tarn pool proof";

void handshake_init(struct handshake *h, const struct handshake_self *self, bool is_connector)
{
    *h = (struct handshake){.self = self, .is_connector = is_connector, .n_mine = HELLO_BYTES};
    memcpy(h->mine, hello_magic, sizeof hello_magic);
    put_u32(h->mine + AT_VERSION, HANDSHAKE_VERSION);
    put_u64(h->mine + AT_ID, self->id);
    memcpy(h->mine + AT_FINGERPRINT, self->fingerprint, KV_FINGERPRINT_BYTES);
    put_u64(h->mine + AT_BLOCK_BYTES, self->block_bytes);
    hash_random(h->mine + AT_NONCE, NONCE_BYTES);
}

static uint32_t write_hello(const struct handshake *h, uint8_t *out)
{
    memcpy(out, h->mine, h->n_mine);
    return h->n_mine;
}

uint32_t handshake_begin(struct handshake *h, uint8_t out[HANDSHAKE_MESSAGE_MAX])
{
    ASSERT(h->is_connector);
    return write_hello(h, out);
}

static void prove(const struct handshake *h, char role, uint8_t *out)
{
    struct hash_state state;

    hash_begin(&state, DIGEST_BYTES, h->self->secret, POOL_SECRET_BYTES);
    hash_add(&state, domain, sizeof domain - 1);
    hash_add(&state, &role, 1);
    hash_add(&state, h->is_connector ? h->mine : h->theirs, HELLO_BYTES);
    hash_add(&state, h->is_connector ? h->theirs : h->mine, HELLO_BYTES);
    hash_end(&state, out, DIGEST_BYTES);
}

static uint32_t write_proof(const struct handshake *h, uint8_t *out)
{
    memcpy(out, proof_magic, sizeof proof_magic);
    put_u32(out + AT_VERSION, HANDSHAKE_VERSION);
    prove(h, h->is_connector ? 'A' : 'B', out + AT_PROOF);
    return PROOF_BYTES;
}

static enum status take_hello(struct handshake *h, const uint8_t *m, uint32_t n, const char **why)
{
    if (n < AT_ID || memcmp(m, hello_magic, sizeof hello_magic) != 0) {
        *why = "the peer does not begin with a HELLO message";
        return ERR_INVALID;
    }
    if (get_u32(m + AT_VERSION) != HANDSHAKE_VERSION) {
        *why = "the peer speaks another version of the pool's protocol";
        return ERR_UNSUPPORTED;
    }
    if (n != HELLO_BYTES) {
        *why = "the peer's HELLO message has a wrong length";
        return ERR_INVALID;
    }
    if (memcmp(m + AT_NONCE, h->mine + AT_NONCE, NONCE_BYTES) == 0) {
        *why = "the peer sends back this instance's own HELLO message";
        return ERR_INVALID;
    }
    if (memcmp(m + AT_FINGERPRINT, h->self->fingerprint, KV_FINGERPRINT_BYTES) != 0) {
        *why = "the peer has another model, or computes it in another way (fingerprint)";
        return ERR_UNSUPPORTED;
    }
    if (get_u64(m + AT_BLOCK_BYTES) != h->self->block_bytes) {
        *why = "the peer's blocks have another size";
        return ERR_UNSUPPORTED;
    }
    memcpy(h->theirs, m, n);
    h->n_theirs = n;
    return OK;
}

static enum status take_proof(struct handshake *h, const uint8_t *m, uint32_t n, const char **why)
{
    uint8_t expected[DIGEST_BYTES];

    if (n != PROOF_BYTES || memcmp(m, proof_magic, sizeof proof_magic) != 0 ||
        get_u32(m + AT_VERSION) != HANDSHAKE_VERSION) {
        *why = "the peer sends no PROOF message";
        return ERR_INVALID;
    }
    prove(h, h->is_connector ? 'B' : 'A', expected);
    if (!hash_equal_secret(m + AT_PROOF, expected, DIGEST_BYTES)) {
        *why = "the peer does not know the pool's secret";
        return ERR_FORBIDDEN;
    }
    h->is_done = true;
    h->peer_id = get_u64(h->theirs + AT_ID);
    return OK;
}

enum status handshake_take(struct handshake *h, const void *message, uint32_t n,
                           uint8_t out[HANDSHAKE_MESSAGE_MAX], uint32_t *n_out, const char **why)
{
    *n_out = 0;
    *why = NULL;
    if (h->is_done) {
        *why = "the handshake is over";
        return ERR_INVALID;
    }
    if (h->n_theirs == 0) {
        enum status s = take_hello(h, message, n, why);
        if (s != OK)
            return s;
        *n_out = h->is_connector ? write_proof(h, out) : write_hello(h, out);
        return OK;
    }
    enum status s = take_proof(h, message, n, why);
    if (s == OK && !h->is_connector)
        *n_out = write_proof(h, out);
    return s;
}
