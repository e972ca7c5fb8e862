#include "cache/disk/disk_verify.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/map.h"
#include "cache/disk/disk_dir.h"
#include "cache/key.h"

/* The most to read at a time: enough to reach the rate of any disk. */
#define PIECE_BYTES_MAX ((uint64_t)8 << 20)
#define FINGERPRINT_DIGITS (2 * KV_FINGERPRINT_BYTES)
#define NONE UINT32_MAX
#define MISSING (UINT32_MAX - 1)

/* The state of an extent. Larger values: STATE_FAULT + enum disk_fault. */
enum { STATE_EMPTY, STATE_GOOD, STATE_CHANGED, STATE_FAULT };

/* A record whose header is valid. */
struct entry {
    struct kv_key key, parent;
    uint64_t no;
    uint32_t extent, pos0, n_tokens, depth, flags, payload_crc;
    uint32_t next;   /* another key with the same short key; NONE */
    uint32_t newest; /* newest entry of this key; valid in the entry in the index */
    uint32_t up;     /* the previous block; NONE for the first; or MISSING */
    bool is_followed, has_start;
};

struct verify {
    struct disk_dir dir;
    struct disk_report *report;
    const struct disk_verify_watch *watch;
    uint8_t *states;       /* [n_extents] */
    struct entry *entries; /* [n], by extent number */
    uint32_t n, n_max;
    struct map by_key;    /* short key -> entry */
    uint8_t *piece;       /* [piece_bytes], page-aligned */
    uint64_t piece_bytes; /* whole pages */
    uint64_t n_done_bytes;
};

/* --- names --- */

const char *disk_fault_name(enum disk_fault f)
{
    static const char *const names[] = {"unreadable", "payload",    "torn",
                                        "foreign",    "impossible", "misnamed",
                                        "doubled",    "orphaned",   "erasing"};

    _Static_assert(ARRAY_SIZE(names) == DISK_N_FAULTS, "a name for each");
    ASSERT((unsigned)f < DISK_N_FAULTS);
    return names[f];
}

uint32_t disk_report_n_damaged(const struct disk_report *r)
{
    uint32_t n = 0;

    for (int f = 0; f < DISK_N_FAULTS; f++)
        n += disk_fault_is_harmless(f) ? 0 : r->n_by_fault[f];
    return n;
}

/* The version in a name like <64 hex digits>-v1; -1 for other names. */
static long version_in_name(const char *name)
{
    char *end;

    for (int i = 0; i < FINGERPRINT_DIGITS; i++)
        if (!isdigit((unsigned char)name[i]) && !(name[i] >= 'a' && name[i] <= 'f'))
            return -1;
    name += FINGERPRINT_DIGITS;
    if (name[0] != '-' || name[1] != 'v' || !isdigit((unsigned char)name[2]))
        return -1;
    errno = 0;
    long version = strtol(name + 2, &end, 10);
    return *end || errno ? -1 : version;
}

/* --- reading --- */

/* Read all n bytes. Buffer, n and offset are page-aligned, because the file may use O_DIRECT. */
static bool read_all(int fd, uint8_t *out, uint64_t n, uint64_t offset)
{
    for (uint64_t done = 0; done < n;) {
        ssize_t got = pread(fd, out + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        done += (uint64_t)got;
    }
    return true;
}

static const uint8_t *header_of(const struct verify *v, uint32_t extent)
{
    return v->dir.table + DISK_PAGE_BYTES + (size_t)extent * DISK_HEADER_BYTES;
}

/* Whether a running server has changed the header on the disk since the table was read. Overwrites
 * the piece. */
static bool has_changed(struct verify *v, uint32_t extent)
{
    uint64_t page = 1 + extent / DISK_HEADERS_PER_PAGE;
    size_t at = extent % DISK_HEADERS_PER_PAGE * DISK_HEADER_BYTES;

    return v->report->is_in_use &&
           read_all(v->dir.table_fd, v->piece, DISK_PAGE_BYTES, page * DISK_PAGE_BYTES) &&
           memcmp(v->piece + at, header_of(v, extent), DISK_HEADER_BYTES) != 0;
}

static void set_fault(struct verify *v, uint32_t extent, enum disk_fault fault)
{
    v->states[extent] = has_changed(v, extent) ? STATE_CHANGED : STATE_FAULT + fault;
}

/* --- headers --- */

static enum status add_entry(struct verify *v, const struct disk_record *r, uint32_t extent)
{
    if (v->n == v->n_max) {
        uint32_t n_max = v->n_max ? v->n_max * 2 : 1024;
        struct entry *entries = realloc(v->entries, n_max * sizeof *entries);
        if (!entries)
            return ERR_NOMEM;
        v->entries = entries;
        v->n_max = n_max;
    }
    v->entries[v->n++] = (struct entry){
        .key = r->key,
        .parent = r->parent,
        .no = r->no,
        .extent = extent,
        .pos0 = r->pos0,
        .n_tokens = r->n_tokens,
        .depth = r->depth,
        .flags = r->flags,
        .payload_crc = r->payload_crc,
        .next = NONE,
        .up = NONE,
    };
    return OK;
}

static enum status check_headers(struct verify *v)
{
    static const enum disk_fault faults[DISK_N_VERDICTS] = {
        [DISK_TORN] = DISK_FAULT_TORN,
        [DISK_FOREIGN] = DISK_FAULT_FOREIGN,
        [DISK_IMPOSSIBLE] = DISK_FAULT_IMPOSSIBLE,
        [DISK_MISNAMED] = DISK_FAULT_MISNAMED,
    };
    struct disk_reader reader;
    struct disk_record record;
    enum status s = OK;

    disk_reader_init(&reader, v->dir.super.fingerprint);
    for (uint32_t e = 0; s == OK && e < v->dir.super.n_extents; e++) {
        enum disk_verdict verdict = disk_header_decode(&reader, &record, header_of(v, e), e);
        if (verdict == DISK_VALID) {
            v->states[e] = STATE_GOOD;
            s = add_entry(v, &record, e);
        } else if (verdict != DISK_EMPTY) {
            bool erasing = memcmp(header_of(v, e), disk_erase_mark, DISK_HEADER_BYTES) == 0;
            set_fault(v, e, erasing ? DISK_FAULT_ERASING : faults[verdict]);
        }
    }
    return s;
}

/* --- keys and paths --- */

/* The entry in the index for this key, or NONE. */
static uint32_t find(const struct verify *v, const struct kv_key *key)
{
    uint32_t i;

    if (!map_get(&v->by_key, short_key(key), &i))
        return NONE;
    while (i != NONE && memcmp(&v->entries[i].key, key, sizeof *key) != 0)
        i = v->entries[i].next;
    return i;
}

static void enter(struct verify *v, uint32_t i)
{
    struct entry *e = &v->entries[i];
    uint32_t known = find(v, &e->key);

    if (known == NONE) {
        if (!map_get(&v->by_key, short_key(&e->key), &e->next))
            e->next = NONE;
        e->newest = i;
        map_put(&v->by_key, short_key(&e->key), i);
        return;
    }
    uint32_t *newest = &v->entries[known].newest, older = i;
    if (e->no > v->entries[*newest].no) {
        older = *newest;
        *newest = i;
    }
    set_fault(v, v->entries[older].extent, DISK_FAULT_DOUBLED);
}

/* Whether e can follow p: it begins where p ends and, unless it starts a segment, p is full and of
 * the same span. */
static bool follows(const struct entry *e, const struct entry *p)
{
    bool starts_segment = (e->flags & DISK_STARTS_SEGMENT) != 0;

    return e->pos0 == p->pos0 + p->n_tokens && e->depth >= p->depth &&
           (starts_segment || (p->n_tokens == KV_BLOCK_TOKENS && e->depth == p->depth));
}

/* The previous block of the path. Positions grow along a path, so paths have no cycles. */
static uint32_t find_up(const struct verify *v, const struct entry *e)
{
    if (e->pos0 == 0)
        return e->flags & DISK_STARTS_SEGMENT ? NONE : MISSING;
    uint32_t up = find(v, &e->parent);
    return up != NONE && follows(e, &v->entries[up]) ? up : MISSING;
}

/* Every entry is visited at most twice, however long the paths are. */
static void follow(struct verify *v, uint32_t i)
{
    uint32_t end = i;

    while (!v->entries[end].is_followed && v->entries[end].up < MISSING)
        end = v->entries[end].up;
    struct entry *last = &v->entries[end];
    bool has_start = last->is_followed ? last->has_start : last->up == NONE;
    for (uint32_t k = i;; k = v->entries[k].up) {
        v->entries[k].is_followed = true;
        v->entries[k].has_start = has_start;
        if (k == end)
            break;
    }
}

static enum status check_paths(struct verify *v)
{
    enum status s = map_init(&v->by_key, v->n);

    if (s != OK)
        return s;
    for (uint32_t i = 0; i < v->n; i++)
        enter(v, i);
    for (uint32_t i = 0; i < v->n; i++)
        v->entries[i].up = find_up(v, &v->entries[i]);
    for (uint32_t i = 0; i < v->n; i++) {
        uint32_t extent = v->entries[i].extent;
        follow(v, i);
        if (!v->entries[i].has_start && v->states[extent] == STATE_GOOD)
            set_fault(v, extent, DISK_FAULT_ORPHANED);
    }
    return OK;
}

/* --- payloads --- */

static void progress(struct verify *v, uint64_t n_extents)
{
    uint64_t extent_bytes = v->dir.super.extent_bytes;

    v->n_done_bytes += n_extents * extent_bytes;
    if (v->watch && v->watch->progress)
        v->watch->progress(v->watch->arg, v->n_done_bytes, v->n * extent_bytes);
}

/* Check one extent by itself, in pieces if it is large. */
static void check_payload(struct verify *v, const struct entry *e)
{
    const struct disk_super *super = &v->dir.super;
    uint64_t offset = e->extent * super->extent_bytes;
    uint32_t crc = 0;

    for (uint64_t at = 0; at < super->block_bytes; at += v->piece_bytes) {
        uint64_t n = super->block_bytes - at, n_read = super->extent_bytes - at;
        if (n_read > v->piece_bytes)
            n = n_read = v->piece_bytes;
        if (!read_all(v->dir.data_fd, v->piece, n_read, offset + at)) {
            set_fault(v, e->extent, DISK_FAULT_UNREADABLE);
            return;
        }
        crc = hash_crc32c(crc, v->piece, n);
    }
    if (crc != e->payload_crc)
        set_fault(v, e->extent, DISK_FAULT_PAYLOAD);
}

/* Check n entries whose extents are adjacent and fit into the piece. If one is wrong, each is
 * checked again by itself. */
static void check_run(struct verify *v, const struct entry *first, uint32_t n)
{
    const struct disk_super *super = &v->dir.super;
    bool is_fine = n > 1 && read_all(v->dir.data_fd, v->piece, n * super->extent_bytes,
                                     first->extent * super->extent_bytes);

    for (uint32_t i = 0; is_fine && i < n; i++)
        is_fine = hash_crc32c(0, v->piece + i * super->extent_bytes, super->block_bytes) ==
                  first[i].payload_crc;
    for (uint32_t i = 0; !is_fine && i < n; i++)
        check_payload(v, &first[i]);
}

static void check_payloads(struct verify *v)
{
    uint64_t n_at_once = v->piece_bytes / v->dir.super.extent_bytes;
    uint32_t n;

    for (uint32_t i = 0; i < v->n; i += n) {
        const struct entry *first = &v->entries[i];
        for (n = 1; n < n_at_once && i + n < v->n && first[n].extent == first->extent + n;)
            n++;
        check_run(v, first, n);
        progress(v, n);
    }
}

/* --- a directory --- */

/* Whether a server runs: it holds the lock. */
static bool is_locked(const char *dir)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof path, "%s/lock", dir) >= (int)sizeof path)
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd); /* a server that starts at this moment retries its lock */
    return locked;
}

static void count(struct verify *v)
{
    struct disk_report *r = v->report;

    for (uint32_t e = 0; e < r->super.n_extents; e++) {
        uint8_t state = v->states[e];
        r->n_empty += state == STATE_EMPTY;
        r->n_good += state == STATE_GOOD;
        r->n_changed += state == STATE_CHANGED;
        if (state < STATE_FAULT)
            continue;
        r->n_by_fault[state - STATE_FAULT]++;
        if (r->n_places < DISK_REPORT_PLACES_MAX)
            r->places[r->n_places++] = (struct disk_place){e, state - STATE_FAULT};
    }
    for (uint32_t i = 0; i < v->n; i++) {
        const struct entry *e = &v->entries[i];
        if (v->states[e->extent] != STATE_GOOD)
            continue;
        r->n_tokens += e->n_tokens;
        r->n_registered += (e->flags & DISK_REGISTERED) != 0;
    }
}

static uint64_t n_bytes_beyond(int fd, uint64_t n_bytes)
{
    struct stat st;

    return fstat(fd, &st) == 0 && (uint64_t)st.st_size > n_bytes ? (uint64_t)st.st_size - n_bytes
                                                                 : 0;
}

/* Count nonzero bytes behind the last header, in the last page of the table. Servers write zeros.
 */
static uint64_t count_stray_bytes(const struct verify *v)
{
    const struct disk_super *super = &v->dir.super;
    uint64_t n_table = disk_table_bytes(super->n_extents);
    uint64_t n = n_bytes_beyond(v->dir.table_fd, n_table) +
                 n_bytes_beyond(v->dir.data_fd, super->n_extents * super->extent_bytes);

    for (const uint8_t *p = header_of(v, super->n_extents); p < v->dir.table + n_table; p++)
        n += *p != 0;
    return n;
}

static enum status verify_open(struct verify *v)
{
    const struct disk_super *super = &v->dir.super;
    uint64_t data_bytes = super->n_extents * super->extent_bytes;
    enum status s;

    v->report->super = *super;
    v->report->n_file_bytes = disk_table_bytes(super->n_extents) + data_bytes;
    v->piece_bytes = data_bytes < PIECE_BYTES_MAX ? data_bytes : PIECE_BYTES_MAX;
    v->states = calloc(super->n_extents, 1);
    v->piece = aligned_alloc(DISK_PAGE_BYTES, v->piece_bytes);
    if (!v->states || !v->piece)
        return ERR_NOMEM;
    s = check_headers(v);
    if (s == OK)
        s = check_paths(v);
    if (s != OK)
        return s;
    check_payloads(v);
    count(v);
    v->report->n_stray_bytes = count_stray_bytes(v);
    return OK;
}

/* If the directory is named after a fingerprint, that must be the superblock's. */
static enum status check_name(const char *dir, const uint8_t *fingerprint, struct buf *why)
{
    char full[PATH_MAX], hex[FINGERPRINT_DIGITS + 1];
    const char *name = realpath(dir, full) ? strrchr(full, '/') + 1 : "";
    long version = version_in_name(name);

    if (version >= 0 && version != DISK_FORMAT_VERSION)
        return buf_why(why, ERR_UNSUPPORTED,
                       "%s: its name says format version %ld; this program "
                       "checks version %d",
                       dir, version, DISK_FORMAT_VERSION);
    if (version < 0 || !fingerprint)
        return OK;
    hash_hex(hex, fingerprint, KV_FINGERPRINT_BYTES);
    if (memcmp(hex, name, FINGERPRINT_DIGITS) == 0)
        return OK;
    return buf_why(why, ERR_CORRUPT,
                   "%s: its table is that of another model, with fingerprint %s; "
                   "were files exchanged?",
                   dir, hex);
}

/* Add the path to a message about the superblock. */
static enum status name_dir(enum status s, const char *dir, struct buf *why)
{
    char words[BUF_WHY_MAX];

    if (!why || strstr(buf_str(why), dir))
        return s;
    snprintf(words, sizeof words, "%s", buf_str(why));
    return buf_why(why, s, "%s: %s", dir, words);
}

enum status disk_verify(struct disk_report *out, const char *dir,
                        const struct disk_verify_watch *watch, struct buf *why)
{
    struct verify v = {.report = out, .watch = watch};
    enum status s;

    *out = (struct disk_report){.is_in_use = is_locked(dir)};
    s = check_name(dir, NULL, why); /* checked before a table of another version is read */
    if (s != OK)
        return s;
    s = disk_dir_open_to_read(&v.dir, dir, why);
    if (s != OK)
        return name_dir(s, dir, why);
    s = check_name(dir, v.dir.super.fingerprint, why);
    if (s == OK) {
        s = verify_open(&v);
        if (s == ERR_NOMEM)
            s = buf_why(why, s, "%s: out of memory", dir);
    }
    map_fini(&v.by_key);
    free(v.entries);
    free(v.states);
    free(v.piece);
    disk_dir_close(&v.dir);
    out->is_in_use = out->is_in_use || is_locked(dir);
    return s;
}

/* --- directories to check --- */

static enum status add_dir(struct disk_dirs *d, const char *path, const char *name)
{
    char **paths = realloc(d->paths, (d->n + 1) * sizeof *paths);

    if (!paths)
        return ERR_NOMEM;
    d->paths = paths;
    if (asprintf(&d->paths[d->n], "%s%s%s", path, name ? "/" : "", name ? name : "") < 0)
        return ERR_NOMEM;
    d->n++;
    return OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_in(DIR *d, const char *name, mode_t type)
{
    struct stat st;

    return fstatat(dirfd(d), name, &st, AT_SYMLINK_NOFOLLOW) == 0 && (st.st_mode & S_IFMT) == type;
}

static enum status add_all(struct disk_dirs *out, DIR *d, const char *path)
{
    enum status s = OK;

    if (is_in(d, "table", S_IFREG))
        return add_dir(out, path, NULL);
    for (const struct dirent *e = readdir(d); s == OK && e; e = readdir(d))
        if (version_in_name(e->d_name) >= 0 && is_in(d, e->d_name, S_IFDIR))
            s = add_dir(out, path, e->d_name);
    if (out->n > 0)
        qsort(out->paths, out->n, sizeof *out->paths, by_name);
    return s;
}

enum status disk_dirs_find(struct disk_dirs *out, const char *path, struct buf *why)
{
    enum status s;
    DIR *d = opendir(path);

    *out = (struct disk_dirs){.n = 0};
    if (!d)
        return buf_why(why, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "cannot read %s: %s", path,
                       strerror(errno));
    s = add_all(out, d, path);
    closedir(d);
    if (s != OK) {
        disk_dirs_fini(out);
        return buf_why(why, s, "%s: out of memory", path);
    }
    if (out->n == 0)
        return buf_why(why, ERR_NOT_FOUND,
                       "%s: neither a table nor a directory of Tarn's disk tier is in it; give the "
                       "directory in which a server keeps its disk tier",
                       path);
    return OK;
}

void disk_dirs_fini(struct disk_dirs *d)
{
    for (uint32_t i = 0; i < d->n; i++)
        free(d->paths[i]);
    free(d->paths);
    *d = (struct disk_dirs){.n = 0};
}
