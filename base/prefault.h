/* prefault.h - supplies the pages of a large memory before they are used, in a thread.
 *
 * The kernel supplies a page when it is first written, and clears it: a prefill into memory that no
 * request has used yet takes 10 to 20 % longer. Supplying all pages at start would take seconds,
 * and memory that may never be used. So pages are supplied up to a distance ahead of the highest
 * byte in use.
 *
 * Owns    the thread; not the memory, whose content does not change.
 * Thread  prefault_reach(): one thread; it does not wait.
 * Errors  NULL: no memory or no thread. Without the kernel's help (Linux before 5.14) the thread
 *         ends, and pages come when they are written.
 * Units   bytes. */
#ifndef TARN_BASE_PREFAULT_H
#define TARN_BASE_PREFAULT_H

#include <stddef.h>

struct prefault;

/* Begin at the start of the memory [n_bytes], which must be a private mapping that outlives the
 * result. */
struct prefault *prefault_create(void *memory, size_t n_bytes, size_t ahead_bytes);
void prefault_destroy(struct prefault *p); /* NULL is fine */
/* Bytes [0, end) are in use or will be at once. */
void prefault_reach(struct prefault *p, size_t end);
/* Bytes from the start whose pages exist. Any thread. */
size_t prefault_n_done(const struct prefault *p);

#endif
