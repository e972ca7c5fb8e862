/* keys.h - API keys as the operator writes them: lists on the command line, the key file.
 *
 * The key file (--api-key-file) is JSON:
 *
 *     {"keys": [
 *       {"name": "search",                  how it is called in logs and metrics; unique
 *        "key": "sk-...",                   the key itself, 8 to 512 visible ASCII characters,
 *        "key_blake2b": "<64 hex digits>",  or its BLAKE2b-256: printf %s KEY | b2sum -l 256
 *        "tenant": "team-a",                who shares cached KV with it; absent: nobody
 *        "weight": 1,                       share of the machine, 0.01 to 1000
 *        "requests_per_minute": 600,        absent: no limit
 *        "tokens_per_minute": 100000,       prompt and generated; absent: no limit
 *        "kv_bytes": "2G"}]}                number or size; absent: no limit
 *
 * Each key needs a name and one of key and key_blake2b; the rest may be absent. Names of keys and
 * tenants are 1 to 64 of A-Z a-z 0-9 . _ - and do not begin with "api-key-" or "admin-api-key-",
 * which are those of --api-key and --admin-api-key in their order.
 *
 * weight and kv_bytes are read, checked and exported by /metrics, and NOT enforced yet: the
 * scheduler's fairness and the KV store will.
 *
 * Every mistake of a file is reported, not the first one only. Words never hold a key or a piece
 * of the file's text: they go into logs.
 *
 * Owns    the specs of a list: keys_fini(). A key's text is hashed with the process's secret at
 *         once; buffers that held the file are wiped.
 * Thread  one at a time.
 * Errors  ERR_INVALID, ERR_NOT_FOUND, ERR_IO, ERR_TOO_LARGE, ERR_NOMEM; the words are one mistake
 *         per line.
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
/* What keys_read_file() may say at most. */
#define KEYS_WORDS_BYTES_MAX (64u << 10)

struct key_spec {
    char name[KEY_NAME_BYTES];
    char tenant[KEY_NAME_BYTES]; /* empty: its own */
    uint8_t hash[KEY_HASH_BYTES];
    bool admin;
    bool from_flag;
    uint8_t id[KEY_HASH_BYTES]; /* from_flag: the same for this key in every process */
    double weight;
    uint64_t requests_per_minute, tokens_per_minute, kv_bytes; /* 0: no limit */
};

struct key_list {
    uint8_t secret[KEY_HASH_BYTES];  /* of the process: what keys are hashed with */
    uint8_t lasting[KEY_HASH_BYTES]; /* of the installation: what ids are made with */
    struct key_spec *specs;          /* [n] */
    uint32_t n, n_max;
};

/* An empty list with a random secret. lasting[KEY_HASH_BYTES] NULL: random, too. */
void keys_init(struct key_list *list, const uint8_t *lasting);
void keys_fini(struct key_list *list);
/* *list: empty, gets the same secret and keys as `from`. */
NODISCARD enum status keys_copy(struct key_list *list, const struct key_list *from);

/* A comma list of --api-key or --admin-api-key; one given twice counts once, white space around a
 * key does not belong to it. */
NODISCARD enum status keys_add_flag(struct key_list *list, const char *keys, bool admin,
                                    struct buf *why);
/* The text of a key file. On a failure the list is as it was. */
NODISCARD enum status keys_add_text(struct key_list *list, const char *text, size_t n,
                                    struct buf *why);
/* The file. *warning: words about what is allowed and unwise, or empty. Both may be NULL. */
NODISCARD enum status keys_add_file(struct key_list *list, const char *path, struct buf *why,
                                    struct buf *warning);

/* H(process secret, BLAKE2b-256(key)): the form in which keys are kept and compared. */
void keys_hash(const struct key_list *list, const char *key, size_t n, uint8_t out[KEY_HASH_BYTES]);

#endif
