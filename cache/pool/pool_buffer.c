/* pool_buffer.c - memory of queries and of their answers, and how a thread sleeps until another one
 * has written a word. */
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cache/pool/pool_inner.h"

#define LINE_BYTES 64u
#define BUFFER_MIN 4096u
#define BUFFER_STEP (1u << 20) /* of large ones */

static uint64_t round_up(uint64_t n)
{
    return (n + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

/* Where memory is short, a small query does not keep the memory of a large one. */
static bool is_wasteful(const struct pool_buffer *b, uint64_t n, uint64_t left)
{
    return left < POOL_QUERY_MEMORY / 2 && b->n_bytes > BUFFER_STEP && n <= b->n_bytes / 4;
}

bool pool_buffer_fit(struct pool_buffer *b, uint64_t n_bytes, uint64_t *left)
{
    uint64_t n = BUFFER_MIN;

    while (n < n_bytes && n < BUFFER_STEP)
        n *= 2;
    if (n < n_bytes)
        n = (n_bytes + BUFFER_STEP - 1) / BUFFER_STEP * BUFFER_STEP;
    if (b->n_bytes >= n_bytes && !is_wasteful(b, n, *left))
        return true;
    if (n > *left + b->n_bytes)
        return false;
    pool_buffer_free(b, left);
    b->memory = aligned_alloc(LINE_BYTES, n);
    if (!b->memory)
        return false;
    b->n_bytes = n;
    *left -= n;
    return true;
}

void pool_buffer_free(struct pool_buffer *b, uint64_t *left)
{
    free(b->memory);
    *left += b->n_bytes;
    *b = (struct pool_buffer){0};
}

uint64_t pool_query_bytes(uint64_t n_tile_bytes, uint64_t n_q_bytes, uint64_t n_segment_bytes)
{
    return round_up(n_tile_bytes) + round_up(n_q_bytes) + n_segment_bytes;
}

struct pool_query_parts pool_query_parts(const struct pool_buffer *b, uint64_t n_tile_bytes,
                                         uint64_t n_q_bytes)
{
    uint8_t *q = (uint8_t *)b->memory + round_up(n_tile_bytes);

    return (struct pool_query_parts){
        .tiles = b->memory, .q = (float *)(void *)q, .segments = q + round_up(n_q_bytes)};
}

void pool_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t until_ns)
{
    uint64_t now = clock_now_ns(), ns = until_ns > now ? until_ns - now : 0;
    struct timespec timeout = {.tv_sec = (time_t)(ns / POOL_SECOND),
                               .tv_nsec = (long)(ns % POOL_SECOND)};

    /* Any return is fine: every caller checks its condition again. */
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, until_ns == UINT64_MAX ? NULL : &timeout,
            NULL, 0);
}

void pool_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
