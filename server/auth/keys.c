#include "server/auth/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/flags.h"
#include "base/hash.h"
#include "base/json.h"
#include "server/auth/ratelimit.h"

#define KEY_BYTES_MIN 8
#define KEY_BYTES_MAX 512
#define WEIGHT_MIN 0.01
#define WEIGHT_MAX 1000.0
#define FIELD_NAME_BYTES_MAX 24
#define FLAG_NAME "api-key-"
#define ADMIN_FLAG_NAME "admin-api-key-"

/* --- lists --- */

void keys_init(struct key_list *list, const uint8_t *lasting)
{
    *list = (struct key_list){0};
    hash_random(list->secret, sizeof list->secret);
    hash_random(list->lasting, sizeof list->lasting);
    if (lasting)
        memcpy(list->lasting, lasting, sizeof list->lasting);
}

void keys_fini(struct key_list *list)
{
    free(list->specs);
    explicit_bzero(list, sizeof *list);
}

static struct key_spec *add_spec(struct key_list *list)
{
    if (list->n == list->n_max) {
        uint32_t n_max = list->n_max ? 2 * list->n_max : 16;
        struct key_spec *specs = realloc(list->specs, n_max * sizeof *specs);
        if (!specs)
            return NULL;
        list->specs = specs;
        list->n_max = n_max;
    }
    struct key_spec *spec = &list->specs[list->n++];
    *spec = (struct key_spec){.weight = 1};
    return spec;
}

enum status keys_copy(struct key_list *list, const struct key_list *from)
{
    memcpy(list->secret, from->secret, sizeof list->secret);
    memcpy(list->lasting, from->lasting, sizeof list->lasting);
    for (uint32_t i = 0; i < from->n; i++) {
        struct key_spec *spec = add_spec(list);
        if (!spec)
            return ERR_NOMEM;
        *spec = from->specs[i];
    }
    return OK;
}

static void hash_digest(const struct key_list *list, const uint8_t digest[KEY_HASH_BYTES],
                        uint8_t out[KEY_HASH_BYTES])
{
    hash_blake2b(out, KEY_HASH_BYTES, digest, KEY_HASH_BYTES, list->secret, sizeof list->secret);
}

void keys_hash(const struct key_list *list, const char *key, size_t n, uint8_t out[KEY_HASH_BYTES])
{
    uint8_t digest[KEY_HASH_BYTES];

    hash_blake2b(digest, sizeof digest, key, n, NULL, 0);
    hash_digest(list, digest, out);
    explicit_bzero(digest, sizeof digest);
}

/* The first key before index `end` with this hash; NULL: none. */
static const struct key_spec *find_hash(const struct key_list *list, uint32_t end,
                                        const uint8_t hash[KEY_HASH_BYTES])
{
    for (uint32_t i = 0; i < end; i++)
        if (memcmp(list->specs[i].hash, hash, KEY_HASH_BYTES) == 0)
            return &list->specs[i];
    return NULL;
}

/* --- flags --- */

static enum status add_flag_key(struct key_list *list, const char *key, size_t n, bool admin,
                                uint32_t number, struct buf *why)
{
    uint8_t hash[KEY_HASH_BYTES];

    keys_hash(list, key, n, hash);
    const struct key_spec *same = find_hash(list, list->n, hash);
    if (same && same->admin != admin)
        return buf_why(why, ERR_INVALID,
                       "--admin-api-key: is also given to --api-key; an admin needs a key of "
                       "its own");
    if (same)
        return OK;
    if (list->n == KEYS_N_MAX)
        return buf_why(why, ERR_TOO_LARGE, "--%sapi-key: more than %d keys", admin ? "admin-" : "",
                       KEYS_N_MAX);
    struct key_spec *spec = add_spec(list);
    if (!spec)
        return buf_why(why, ERR_NOMEM, "out of memory");
    snprintf(spec->name, sizeof spec->name, "%s%u", admin ? ADMIN_FLAG_NAME : FLAG_NAME, number);
    memcpy(spec->hash, hash, sizeof spec->hash);
    hash_blake2b(spec->id, sizeof spec->id, key, n, list->lasting, sizeof list->lasting);
    spec->admin = admin;
    spec->from_flag = true;
    return OK;
}

enum status keys_add_flag(struct key_list *list, const char *keys, bool admin, struct buf *why)
{
    enum status s = OK;
    uint32_t number = 1;
    const char *key;
    size_t n;

    while (s == OK && flag_list_next(&keys, &key, &n))
        if (n > 0)
            s = add_flag_key(list, key, n, admin, number++, why);
    return s;
}

/* --- the file: mistakes --- */

struct reader {
    struct key_list *list;
    struct buf *why;
    uint32_t n_mistakes;
    uint32_t index;          /* of the key being read */
    uint32_t first;          /* of the file's keys in the list */
    const struct json *item; /* that key */
    struct key_spec *spec;   /* where it goes */
};

/* Append one line to *why. Mistakes beyond its maximum are counted only. */
#define mistake(r, ...)                                                                            \
    do {                                                                                           \
        enum status s_ = (r)->n_mistakes++ ? buf_putc((r)->why, '\n') : OK;                        \
        if (s_ == OK)                                                                              \
            s_ = buf_printf((r)->why, __VA_ARGS__);                                                \
        (void)s_;                                                                                  \
    } while (0)

/* A mistake in a field of the current key, such as "keys[3].weight: ...". */
#define key_mistake(r, field, format, ...)                                                         \
    mistake(r, "keys[%u].%s: " format, (r)->index, field, __VA_ARGS__)

static const char *const fields[] = {
    "name",    "key", "key_blake2b", "tenant", "weight", "requests_per_minute", "tokens_per_minute",
    "kv_bytes"};

static bool is_one_of(const char *name, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, words[i]) == 0)
            return true;
    return false;
}

/* An operator may write {"sk-secret": ...} by mistake, and messages are logged: so only a string
 * that looks like a field's name is printed. */
static const char *printable_name(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz_");

    return n > 0 && n <= FIELD_NAME_BYTES_MAX && name[n] == '\0' ? name : "...";
}

static void check_field_names(struct reader *r)
{
    for (void *it = js_first(r->item); it; it = js_next(r->item, it)) {
        const char *name = js_it_key(it);
        if (is_one_of(name, fields, ARRAY_SIZE(fields)))
            continue;
        const char *near = flag_nearest(name, fields, ARRAY_SIZE(fields));
        mistake(r, "keys[%u]: unknown field \"%s\"%s%s%s", r->index, printable_name(name),
                near ? ", did you mean \"" : "", near ? near : "", near ? "\"?" : "");
    }
}

/* --- the file: fields --- */

/* The text of a field. NULL: it is absent, or it is not a string, which is reported. */
static const char *get_text(struct reader *r, const char *field, size_t *n)
{
    const struct json *v = js_get(r->item, field);

    if (!v)
        return NULL;
    if (!js_is(v, JS_STRING)) {
        key_mistake(r, field, "expected a string, got %s", js_type_name(js_typeof(v)));
        return NULL;
    }
    return js_string(v, n);
}

static bool is_name(const char *text, size_t n)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

    return n > 0 && n < KEY_NAME_BYTES && strlen(text) == n && strspn(text, letters) == n;
}

static bool begins(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* Read the field "name" or "tenant". */
static void read_name(struct reader *r, const char *field, char out[KEY_NAME_BYTES])
{
    size_t n = 0;
    const char *text = get_text(r, field, &n);

    if (!text)
        return;
    if (n == 0)
        key_mistake(r, field, "%s", "must not be empty");
    else if (n >= KEY_NAME_BYTES)
        key_mistake(r, field, "is %zu bytes long, at most %d are taken", n, KEY_NAME_BYTES - 1);
    else if (!is_name(text, n))
        key_mistake(r, field, "%s", "may hold only letters, digits and . _ -");
    else if (begins(text, FLAG_NAME) || begins(text, ADMIN_FLAG_NAME))
        key_mistake(r, field, "\"%s\" is kept for keys of the command line", text);
    else
        snprintf(out, KEY_NAME_BYTES, "%s", text);
}

static void check_name(struct reader *r)
{
    if (!js_get(r->item, "name"))
        key_mistake(r, "name", "%s", "is missing");
    for (uint32_t i = r->first; r->spec->name[0] && r->list->specs + i < r->spec; i++)
        if (strcmp(r->list->specs[i].name, r->spec->name) == 0)
            key_mistake(r, "name", "\"%s\" is also the name of keys[%u]", r->spec->name,
                        i - r->first);
}

static bool is_visible(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] < '!' || text[i] > '~')
            return false;
    return true;
}

static bool read_key_text(struct reader *r)
{
    size_t n = 0;
    const char *text = get_text(r, "key", &n);

    if (!text)
        return false;
    if (n == 0)
        key_mistake(r, "key", "%s", "must not be empty");
    else if (n < KEY_BYTES_MIN || n > KEY_BYTES_MAX)
        key_mistake(r, "key", "is %zu bytes long, expected %d to %d", n, KEY_BYTES_MIN,
                    KEY_BYTES_MAX);
    else if (!is_visible(text, n))
        key_mistake(r, "key", "%s", "may hold only visible ASCII characters, no spaces");
    else
        keys_hash(r->list, text, n, r->spec->hash);
    return n >= KEY_BYTES_MIN && n <= KEY_BYTES_MAX && is_visible(text, n);
}

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c | 0x20) : NULL;

    return at ? (int)(at - digits) : -1;
}

static bool read_key_digest(struct reader *r)
{
    uint8_t digest[KEY_HASH_BYTES];
    size_t n = 0;
    const char *text = get_text(r, "key_blake2b", &n);
    bool good = n == 2 * sizeof digest;

    if (!text)
        return false;
    for (size_t i = 0; good && i < sizeof digest; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        good = high >= 0 && low >= 0;
        digest[i] = (uint8_t)(16 * high + low);
    }
    if (good)
        hash_digest(r->list, digest, r->spec->hash);
    else
        key_mistake(r, "key_blake2b", "expected 64 hex digits, got %zu bytes", n);
    return good;
}

static void read_key(struct reader *r)
{
    bool has_text = js_get(r->item, "key"), has_digest = js_get(r->item, "key_blake2b");

    if (has_text && has_digest)
        key_mistake(r, "key", "%s", "only one of key and key_blake2b may be there");
    else if (!has_text && !has_digest)
        key_mistake(r, "key", "%s", "is missing, and so is key_blake2b");
    if (has_text == has_digest || !(has_text ? read_key_text(r) : read_key_digest(r))) {
        hash_random(r->spec->hash, sizeof r->spec->hash); /* equal to no key's hash */
        return;
    }
    const struct key_spec *same =
        find_hash(r->list, (uint32_t)(r->spec - r->list->specs), r->spec->hash);
    const char *field = has_text ? "key" : "key_blake2b";
    if (same && same - r->list->specs < r->first)
        key_mistake(r, field, "is also given to --%sapi-key", same->admin ? "admin-" : "");
    else if (same)
        key_mistake(r, field, "is the same as that of keys[%u]",
                    (uint32_t)(same - r->list->specs) - r->first);
}

static void read_weight(struct reader *r)
{
    const struct json *v = js_get(r->item, "weight");

    if (!v)
        return;
    if (!js_is(v, JS_INT) && !js_is(v, JS_REAL))
        key_mistake(r, "weight", "expected a number, got %s", js_type_name(js_typeof(v)));
    else if (!(js_number(v) >= WEIGHT_MIN && js_number(v) <= WEIGHT_MAX))
        key_mistake(r, "weight", "%g is outside of [%g, %g]", js_number(v), WEIGHT_MIN, WEIGHT_MAX);
    else
        r->spec->weight = js_number(v);
}

/* Read a limit of at least 1. Refuses 0: it could mean no requests or no limit. */
static void read_count(struct reader *r, const char *field, uint64_t max, uint64_t *out)
{
    const struct json *v = js_get(r->item, field);

    if (!v)
        return;
    if (!js_is(v, JS_INT))
        key_mistake(r, field, "expected a whole number, got %s", js_type_name(js_typeof(v)));
    else if (js_int(v) == 0)
        key_mistake(r, field, "%s", "0 would let nothing pass; leave it out for no limit");
    else if (js_int(v) < 0 || (uint64_t)js_int(v) > max)
        key_mistake(r, field, "%lld is outside of [1, %llu]", (long long)js_int(v),
                    (unsigned long long)max);
    else
        *out = (uint64_t)js_int(v);
}

static void read_kv_bytes(struct reader *r)
{
    const struct json *v = js_get(r->item, "kv_bytes");
    const char *text = "";
    uint64_t bytes = 0;

    if (!js_is(v, JS_STRING))
        read_count(r, "kv_bytes", INT64_MAX, &r->spec->kv_bytes);
    else if (js_read_cstr(v, "kv_bytes", &text, NULL) != OK ||
             flag_parse_size(text, &bytes) != OK || bytes == 0)
        key_mistake(r, "kv_bytes", "%s", "expected a size such as 512M or 2G");
    else
        r->spec->kv_bytes = bytes;
}

static void read_item(struct reader *r)
{
    if (!js_is(r->item, JS_OBJECT)) {
        mistake(r, "keys[%u]: expected an object, got %s", r->index,
                js_type_name(js_typeof(r->item)));
        return;
    }
    check_field_names(r);
    read_name(r, "name", r->spec->name);
    check_name(r);
    read_key(r);
    read_name(r, "tenant", r->spec->tenant);
    read_weight(r);
    read_count(r, "requests_per_minute", RATELIMIT_PER_MINUTE_MAX, &r->spec->requests_per_minute);
    read_count(r, "tokens_per_minute", RATELIMIT_PER_MINUTE_MAX, &r->spec->tokens_per_minute);
    read_kv_bytes(r);
}

/* A key without a tenant is a tenant with the key's name. No other key may use that tenant name. */
static void check_tenants(struct reader *r)
{
    for (uint32_t i = r->first; i < r->list->n; i++) {
        const struct key_spec *own = &r->list->specs[i];
        if (own->tenant[0] || !own->name[0])
            continue;
        for (uint32_t k = r->first; k < r->list->n; k++)
            if (strcmp(r->list->specs[k].tenant, own->name) == 0) {
                mistake(r,
                        "keys[%u].tenant: \"%s\" is the name of keys[%u], which has no tenant "
                        "and so is one of its own",
                        k - r->first, own->name, i - r->first);
                break;
            }
    }
}

/* --- the file --- */

static void read_document(struct reader *r, const struct json *document)
{
    static const char *const known[] = {"keys"};
    const struct json *array = js_get(document, "keys");

    if (!js_is(document, JS_OBJECT)) {
        mistake(r, "expected an object {\"keys\": [...]}, got %s",
                js_type_name(js_typeof(document)));
        return;
    }
    for (void *it = js_first(document); it; it = js_next(document, it))
        if (!is_one_of(js_it_key(it), known, 1))
            mistake(r, "unknown field \"%s\"%s", printable_name(js_it_key(it)),
                    flag_nearest(js_it_key(it), known, 1) ? ", did you mean \"keys\"?" : "");
    if (!js_is(array, JS_ARRAY))
        mistake(r, "keys: %s%s", array ? "expected an array, got " : "is missing",
                array ? js_type_name(js_typeof(array)) : "");
    else if (js_len(array) == 0)
        mistake(r, "keys: is empty: nobody could use the server");
    else if (js_len(array) + r->first > KEYS_N_MAX)
        mistake(r, "keys: has %zu, at most %u are taken", js_len(array), KEYS_N_MAX - r->first);
    else
        for (size_t i = 0; i < js_len(array); i++) {
            r->index = (uint32_t)i;
            r->item = js_at(array, i);
            r->spec = add_spec(r->list);
            if (!r->spec) {
                mistake(r, "out of memory");
                return;
            }
            read_item(r);
        }
    check_tenants(r);
}

/* Cut " near ..." from a JSON error such as "malformed JSON at line 3, column 7: '}' expected near
 * 'sk-...'", because the quoted text may be a key. */
static void hide_text(struct buf *words)
{
    char *near = words->len ? strstr(words->data, " near ") : NULL;

    if (!near)
        return;
    explicit_bzero(near, words->len - (size_t)(near - words->data));
    words->len = (size_t)(near - words->data);
}

enum status keys_add_text(struct key_list *list, const char *text, size_t n, struct buf *why)
{
    struct reader r = {.list = list, .first = list->n};
    struct json *document = NULL;
    struct buf words;

    buf_init(&words, KEYS_WORDS_BYTES_MAX);
    r.why = &words;
    enum status s = js_parse(&document, text, n, &words);
    if (s != OK) {
        hide_text(&words);
    } else {
        read_document(&r, document);
        s = r.n_mistakes ? ERR_INVALID : OK;
    }
    if (s != OK) {
        buf_why(why, s, "%s", buf_str(&words));
        list->n = r.first;
    }
    js_unref(document);
    buf_fini(&words);
    return s;
}

/* Read an open file. ERR_TOO_LARGE: it is larger than the maximum of *text. */
static enum status read_all(int fd, struct buf *text)
{
    /* Reserving the maximum avoids reallocation, which would leave copies of keys in memory. */
    enum status s = buf_reserve(text, KEYS_FILE_BYTES_MAX);
    char chunk[4096];
    ssize_t n = 0;

    while (s == OK && (n = read(fd, chunk, sizeof chunk)) > 0)
        s = buf_append(text, chunk, (size_t)n);
    explicit_bzero(chunk, sizeof chunk);
    return s == OK && n < 0 ? ERR_IO : s;
}

static enum status check_file(int fd, const char *path, struct buf *why, struct buf *warning)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return buf_why(why, ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return buf_why(why, ERR_INVALID, "%s: is %s, not a file", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "something else");
    if (st.st_mode & (S_IRWXG | S_IRWXO))
        buf_why(warning, OK, "%s: has mode %04o, others may read or change it; chmod 600 it", path,
                (unsigned)(st.st_mode & 07777));
    return OK;
}

enum status keys_add_file(struct key_list *list, const char *path, struct buf *why,
                          struct buf *warning)
{
    struct buf text, words;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return buf_why(why, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: cannot open it: %s",
                       path, strerror(errno));
    buf_init(&text, KEYS_FILE_BYTES_MAX);
    buf_init(&words, KEYS_WORDS_BYTES_MAX);
    enum status s = check_file(fd, path, why, warning);
    if (s == OK) {
        s = read_all(fd, &text);
        if (s == ERR_TOO_LARGE)
            buf_why(why, s, "%s: is larger than %u bytes", path, KEYS_FILE_BYTES_MAX);
        else if (s != OK)
            buf_why(why, s, "%s: cannot read it", path);
    }
    if (s == OK) {
        s = keys_add_text(list, buf_str(&text), text.len, &words);
        if (s != OK)
            buf_why(why, s, "%s", buf_str(&words));
    }
    if (text.data)
        explicit_bzero(text.data, text.cap);
    buf_fini(&text);
    buf_fini(&words);
    close(fd);
    return s;
}
