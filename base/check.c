#include "base/check.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"

void check_failed(const char *file, int line, const char *what)
{
    if (log_is_json())
        log_event_each(LOG_ERROR, "check failed", "file=\"%s\" line=%d what=\"%s\"", file, line,
                       what);
    else
        fprintf(stderr, "tarn: %s:%d: check failed: %s\n", file, line, what);
    fflush(stderr);
    abort();
}

unsigned check_thread_id(void)
{
    static atomic_uint next = 1;
    static _Thread_local unsigned mine;

    if (mine == 0)
        mine = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed);
    return mine;
}
