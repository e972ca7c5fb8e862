/* store_inner.h - what the files of base/store share. Outside of them nobody includes it. */
#ifndef TARN_BASE_STORE_INNER_H
#define TARN_BASE_STORE_INNER_H

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>

#include "base/store.h"

struct store_link {
    sqlite3 *db;
    sqlite3_stmt **statements; /* [n_statements of the store]; NULL: not prepared yet */
    struct store *store;
    fts5_tokenizer tokenizer_functions;
    Fts5Tokenizer *tokenizer;
};

struct store {
    char *file; /* NULL: in memory */
    char *noun;
    const char *const *statements;
    uint32_t n_statements;
    int lock_fd;

    /* A thread that uses the writing connection holds write_lock; depth counts its nested uses. */
    pthread_mutex_t write_lock;
    atomic_uint writer_thread; /* check_thread_id(); 0: none */
    uint32_t writer_depth;
    uint32_t n_transactions; /* nested ones of the writing thread */
    struct store_link writer;

    pthread_mutex_t pool_lock;
    pthread_cond_t pool_free;
    struct store_link *readers;
    struct store_link **free_readers; /* [n_free] */
    uint32_t n_readers, n_free;
};

/* Translate an error of SQLite. */
enum status store_error(const struct store *st, sqlite3 *db, int code, struct buf *why);

/* Make the tokenizer STORE_TOKENIZER known; a code of SQLite. */
int store_add_tokenizer(struct fts5_api *api);
/* Add the functions of store.h to a new connection. */
NODISCARD enum status store_add_functions(struct store_link *link, struct buf *why);
void store_drop_functions(struct store_link *link);

#endif
