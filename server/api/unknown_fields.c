#include "server/api/unknown_fields.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/flags.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "server/http/http.h"

#define TEXT_BYTES 128     /* a header's value, and the names of a line in the log */
#define NAME_HASH_BYTES 16 /* the minimum of hash_blake2b(); the first half is used */

void unknown_log_init(struct unknown_log *log)
{
    pthread_mutex_init(&log->lock, NULL);
}

void unknown_log_fini(struct unknown_log *log)
{
    pthread_mutex_destroy(&log->lock);
}

static void copy_name(char out[UNKNOWN_NAME_BYTES], const char *prefix, const char *name)
{
    snprintf(out, UNKNOWN_NAME_BYTES, "%s%s", prefix, name);
    for (char *p = out; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("_-.[]", *p))
            *p = '?';
}

static uint64_t hash_name(const char *prefix, const char *name)
{
    uint8_t bytes[NAME_HASH_BYTES];
    struct hash_state h;
    uint64_t hash;

    hash_begin(&h, sizeof bytes, NULL, 0);
    hash_add(&h, prefix, strlen(prefix) + 1);
    hash_add(&h, name, strlen(name));
    hash_end(&h, bytes, sizeof bytes);
    memcpy(&hash, bytes, sizeof hash);
    return hash;
}

/* The known field that is most similar. NULL: all differ in a third of the name or more, which is
 * no misspelling. */
static const char *probably_meant(const char *name, const char *const *known, size_t n_known)
{
    struct flag_near best = {0};

    for (size_t i = 0; i < n_known; i++)
        flag_consider(&best, known[i], name);
    return best.word && best.distance <= 1 + strlen(name) / 4 ? best.word : NULL;
}

void unknown_fields_add(struct unknown_fields *u, const char *prefix, const char *name,
                        const char *const *known, size_t n_known)
{
    if (u->n++ >= UNKNOWN_N_NAMED_MAX)
        return;
    struct unknown_field *f = &u->named[u->n - 1];
    copy_name(f->name, prefix, name);
    f->hash = hash_name(prefix, name);
    f->near = probably_meant(name, known, n_known);
}

void unknown_fields_find(struct unknown_fields *u, const struct json *object, const char *prefix,
                         const char *const *known, size_t n_known)
{
    for (void *it = js_first(object); it; it = js_next(object, it)) {
        const char *name = js_it_key(it);
        bool is_known = false;
        for (size_t i = 0; i < n_known && !is_known; i++)
            is_known = strcmp(known[i], name) == 0;
        if (!is_known)
            unknown_fields_add(u, prefix, name, known, n_known);
    }
}

/* --- report --- */

/* Write the fields with wanted[i]: "a (did you mean b?), c, and 3 more". Names that do not fit are
 * counted, not cut. */
static void write_names(const struct unknown_fields *u, const bool *wanted, char out[TEXT_BYTES])
{
    uint32_t n_named = u->n < UNKNOWN_N_NAMED_MAX ? u->n : UNKNOWN_N_NAMED_MAX, n_written = 0;
    uint32_t n_wanted = u->n - n_named;
    char entry[2 * UNKNOWN_NAME_BYTES + 24];
    size_t len = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < n_named; i++) {
        const struct unknown_field *f = &u->named[i];
        if (!wanted[i])
            continue;
        n_wanted++;
        int n = snprintf(entry, sizeof entry, "%s%s%s%.*s%s", len ? ", " : "", f->name,
                         f->near ? " (did you mean " : "", UNKNOWN_NAME_BYTES,
                         f->near ? f->near : "", f->near ? "?)" : "");
        if (len + (size_t)n + sizeof ", and 4294967295 more" > TEXT_BYTES)
            continue;
        memcpy(out + len, entry, (size_t)n + 1);
        len += (size_t)n;
        n_written++;
    }
    if (n_wanted > n_written)
        snprintf(out + len, TEXT_BYTES - len, "%s%u more", len ? ", and " : "",
                 n_wanted - n_written);
}

/* unknown_log_admit() under the lock. */
static bool admit(struct unknown_log *log, uint64_t hash, uint64_t now_ns)
{
    if (now_ns - log->since_ns >= UNKNOWN_FORGET_S * UINT64_C(1000000000))
        log->n = 0;
    for (uint32_t i = 0; i < log->n; i++)
        if (log->hashes[i] == hash)
            return false;
    if (log->n == UNKNOWN_N_LOGGED_MAX)
        return false;
    if (log->n == 0)
        log->since_ns = now_ns;
    log->hashes[log->n++] = hash;
    return true;
}

bool unknown_log_admit(struct unknown_log *log, uint64_t hash, uint64_t now_ns)
{
    pthread_mutex_lock(&log->lock);
    bool is_new = admit(log, hash, now_ns);
    pthread_mutex_unlock(&log->lock);
    return is_new;
}

void unknown_fields_report(const struct unknown_fields *u, struct unknown_log *log,
                           struct http_exchange *x)
{
    bool wanted[UNKNOWN_N_NAMED_MAX], any = false;
    char names[TEXT_BYTES];
    uint64_t now_ns = clock_now_ns();

    if (u->n == 0)
        return;
    memset(wanted, true, sizeof wanted);
    write_names(u, wanted, names);
    http_add_header(x, "X-Tarn-Ignored-Fields", names);
    for (uint32_t i = 0; i < UNKNOWN_N_NAMED_MAX && i < u->n; i++)
        any |= wanted[i] = unknown_log_admit(log, u->named[i].hash, now_ns);
    if (!any)
        return;
    write_names(u, wanted, names);
    log_event(LOG_WARN, "unknown fields ignored", "id=%s path=%s n_fields=%u names=\"%s\"",
              http_id(x), http_path(x), u->n, names);
}
