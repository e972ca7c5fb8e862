#include "server/api/estimates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/http/http.h"
#include "server/server.h"

#define RETRY_S_MAX 600.0

static void add_ms(struct http_exchange *x, const char *name, uint64_t us)
{
    char text[32];

    snprintf(text, sizeof text, "%.3f", (double)us * 1e-3);
    http_add_header(x, name, text);
}

void estimates_add_headers(struct http_exchange *x, const struct request *const *requests,
                           uint32_t n)
{
    uint64_t ttft_us = UINT64_MAX, e2e_us = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t ttft = atomic_load(&requests[i]->estimated_ttft_us);
        uint64_t e2e = atomic_load(&requests[i]->estimated_e2e_us);
        if (ttft == 0)
            return;
        ttft_us = ttft < ttft_us ? ttft : ttft_us;
        e2e_us = e2e > e2e_us ? e2e : e2e_us;
    }
    add_ms(x, "x-tarn-estimated-ttft-ms", ttft_us);
    add_ms(x, "x-tarn-estimated-e2e-ms", e2e_us);
}

uint32_t estimates_retry_s(const struct server *srv, const struct request *r)
{
    uint64_t own_us = r ? atomic_load(&r->estimated_ttft_us) : 0;
    double s = own_us ? (double)own_us * 1e-6 : engine_usual_ttft_s(srv->engine);

    return (uint32_t)fmin(fmax(1, ceil(s)), RETRY_S_MAX);
}
