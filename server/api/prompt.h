/* prompt.h - what a client says to the ids that the engine gets.
 *
 * Chat: messages and documents are checked, made the context of the model's template, rendered,
 * tokenized. Completions: strings are tokenized, ids are taken as they are.
 *
 * Special tokens spelled in the text of users, tools and documents (provenance.h) are text like any
 * other, unless the request's `parse_special` or the flag --parse-special says otherwise. In the
 * raw text of completions they are special tokens, unless `parse_special` is false.
 *
 * Documents (documents.h) become spans of their own where the rendered text can be cut, and so does
 * one of the operator's preambles (preamble.h) that a chat begins with.
 *
 * Owns    struct prompt: prompt_fini().
 * Thread  any; reads only what is constant after start.
 * Errors  ERR_INVALID with words that name the field; ERR_UNSUPPORTED; ERR_TOO_LARGE when the ids
 *         would pass the model's context; ERR_NOMEM.
 * Units   tokens; bytes of UTF-8. */
#ifndef TARN_SERVER_API_PROMPT_H
#define TARN_SERVER_API_PROMPT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "cache/cache.h"

struct server;

struct prompt {
    struct buf ids;       /* of u32 */
    struct buf text;      /* what `echo` gives back; empty unless wanted */
    struct buf span_ends; /* of u32: positions before which a span ends; empty: one span */
    uint32_t n_public;    /* ids that every tenant shares: 0, or one of span_ends */
    uint32_t n_documents;
    bool documents_in_template;   /* else at the end of the system message */
    struct buf documents_order;   /* of u32: which of the given documents stands where; empty: all
                                     stand as given, and nobody asked */
    char documents_note[160];     /* why they are not spans, or cannot be reused; else "" */
    const struct kv_scope *scope; /* in which `documents_order` "cache" looks for KV: set by the
                                     caller. NULL: documents stand as given */
};

void prompt_init(struct prompt *p, uint32_t n_ids_max);
void prompt_fini(struct prompt *p);
uint32_t prompt_n_ids(const struct prompt *p);
const uint32_t *prompt_ids(const struct prompt *p);
uint32_t prompt_n_span_ends(const struct prompt *p);
const uint32_t *prompt_span_ends(const struct prompt *p);

/* `body`: an object with messages and so on. The text alone is appended to *out. */
NODISCARD enum status prompt_render_chat(const struct server *srv, const struct json *body,
                                         struct buf *out, struct buf *why);
/* A chat of the server's own: rendered as requests are, with these documents (as struct documents
 * has them; NULL: none) at the time now_s. *first, unless NULL: where the first document's span
 * begins; 0 when they are no spans. */
NODISCARD enum status prompt_render_own(const struct server *srv, const struct json *body,
                                        struct json *documents, bool in_template, int64_t now_s,
                                        struct buf *out, size_t *first, struct buf *why);
NODISCARD enum status prompt_from_chat(struct prompt *p, const struct server *srv,
                                       const struct json *body, bool add_special, struct buf *why);
/* flags: enum tokenizer_flags. */
NODISCARD enum status prompt_from_text(struct prompt *p, const struct server *srv, const char *text,
                                       size_t len, unsigned flags, struct buf *why);
/* The flags for a request's raw text: `parse_special` (true when absent), and add_special. */
NODISCARD enum status prompt_text_flags(const struct json *body, bool add_special, unsigned *flags,
                                        struct buf *why);
/* `name`: what the field is called in errors, "prompt" or "tokens". */
NODISCARD enum status prompt_from_ids(struct prompt *p, const struct server *srv,
                                      const struct json *ids, const char *name, struct buf *why);

/* The prompts of a text completion: string, [string], [ids] or [[ids]]. *out is an array of
 * *n_out made by malloc; the caller finishes and frees them. want_text: keep each one's text. */
NODISCARD enum status prompt_list_parse(struct prompt **out, uint32_t *n_out,
                                        const struct server *srv, const struct json *body,
                                        bool add_special, bool want_text, struct buf *why);
void prompt_list_free(struct prompt *list, uint32_t n);

/* The text of ids, special tokens written out. */
NODISCARD enum status prompt_decode(const struct server *srv, const uint32_t *ids, uint32_t n,
                                    struct buf *out);

#endif
