/* unknown_fields.h - fields of a request that the server does not know: misspelt, or another
 * server's.
 *
 * Such fields are ignored, as in vLLM, but not in silence. The answer has the header
 *     X-Tarn-Ignored-Fields: temprature (did you mean temperature?), foo, and 3 more
 * and the log a warning, once for each name: a client that sends one with every request would
 * flood it.
 *
 * Names come from outside: only letters, digits, '_', '-', '.', '[' and ']' are repeated, others as
 * '?', and long names are cut.
 *
 * Owns    nothing.
 * Thread  struct unknown_fields: one at a time. struct unknown_log: any, under its lock.
 * Errors  none.
 * Units   seconds of clock_now_ns(). */
#ifndef TARN_SERVER_API_UNKNOWN_FIELDS_H
#define TARN_SERVER_API_UNKNOWN_FIELDS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_exchange;
struct json;

#define UNKNOWN_N_NAMED_MAX 8 /* fields of one request that are named; the others are counted */
#define UNKNOWN_NAME_BYTES 48
#define UNKNOWN_N_LOGGED_MAX 64 /* names that are remembered, and so warnings an hour */
#define UNKNOWN_FORGET_S 3600   /* then all names are forgotten, and warned of again */

struct unknown_fields {
    uint32_t n;
    struct unknown_field {
        char name[UNKNOWN_NAME_BYTES]; /* only harmless characters */
        uint64_t hash;                 /* of the name as given */
        const char *near;              /* the known field that was probably meant; NULL: none */
    } named[UNKNOWN_N_NAMED_MAX];
};

/* Which names were warned of. Zeroed, then unknown_log_init(). */
struct unknown_log {
    pthread_mutex_t lock;
    uint64_t since_ns; /* when the first of them was */
    uint32_t n;
    uint64_t hashes[UNKNOWN_N_LOGGED_MAX];
};

void unknown_log_init(struct unknown_log *log);
void unknown_log_fini(struct unknown_log *log);

/* Note the field "prefix" "name"; known[0..n_known) are the fields that it could have been. The
 * strings of `known` must stay. */
void unknown_fields_add(struct unknown_fields *u, const char *prefix, const char *name,
                        const char *const *known, size_t n_known);

/* Note all members of the object that are none of known[0..n_known). */
void unknown_fields_find(struct unknown_fields *u, const struct json *object, const char *prefix,
                         const char *const *known, size_t n_known);

/* Remember the hash of a name. False when it was remembered before, or when the log is full and
 * none is forgotten yet. now_ns: of clock_now_ns(). */
bool unknown_log_admit(struct unknown_log *log, uint64_t hash, uint64_t now_ns);

/* Add the header to the answer, which is not yet given, and warn of names that are new. */
void unknown_fields_report(const struct unknown_fields *u, struct unknown_log *log,
                           struct http_exchange *x);

#endif
