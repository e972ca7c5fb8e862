/* unknown_fields.h - reports the fields of a request that the server does not know: misspelt names,
 * or fields of other servers.
 *
 * Such fields are ignored, as in vLLM, and reported. The answer has the header
 *     X-Tarn-Ignored-Fields: temprature (did you mean temperature?), foo, and 3 more
 * and the log a warning, once an hour for each name, so that a client that sends a field with every
 * request does not flood the log.
 *
 * The client chooses the names, so only letters, digits, '_', '-', '.', '[' and ']' are printed,
 * other characters as '?', and long names are cut.
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
#define UNKNOWN_N_LOGGED_MAX 64 /* names remembered, which limits the warnings per hour */
#define UNKNOWN_FORGET_S 3600   /* after this time all names are forgotten and logged again */

struct unknown_fields {
    uint32_t n;
    struct unknown_field {
        char name[UNKNOWN_NAME_BYTES]; /* in printable form */
        uint64_t hash;                 /* of the name as sent */
        const char *near;              /* the known field that was probably meant; NULL: none */
    } named[UNKNOWN_N_NAMED_MAX];
};

/* The names that were logged. Initialize with zeros, then unknown_log_init(). */
struct unknown_log {
    pthread_mutex_t lock;
    uint64_t since_ns; /* when the first of them was logged */
    uint32_t n;
    uint64_t hashes[UNKNOWN_N_LOGGED_MAX];
};

void unknown_log_init(struct unknown_log *log);
void unknown_log_fini(struct unknown_log *log);

/* Add the unknown field "prefix" "name". known[0..n_known): the fields that may have been meant;
 * their strings are borrowed. */
void unknown_fields_add(struct unknown_fields *u, const char *prefix, const char *name,
                        const char *const *known, size_t n_known);

/* Add all members of the object that are not in known[0..n_known). */
void unknown_fields_find(struct unknown_fields *u, const struct json *object, const char *prefix,
                         const char *const *known, size_t n_known);

/* Remember the hash of a name. False: it is remembered already, or the log is full until its names
 * are forgotten. now_ns: from clock_now_ns(). */
bool unknown_log_admit(struct unknown_log *log, uint64_t hash, uint64_t now_ns);

/* Add the header to the answer and log the names that are new. Call it before http_reply(). */
void unknown_fields_report(const struct unknown_fields *u, struct unknown_log *log,
                           struct http_exchange *x);

#endif
