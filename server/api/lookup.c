#include "engine/adapters.h"
#include "server/api/lookup.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "server/api/call.h"
#include "server/api/library.h"
#include "server/api/prompt_documents.h"
#include "server/api/search.h"
#include "server/api/speculation.h"
#include "server/api/tally.h"
#include "server/api/wait.h"
#include "server/auth/auth.h"
#include "server/server.h"

#define PAUSE_NS UINT64_C(5000000)

/* A registered document that a stage of the search found. */
struct found {
    int64_t row;
    bool is_gone; /* it was deleted since */
    struct document document;
};

struct lookup {
    struct wait wait;
    /* Set before the work begins. */
    struct server *srv;
    struct json *body;
    enum params_kind kind;
    bool add_special, echo;
    struct kv_scope scope;
    struct account *account; /* a reference */
    bool searches, wants_texts, is_adapted;
    struct search search;
    struct speculation *speculation;
    /* The work's. */
    struct library_parts parts;
    struct documents given;
    struct found *found; /* [n_found] */
    uint32_t n_found;
    uint64_t begin_ns, stage_ns;                    /* of the search, and of the stage */
    struct retrieval_hit last[RETRIEVAL_TOP_K_MAX]; /* of the stage before */
    uint32_t n_last;
    struct prompt prompt;
    struct retrieval_report report;
};

/* --- prompts --- */

static enum status read_text(const struct lookup *l, const char **text, size_t *len,
                             unsigned *flags, struct buf *why)
{
    const struct json *prompt = js_get_set(l->body, "prompt");

    if (!js_is(prompt, JS_STRING))
        return buf_why(why, ERR_INVALID,
                       "prompt: expected one string, before which the documents "
                       "can be put, got %s",
                       js_type_name(js_typeof(prompt)));
    *text = js_string(prompt, len);
    return prompt_text_flags(l->body, l->add_special, flags, why);
}

/* Make the prompt with these documents, of which *d is emptied. */
static enum status make_prompt(const struct lookup *l, struct documents *d, struct prompt *out,
                               struct buf *why)
{
    const char *text = "";
    unsigned flags = 0;
    size_t len = 0;

    prompt_init(out, l->srv->info->max_model_len);
    out->scope = &l->scope;
    out->is_adapted = l->is_adapted;
    if (l->kind == PARAMS_CHAT)
        return prompt_from_chat_with(out, l->srv, l->body, d, l->add_special, why);
    enum status s = read_text(l, &text, &len, &flags, why);
    return s == OK ? prompt_from_text_with(out, l->srv, text, len, flags, d, l->echo, why) : s;
}

/* --- search --- */

/* Find the text of a hit; it is kept for the next stages. *out NULL: the document was deleted
 * meanwhile. */
static enum status fetch(struct lookup *l, int64_t row, const struct document **out,
                         struct buf *why)
{
    const char *tenant = l->account->owner;
    struct found *grown, *f = NULL;
    enum status s = OK;

    for (uint32_t i = 0; !f && i < l->n_found; i++)
        f = l->found[i].row == row ? &l->found[i] : NULL;
    if (!f) {
        grown = realloc(l->found, (l->n_found + (size_t)1) * sizeof *grown);
        if (!grown)
            return buf_why(why, ERR_NOMEM, "out of memory");
        l->found = grown;
        f = &grown[l->n_found++];
        f->row = row;
        document_init(&f->document);
        s = catalog_get_row(l->parts.catalog, row, &f->document, why);
        const char *owner = f->document.tenant;
        f->is_gone = s != OK || (owner[0] && strcmp(owner, tenant) != 0);
    }
    *out = f->is_gone ? NULL : &f->document;
    return s == ERR_NOT_FOUND ? OK : s;
}

/* Make the prompt of a list of hits behind the given documents. */
static enum status make_found_prompt(struct lookup *l, const struct search_state *state,
                                     struct prompt *out, struct buf *why)
{
    const struct document *document = NULL;
    struct documents d;
    enum status s = documents_copy(&d, &l->given);

    prompt_init(out, 0);
    if (s != OK)
        return buf_why(why, s, "out of memory");
    d.n_fixed = d.n;
    d.order = l->search.order;
    for (uint32_t i = 0; s == OK && i < state->n_hits; i++) {
        const struct retrieval_hit *hit = &state->hits[i];
        const struct document_use use = {.is_retrieved = true,
                                         .wants_text = l->wants_texts,
                                         .score = hit->score,
                                         .lexical_rank = hit->lexical_rank,
                                         .vector_rank = hit->vector_rank};
        s = fetch(l, hit->row, &document, why);
        if (s == OK && document)
            s = documents_add(&d, document, &use, why);
    }
    if (s == OK && d.order == DOCUMENTS_BY_ID && (s = documents_sort(&d)) != OK)
        buf_why(why, s, "out of memory");
    if (s == OK)
        s = make_prompt(l, &d, out, why);
    documents_fini(&d);
    return s;
}

/* Whether the list has other documents, or another order, than in the stage before. */
static bool has_changed(struct lookup *l, const struct search_state *state)
{
    bool same = l->n_last == state->n_hits;

    for (uint32_t i = 0; same && i < state->n_hits; i++)
        same = l->last[i].row == state->hits[i].row;
    memcpy(l->last, state->hits, state->n_hits * sizeof *l->last);
    l->n_last = state->n_hits;
    return !same;
}

/* With --retrieval-stage-ms: wait until the stage has taken that long. */
static void take_time(struct lookup *l)
{
    uint64_t end_ns = l->stage_ns + (uint64_t)(l->srv->config->retrieval_stage_ms * 1e6);

    while (clock_now_ns() < end_ns && !wait_is_left(&l->wait)) {
        uint64_t left_ns = end_ns - clock_now_ns();
        clock_sleep_ns(left_ns < PAUSE_NS ? left_ns : PAUSE_NS);
    }
    l->stage_ns = clock_now_ns();
}

/* A stage has ended: prefill the prompt of the provisional list. */
static enum status on_stage(void *arg, const struct search_state *state)
{
    struct lookup *l = arg;
    struct prompt provisional;
    struct buf why;

    take_time(l);
    if (wait_is_left(&l->wait))
        return buf_why(&l->wait.why, ERR_CANCELLED, "the client has left");
    if (state->is_last || !l->speculation || !has_changed(l, state))
        return OK;
    buf_init(&why, BUF_WHY_MAX);
    /* A prompt that cannot be made now may still be possible with the final list. */
    if (make_found_prompt(l, state, &provisional, &why) == OK)
        speculation_update(l->speculation, &provisional);
    prompt_fini(&provisional);
    buf_fini(&why);
    return OK;
}

static enum status search(struct lookup *l)
{
    struct search_state state;

    l->begin_ns = l->stage_ns = clock_now_ns();
    enum status s =
        search_run(&l->search, &l->parts, l->account->owner, on_stage, l, &state, &l->wait.why);
    double seconds = (double)(clock_now_ns() - l->begin_ns) * 1e-9;
    if (s != ERR_CANCELLED)
        tally_search(l->srv->tally, seconds, s == OK);
    if (s == OK)
        s = make_found_prompt(l, &state, &l->prompt, &l->wait.why);
    l->report = (struct retrieval_report){.mode = state.mode,
                                          .order = search_order_name(&l->search),
                                          .n_found = state.n_hits,
                                          .n_stages = state.n_stages,
                                          .ms = seconds * 1e3,
                                          .embedding_ms = state.embedding_ms,
                                          .speculation = "none"};
    return s;
}

/* --- the work --- */

static enum status find_by_id(void *arg, const char *id, struct document *out, struct buf *why)
{
    const struct lookup *l = arg;

    return catalog_get(l->parts.catalog, l->account->owner, id, out, why);
}

static enum status open_library(struct lookup *l)
{
    const char *field = l->searches ? "retrieval" : "documents";
    struct buf inner;

    if (!l->srv->library)
        return buf_why(&l->wait.why, ERR_UNSUPPORTED,
                       "%s: this server keeps no documents (--documents-path none)", field);
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = library_use(l->srv->library, &l->parts, &inner);
    if (s != OK)
        buf_why(&l->wait.why, s, "%s: %s", field, inner.len ? buf_str(&inner) : status_words(s));
    buf_fini(&inner);
    return s;
}

static enum status make(struct lookup *l)
{
    const struct documents_finder finder = {find_by_id, l};
    bool has_ids = documents_have_ids(l->body);
    enum status s = l->searches || has_ids ? open_library(l) : OK;

    if (s == OK)
        s = documents_read(&l->given, l->srv, l->body, l->kind == PARAMS_CHAT,
                           has_ids ? &finder : NULL, &l->wait.why);
    if (s == OK && !wait_is_left(&l->wait))
        s = l->searches ? search(l) : make_prompt(l, &l->given, &l->prompt, &l->wait.why);
    return s;
}

static void lookup_run(void *arg)
{
    struct lookup *l = arg;
    enum status s = make(l);

    speculation_confirm(l->speculation, s == OK ? &l->prompt : NULL);
    if (l->report.mode)
        l->report.speculation = speculation_outcome(l->speculation);
    wait_resume(&l->wait, s);
}

static void lookup_free(struct wait *w)
{
    struct lookup *l = (struct lookup *)w;

    speculation_destroy(l->speculation);
    for (uint32_t i = 0; i < l->n_found; i++)
        document_fini(&l->found[i].document);
    free(l->found);
    documents_fini(&l->given);
    prompt_fini(&l->prompt);
    search_fini(&l->search);
    account_unref(l->account);
    js_unref(l->body);
    wait_fini(w);
    free(l);
}

static enum status lookup_resumed(struct call *call, struct wait *w, struct buf *why)
{
    struct lookup *l = (struct lookup *)w;

    call->prompts = calloc(1, sizeof *call->prompts);
    if (!call->prompts)
        return buf_why(why, ERR_NOMEM, "out of memory");
    call->n_prompts = 1;
    *call->prompts = l->prompt;
    call->prompts->scope = NULL;
    prompt_init(&l->prompt, 0);
    call->retrieval = l->report;
    call->speculation = l->speculation;
    l->speculation = NULL;
    return OK;
}

/* --- the call --- */

bool lookup_is_needed(const struct json *body)
{
    const struct json *order = js_get(body, "documents_order");
    bool by_cache = js_is(order, JS_STRING) && strcmp(js_string(order, NULL), "cache") == 0;

    return search_is_wanted(body) || documents_have_ids(body) ||
           (by_cache && js_len(js_get(body, "documents")) > 0);
}

enum status lookup_begin(struct call *call, const struct json *body, struct buf *why)
{
    struct lookup *l = calloc(1, sizeof *l);
    enum status s = OK;

    if (!l)
        return buf_why(why, ERR_NOMEM, "out of memory");
    wait_init(&l->wait);
    l->wait.job = (struct http_job){lookup_run, l};
    l->wait.resumed = lookup_resumed;
    l->wait.free = lookup_free;
    l->wait.not_found = "document_not_found";
    l->srv = call->srv;
    l->body = js_ref((struct json *)(uintptr_t)body);
    l->kind = call->shape->kind;
    l->add_special = call->params.add_special;
    l->echo = call->params.echo;
    account_scope(call->account, &call->params.scope, &l->scope);
    l->is_adapted = call->params.adapter != NULL;
    if (l->is_adapted)
        adapter_narrow(call->params.adapter, &l->scope);
    l->account = call->account;
    account_ref(l->account);
    prompt_init(&l->prompt, 0);
    l->searches = search_is_wanted(body);
    l->wants_texts = call->wants_found_texts;
    l->wait.name = l->searches                ? "retrieval"
                   : documents_have_ids(body) ? "documents"
                                              : "documents_order";
    if (l->searches)
        s = search_read(&l->search, body, l->kind == PARAMS_CHAT, &call->params.unknown, why);
    if (l->srv->config->retrieval_stage_ms > 0)
        l->search.n_stages_min = SEARCH_N_STAGES;
    /* Work ahead is for the model alone. */
    if (s == OK && l->searches && !call->renders && !l->is_adapted &&
        (s = speculation_create(&l->speculation, l->srv, l->account, &l->scope,
                                call->params.salt)) != OK)
        buf_why(why, s, "out of memory");
    if (s == OK)
        call_wait_for(call, &l->wait);
    else
        wait_unref(&l->wait);
    return s;
}

/* --- what is told to the library --- */

/* Blocks before position pos, at which a span begins. *at, *span: where the count stands, for the
 * next call. */
static uint32_t count_blocks(const struct cache_prompt *p, uint32_t pos, uint32_t *at,
                             uint32_t *span)
{
    uint32_t n = 0;

    for (; *at < pos; n++) {
        uint32_t end = *span < p->n_span_ends ? p->span_ends[*span] : p->n_ids;
        *at += end - *at < KV_BLOCK_TOKENS ? end - *at : KV_BLOCK_TOKENS;
        *span += *at == end;
    }
    return n;
}

void lookup_note(const struct call *call)
{
    const struct prompt *p = call->prompts;
    const struct cache_prompt *keys = &call->choices[0].request->prompt;
    uint32_t n = 0, block = 0, at = 0, span = 0;
    struct library_place *places = NULL;

    for (uint32_t i = 0; i < p->n_documents; i++) {
        const struct document_use *u = &p->documents[i];
        if (!u->is_registered || u->end_id <= u->begin_id)
            continue;
        if (!places && !(places = calloc(p->n_documents, sizeof *places)))
            return; /* the use is not counted */
        block += count_blocks(keys, u->begin_id, &at, &span);
        if (block >= keys->n_keys)
            break;
        places[n++] = (struct library_place){.row = u->row,
                                             .version = u->version,
                                             .place = i,
                                             .n_tokens = u->end_id - u->begin_id,
                                             .key = keys->keys[block]};
    }
    if (n > 0)
        library_note(call->srv->library, places, n);
    free(places);
}
