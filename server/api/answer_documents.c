#include "server/api/answer_documents.h"

#include <inttypes.h>

#include "server/api/citations.h"
#include "server/server.h"

bool answer_has_documents(const struct call *call)
{
    return call->prompts[0].n_documents > 0 || call->retrieval.mode;
}

/* Write the tokens of [begin, end) whose KV was found, in all and by tier. The tiers of a found
 * prefix follow each other: a block never lies in a faster tier than the blocks before it. */
static void write_cached(struct writer *w, const struct request *r, uint32_t begin, uint32_t end,
                         uint32_t n_tiers)
{
    uint32_t n_in[CACHE_N_TIERS], n_all = 0, from = 0;

    for (int t = 0; t < CACHE_N_TIERS; t++) {
        uint32_t to = from + atomic_load(&r->n_cached_in[t]);
        uint32_t low = from > begin ? from : begin, high = to < end ? to : end;
        n_in[t] = high > low ? high - low : 0;
        n_all += n_in[t];
        from = to;
    }
    write_format(w, ",\"n_tokens\":%u,\"cached_tokens\":%u,\"cached_tokens_details\":{",
                 end - begin, n_all);
    for (uint32_t t = 0; t < n_tiers; t++)
        write_format(w, "%s\"%s\":%u", t ? "," : "", cache_tier_name((enum cache_tier)t), n_in[t]);
    write_puts(w, "}");
}

static void write_rank(struct writer *w, const char *name, uint32_t rank)
{
    if (rank > 0)
        write_format(w, ",\"%s\":%u", name, rank);
    else
        write_format(w, ",\"%s\":null", name);
}

/* The document's id and title. */
static void write_name(struct writer *w, const char *key, const struct document_use *u)
{
    write_format(w, ",\"%s\":", key);
    if (u->id.len > 0)
        write_json(w, buf_str(&u->id), u->id.len);
    else
        write_puts(w, "null");
    write_puts(w, ",\"title\":");
    write_json(w, buf_str(&u->title), u->title.len);
}

static void write_use(struct writer *w, const struct document_use *u, uint32_t place,
                      const struct request *r, uint32_t n_tiers)
{
    write_format(w, "%s{\"place\":%u", place ? "," : "", place);
    write_name(w, "id", u);
    if (u->is_registered)
        write_format(w, ",\"version\":%u,\"public\":%s", u->version,
                     u->is_public ? "true" : "false");
    else
        write_puts(w, ",\"version\":null,\"public\":false");
    write_puts(w, ",\"score\":");
    if (u->is_retrieved) {
        write_number(w, u->score);
        write_rank(w, "lexical_rank", u->lexical_rank);
        write_rank(w, "vector_rank", u->vector_rank);
    } else {
        write_puts(w, "null");
    }
    if (u->end_id > u->begin_id)
        write_cached(w, r, u->begin_id, u->end_id, n_tiers);
    write_puts(w, "}");
}

/* The index of the given document at each place. */
static void write_order(struct writer *w, const struct prompt *p)
{
    for (uint32_t i = 0; i < p->n_documents; i++)
        write_format(w, "%s%u", i ? "," : ",\"order\":[", p->documents[i].given);
    write_puts(w, "]");
}

static void write_documents(struct writer *w, const struct prompt *p, const struct request *r,
                            uint32_t n_tiers)
{
    write_format(w,
                 ",\"documents\":{\"placement\":\"%s\",\"n_documents\":%u,\"n_spans\":%u,"
                 "\"note\":",
                 p->documents_in_template ? "template" : "system", p->n_documents,
                 prompt_n_span_ends(p) + 1);
    if (p->documents_note[0])
        write_json(w, p->documents_note, strlen(p->documents_note));
    else
        write_puts(w, "null");
    if (p->documents_have_moved)
        write_order(w, p);
    write_puts(w, ",\"used\":[");
    for (uint32_t i = 0; i < p->n_documents; i++)
        write_use(w, &p->documents[i], i, r, n_tiers);
    write_puts(w, "]}");
}

static void write_retrieval(struct writer *w, const struct retrieval_report *report)
{
    write_format(w, ",\"retrieval\":{\"mode\":\"%s\",\"order\":\"%s\",\"found\":%u,\"stages\":%u,",
                 report->mode, report->order, report->n_found, report->n_stages);
    write_puts(w, "\"milliseconds\":");
    write_number(w, report->ms);
    write_puts(w, ",\"embedding_milliseconds\":");
    write_number(w, report->embedding_ms);
    write_format(w, ",\"speculation\":\"%s\"}", report->speculation);
}

void answer_write_citations(struct writer *w, const struct call *call, const struct choice *c)
{
    const struct prompt *p = &call->prompts[c->prompt_index];
    uint32_t n;

    if (!c->citations)
        return;
    const struct citation *found = citations_found(c->citations, &n);
    write_puts(w, ",\"citations\":[");
    for (uint32_t i = 0; i < n; i++) {
        const struct document_use *u = &p->documents[found[i].document];
        write_format(w, "%s{\"start\":%" PRIu64 ",\"end\":%" PRIu64 ",\"place\":%u", i ? "," : "",
                     found[i].begin, found[i].end, found[i].document);
        write_name(w, "document_id", u);
        write_puts(w, "}");
    }
    write_puts(w, "]");
}

void answer_write_documents(struct writer *w, const struct call *call)
{
    const struct prompt *p = &call->prompts[0];

    if (p->n_documents > 0)
        write_documents(w, p, call->choices[0].request, call->srv->info->n_tiers);
    if (call->retrieval.mode)
        write_retrieval(w, &call->retrieval);
}
