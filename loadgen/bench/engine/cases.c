#include "loadgen/bench/engine/cases.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/cache.h"

/* A whole number in [min, max] at *at, which then stands behind it. */
static enum status read_number(const char **at, uint32_t min, uint32_t max, uint32_t *out)
{
    char *end;

    if (!isdigit((unsigned char)**at))
        return ERR_INVALID;
    unsigned long long value = strtoull(*at, &end, 10);
    if (value < min || value > max)
        return ERR_INVALID;
    *out = (uint32_t)value;
    *at = end;
    return OK;
}

static enum status read_prefill(struct bench_case *c, const char *at)
{
    *c = (struct bench_case){.phase = BENCH_PREFILL, .batch = 1};
    if (read_number(&at, 1, BENCH_TOKENS_MAX, &c->prompt) != OK)
        return ERR_INVALID;
    if (*at == '@') {
        at++;
        if (read_number(&at, 0, BENCH_TOKENS_MAX, &c->context) != OK)
            return ERR_INVALID;
    }
    return *at ? ERR_INVALID : OK;
}

static enum status read_decode(struct bench_case *c, const char *at)
{
    *c = (struct bench_case){.phase = BENCH_DECODE};
    if (read_number(&at, 1, BENCH_BATCH_MAX, &c->batch) != OK)
        return ERR_INVALID;
    if (*at == ':') {
        at++;
        if (read_number(&at, 0, BENCH_TOKENS_MAX, &c->context) != OK)
            return ERR_INVALID;
        if (*at == '@') {
            at++;
            if (read_number(&at, 0, c->context, &c->shared) != OK)
                return ERR_INVALID;
        }
    }
    return *at ? ERR_INVALID : OK;
}

enum status case_parse(struct bench_case *c, const char *text, struct buf *why)
{
    enum status s = ERR_INVALID;

    if (strncmp(text, "prefill:", 8) == 0)
        s = read_prefill(c, text + 8);
    else if (strncmp(text, "decode:", 7) == 0)
        s = read_decode(c, text + 7);
    if (s == OK)
        return OK;
    return buf_why(why, s,
                   "--case: \"%s\" is none; prefill:512, prefill:512@8192 (behind a "
                   "context), decode:BATCH:CONTEXT and decode:BATCH:CONTEXT@SHARED are",
                   text);
}

uint32_t case_defaults(struct bench_case *out)
{
    static const uint32_t prompts[] = {128, 512, 2048, 4096};
    static const uint32_t batches[] = {1, 4, 16, 64};
    static const uint32_t contexts[] = {0, 1024, 8192};
    uint32_t n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(prompts); i++)
        out[n++] = (struct bench_case){BENCH_PREFILL, prompts[i], 1, 0, 0};
    for (size_t b = 0; b < ARRAY_SIZE(batches); b++)
        for (size_t i = 0; i < ARRAY_SIZE(contexts); i++)
            out[n++] = (struct bench_case){BENCH_DECODE, 0, batches[b], contexts[i], 0};
    return n;
}

void case_name(const struct bench_case *c, char *out)
{
    if (c->shared)
        snprintf(out, BENCH_CASE_NAME_BYTES, "decode:%u:%u@%u", c->batch, c->context, c->shared);
    else if (c->phase == BENCH_DECODE)
        snprintf(out, BENCH_CASE_NAME_BYTES, "decode:%u:%u", c->batch, c->context);
    else if (c->context)
        snprintf(out, BENCH_CASE_NAME_BYTES, "prefill:%u@%u", c->prompt, c->context);
    else
        snprintf(out, BENCH_CASE_NAME_BYTES, "prefill:%u", c->prompt);
}

const char *case_phase_name(const struct bench_case *c)
{
    return c->phase == BENCH_DECODE ? "decode" : "prefill";
}

uint32_t case_rows_per_seq(const struct bench_case *c)
{
    return c->phase == BENCH_DECODE ? 1 : c->prompt;
}

uint32_t case_tokens(const struct bench_case *c)
{
    return case_rows_per_seq(c) * c->batch;
}

uint64_t case_blocks(const struct bench_case *c)
{
    return (uint64_t)c->batch * cache_blocks_max(c->context + case_rows_per_seq(c), 0, 0);
}
