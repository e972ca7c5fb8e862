/* faiss_none.c - faiss_index.h in a build without Faiss. */
#include "engine/retrieval/faiss_index.h"

static enum status unsupported(struct buf *why)
{
    return buf_why(why, ERR_UNSUPPORTED,
                   "this program was built without Faiss, so it has no vector search: install "
                   "libfaiss-dev, configure and build again");
}

bool faiss_index_is_supported(void)
{
    return false;
}

enum status faiss_index_create(struct faiss_index **out, uint32_t dim, const char *factory,
                               uint64_t seed, struct buf *why)
{
    (void)dim, (void)factory, (void)seed;
    *out = NULL;
    return unsupported(why);
}

void faiss_index_destroy(struct faiss_index *ix)
{
    (void)ix;
}

uint32_t faiss_index_n_lists(const struct faiss_index *ix)
{
    (void)ix;
    return 0;
}

uint64_t faiss_index_n_total(const struct faiss_index *ix)
{
    (void)ix;
    return 0;
}

uint64_t faiss_index_bytes(const struct faiss_index *ix)
{
    (void)ix;
    return 0;
}

enum status faiss_index_train(struct faiss_index *ix, const struct faiss_work *work, const float *x,
                              uint64_t n, struct buf *why)
{
    (void)ix, (void)work, (void)x, (void)n;
    return unsupported(why);
}

enum status faiss_index_add(struct faiss_index *ix, const struct faiss_work *work, const float *x,
                            uint64_t n, struct buf *why)
{
    (void)ix, (void)work, (void)x, (void)n;
    return unsupported(why);
}

void faiss_index_trim(struct faiss_index *ix)
{
    (void)ix;
}

enum status faiss_index_search(const struct faiss_index *ix, const float *q,
                               struct faiss_hits *hits, struct buf *why)
{
    (void)ix, (void)q, (void)hits;
    return unsupported(why);
}

enum status faiss_index_lists(const struct faiss_index *ix, const float *q, uint32_t n,
                              int64_t *lists, float *scores, struct buf *why)
{
    (void)ix, (void)q, (void)n, (void)lists, (void)scores;
    return unsupported(why);
}

enum status faiss_index_search_lists(const struct faiss_index *ix, const float *q,
                                     const int64_t *lists, const float *scores, uint32_t n_lists,
                                     struct faiss_hits *hits, struct buf *why)
{
    (void)ix, (void)q, (void)lists, (void)scores, (void)n_lists, (void)hits;
    return unsupported(why);
}

void faiss_index_copy(const struct faiss_index *ix, struct faiss_cursor *cursor, uint64_t n_max,
                      int64_t *labels, float *x, uint64_t *n)
{
    (void)ix, (void)cursor, (void)n_max, (void)labels, (void)x;
    *n = 0;
}

enum status faiss_index_write(const struct faiss_index *ix,
                              bool (*write)(void *arg, const void *bytes, size_t n), void *arg,
                              struct buf *why)
{
    (void)ix, (void)write, (void)arg;
    return unsupported(why);
}

enum status faiss_index_read(struct faiss_index **out, uint32_t dim, const char *factory,
                             const void *bytes, size_t n, struct buf *why)
{
    (void)dim, (void)factory, (void)bytes, (void)n;
    *out = NULL;
    return unsupported(why);
}
