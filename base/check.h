/* check.h - assertions that stay in release builds.
 *
 * Owns    nothing.
 * Thread  any; ASSERT_THREAD enforces a header's Thread line.
 * Errors  a failed check is a bug in Tarn: it prints file, line and condition, then aborts.
 * Units   none. */
#ifndef TARN_BASE_CHECK_H
#define TARN_BASE_CHECK_H

#ifdef __cplusplus
extern "C" {
#endif

__attribute__((noreturn, cold)) void check_failed(const char *file, int line, const char *what);

#define ASSERT(cond) ((cond) ? (void)0 : check_failed(__FILE__, __LINE__, #cond))

/* A small number that identifies the calling thread; never 0. */
unsigned check_thread_id(void);

/* `owner` is 0 until the owner is known, then the owning thread's check_thread_id(). */
#define ASSERT_THREAD(owner) ASSERT((owner) == 0 || (owner) == check_thread_id())

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#ifdef __cplusplus
}
#endif
#endif
