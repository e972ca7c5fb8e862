/* verify.h - compares the answers under load with those of a server that runs nothing else.
 *
 * Each marked request of the run is sent again alone, twice: after the server's cache was emptied
 * (if the key may do so), and right after that. All three texts must be equal.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  ERR_NOMEM, ERR_IO.
 * Units   requests. */
#ifndef TARN_LOADGEN_LOAD_VERIFY_H
#define TARN_LOADGEN_LOAD_VERIFY_H

#include "base/http.h"
#include "loadgen/load/outcome.h"

struct verify_result {
    uint64_t n_checked;
    uint64_t n_load_differs; /* under load against alone */
    uint64_t n_warm_differs; /* alone: cold against warm */
    uint64_t n_failed;       /* gave no answer alone */
    uint64_t n_skipped;      /* gave none under load */
    bool cold;               /* the cache was emptied before each */
    uint64_t first_index;    /* of the first that differs */
    size_t first_byte;       /* where */
};

/* clients[n_clients]: one per tenant. */
NODISCARD enum status verify_run(struct verify_result *v, const struct outcome_list *outcomes,
                                 struct http_loop *loop, struct tarn_client *const *clients,
                                 uint32_t n_clients);
bool verify_differs(const struct verify_result *v);

#endif
