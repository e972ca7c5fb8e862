/* json_memory.h - the memory of one parsed JSON document: bounded, and safe to run out of.
 *
 * Problem: jansson 2.14 builds a document from many small allocations and crashes when one of them
 * fails in its lexer. A hostile body also makes hundreds of bytes out of each two of its own.
 *
 * Design: while a parse runs, all allocations of its thread come from an arena made for this
 * document. An allocation that the arena cannot serve does not return: it jumps out of the parse,
 * and the arena is unmapped as a whole. The parser therefore never sees a failed allocation, and
 * nothing can leak. After the parse the arena counts its live blocks. The arena is unmapped when
 * the last of them is freed, so documents keep jansson's reference counts, and values may outlive
 * their root.
 *
 * json_memory_free() recognizes a block by its address: arenas consist of granules of 64 KiB, and a
 * table maps each granule to its arena. A header in front of each block was rejected: jansson is
 * shared with the program that links this library, whose own blocks have no such header.
 *
 * Owns    the arenas; 16 spare granules (1 MiB) for the next small documents.
 * Thread  any. One arena belongs to one thread at a time.
 * Errors  ERR_TOO_LARGE: the document needs more than its bound; ERR_NOMEM: the system has no more.
 * Units   bytes. */
#ifndef TARN_BASE_JSON_MEMORY_H
#define TARN_BASE_JSON_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Call build(arg) with a new arena of at most max_bytes. When build() returns true, its blocks stay
 * until each of them is freed. When it returns false, they are gone. On an error build() was left
 * by longjmp(), and its blocks are gone. build() must not call json_memory_run(). */
NODISCARD enum status json_memory_run(size_t max_bytes, bool (*build)(void *arg), void *arg);
/* Whether the calling thread is inside of json_memory_run(). */
bool json_memory_is_running(void);
/* Allocate n bytes, aligned to 8, inside of json_memory_run(). Does not return on failure. */
void *json_memory_alloc(size_t n);
/* Free a block of an arena. False: p is no such block, and nothing was done. */
bool json_memory_free(void *p);

#endif
