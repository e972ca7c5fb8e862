/* json_memory.h - the memory of one parsed JSON document, with a bound and with safe failure.
 *
 * Problem: jansson 2.14 builds a document from many small allocations and crashes when one of them
 * fails in its lexer. In addition, a hostile body can need hundreds of bytes of memory for every
 * two of its own.
 *
 * Design: while a parse runs, all allocations of its thread come from an arena made for this
 * document. If the arena cannot serve an allocation, the allocator leaves the parse by longjmp(),
 * and the arena is unmapped as a whole. So the parser never sees a failed allocation, and nothing
 * can leak. After the parse the arena counts its live blocks and is unmapped when the last of them
 * is freed. So documents keep jansson's reference counts, and values may outlive their root.
 *
 * json_memory_free() recognizes a block by its address: arenas consist of granules of 64 KiB, and a
 * table maps each granule to its arena. Rejected: a header in front of each block. The program that
 * links this library may use jansson too, and its blocks have no such header.
 *
 * Owns    the arenas; up to 16 spare granules (1 MiB) for the next small documents.
 * Thread  any. One thread builds an arena; then any threads may free its blocks, also at once.
 * Errors  ERR_TOO_LARGE: the document needs more than its bound; ERR_NOMEM: the system is out of
 *         memory.
 * Units   bytes. */
#ifndef TARN_BASE_JSON_MEMORY_H
#define TARN_BASE_JSON_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Call build(arg) with a new arena of at most max_bytes. If build() returns true, the blocks stay
 * until each of them is freed. If it returns false, or an allocation failed and longjmp() ended it,
 * all blocks are freed. build() must not call json_memory_run(). */
NODISCARD enum status json_memory_run(size_t max_bytes, bool (*build)(void *arg), void *arg);
/* Whether the calling thread is inside json_memory_run(). */
bool json_memory_is_running(void);
/* Allocate n bytes, aligned to 8, inside json_memory_run(). It does not return on failure. */
void *json_memory_alloc(size_t n);
/* Free a block of an arena. False: p is not such a block, and nothing was done. */
bool json_memory_free(void *p);

#endif
