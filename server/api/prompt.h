/* prompt.h - turns the messages or prompts of a request into token ids.
 *
 * A chat's messages and documents are rendered (chat_render.h) and tokenized. The
 * strings of a text completion are tokenized; its ids are used unchanged.
 *
 * A special token's spelling in the text of users, tools and documents (provenance.h) is plain
 * text, unless the request's `parse_special` or the flag --parse-special is true. In the raw text
 * of completions it is the special token, unless `parse_special` is false.
 *
 * Each document (documents.h) becomes a span if the rendered text can be cut there, and so does an
 * operator's preamble (preamble.h) at the begin of a chat.
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
#include "engine/request.h"
#include "engine/text/reasoning.h"

#define PROMPT_TEXT_BYTES_MAX (256u << 20)

struct document_use;
struct documents;
struct params;
struct ranges;
struct server;

struct prompt {
    struct buf ids;       /* of u32 */
    struct buf text;      /* for `echo`; empty unless wanted */
    struct buf span_ends; /* of u32: positions at which a span ends; empty: one span */
    uint32_t n_public;    /* leading ids whose KV all tenants share: 0, or one of span_ends */
    struct document_use *documents; /* [n_documents], in the order of the prompt */
    uint32_t n_documents;
    bool documents_in_template; /* at the template's own place, not in the system message */
    bool documents_have_moved;  /* `documents_order` is not "given", so the answer says the order */
    bool wants_citations;
    char documents_note[160]; /* why documents are not spans or cannot be reused; else "" */
    struct request_break breaks[REQUEST_N_BREAKS_MAX]; /* [n_breaks] ascending: retention.h */
    uint32_t n_breaks;
    enum reasoning_place reasoning; /* where the prompt stands in the answer's reasoning */
    bool is_adapted;                /* an adapter computes it, so no document's KV is public */
    const struct kv_scope *scope;   /* the scope in which the order "cache" looks up KV, set by the
                                     caller; NULL: keep the given order */
};

void prompt_init(struct prompt *p, uint32_t n_ids_max);
void prompt_fini(struct prompt *p);
uint32_t prompt_n_ids(const struct prompt *p);
const uint32_t *prompt_ids(const struct prompt *p);
uint32_t prompt_n_span_ends(const struct prompt *p);
const uint32_t *prompt_span_ends(const struct prompt *p);

/* Append the ids of a text. flags: enum tokenizer_flags. untrusted: as of
 * tokenizer_encode_mixed(). */
NODISCARD enum status prompt_append_text(struct prompt *p, const struct server *srv,
                                         const char *text, size_t len, unsigned flags,
                                         const struct ranges *untrusted, struct buf *why);
/* The prompt of a request with messages (prompt_chat.c). */
NODISCARD enum status prompt_from_chat(struct prompt *p, const struct server *srv,
                                       const struct json *body, bool add_special, struct buf *why);
/* The same with these documents instead of the body's. *p takes over d->uses. */
NODISCARD enum status prompt_from_chat_with(struct prompt *p, const struct server *srv,
                                            const struct json *body, struct documents *d,
                                            bool add_special, struct buf *why);
/* flags: enum tokenizer_flags. */
NODISCARD enum status prompt_from_text(struct prompt *p, const struct server *srv, const char *text,
                                       size_t len, unsigned flags, struct buf *why);
/* Make the tokenizer flags for raw text from `parse_special` (true when absent) and add_special. */
NODISCARD enum status prompt_text_flags(const struct json *body, bool add_special, unsigned *flags,
                                        struct buf *why);
/* Copy an array of ids. `name`: the field's name for errors, "prompt" or "tokens". */
NODISCARD enum status prompt_from_ids(struct prompt *p, const struct server *srv,
                                      const struct json *ids, const char *name, struct buf *why);

/* Read the prompts of a text completion: string, [string], [ids] or [[ids]]. The caller frees the
 * array *out of *n_out prompts: prompt_list_free(). With `echo` each prompt's text is kept. */
NODISCARD enum status prompt_list_parse(struct prompt **out, uint32_t *n_out,
                                        const struct server *srv, const struct json *body,
                                        const struct params *params, struct buf *why);
void prompt_list_free(struct prompt *list, uint32_t n);

/* Say why a prompt could not be tokenized. Returns s. */
enum status prompt_say_tokenizing(const struct prompt *p, enum status s, struct buf *why);

/* Append the text of ids, with or without special tokens. */
NODISCARD enum status prompt_decode(const struct server *srv, const uint32_t *ids, uint32_t n,
                                    bool shows_special, struct buf *out);

#endif
