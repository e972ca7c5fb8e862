#include "server/auth.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/hash.h"
#include "server/server.h"

#define N_KEYS_MAX 1024

static void hash_key(uint8_t out[SERVER_KEY_HASH_BYTES], const char *key, size_t n)
{
    hash_blake2b(out, SERVER_KEY_HASH_BYTES, key, n, NULL, 0);
}

enum status auth_init(struct server *srv, const char *keys)
{
    if (keys[0] == '\0')
        return OK;
    srv->key_hashes = calloc(N_KEYS_MAX, sizeof *srv->key_hashes);
    if (!srv->key_hashes)
        return ERR_NOMEM;
    while (*keys && srv->n_keys < N_KEYS_MAX) {
        size_t n = strcspn(keys, ",");
        if (n > 0)
            hash_key(srv->key_hashes[srv->n_keys++], keys, n);
        keys += n + (keys[n] == ',');
    }
    /* "," asks for keys and names none: nothing may pass. */
    if (srv->n_keys == 0)
        hash_random(srv->key_hashes[srv->n_keys++], SERVER_KEY_HASH_BYTES);
    return OK;
}

enum status auth_check(const struct server *srv, const char *authorization,
                       const char *x_api_key, struct buf *why)
{
    static const char bearer[] = "Bearer ";
    uint8_t hash[SERVER_KEY_HASH_BYTES];
    const char *key = x_api_key;
    unsigned n_equal = 0;

    if (srv->n_keys == 0)
        return OK;
    if (authorization && strncasecmp(authorization, bearer, sizeof bearer - 1) == 0)
        key = authorization + sizeof bearer - 1;
    if (!key)
        return buf_why(why, ERR_UNAUTHORIZED,
                       "an API key is needed: send Authorization: Bearer KEY or x-api-key: KEY");
    hash_key(hash, key, strlen(key));
    for (uint32_t i = 0; i < srv->n_keys; i++)
        n_equal += hash_equal_secret(hash, srv->key_hashes[i], sizeof hash);
    return n_equal > 0 ? OK : buf_why(why, ERR_UNAUTHORIZED, "the API key is not valid");
}
