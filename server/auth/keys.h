/* keys.h - reads API keys from the command line and from the key file.
 *
 * The key file (--api-key-file) is JSON:
 *
 *     {"keys": [
 *       {"name": "search",                  the key's name in logs and metrics; unique
 *        "key": "sk-...",                   the key itself, 8 to 512 visible ASCII characters,
 *        "key_blake2b": "<64 hex digits>",  or its BLAKE2b-256: printf %s KEY | b2sum -l 256
 *        "tenant": "team-a",                keys of a tenant share cached KV; absent: no sharing
 *        "weight": 1,                       share of the machine, 0.01 to 1000
 *        "requests_per_minute": 600,        absent: no limit
 *        "tokens_per_minute": 100000,       prompt and generated; absent: no limit
 *        "kv_bytes": "2G"}]}                KV that its requests may hold; absent: no limit
 *
 * Each key needs a name and either key or key_blake2b; the other fields are optional. Names of keys
 * and tenants are 1 to 64 of A-Z a-z 0-9 . _ - and do not begin with "api-key-" or
 * "admin-api-key-": the keys of --api-key and --admin-api-key are named api-key-1, api-key-2, ...
 *
 * weight is read, checked and exported by /metrics, but NOT enforced: the scheduler treats all
 * tenants alike. kv_bytes bounds the KV that the key's tenant holds after a request of the key
 * (server/api/retention.h), not its other cached KV.
 *
 * All mistakes of a file are reported, not only the first one. Messages never contain a key or a
 * part of the file's text, because they are logged.
 *
 * Owns    the specs of a list: keys_fini(). A key's text is hashed with the process's secret at
 *         once; buffers that held the file are wiped.
 * Thread  one at a time.
 * Errors  ERR_INVALID, ERR_NOT_FOUND, ERR_IO, ERR_TOO_LARGE, ERR_NOMEM; *why gets one line per
 *         mistake.
 * Units   per minute; bytes. */
#ifndef TARN_SERVER_AUTH_KEYS_H
#define TARN_SERVER_AUTH_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

#define KEYS_N_MAX 1024
#define KEYS_FILE_BYTES_MAX (1u << 20)
#define KEY_NAME_BYTES 65 /* NUL included */
#define KEY_HASH_BYTES 32
/* The most that keys_add_file() may append to *why. */
#define KEYS_WORDS_BYTES_MAX (64u << 10)

struct key_spec {
    char name[KEY_NAME_BYTES];
    char tenant[KEY_NAME_BYTES]; /* empty: the key is a tenant of its own */
    uint8_t hash[KEY_HASH_BYTES];
    bool admin;
    bool from_flag;
    uint8_t id[KEY_HASH_BYTES]; /* from_flag only: a hash that is the same in every process */
    double weight;
    uint64_t requests_per_minute, tokens_per_minute, kv_bytes; /* 0: no limit */
};

struct key_list {
    uint8_t secret[KEY_HASH_BYTES];  /* of the process; keys are hashed with it */
    uint8_t lasting[KEY_HASH_BYTES]; /* of the installation; ids are hashed with it */
    struct key_spec *specs;          /* [n] */
    uint32_t n, n_max;
};

/* Make an empty list with a random secret. lasting: KEY_HASH_BYTES; NULL: random, too. */
void keys_init(struct key_list *list, const uint8_t *lasting);
void keys_fini(struct key_list *list);
/* Copy the secrets and keys of `from` to the empty *list. */
NODISCARD enum status keys_copy(struct key_list *list, const struct key_list *from);

/* Add the comma-separated keys of --api-key or --admin-api-key. A repeated key counts once; white
 * space around a key is ignored. */
NODISCARD enum status keys_add_flag(struct key_list *list, const char *keys, bool admin,
                                    struct buf *why);
/* Add the keys of a key file's text. On an error the list is unchanged. */
NODISCARD enum status keys_add_text(struct key_list *list, const char *text, size_t n,
                                    struct buf *why);
/* Add the keys of a file. *warning: a message about unsafe permissions, or empty. why and warning
 * may be NULL. */
NODISCARD enum status keys_add_file(struct key_list *list, const char *path, struct buf *why,
                                    struct buf *warning);

/* H(process secret, BLAKE2b-256(key)): the form in which keys are stored and compared. */
void keys_hash(const struct key_list *list, const char *key, size_t n, uint8_t out[KEY_HASH_BYTES]);

#endif
