#include "loadgen/load/slo.h"

#include <string.h>

#include "base/flags.h"

#include "loadgen/load/dist.h"

const char *slo_metric_name(enum slo_metric m)
{
    static const char *const names[N_SLO_METRICS] = {"ttft", "tpot", "e2el", "normalized"};

    return names[m];
}

enum status slo_set(struct slo *s, const char *metric, const char *limit, struct buf *why)
{
    double ms;

    for (int m = 0; m < N_SLO_METRICS; m++) {
        if (strcmp(metric, slo_metric_name((enum slo_metric)m)) != 0)
            continue;
        if (flag_parse_number(limit, &ms) != OK || ms <= 0)
            return buf_why(why, ERR_INVALID, "%s: expected milliseconds above 0, got \"%s\"",
                           metric, limit);
        s->limit_ms[m] = ms;
        return OK;
    }
    return buf_why(why, ERR_NOT_FOUND, "\"%s\" is no metric (ttft, tpot, e2el, normalized)",
                   metric);
}

enum status slo_parse(struct slo *s, const char *text, struct buf *why)
{
    static const char separators[] = ", ";
    char one[64];

    for (text += strspn(text, separators); *text; text += strspn(text, separators)) {
        size_t n = strcspn(text, separators);
        if (n >= sizeof one)
            return buf_why(why, ERR_INVALID, "\"%.40s...\" is too long for METRIC:MS", text);
        memcpy(one, text, n);
        one[n] = '\0';
        char *colon = strchr(one, ':');
        if (!colon)
            return buf_why(why, ERR_INVALID, "\"%s\": expected METRIC:MS, as in ttft:200", one);
        *colon = '\0';
        enum status st = slo_set(s, one, colon + 1, why);
        if (st != OK)
            return st == ERR_NOT_FOUND ? ERR_INVALID : st;
        text += n;
    }
    return OK;
}

bool slo_is_set(const struct slo *s)
{
    for (int m = 0; m < N_SLO_METRICS; m++)
        if (s->limit_ms[m] > 0)
            return true;
    return false;
}

bool slo_is_met(const struct slo *s, const double measured_ms[N_SLO_METRICS])
{
    for (int m = 0; m < N_SLO_METRICS; m++)
        if (s->limit_ms[m] > 0 && measured_ms[m] > s->limit_ms[m])
            return false;
    return true;
}
