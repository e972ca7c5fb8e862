/* warm.h - which documents are to be warm behind which preambles, and which prefill is next: pure.
 *
 * A task is one document behind one preamble. States:
 *
 *   WAITING  to be prefilled
 *   RUNNING  its request is in flight
 *   READY    its KV is cached, in whichever tier
 *   NO_ROOM  would be one warm document too many (below)
 *   EVICTED  was READY, and its KV is gone
 *   FAILED   could not be prefilled; tried again later
 *
 * Prefills must not push each other out of the cache in turn:
 *   - All READY and RUNNING tasks together take at most half of the KV blocks in memory, and nine
 *     tenths of those on disk. Further tasks are NO_ROOM until others go. Pinned documents are held
 *     within the bounds of holds, so they do not wait.
 *   - Evicted KV was worth less than what replaced it. It is prefilled again only while so many
 *     blocks of the device are free that nothing is evicted for it, and after a wait that doubles
 *     with each eviction, from a minute to an hour.
 *
 * Owns    the tasks.
 * Thread  one at a time.
 * Errors  ERR_NOMEM.
 * Units   KV blocks, nanoseconds. */
#ifndef TARN_SERVER_API_WARM_H
#define TARN_SERVER_API_WARM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/map.h"
#include "cache/cache.h"

#define WARM_N_TASKS_MAX (1u << 16)
#define WARM_NONE UINT32_MAX

enum warm_state {
    WARM_FREE, /* no task */
    WARM_WAITING,
    WARM_RUNNING,
    WARM_READY,
    WARM_NO_ROOM,
    WARM_EVICTED,
    WARM_FAILED,
    WARM_N_STATES
};

struct warm_task {
    int64_t row;
    uint64_t preamble; /* a number of its text */
    uint32_t version;  /* of the document */
    enum warm_state state;
    bool is_pinned;
    bool is_wanted;            /* false: goes when its request ends */
    uint32_t n_blocks;         /* of the document's span; 0: not known yet */
    uint32_t n_tries;          /* evictions or failures in a row */
    uint64_t not_before_ns;    /* of the next try */
    struct kv_key first, last; /* of the span's blocks; known where n_blocks is */
    char *why;                 /* of the last failure; NULL: none */
    uint32_t next;             /* task of the same row, or the next free one */
    uint32_t scan;
};

struct warm {
    struct warm_task *tasks; /* [n_all] grows */
    uint32_t n_all, n_cap;
    uint32_t free;     /* list */
    struct map by_row; /* hash of the row -> its first task */
    uint32_t n[WARM_N_STATES];
    uint64_t n_blocks; /* of READY and RUNNING tasks */
    uint32_t scan;
    uint32_t cursor;
};

/* Blocks that the cache has. */
struct warm_room {
    uint64_t n_memory, n_disk;
    uint32_t n_free; /* of the device */
};

NODISCARD enum status warm_init(struct warm *w);
void warm_fini(struct warm *w);

/* The document should be warm behind this preamble. A task of another version starts anew. False:
 * there are too many tasks, or there is no memory. */
bool warm_want(struct warm *w, int64_t row, uint32_t version, uint64_t preamble, bool is_pinned);
/* Between the two calls warm_want() names all tasks of the row; the others go. dropped() is called
 * for each pinned READY task that goes or is no longer pinned. */
void warm_row_begin(struct warm *w, int64_t row);
void warm_row_end(struct warm *w, int64_t row,
                  void (*dropped)(void *arg, const struct warm_task *t), void *arg);
/* Between the two calls warm_row_begin() names all rows; the tasks of others go. */
void warm_scan_begin(struct warm *w);
void warm_scan_end(struct warm *w, void (*dropped)(void *arg, const struct warm_task *t),
                   void *arg);

/* The next task to prefill, or WARM_NONE; it stays in its state. */
uint32_t warm_next(struct warm *w, const struct warm_room *room, uint64_t now_ns);
/* Whether a task, whose n_blocks are known, may run now. */
bool warm_has_room(const struct warm *w, const struct warm_task *t, const struct warm_room *room);
/* Change the state. EVICTED and FAILED count a try. why: of FAILED; else NULL. A task that is no
 * longer wanted goes; false then. */
bool warm_set(struct warm *w, uint32_t task, enum warm_state state, const char *why,
              uint64_t now_ns);
/* The first task of the row, or WARM_NONE; further ones: .next. */
uint32_t warm_of_row(const struct warm *w, int64_t row);

#endif
