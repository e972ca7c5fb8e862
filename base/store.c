#include "base/store_inner.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"

#define PAGE_BYTES 8192         /* documents of some KB: few overflow pages, little waste */
#define READER_CACHE_KB 8192    /* SQLite's page cache of one reading connection */
#define WRITER_CACHE_KB 16384   /* an import changes pages all over the word index */
#define CHECKPOINT_PAGES 2000   /* of the write-ahead log, about 16 MB */
#define LOG_BYTES_KEPT 67108864 /* a longer write-ahead log is cut after a checkpoint */
#define BUSY_WAIT_MS 5000       /* only programs that are not Tarn hold SQLite's own locks */

enum status store_error(const struct store *st, sqlite3 *db, int code, struct buf *why)
{
    const char *file = st->file ? st->file : "in memory";
    const char *words = db ? sqlite3_errmsg(db) : sqlite3_errstr(code);

    switch (code & 0xff) {
    case SQLITE_NOMEM: return buf_why(why, ERR_NOMEM, "%s: out of memory", file);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return buf_why(why, ERR_BUSY, "%s: another program has locked the file; end that program",
                       file);
    case SQLITE_FULL:
        return buf_why(why, ERR_FULL,
                       "%s: the disk is full, or the file has reached its maximum; the change was "
                       "not kept. Make room and try again",
                       file);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return buf_why(why, ERR_CORRUPT,
                       "%s is damaged or not a database (%s). Restore it from a copy, or move it "
                       "away together with its -wal file and register %s again",
                       file, words, st->noun);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
        return buf_why(why, ERR_IO, "%s cannot be written (%s): check its owner and permissions",
                       file, words);
    case SQLITE_TOOBIG: return buf_why(why, ERR_TOO_LARGE, "%s: a value is too large", file);
    case SQLITE_CANTOPEN:
    case SQLITE_IOERR:
        return buf_why(why, ERR_IO, "%s: %s (system error %d)", file, words,
                       db ? sqlite3_system_errno(db) : 0);
    default: return buf_why(why, ERR_INTERNAL, "%s: %s (SQLite error %d)", file, words, code);
    }
}

static enum status run_sql(struct store_link *link, const char *sql, struct buf *why)
{
    int code = sqlite3_exec(link->db, sql, NULL, NULL, NULL);

    return code == SQLITE_OK ? OK : store_error(link->store, link->db, code, why);
}

static enum status pragma_int(struct store_link *link, const char *sql, int64_t *out,
                              struct buf *why)
{
    sqlite3_stmt *s = NULL;
    int code = sqlite3_prepare_v2(link->db, sql, -1, &s, NULL);

    if (code == SQLITE_OK)
        code = sqlite3_step(s);
    if (code == SQLITE_ROW)
        *out = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return code == SQLITE_ROW || code == SQLITE_DONE
               ? OK
               : store_error(link->store, link->db, code, why);
}

/* --- the file and its lock --- */

static enum status lock_file(struct store *st, struct buf *why)
{
    char path[PATH_MAX], text[32] = "";
    int n;

    if (snprintf(path, sizeof path, "%s.lock", st->file) >= (int)sizeof path)
        return buf_why(why, ERR_INVALID, "%s: the path is too long", st->file);
    st->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (st->lock_fd < 0)
        return buf_why(why, ERR_IO, "%s: %s", path, strerror(errno));
    if (flock(st->lock_fd, LOCK_EX | LOCK_NB) == 0) {
        n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
        /* The number is only for the message below: a full disk must not keep the file closed. */
        if (ftruncate(st->lock_fd, 0) != 0 || pwrite(st->lock_fd, text, (size_t)n, 0) != n)
            errno = 0;
        return OK;
    }
    if (errno != EWOULDBLOCK)
        return buf_why(why, ERR_IO, "%s: cannot lock: %s", path, strerror(errno));
    if (pread(st->lock_fd, text, sizeof text - 1, 0) < 0)
        text[0] = '\0';
    return buf_why(why, ERR_BUSY,
                   "%s is in use by another process (number %ld); one process at a "
                   "time may have it",
                   st->file, strtol(text, NULL, 10));
}

/* SQLite would create the file with the permissions of the umask. */
static enum status make_file(const struct store *st, struct buf *why)
{
    struct stat about;
    int fd;

    if (stat(st->file, &about) == 0)
        return S_ISREG(about.st_mode) ? OK
                                      : buf_why(why, ERR_IO, "%s is not a regular file", st->file);
    fd = open(st->file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return buf_why(why, ERR_IO, "%s: %s", st->file, strerror(errno));
    close(fd);
    return OK;
}

uint64_t store_file_bytes(const struct store *st)
{
    char log[PATH_MAX];
    struct stat about;
    uint64_t n = 0;

    if (!st->file)
        return 0;
    if (stat(st->file, &about) == 0)
        n += (uint64_t)about.st_size;
    if (snprintf(log, sizeof log, "%s-wal", st->file) < (int)sizeof log && stat(log, &about) == 0)
        n += (uint64_t)about.st_size;
    return n;
}

/* --- connections --- */

static enum status link_open(struct store *st, struct store_link *link, uint32_t cache_kb,
                             struct buf *why)
{
    char sql[256];
    /* NOMUTEX: a connection is used by one thread at a time. */
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (st->file ? 0 : SQLITE_OPEN_MEMORY);
    int code = sqlite3_open_v2(st->file ? st->file : ":memory:", &link->db, flags, NULL);

    link->store = st;
    if (code != SQLITE_OK)
        return store_error(st, link->db, code, why);
    link->statements = calloc(st->n_statements + 1, sizeof(link->statements[0]));
    if (!link->statements)
        return buf_why(why, ERR_NOMEM, "out of memory");
    sqlite3_extended_result_codes(link->db, 1);
    sqlite3_busy_timeout(link->db, BUSY_WAIT_MS);
    /* A file may come from anywhere: its schema must not make SQLite call functions or write to
     * inner tables. */
    sqlite3_db_config(link->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(link->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    snprintf(sql, sizeof sql,
             "PRAGMA cell_size_check = ON; PRAGMA cache_size = -%u; PRAGMA temp_store = MEMORY",
             cache_kb);
    enum status s = run_sql(link, sql, why);
    return s == OK ? store_add_functions(link, why) : s;
}

static void link_close(struct store_link *link)
{
    for (uint32_t i = 0; link->statements && i < link->store->n_statements; i++)
        sqlite3_finalize(link->statements[i]);
    free(link->statements);
    if (link->db) {
        store_drop_functions(link);
        ASSERT(sqlite3_close(link->db) == SQLITE_OK); /* every statement was ended */
    }
}

/* --- the schema --- */

static enum status check_header(const struct store *st, const struct store_config *config,
                                int64_t application, int64_t version, bool is_empty,
                                struct buf *why)
{
    if (is_empty)
        return OK;
    if ((uint32_t)application != config->application_id)
        return buf_why(why, ERR_CORRUPT,
                       "%s is a database of another program (application id %lld): it does not "
                       "hold %s. Choose another file or move it away",
                       st->file, (long long)application, st->noun);
    if (version < 1 || version > config->n_migrations)
        return buf_why(why, ERR_UNSUPPORTED,
                       "%s was written by another version of Tarn (schema %lld; this version "
                       "knows 1 to %u): use that version, or move the file away",
                       st->file, (long long)version, config->n_migrations);
    return OK;
}

static enum status migrate(struct store *st, const struct store_config *config, uint32_t version,
                           struct buf *why)
{
    char sql[128];
    enum status s = OK;

    for (; s == OK && version < config->n_migrations; version++) {
        snprintf(sql, sizeof sql, "PRAGMA application_id = %u; PRAGMA user_version = %u",
                 config->application_id, version + 1);
        if ((s = run_sql(&st->writer, "BEGIN IMMEDIATE", why)) == OK &&
            (s = run_sql(&st->writer, config->migrations[version], why)) == OK &&
            (s = run_sql(&st->writer, sql, why)) == OK)
            s = run_sql(&st->writer, "COMMIT", why);
        if (s != OK && !sqlite3_get_autocommit(st->writer.db))
            sqlite3_exec(st->writer.db, "ROLLBACK", NULL, NULL, NULL);
    }
    return s;
}

static enum status use_wal(struct store *st, struct buf *why)
{
    sqlite3_stmt *q = NULL;
    int code = sqlite3_prepare_v2(st->writer.db, "PRAGMA journal_mode = WAL", -1, &q, NULL);
    bool is_wal = false;
    char sql[160];

    if (code == SQLITE_OK && (code = sqlite3_step(q)) == SQLITE_ROW)
        is_wal = strcmp((const char *)sqlite3_column_text(q, 0), "wal") == 0;
    sqlite3_finalize(q);
    if (code != SQLITE_ROW)
        return store_error(st, st->writer.db, code, why);
    if (!is_wal)
        return buf_why(why, ERR_IO,
                       "%s: the file system does not support SQLite's write-ahead log; use a local "
                       "folder",
                       st->file);
    snprintf(sql, sizeof sql,
             "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = %d; "
             "PRAGMA journal_size_limit = %d",
             CHECKPOINT_PAGES, LOG_BYTES_KEPT);
    return run_sql(&st->writer, sql, why);
}

static enum status limit_size(struct store *st, uint64_t max_bytes, struct buf *why)
{
    char sql[96];
    int64_t page_bytes = PAGE_BYTES;
    enum status s = pragma_int(&st->writer, "PRAGMA page_size", &page_bytes, why);

    if (s != OK || max_bytes == 0)
        return s;
    snprintf(sql, sizeof sql, "PRAGMA max_page_count = %llu",
             (unsigned long long)(max_bytes / (uint64_t)page_bytes + 1));
    return run_sql(&st->writer, sql, why);
}

static enum status open_writer(struct store *st, const struct store_config *config, struct buf *why)
{
    int64_t application = 0, version = 0, n_pages = 0;
    enum status s = link_open(st, &st->writer, WRITER_CACHE_KB, why);
    char sql[128];

    if (s == OK)
        s = pragma_int(&st->writer, "PRAGMA application_id", &application, why);
    if (s == OK)
        s = pragma_int(&st->writer, "PRAGMA user_version", &version, why);
    if (s == OK)
        s = pragma_int(&st->writer, "PRAGMA page_count", &n_pages, why);
    /* A process that ended while it made the file leaves pages without a schema. */
    bool is_empty = n_pages == 0 || (application == 0 && version == 0);
    if (s == OK && is_empty && n_pages > 0) {
        int64_t n = 0;
        s = pragma_int(&st->writer, "SELECT count(*) FROM sqlite_schema", &n, why);
        is_empty = n == 0;
    }
    if (s == OK)
        s = check_header(st, config, application, version, is_empty, why);
    if (s == OK && is_empty) { /* must precede the first table and WAL */
        snprintf(sql, sizeof sql, "PRAGMA page_size = %d; PRAGMA auto_vacuum = NONE", PAGE_BYTES);
        s = run_sql(&st->writer, sql, why);
    }
    if (s == OK)
        s = run_sql(&st->writer, "PRAGMA secure_delete = ON", why);
    if (s == OK && st->file)
        s = use_wal(st, why);
    /* A file at its bound is brought up to date too, even if the new version needs more. */
    if (s == OK)
        s = migrate(st, config, (uint32_t)version, why);
    return s == OK ? limit_size(st, config->max_bytes, why) : s;
}

static enum status open_readers(struct store *st, const struct store_config *config,
                                struct buf *why)
{
    enum status s = OK;

    if (!st->file)
        return OK;
    st->readers = calloc(config->n_readers, sizeof(st->readers[0]));
    st->free_readers = calloc(config->n_readers, sizeof(st->free_readers[0]));
    if (!st->readers || !st->free_readers)
        return buf_why(why, ERR_NOMEM, "out of memory");
    for (; s == OK && st->n_readers < config->n_readers; st->n_readers++) {
        struct store_link *link = &st->readers[st->n_readers];

        s = link_open(st, link, READER_CACHE_KB, why);
        if (s == OK)
            s = run_sql(link, "PRAGMA query_only = ON", why);
        st->free_readers[st->n_free++] = link;
    }
    return s;
}

static enum status open_all(struct store *st, const struct store_config *config, struct buf *why)
{
    enum status s = OK;

    st->noun = strdup(config->noun);
    st->file = config->file ? strdup(config->file) : NULL;
    if (!st->noun || (config->file && !st->file))
        return buf_why(why, ERR_NOMEM, "out of memory");
    if (st->file)
        s = lock_file(st, why);
    if (s == OK && st->file)
        s = make_file(st, why);
    if (s == OK)
        s = open_writer(st, config, why);
    return s == OK ? open_readers(st, config, why) : s;
}

enum status store_open(struct store **out, const struct store_config *config, struct buf *why)
{
    struct store *st = calloc(1, sizeof *st);

    *out = NULL;
    ASSERT(config->n_readers > 0 && config->n_migrations > 0);
    if (!st)
        return buf_why(why, ERR_NOMEM, "out of memory");
    st->lock_fd = -1;
    st->statements = config->statements;
    st->n_statements = config->n_statements;
    pthread_mutex_init(&st->write_lock, NULL);
    pthread_mutex_init(&st->pool_lock, NULL);
    pthread_cond_init(&st->pool_free, NULL);
    enum status s = open_all(st, config, why);
    if (s != OK) {
        store_close(st);
        return s;
    }
    *out = st;
    return OK;
}

void store_close(struct store *st)
{
    if (!st)
        return;
    ASSERT(st->n_free == st->n_readers);
    while (st->n_transactions > 0)
        store_rollback(st);
    for (uint32_t i = 0; i < st->n_readers; i++)
        link_close(&st->readers[i]);
    link_close(&st->writer);
    if (st->lock_fd >= 0)
        close(st->lock_fd);
    free(st->readers);
    free(st->free_readers);
    free(st->file);
    free(st->noun);
    pthread_cond_destroy(&st->pool_free);
    pthread_mutex_destroy(&st->pool_lock);
    pthread_mutex_destroy(&st->write_lock);
    free(st);
}

enum status store_verify(struct store *st, struct buf *why)
{
    struct store_link *link = store_reader(st);
    sqlite3_stmt *q = NULL;
    int code = sqlite3_prepare_v2(link->db, "PRAGMA integrity_check(1)", -1, &q, NULL);
    enum status s = OK;

    if (code == SQLITE_OK)
        code = sqlite3_step(q);
    if (code != SQLITE_ROW)
        s = store_error(st, link->db, code, why);
    else if (strcmp((const char *)sqlite3_column_text(q, 0), "ok") != 0)
        s = buf_why(why, ERR_CORRUPT, "%s: %s", st->file ? st->file : "in memory",
                    (const char *)sqlite3_column_text(q, 0));
    sqlite3_finalize(q);
    store_put_back(st, link);
    return s;
}
