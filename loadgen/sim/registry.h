/* registry.h - the directory of a simulated pool, and what it costs.
 *
 * Entries become visible, and disappear, `delay_ns` after a piece has come or gone: announcements
 * are sent in batches. The entries of an instance that died stay for `lifetime_ns`. The same table
 * without delays is what a router with exact knowledge sees.
 *
 * The directory is one thread (Redis): each command takes `command_ns`, one after the other. A
 * lookup waits for the commands before it. While they are more than `away_ns` behind, the directory
 * counts as away, as in cache/pool/directory.c.
 *
 * Commands, as docs/design/pool.md says, for segments of `segment_tokens`: 2 for an announcement, 1
 * for a withdrawal, n or about 2 sqrt(n) for a lookup, 4 for a heartbeat and one record of each
 * instance at each heartbeat (at each second one from 128 instances on, and so on). Everything is
 * announced again every `again_ns`.
 *
 * Owns    its entries: registry_destroy().
 * Thread  one.
 * Errors  ERR_NOMEM.
 * Units   virtual nanoseconds. */
#ifndef TARN_LOADGEN_SIM_REGISTRY_H
#define TARN_LOADGEN_SIM_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct registry_config {
    uint32_t n_instances, segment_tokens;
    uint64_t delay_ns, lifetime_ns, command_ns, record_ns, away_ns, again_ns;
};

struct registry_stats {
    uint64_t n_announced, n_withdrawn, n_lookups, n_refused, n_commands, busy_ns;
    uint64_t n_entries, n_bytes; /* now; memory of this process for them */
};

struct registry;

NODISCARD enum status registry_create(struct registry **out, const struct registry_config *config);
void registry_destroy(struct registry *r); /* NULL is fine */

NODISCARD enum status registry_add(struct registry *r, uint64_t key, uint32_t instance,
                                   uint32_t n_tokens, uint64_t now_ns);
void registry_remove(struct registry *r, uint64_t key, uint32_t instance, uint64_t now_ns);
/* The instance is gone, with all that it held. */
void registry_die(struct registry *r, uint32_t instance, uint64_t now_ns);
/* List the holders that the directory names; at most n_max. */
uint32_t registry_holders(const struct registry *r, uint64_t key, uint64_t now_ns, uint32_t *out,
                          uint32_t n_max);
/* List those that do hold it. */
uint32_t registry_exact(const struct registry *r, uint64_t key, uint32_t *out, uint32_t n_max);
/* Ask for n segments. False: the directory is away. *wait_ns: until the answer, without the
 * network. */
bool registry_look(struct registry *r, uint32_t n_segments, uint64_t now_ns, uint64_t *wait_ns);
/* Heartbeats and repeated announcements of n_alive instances in a time. */
void registry_keep_alive(struct registry *r, uint32_t n_alive, uint64_t n_segments,
                         uint64_t elapsed_ns, uint64_t now_ns);
void registry_stats(const struct registry *r, struct registry_stats *out);

#endif
