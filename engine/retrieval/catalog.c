/* catalog.c - the catalog's file: its schema, its statements, tenants. */
#include "engine/retrieval/catalog_inner.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/utf8.h"

#define APPLICATION_ID 0x5461726e /* "Tarn" */
#define N_READERS 4

/* The text and the vector of a document have tables of their own, so that lists and filters read
 * little. The word index keeps no copy of the text (content=''): a deletion must give it the words
 * again. */
static const char *const migrations[] = {
    "CREATE TABLE tenants (no INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,"
    " n_rows INTEGER NOT NULL DEFAULT 0, n_documents INTEGER NOT NULL DEFAULT 0,"
    " n_words INTEGER NOT NULL DEFAULT 0, n_changes INTEGER NOT NULL DEFAULT 0);"
    "INSERT INTO tenants (no, name) VALUES (0, '');"

    "CREATE TABLE documents (row INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, id TEXT NOT NULL,"
    " title TEXT NOT NULL, metadata TEXT NOT NULL, is_pinned INTEGER NOT NULL,"
    " prefill INTEGER NOT NULL, version INTEGER NOT NULL, created_s INTEGER NOT NULL,"
    " updated_s INTEGER NOT NULL, expires_s INTEGER NOT NULL, n_uses INTEGER NOT NULL DEFAULT 0,"
    " n_words INTEGER NOT NULL, UNIQUE (tenant, id));"
    "CREATE INDEX documents_expiry ON documents (expires_s) WHERE expires_s > 0;"
    "CREATE INDEX documents_pinned ON documents (tenant) WHERE is_pinned;"
    "CREATE TABLE texts (row INTEGER PRIMARY KEY, text TEXT NOT NULL);"
    "CREATE TABLE embeddings (row INTEGER PRIMARY KEY, vector BLOB NOT NULL);"
    "CREATE VIRTUAL TABLE words USING fts5 (title, text, content='',"
    " tokenize='unicode61 remove_diacritics 2');"

    "CREATE TABLE preambles (row INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, id TEXT NOT NULL,"
    " body TEXT NOT NULL, version INTEGER NOT NULL, created_s INTEGER NOT NULL,"
    " updated_s INTEGER NOT NULL, UNIQUE (tenant, id));"

    "CREATE TABLE paths (row INTEGER NOT NULL, key BLOB NOT NULL, version INTEGER NOT NULL,"
    " place INTEGER NOT NULL, n_tokens INTEGER NOT NULL, preamble TEXT NOT NULL,"
    " used_s INTEGER NOT NULL, PRIMARY KEY (row, key)) WITHOUT ROWID;"
    "CREATE INDEX paths_key ON paths (key);"
    /* Paths whose document is gone or has a newer version. */
    "CREATE TABLE orphans (key BLOB PRIMARY KEY, version INTEGER NOT NULL, place INTEGER NOT NULL,"
    " n_tokens INTEGER NOT NULL, preamble TEXT NOT NULL, used_s INTEGER NOT NULL) WITHOUT ROWID;",

    /* One row for each record (catalog_records.h); deleted_s 0: it is no deletion. The stamps of
     * what is there are added by catalog_stamp_all(): SQL cannot compute the names. */
    "CREATE TABLE stamps (name BLOB PRIMARY KEY, counter INTEGER NOT NULL,"
    " writer INTEGER NOT NULL, deleted_s INTEGER NOT NULL, kind INTEGER NOT NULL,"
    " row INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX stamps_counter ON stamps (counter);"
    "CREATE INDEX stamps_deleted ON stamps (deleted_s) WHERE deleted_s > 0;"
    "CREATE TABLE counters (counter INTEGER NOT NULL, key_tag INTEGER NOT NULL,"
    " is_stamped INTEGER NOT NULL);"
    "INSERT INTO counters VALUES (0, 0, 0);"
    "CREATE TABLE digests (bucket INTEGER PRIMARY KEY, digest INTEGER NOT NULL);"
    "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 255)"
    " INSERT INTO digests SELECT i, 0 FROM n;",

    /* Words of Chinese, Japanese and Thai: the tokenizer is another one, so all words are indexed
     * again. */
    "DROP TABLE words;"
    "CREATE VIRTUAL TABLE words USING fts5 (title, text, content='',"
    " tokenize='" STORE_TOKENIZER "');"
    "INSERT INTO words (rowid, title, text)"
    " SELECT d.row, d.title, t.text FROM documents d JOIN texts t ON t.row = d.row;"
    "UPDATE documents SET n_words = n_words(title) + n_words((SELECT text FROM texts t"
    " WHERE t.row = documents.row));"
    "UPDATE tenants SET n_changes = n_changes + 1, n_words ="
    " (SELECT coalesce(sum(d.n_words), 0) FROM documents d WHERE d.tenant = no);",
};

#define COLUMNS                                                                                    \
    "d.row, (SELECT name FROM tenants WHERE no = d.tenant), d.id, d.title, d.metadata,"            \
    " d.is_pinned, d.prefill, d.version, d.created_s, d.updated_s, d.expires_s, d.n_uses"
#define ALL_COLUMNS                                                                                \
    COLUMNS ", (SELECT text FROM texts t WHERE t.row = d.row),"                                    \
            " (SELECT vector FROM embeddings e WHERE e.row = d.row)"
#define IS_ALIVE(d, now) "(" d ".expires_s = 0 OR " d ".expires_s > " now ")"
/* No document of this tenant hides the public document d. */
#define NOT_HIDDEN(tenant, now)                                                                    \
    "NOT EXISTS (SELECT 1 FROM documents o WHERE o.tenant = " tenant                               \
    " AND o.id = d.id AND " IS_ALIVE("o", now) ")"
#define OLD_COLUMNS                                                                                \
    "SELECT d.row, d.version, d.n_words, d.created_s, d.expires_s, d.title, t.text,"               \
    " (SELECT name FROM tenants WHERE no = d.tenant), d.id FROM documents d JOIN texts t ON "      \
    "t.row = d.row WHERE "
#define PREAMBLE_COLUMNS                                                                           \
    "SELECT (SELECT name FROM tenants WHERE no = p.tenant), p.id, p.body, p.version,"              \
    " p.created_s, p.updated_s FROM preambles p "
#define STAMP_COLUMNS "SELECT name, counter, writer, deleted_s FROM stamps "
#define PATH_COLUMNS "SELECT key, version, place, n_tokens, preamble, used_s FROM "

static const char *const statements[N_STATEMENTS] = {
    [FIND_TENANT] = "SELECT no FROM tenants WHERE name = ?1",
    [ADD_TENANT] = "INSERT INTO tenants (name) VALUES (?1) RETURNING no",
    [NEXT_ROW] = "UPDATE tenants SET n_rows = n_rows + 1 WHERE no = ?1"
                 " RETURNING (no << 32) | n_rows",
    [ADD_COUNTS] = "UPDATE tenants SET n_documents = n_documents + ?2, n_words = n_words + ?3,"
                   " n_changes = n_changes + 1 WHERE no = ?1",
    [RANGE_COUNTS] = "SELECT n_documents, n_words, n_changes FROM tenants WHERE no = ?1",

    [FIND_OWN] = OLD_COLUMNS "d.tenant = ?1 AND d.id = ?2",
    [FIND_ROW] = OLD_COLUMNS "d.row = ?1",
    [ADD_DOCUMENT] =
        "INSERT INTO documents (row, tenant, id, title, metadata, is_pinned, prefill, version,"
        " created_s, updated_s, expires_s, n_words)"
        " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    [CHANGE_DOCUMENT] =
        "UPDATE documents SET tenant = ?2, id = ?3, title = ?4, metadata = ?5, is_pinned = ?6,"
        " prefill = ?7, version = ?8, created_s = ?9, updated_s = ?10, expires_s = ?11,"
        " n_words = ?12 WHERE row = ?1",
    [DROP_DOCUMENT] = "DELETE FROM documents WHERE row = ?1",
    [PUT_TEXT] = "INSERT OR REPLACE INTO texts (row, text) VALUES (?1, ?2)",
    [DROP_TEXT] = "DELETE FROM texts WHERE row = ?1",
    [PUT_EMBEDDING] = "INSERT OR REPLACE INTO embeddings (row, vector) VALUES (?1, ?2)",
    [DROP_EMBEDDING] = "DELETE FROM embeddings WHERE row = ?1",
    [ADD_WORDS] = "INSERT INTO words (rowid, title, text) VALUES (?1, ?2, ?3)",
    [DROP_WORDS] = "INSERT INTO words (words, rowid, title, text) VALUES ('delete', ?1, ?2, ?3)",
    [SET_PIN] = "UPDATE documents SET is_pinned = ?2 WHERE row = ?1",
    [SET_EXPIRY] = "UPDATE documents SET expires_s = ?2 WHERE row = ?1",
    [ADD_USES] = "UPDATE documents SET n_uses = n_uses + ?2 WHERE row = ?1",
    [LIST_EXPIRED] = "SELECT row FROM documents WHERE expires_s > 0 AND expires_s <= ?1"
                     " ORDER BY expires_s, row LIMIT ?2",
    [GET_VISIBLE] = "SELECT " ALL_COLUMNS " FROM documents d WHERE d.tenant IN (?1, 0) AND"
                    " d.id = ?2 AND " IS_ALIVE("d", "?3") " ORDER BY d.tenant DESC LIMIT 1",
    [GET_ROW] = "SELECT " ALL_COLUMNS " FROM documents d WHERE d.row = ?1 AND " IS_ALIVE("d", "?2"),
    /* Both halves follow the index (tenant, id), so that SQLite merges them without a sort. */
    [LIST_DOCUMENTS] =
        "SELECT " COLUMNS " FROM documents d WHERE d.tenant = ?1 AND d.id > ?2"
        " AND " IS_ALIVE("d", "?3") " AND fits(?4, d.metadata)"
                                    " UNION ALL "
                                    "SELECT " COLUMNS
                                    " FROM documents d WHERE d.tenant = 0 AND ?1 <> 0"
                                    " AND d.id > ?2 AND " IS_ALIVE("d", "?3") " AND " NOT_HIDDEN(
                                        "?1", "?3") " AND fits(?4, d.metadata) ORDER BY 3 LIMIT ?5",
    [EACH_EMBEDDING] = "SELECT e.row, e.vector FROM embeddings e JOIN documents d ON d.row = e.row"
                       " WHERE e.row BETWEEN ?1 << 32 AND (?1 << 32) + 4294967295"
                       " AND " IS_ALIVE("d", "?2"),
    [EACH_PREFILL] = "SELECT row FROM documents d WHERE (is_pinned OR prefill > 0)"
                     " AND " IS_ALIVE("d", "?1") " ORDER BY row",
    [NAME_TENANT] = "SELECT name FROM tenants WHERE no = ?1 >> 32",
    [ROW_FITS] = "SELECT 1 FROM documents d WHERE d.row = ?1 AND " IS_ALIVE(
        "d", "?2") " AND (d.tenant = ?4 OR " NOT_HIDDEN("?4", "?2") ")"
                                                                    " AND fits(?3, d.metadata)",

    [COUNT_DOCUMENTS] = "SELECT coalesce(sum(n_documents), 0) FROM tenants"
                        " WHERE ?1 IS NULL OR no = ?1",
    [COUNT_PINNED] = "SELECT count(*) FROM documents WHERE is_pinned AND (?1 IS NULL OR"
                     " tenant = ?1)",
    [COUNT_PREAMBLES] = "SELECT count(*) FROM preambles WHERE ?1 IS NULL OR tenant = ?1",

    [FIND_PREAMBLE] = "SELECT row, version, created_s, body = ?3 FROM preambles"
                      " WHERE tenant = ?1 AND id = ?2",
    [ADD_PREAMBLE] = "INSERT INTO preambles (tenant, id, body, version, created_s, updated_s)"
                     " VALUES (?1, ?2, ?3, ?4, ?5, ?6) RETURNING row",
    [CHANGE_PREAMBLE] = "UPDATE preambles SET body = ?2, version = ?3, created_s = ?4,"
                        " updated_s = ?5 WHERE row = ?1",
    [DROP_PREAMBLE] = "DELETE FROM preambles WHERE row = ?1",
    [GET_PREAMBLE_ROW] = PREAMBLE_COLUMNS "WHERE p.row = ?1",
    [GET_PREAMBLE] = PREAMBLE_COLUMNS "WHERE p.tenant IN (?1, 0) AND p.id = ?2"
                                      " ORDER BY p.tenant DESC LIMIT 1",
    [LIST_PREAMBLES] = PREAMBLE_COLUMNS
    "WHERE p.tenant = ?1 OR (p.tenant = 0 AND NOT EXISTS (SELECT 1 FROM preambles o"
    " WHERE o.tenant = ?1 AND o.id = p.id)) ORDER BY p.id",
    [LIST_ALL_PREAMBLES] = PREAMBLE_COLUMNS "ORDER BY p.id, p.tenant",

    [DOCUMENT_VERSION] = "SELECT version FROM documents WHERE row = ?1",
    [ADD_PATH] = "INSERT INTO paths (row, key, version, place, n_tokens, preamble, used_s)"
                 " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (row, key) DO UPDATE SET"
                 " version = ?3, place = ?4, n_tokens = ?5, preamble = ?6, used_s = ?7",
    [ADD_ORPHAN] = "INSERT OR REPLACE INTO orphans (key, version, place, n_tokens, preamble,"
                   " used_s) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    [DROP_ORPHAN] = "DELETE FROM orphans WHERE key = ?1",
    /* Another document with the same text may still use the KV. */
    [DROP_USED_ORPHANS] = "DELETE FROM orphans WHERE EXISTS (SELECT 1 FROM paths p"
                          " WHERE p.key = orphans.key)",
    [DROP_PATH] = "DELETE FROM paths WHERE row = ?1 AND key = ?2",
    [ORPHAN_PATHS] = "INSERT OR REPLACE INTO orphans (key, version, place, n_tokens, preamble,"
                     " used_s) " PATH_COLUMNS "paths WHERE row = ?1",
    [DROP_PATHS] = "DELETE FROM paths WHERE row = ?1",
    [COUNT_PATHS] = "SELECT count(*) FROM paths WHERE row = ?1",
    [OLDEST_PATH] = PATH_COLUMNS "paths WHERE row = ?1 ORDER BY used_s, key LIMIT 1",
    [LIST_PATHS] = PATH_COLUMNS "paths WHERE row = ?1 ORDER BY used_s DESC, place, key LIMIT ?2",
    [FIND_PATH] = "SELECT d.row, (SELECT name FROM tenants WHERE no = d.tenant), d.id, d.title,"
                  " d.version FROM paths p JOIN documents d ON d.row = p.row WHERE p.key = ?1"
                  " ORDER BY p.used_s DESC, d.row LIMIT 1",
    [HAS_ORPHANS] = "SELECT EXISTS (SELECT 1 FROM orphans)",
    [LIST_ORPHANS] = PATH_COLUMNS "orphans LIMIT ?1",

    [NEXT_COUNTER] = "UPDATE counters SET counter = counter + 1 RETURNING counter",
    [RAISE_COUNTER] = "UPDATE counters SET counter = max(counter, ?1)",
    [GET_COUNTER] = "SELECT counter FROM counters",
    [GET_KEY_TAG] = "SELECT key_tag FROM counters",
    [SET_KEY_TAG] = "UPDATE counters SET key_tag = ?1",
    [GET_UNSTAMPED] = "SELECT 1 FROM counters WHERE is_stamped = 0",
    [SET_STAMPED] = "UPDATE counters SET is_stamped = 1",
    [EACH_DOCUMENT] = "SELECT row, (SELECT name FROM tenants WHERE no = d.tenant), id, updated_s"
                      " FROM documents d",
    [EACH_PREAMBLE] = "SELECT row, (SELECT name FROM tenants WHERE no = p.tenant), id, updated_s"
                      " FROM preambles p",
    [FIND_STAMP] = "SELECT counter, writer, deleted_s, kind, row FROM stamps WHERE name = ?1",
    [PUT_STAMP] = "INSERT OR REPLACE INTO stamps (name, counter, writer, deleted_s, kind, row)"
                  " VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    [DROP_STAMP] = "DELETE FROM stamps WHERE name = ?1",
    [LIST_BUCKET] = STAMP_COLUMNS "WHERE name > ?1 AND name <= ?2 ORDER BY name LIMIT ?3",
    [LIST_SINCE] = STAMP_COLUMNS "WHERE counter > ?1 ORDER BY counter LIMIT ?2",
    [LIST_STAMPS] = STAMP_COLUMNS,
    [LIST_DELETIONS] = STAMP_COLUMNS "WHERE deleted_s > 0 AND deleted_s <= ?1 LIMIT ?2",
    /* SQLite has no exclusive or. */
    [XOR_DIGEST] = "UPDATE digests SET digest = (digest | ?2) & ~(digest & ?2) WHERE bucket = ?1",
    [SET_DIGEST] = "UPDATE digests SET digest = ?2 WHERE bucket = ?1",
    [LIST_DIGESTS] = "SELECT bucket, digest FROM digests",

    [COUNT_MATCHES] = "SELECT count(*) FROM words WHERE words MATCH ?1 AND"
                      " rowid BETWEEN ?2 AND ?3",
    [CHECK_WORDS] = "INSERT INTO words (words) VALUES ('integrity-check')",
    [SCORE_MATCHES] = "SELECT rowid, bm25_of(words, ?4) AS score FROM words WHERE words MATCH ?1"
                      " AND rowid BETWEEN ?2 AND ?3 ORDER BY score DESC, rowid LIMIT ?5",
};

int64_t catalog_now_s(void)
{
    return (int64_t)(clock_unix_ns() / 1000000000u);
}

enum status catalog_open(struct catalog **out, const char *file, uint64_t max_bytes,
                         struct buf *why)
{
    struct catalog *c = calloc(1, sizeof *c);
    enum status s;

    *out = NULL;
    if (!c)
        return buf_why(why, ERR_NOMEM, "out of memory");
    pthread_mutex_init(&c->uses_lock, NULL);
    pthread_mutex_init(&c->counts_lock, NULL);
    c->counts = calloc(N_COUNTS, sizeof c->counts[0]);
    s = c->counts ? map_init(&c->uses, N_USES_MAX) : ERR_NOMEM;
    if (s == OK)
        s = store_open(
            &c->store,
            &(struct store_config){.file = file,
                                   .noun = "the documents",
                                   .application_id = APPLICATION_ID,
                                   .migrations = migrations,
                                   .n_migrations = sizeof migrations / sizeof *migrations,
                                   .statements = statements,
                                   .n_statements = N_STATEMENTS,
                                   .n_readers = N_READERS,
                                   .max_bytes = max_bytes},
            why);
    else
        buf_why(why, s, "out of memory");
    hash_random(&c->writer, sizeof c->writer);
    if (s == OK)
        s = catalog_stamp_all(c, why);
    if (s != OK) {
        catalog_close(c);
        return s;
    }
    c->uses_written_s = catalog_now_s();
    *out = c;
    return OK;
}

void catalog_close(struct catalog *c)
{
    if (!c)
        return;
    if (c->store && catalog_write_uses(c, NULL) != OK)
        map_fini(&c->uses); /* the counts are lost; nothing else depends on them */
    store_close(c->store);
    map_fini(&c->uses);
    pthread_mutex_destroy(&c->uses_lock);
    pthread_mutex_destroy(&c->counts_lock);
    free(c->counts);
    free(c);
}

enum status catalog_check(struct catalog *c, struct buf *why)
{
    struct store_link *link;
    enum status s = store_verify(c->store, why);

    if (s != OK || (s = store_begin(c->store, &link, why)) != OK)
        return s;
    s = store_run(link, CHECK_WORDS, NULL, 0, why);
    store_rollback(c->store);
    return s == OK ? catalog_check_digests(c, why) : s;
}

enum status catalog_finish(struct catalog *c, enum status s, struct buf *why)
{
    if (s == OK)
        return store_commit(c->store, why);
    store_rollback(c->store);
    return s;
}

enum status catalog_begin(struct catalog *c, struct buf *why)
{
    struct store_link *link;

    return store_begin(c->store, &link, why);
}

enum status catalog_commit(struct catalog *c, struct buf *why)
{
    return store_commit(c->store, why);
}

void catalog_rollback(struct catalog *c)
{
    store_rollback(c->store);
}

/* --- tenants --- */

enum status catalog_find_tenant(struct store_link *link, const char *name, int64_t *no,
                                struct buf *why)
{
    *no = name[0] == '\0' ? PUBLIC_TENANT : NO_TENANT;
    if (*no == PUBLIC_TENANT)
        return OK;
    return store_run_int(link, FIND_TENANT, STORE_VALUES(store_str(name)), no, why);
}

enum status catalog_add_tenant(struct store_link *link, const char *name, int64_t *no,
                               struct buf *why)
{
    enum status s = catalog_find_tenant(link, name, no, why);

    if (s != OK || *no != NO_TENANT)
        return s;
    s = store_run_int(link, ADD_TENANT, STORE_VALUES(store_str(name)), no, why);
    if (s == OK && *no >> TENANT_BITS != 0)
        return buf_why(why, ERR_TOO_LARGE, "there are too many tenants with documents");
    return s;
}

/* --- statistics --- */

static enum status count(struct store_link *link, enum catalog_statement statement, int64_t tenant,
                         uint64_t *out, struct buf *why)
{
    struct store_value value =
        tenant == INT64_MIN ? (struct store_value){.kind = STORE_NULL} : store_int(tenant);
    int64_t n = 0;
    enum status s = store_run_int(link, statement, &value, 1, &n, why);

    *out = (uint64_t)n;
    return s;
}

enum status catalog_stats(struct catalog *c, const char *tenant_or_null, struct catalog_stats *out)
{
    struct store_link *link = store_reader(c->store);
    int64_t no = INT64_MIN; /* all tenants */
    enum status s = OK;

    *out = (struct catalog_stats){0};
    if (tenant_or_null)
        s = catalog_find_tenant(link, tenant_or_null, &no, NULL);
    if (s == OK)
        s = count(link, COUNT_DOCUMENTS, no, &out->n_documents, NULL);
    if (s == OK)
        s = count(link, COUNT_DOCUMENTS, PUBLIC_TENANT, &out->n_public, NULL);
    if (s == OK)
        s = count(link, COUNT_PINNED, no, &out->n_pinned, NULL);
    if (s == OK)
        s = count(link, COUNT_PREAMBLES, no, &out->n_preambles, NULL);
    out->file_bytes = store_file_bytes(c->store);
    store_put_back(c->store, link);
    return s;
}

/* --- what input must be --- */

static bool is_utf8(const char *s, size_t len)
{
    uint32_t c;

    for (size_t i = 0, n; i < len; i += n)
        if ((n = utf8_decode(s + i, len - i, &c)) == 0)
            return false;
    return true;
}

enum status catalog_check_id(const char *id, struct buf *why)
{
    size_t len = strlen(id);

    if (len == 0)
        return buf_why(why, ERR_INVALID, "id: must not be empty");
    if (len > DOCUMENT_ID_BYTES_MAX)
        return buf_why(why, ERR_TOO_LARGE, "id: %zu bytes, at most %d", len, DOCUMENT_ID_BYTES_MAX);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)id[i] < 0x20 || id[i] == 0x7f)
            return buf_why(why, ERR_INVALID, "id: control characters are not allowed");
    return is_utf8(id, len) ? OK : buf_why(why, ERR_INVALID, "id: not UTF-8");
}

enum status catalog_check_text(const char *field, const struct buf *text, size_t max,
                               bool may_be_empty, struct buf *why)
{
    if (text->len == 0)
        return may_be_empty ? OK : buf_why(why, ERR_INVALID, "%s: must not be empty", field);
    if (text->len > max)
        return buf_why(why, ERR_TOO_LARGE, "%s: %zu bytes, at most %zu", field, text->len, max);
    return is_utf8(text->data, text->len) ? OK : buf_why(why, ERR_INVALID, "%s: not UTF-8", field);
}

enum status catalog_check_object(const char *field, const struct buf *text, size_t max,
                                 struct buf *why)
{
    struct json *j = NULL;
    char words[256];
    struct buf cause;
    enum status s;

    if (text->len > max)
        return buf_why(why, ERR_TOO_LARGE, "%s: %zu bytes, at most %zu", field, text->len, max);
    buf_init(&cause, sizeof words);
    s = js_parse(&j, text->data, text->len, &cause);
    if (s == OK && !js_is(j, JS_OBJECT))
        s = buf_why(&cause, ERR_INVALID, "expected an object");
    snprintf(words, sizeof words, "%s", buf_str(&cause));
    js_unref(j);
    buf_fini(&cause);
    return s == OK ? OK : buf_why(why, s, "%s: %s", field, words);
}

enum status catalog_read(const struct store_rows *r, int column, struct buf *out, struct buf *why)
{
    size_t len;
    const void *p = store_get_bytes(r, column, &len);
    enum status s;

    buf_reset(out);
    s = buf_append(out, p, len);
    return s == OK ? OK : buf_why(why, s, "out of memory");
}

void catalog_read_str(const struct store_rows *r, int column, char *out, size_t n)
{
    size_t len;
    const void *p = store_get_bytes(r, column, &len);

    if (len >= n) /* a damaged file: the catalog never wrote such a value */
        len = n - 1;
    memcpy(out, p, len);
    out[len] = '\0';
}
