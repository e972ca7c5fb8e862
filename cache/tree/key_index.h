/* key_index.h - which blocks are cached, as other threads may see it: a hint without locks.
 *
 * The knowledge tree belongs to the engine thread. To choose the order of a request's documents an
 * HTTP thread has to know what is cached while it builds the prompt, and must not wait for a step.
 * So the tree also enters the keys of its blocks here: a table of atomics that one thread writes
 * and any thread reads. An answer may be old by the time it is used, and a full bucket forgets a
 * key, so an answer may only decide what is tried first. A question to the engine thread would have
 * been exact, but would have waited for a step, up to --max-step-ms; a lock would have been in the
 * step.
 *
 * Owns    its table: key_index_destroy().
 * Thread  add and remove: the engine thread. has: any.
 * Errors  ERR_NOMEM at create.
 * Units   16 to 32 bytes for each block. */
#ifndef TARN_CACHE_TREE_KEY_INDEX_H
#define TARN_CACHE_TREE_KEY_INDEX_H

#include "base/status.h"
#include "cache/key.h"

struct key_index;

/* For up to n_keys_max keys at a time. On OK *out is the caller's. */
NODISCARD enum status key_index_create(struct key_index **out, uint32_t n_keys_max);
void key_index_destroy(struct key_index *x); /* NULL is fine, as in all that follows */
void key_index_add(struct key_index *x, const struct kv_key *key);
void key_index_remove(struct key_index *x, const struct kv_key *key);
bool key_index_has(const struct key_index *x, const struct kv_key *key);
uint64_t key_index_memory_bytes(const struct key_index *x);

#endif
