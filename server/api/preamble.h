/* preamble.h - the operator's system prompts, whose KV all tenants share (--preamble).
 *
 * KV of a request belongs to its tenant: another tenant's prompt is no hit, and its time to first
 * token tells nothing. A preamble is the exception that the operator makes: a text file that is the
 * system message of many tenants' chats. Its ids are hashed in the public scope (cache/key.h), and
 * everything behind them, even what was generated, in the tenant's own.
 *
 * Which bytes are public. At start the template is rendered with the file's text as system message,
 * and what it writes up to the first place behind that text where a span may end (engine/text/spans.h)
 * is the preamble's prefix. Where several places are possible, the first that leaves the ids of the
 * whole as they are is taken. The same again with documents behind the text: then the prefix ends
 * where the first document's span begins. A chat whose rendering begins with exactly the bytes of a
 * prefix (the longest, if several) has a span end there and is public before it. So nothing of a
 * request is ever public, whatever the template does with tools, names or other fields: it would
 * not match. And the span end follows from the bytes alone, for every tenant alike (design P1).
 *
 * White space at the end of the file may or may not be in the message: both match. A date that the
 * template writes is fine: prefixes are made anew each day.
 *
 * A request with a cache_salt shares preambles as well: the salt keeps apart what the user wrote,
 * and the preamble is not the user's. What a tenant can learn from a hit is that somebody used the
 * preamble lately, not who, nor anything behind it.
 *
 * Owns    the list: preambles_destroy().
 * Thread  open, prepare, destroy: main, while nothing is served. preambles_find(): any.
 * Errors  open and prepare: words that name the file and say what to do. ERR_NOT_FOUND, ERR_IO,
 *         ERR_INVALID, ERR_TOO_LARGE, ERR_UNSUPPORTED, ERR_NOMEM.
 * Units   bytes of UTF-8; Unix seconds. */
#ifndef TARN_SERVER_API_PREAMBLE_H
#define TARN_SERVER_API_PREAMBLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define PREAMBLES_N_MAX 64
#define PREAMBLE_BYTES_MAX (1u << 20)

struct preambles;
struct server;

/* Reads the files of a comma list. *out is NULL when it names none; files may be NULL. */
NODISCARD enum status preambles_open(struct preambles **out, const char *files, struct buf *why);
/* Renders them as this server renders chats; *srv must live as long. p may be NULL. */
NODISCARD enum status preambles_prepare(struct preambles *p, const struct server *srv,
                                        struct buf *why);
void preambles_destroy(struct preambles *p); /* NULL is fine */

/* *end: how much of a rendered chat, made at now_s, is a preamble's prefix; 0: none is. A span may
 * end there. p may be NULL. ERR_NOMEM and ERR_INTERNAL (logged) on the first call of a day. */
NODISCARD enum status preambles_find(struct preambles *p, const char *text, size_t len,
                                     int64_t now_s, size_t *end);

#endif
