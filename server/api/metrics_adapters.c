/* metrics_adapters.c - the part of GET /metrics about adapters, as vLLM has it: routers read the
 * names of the adapters whose requests run and wait. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "engine/adapters.h"
#include "server/api/exposition.h"
#include "server/api/metrics.h"
#include "server/server.h"

#define NAMES_BYTES 4096

/* Append a name to a list with commas; one that does not fit is left out. */
static void add_name(char list[NAMES_BYTES], const char *name)
{
    size_t n = strlen(list);

    if (n + strlen(name) + 2 <= NAMES_BYTES)
        snprintf(list + n, NAMES_BYTES - n, "%s%s", n ? "," : "", name);
}

void metrics_write_adapters(struct page *p, const struct server *srv)
{
    char running[NAMES_BYTES] = "", waiting[NAMES_BYTES] = "", most[16];
    char labels[2 * NAMES_BYTES + 128] = "";
    struct adapters *as = engine_adapters(srv->engine);
    struct adapter *list[ADAPTERS_MAX];
    uint32_t n = adapters_list(as, list, ADAPTERS_MAX);

    for (uint32_t i = 0; i < n; i++) {
        if (adapter_n_running(list[i]) > 0)
            add_name(running, adapter_name(list[i]));
        if (adapter_n_waiting(list[i]) > 0)
            add_name(waiting, adapter_name(list[i]));
        adapter_unref(list[i]);
    }
    if (!as)
        return;
    snprintf(most, sizeof most, "%u", adapters_max(as));
    label_add(labels, sizeof labels, "max_lora", most);
    label_add(labels, sizeof labels, "running_lora_adapters", running);
    label_add(labels, sizeof labels, "waiting_lora_adapters", waiting);
    page_head(p, "vllm:lora_requests_info", "gauge",
              "Adapters whose requests run and wait; the value is the time in Unix seconds.");
    page_sample(p, "vllm:lora_requests_info", labels, (double)clock_unix_ns() * 1e-9);
    page_gauge(p, "tarn:adapters", "Adapters that are loaded.", n);
}
