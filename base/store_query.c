/* store_query.c - connections lent to threads, transactions, statements. */
#include "base/store_inner.h"

#include "base/check.h"

/* --- connections --- */

static void enter_writer(struct store *st)
{
    unsigned me = check_thread_id();

    if (atomic_load(&st->writer_thread) != me) {
        pthread_mutex_lock(&st->write_lock);
        atomic_store(&st->writer_thread, me);
    }
    st->writer_depth++;
}

static void leave_writer(struct store *st)
{
    ASSERT(atomic_load(&st->writer_thread) == check_thread_id() && st->writer_depth > 0);
    if (--st->writer_depth == 0) {
        atomic_store(&st->writer_thread, 0);
        pthread_mutex_unlock(&st->write_lock);
    }
}

struct store_link *store_reader(struct store *st)
{
    struct store_link *link;

    if (!st->file || atomic_load(&st->writer_thread) == check_thread_id()) {
        enter_writer(st);
        return &st->writer;
    }
    pthread_mutex_lock(&st->pool_lock);
    while (st->n_free == 0)
        pthread_cond_wait(&st->pool_free, &st->pool_lock);
    link = st->free_readers[--st->n_free];
    pthread_mutex_unlock(&st->pool_lock);
    return link;
}

void store_put_back(struct store *st, struct store_link *link)
{
    if (link == &st->writer) {
        leave_writer(st);
        return;
    }
    pthread_mutex_lock(&st->pool_lock);
    st->free_readers[st->n_free++] = link;
    pthread_cond_signal(&st->pool_free);
    pthread_mutex_unlock(&st->pool_lock);
}

/* --- transactions --- */

static enum status transaction(struct store *st, const char *sql, struct buf *why)
{
    int code = sqlite3_exec(st->writer.db, sql, NULL, NULL, NULL);

    return code == SQLITE_OK ? OK : store_error(st, st->writer.db, code, why);
}

/* SQLite rolls a transaction back by itself after some errors. Later changes of the group would
 * then be kept without the earlier ones. */
static enum status check_not_lost(struct store *st, struct buf *why)
{
    if (!sqlite3_get_autocommit(st->writer.db))
        return OK;
    return buf_why(why, ERR_IO,
                   "%s: an earlier error ended this group of changes; nothing of it was kept",
                   st->file ? st->file : "in memory");
}

enum status store_begin(struct store *st, struct store_link **link, struct buf *why)
{
    enum status s;

    enter_writer(st);
    if (st->n_transactions == 0)
        s = transaction(st, "BEGIN IMMEDIATE", why);
    else if ((s = check_not_lost(st, why)) == OK)
        s = transaction(st, "SAVEPOINT part", why);
    if (s != OK) {
        leave_writer(st);
        return s;
    }
    st->n_transactions++;
    *link = &st->writer;
    return OK;
}

void store_rollback(struct store *st)
{
    ASSERT(st->n_transactions > 0);
    if (sqlite3_get_autocommit(st->writer.db) == 0)
        sqlite3_exec(st->writer.db,
                     st->n_transactions == 1 ? "ROLLBACK" : "ROLLBACK TO part; RELEASE part", NULL,
                     NULL, NULL);
    st->n_transactions--;
    leave_writer(st);
}

enum status store_commit(struct store *st, struct buf *why)
{
    ASSERT(st->n_transactions > 0);
    enum status s = check_not_lost(st, why);

    if (s == OK)
        s = transaction(st, st->n_transactions == 1 ? "COMMIT" : "RELEASE part", why);
    if (s != OK) {
        store_rollback(st);
        return s;
    }
    st->n_transactions--;
    leave_writer(st);
    return OK;
}

/* --- statements --- */

static int bind(sqlite3_stmt *q, int i, const struct store_value *v)
{
    switch (v->kind) {
    case STORE_NULL: return sqlite3_bind_null(q, i);
    case STORE_INT: return sqlite3_bind_int64(q, i, v->i);
    case STORE_TEXT: return sqlite3_bind_text64(q, i, v->p, v->len, SQLITE_STATIC, SQLITE_UTF8);
    case STORE_BLOB: return sqlite3_bind_blob64(q, i, v->p, v->len, SQLITE_STATIC);
    case STORE_FITS: return sqlite3_bind_pointer(q, i, (void *)v->p, "store_fits", NULL);
    case STORE_BM25: return sqlite3_bind_pointer(q, i, (void *)v->p, "store_bm25", NULL);
    }
    return SQLITE_MISUSE;
}

enum status store_query(struct store_rows *r, struct store_link *link, unsigned statement,
                        const struct store_value *values, size_t n, struct buf *why)
{
    struct store *st = link->store;
    sqlite3_stmt **kept = &link->statements[statement], *q = *kept;
    int code = SQLITE_OK;

    ASSERT(statement < st->n_statements);
    *r = (struct store_rows){.link = link};
    r->is_temporary = q && sqlite3_stmt_busy(q); /* the same statement runs further out */
    if (!q || r->is_temporary) {
        code = sqlite3_prepare_v3(link->db, st->statements[statement], -1,
                                  r->is_temporary ? 0 : SQLITE_PREPARE_PERSISTENT, &q, NULL);
        if (code != SQLITE_OK)
            return store_error(st, link->db, code, why);
        if (!r->is_temporary)
            *kept = q;
    }
    r->statement = q;
    for (size_t i = 0; i < n && code == SQLITE_OK; i++)
        code = bind(q, (int)i + 1, &values[i]);
    if (code == SQLITE_OK)
        return OK;
    enum status s = store_error(st, link->db, code, why);
    store_end(r);
    return s;
}

enum status store_next(struct store_rows *r, bool *has_row, struct buf *why)
{
    int code = sqlite3_step(r->statement);

    *has_row = code == SQLITE_ROW;
    if (code == SQLITE_ROW || code == SQLITE_DONE)
        return OK;
    return store_error(r->link->store, r->link->db, code, why);
}

void store_end(struct store_rows *r)
{
    if (!r->statement)
        return;
    sqlite3_reset(r->statement);
    sqlite3_clear_bindings(r->statement); /* they point into memory of the caller */
    if (r->is_temporary)
        sqlite3_finalize(r->statement);
    r->statement = NULL;
}

int64_t store_get_int(const struct store_rows *r, int column)
{
    return sqlite3_column_int64(r->statement, column);
}

double store_get_real(const struct store_rows *r, int column)
{
    return sqlite3_column_double(r->statement, column);
}

const void *store_get_bytes(const struct store_rows *r, int column, size_t *len)
{
    const void *p = sqlite3_column_blob(r->statement, column);

    *len = (size_t)sqlite3_column_bytes(r->statement, column);
    return p ? p : "";
}

enum status store_run_int(struct store_link *link, unsigned statement,
                          const struct store_value *values, size_t n, int64_t *out, struct buf *why)
{
    struct store_rows r;
    bool has_row = true, is_first = true;
    enum status s = store_query(&r, link, statement, values, n, why);

    if (s != OK)
        return s;
    while ((s = store_next(&r, &has_row, why)) == OK && has_row) {
        if (is_first && out)
            *out = store_get_int(&r, 0);
        is_first = false;
    }
    store_end(&r);
    return s;
}

enum status store_run(struct store_link *link, unsigned statement, const struct store_value *values,
                      size_t n, struct buf *why)
{
    return store_run_int(link, statement, values, n, NULL, why);
}

uint64_t store_n_changed(const struct store_link *link)
{
    return (uint64_t)sqlite3_changes64(link->db);
}
