/* metrics_classes.c - the part of GET /metrics about classes of service and speculative
 * prefills. */
#include <stdio.h>

#include "engine/engine.h"
#include "server/api/exposition.h"
#include "server/api/metrics.h"
#include "server/api/tally.h"
#include "server/server.h"

static void write_sample(struct page *p, const char *name, int class, double value)
{
    static const char *const names[SCHED_N_CLASSES] = {"usual", "speculative", "background"};
    char more[32];

    snprintf(more, sizeof more, ",class=\"%s\"", names[class]);
    page_sample(p, name, more, value);
}

static void write_speculation(struct page *p, const struct tally *t)
{
    static const char name[] = "tarn:speculations_total";
    static const struct {
        const char *labels;
        enum tally_count count;
    } events[] = {{",event=\"started\"", TALLY_SPECULATION_STARTED},
                  {",event=\"confirmed\"", TALLY_SPECULATION_CONFIRMED},
                  {",event=\"replaced\"", TALLY_SPECULATION_REPLACED},
                  {",event=\"dropped\"", TALLY_SPECULATION_DROPPED}};

    page_head(p, name, "counter", "Speculative prefills, by what became of them.");
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        page_sample(p, name, events[i].labels, (double)tally_count(t, events[i].count));
    page_counter(p, "tarn:speculation_wasted_tokens_total",
                 "Tokens of speculative prefills that were not part of the final prompt.",
                 tally_count(t, TALLY_SPECULATED_FOR_NOTHING));
}

void metrics_write_classes(struct page *p, const struct server *srv, const struct engine_stats *st)
{
    page_head(p, "tarn:class_requests_running", "gauge", "Requests with a place, by class.");
    for (int c = 0; c < SCHED_N_CLASSES; c++)
        write_sample(p, "tarn:class_requests_running", c, st->scheduler.n_running[c]);
    page_head(p, "tarn:class_requests_waiting", "gauge", "Requests without a place, by class.");
    for (int c = 0; c < SCHED_N_CLASSES; c++)
        write_sample(p, "tarn:class_requests_waiting", c, st->scheduler.n_waiting[c]);
    page_head(p, "tarn:class_requests_total", "counter", "Requests that ended, by class.");
    for (int c = 0; c < SCHED_N_CLASSES; c++)
        write_sample(p, "tarn:class_requests_total", c, (double)st->of_class[c].n_ended);
    page_head(p, "tarn:class_tokens_total", "counter", "Tokens computed in steps, by class.");
    for (int c = 0; c < SCHED_N_CLASSES; c++)
        write_sample(p, "tarn:class_tokens_total", c, (double)st->of_class[c].n_tokens);
    write_speculation(p, srv->tally);
}
