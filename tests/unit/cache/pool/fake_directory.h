/* fake_directory.h - directory.h in memory, shared by all pools of a test program.
 *
 * Owns    its lists: fake_directory_reset() between tests.
 * Thread  any.
 * Errors  more events than a pool can have under way abort.
 * Units   blocks. */
#ifndef TARN_TESTS_UNIT_CACHE_POOL_FAKE_DIRECTORY_H
#define TARN_TESTS_UNIT_CACHE_POOL_FAKE_DIRECTORY_H

#include "cache/pool/directory.h"

void fake_directory_reset(void);
/* is_down: no connection. is_silent: lookups are never answered. */
void fake_directory_set(bool is_down, bool is_silent);
void fake_directory_join(const struct directory_instance *info);
/* n_blocks 0: withdraw. */
void fake_directory_hold(uint64_t id, const struct directory_segment *s);
uint32_t fake_directory_blocks(uint64_t id, const struct kv_key *key);
bool fake_directory_is_leaving(uint64_t id);

#endif
