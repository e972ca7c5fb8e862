/* running.h - the calls that the engine has, so that other requests can end them.
 *
 * Owns    the list, not the calls: a call takes itself out before it is freed.
 * Thread  any.
 * Errors  running_create(): ERR_NOMEM.
 * Units   calls. */
#ifndef TARN_SERVER_API_RUNNING_H
#define TARN_SERVER_API_RUNNING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct account;
struct call;
struct running;

NODISCARD enum status running_create(struct running **out);
void running_destroy(struct running *r); /* NULL is fine; no call is left in it */

/* The call's requests exist, and call->id does not change any more. */
void running_add(struct running *r, struct call *call);
void running_remove(struct running *r, struct call *call); /* not in the list: no effect */

/* End the calls of the account's tenant (NULL: of all tenants) whose id is this one, with or
 * without the prefix of its protocol, or begins with it; id NULL: all of them. Their answers end
 * with what they have. Return how many were not ended so before. */
uint32_t running_abort(struct running *r, const struct account *a, const char *id, bool begins);

#endif
