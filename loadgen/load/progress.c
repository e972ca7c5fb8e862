#include "loadgen/load/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define BAR_CHARS 24

bool progress_is_wanted(bool asked)
{
    return asked && isatty(STDERR_FILENO);
}

static void write_bar(char bar[BAR_CHARS + 1], double share)
{
    int n = share > 1 ? BAR_CHARS : share > 0 ? (int)(share * BAR_CHARS) : 0;

    for (int i = 0; i < BAR_CHARS; i++)
        bar[i] = i < n ? '#' : '.';
    bar[BAR_CHARS] = '\0';
}

void progress_show(void *arg, const struct run_progress *p)
{
    struct progress *g = arg;
    char bar[BAR_CHARS + 1], of[32] = "";
    double span = p->elapsed_s - g->last_s, share = 0;

    if (p->of_s > 0)
        share = p->elapsed_s / p->of_s;
    else if (p->of_n)
        share = (double)p->n_ended / (double)p->of_n;
    write_bar(bar, share);
    if (p->of_n)
        snprintf(of, sizeof of, "/%" PRIu64, p->of_n);
    double rate = span > 0 ? (double)(p->n_tokens - g->last_tokens) / span : 0;
    fprintf(stderr, "\r%s[%s] %6.1f s  %" PRIu64 "%s done, %u in flight", g->name, bar,
            p->elapsed_s > 0 ? p->elapsed_s : 0, p->n_ended, of, p->n_active);
    if (p->n_waiting)
        fprintf(stderr, ", %u waiting", p->n_waiting);
    fprintf(stderr, ", %" PRIu64 " errors, %.0f tok/s\033[K", p->n_errors, rate);
    fflush(stderr);
    g->last_s = p->elapsed_s;
    g->last_tokens = p->n_tokens;
    g->shown = true;
}

void progress_clear(struct progress *g)
{
    if (g->shown)
        fputs("\r\033[K", stderr);
    g->shown = false;
}
