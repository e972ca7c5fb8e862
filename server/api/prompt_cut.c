#include "server/api/prompt_cut.h"

#include <string.h>

#include "server/server.h"

#define N_CONTEXTS_MAX 4
#define N_IDS_LEAST 65536 /* a small model may be given a long text, too */

uint32_t prompt_n_ids_max(const struct params *p, const struct server *srv)
{
    uint64_t max = srv->info->max_model_len, more = N_CONTEXTS_MAX * max;

    if (p->n_truncated == 0)
        return (uint32_t)max;
    more = more > N_IDS_LEAST ? more : N_IDS_LEAST;
    return more < UINT32_MAX / sizeof(uint32_t) ? (uint32_t)more : (uint32_t)max;
}

/* Move the breaks with the tokens; those before the cut are lost. */
static void move_breaks(struct prompt *p, uint32_t n_cut)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n_breaks; i++)
        if (p->breaks[i].n_tokens > n_cut)
            p->breaks[n++] =
                (struct request_break){p->breaks[i].n_tokens - n_cut, p->breaks[i].ttl_s};
    p->n_breaks = n;
}

static enum status cut(struct prompt *p, const struct server *srv, uint32_t n_kept)
{
    uint32_t n = prompt_n_ids(p);

    if (n <= n_kept)
        return OK;
    buf_consume(&p->ids, (size_t)(n - n_kept) * sizeof(uint32_t));
    buf_reset(&p->span_ends);
    p->n_public = 0;
    move_breaks(p, n - n_kept);
    if (p->text.len == 0)
        return OK;
    buf_reset(&p->text);
    return prompt_decode(srv, prompt_ids(p), n_kept, true, &p->text);
}

enum status prompts_cut(const struct params *p, const struct server *srv, struct prompt *prompts,
                        uint32_t n, struct buf *why)
{
    enum status s = OK;

    for (uint32_t i = 0; s == OK && p->n_truncated > 0 && i < n; i++)
        s = cut(&prompts[i], srv, p->n_truncated);
    return s == OK ? OK : buf_why(why, s, "truncate_prompt_tokens: %s", status_words(s));
}
