#include "server/api/logprobs.h"

#include <math.h>
#include <string.h>

#include "engine/text/tokenizer/tokenizer_utf8.h"
#include "server/server.h"
#include "server/api/stream.h"
#include "server/api/writer.h"

#define PIECE_BYTES_MAX (1u << 24)

/* --- tokens --- */

static const char *token_bytes(const struct server *srv, uint32_t id, size_t *len)
{
    *len = 0;
    return srv->tokenizer ? tokenizer_bytes(srv->tokenizer, id, len) : "";
}

/* Write a token as a JSON string. prefix: put before bytes that are not UTF-8; "" in chats. In text
 * completions a token is a key of an object, too, and parsers such as Jansson refuse keys with
 * U+0000: a token with that character is written as bytes there. as_id: write its id instead. */
static void write_token(struct writer *w, const struct server *srv, uint32_t id, const char *prefix,
                        bool as_id)
{
    size_t len;
    const char *bytes = token_bytes(srv, id, &len);

    if (as_id || !srv->tokenizer) {
        write_format(w, "\"token_id:%u\"", id);
        return;
    }
    bool is_key = prefix[0] != '\0';
    if (utf8_is_valid(bytes, len) && !(is_key && memchr(bytes, '\0', len))) {
        write_json(w, bytes, len);
        return;
    }
    write_format(w, "\"%s", prefix);
    for (size_t i = 0; i < len; i++)
        write_format(w, "\\\\x%02x", (unsigned char)bytes[i]);
    write_puts(w, "\"");
}

/* Write a logprob. Nine digits distinguish all values of a float. */
static void write_logprob(struct writer *w, float logprob)
{
    write_format(w, "%.9g", isfinite(logprob) ? (double)logprob : LOGPROB_LEAST);
}

static void write_comma(struct writer *w)
{
    if (w->out->len > 0)
        write_puts(w, ",");
}

/* --- chats --- */

/* Write "token":..., "logprob":..., "bytes":[...]. */
static void write_chat_token(struct writer *w, const struct server *srv, uint32_t id, float logprob,
                             bool as_id)
{
    size_t len;
    const char *bytes = token_bytes(srv, id, &len);

    write_puts(w, "{\"token\":");
    write_token(w, srv, id, "", as_id);
    write_puts(w, ",\"logprob\":");
    write_logprob(w, logprob);
    write_puts(w, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++)
        write_format(w, "%s%u", i ? "," : "", (unsigned char)bytes[i]);
    write_puts(w, "]");
}

enum status logprobs_add_chat(struct choice *c, const struct server *srv, uint32_t i)
{
    const struct out_token *t = &c->request->out[i];
    uint32_t n_kept = c->request->sampling.n_logprobs;
    struct writer w = {&c->lp[LP_CONTENT], OK};

    write_comma(&w);
    write_chat_token(&w, srv, t->id, t->logprob, c->tokens_as_ids);
    write_puts(&w, ",\"top_logprobs\":[");
    for (uint32_t k = 0; k < c->n_tops; k++) {
        const struct out_top *top = &c->request->out_top[(size_t)i * n_kept + k];
        write_puts(&w, k ? "," : "");
        write_chat_token(&w, srv, top->id, top->logprob, c->tokens_as_ids);
        write_puts(&w, "}");
    }
    write_puts(&w, "]}");
    return w.status;
}

/* --- text completions --- */

/* A token with its alternatives, best first. */
struct scored_token {
    struct out_token token;
    const struct out_top *tops; /* [n_tops] */
    uint32_t n_tops;
    bool as_ids; /* write ids instead of texts */
};

/* Whether two ids have the same text, such as a byte token and the token of that character. */
static bool is_written_alike(const struct server *srv, uint32_t a, uint32_t b)
{
    size_t a_len, b_len;
    const char *a_bytes = token_bytes(srv, a, &a_len), *b_bytes = token_bytes(srv, b, &b_len);

    return a == b || (srv->tokenizer && a_len == b_len && memcmp(a_bytes, b_bytes, a_len) == 0);
}

/* Whether one of the n best is written as this id is. */
static bool is_among(const struct server *srv, const struct scored_token *t, uint32_t n,
                     uint32_t id)
{
    for (uint32_t k = 0; k < n; k++)
        if (t->tops[k].id == id || (!t->as_ids && is_written_alike(srv, t->tops[k].id, id)))
            return true;
    return false;
}

/* Write an object of the best tokens, and the token itself if it is not among them. Of two tokens
 * with the same text only the better one is written, because the keys of an object are unique. */
static void write_tops(struct writer *w, const struct server *srv, const struct scored_token *t)
{
    const char *separator = "";

    write_puts(w, "{");
    for (uint32_t k = 0; k <= t->n_tops; k++) {
        bool is_top = k < t->n_tops;
        uint32_t id = is_top ? t->tops[k].id : t->token.id;
        if (is_among(srv, t, k, id))
            continue;
        write_puts(w, separator);
        write_token(w, srv, id, "bytes:", t->as_ids);
        write_puts(w, ":");
        write_logprob(w, is_top ? t->tops[k].logprob : t->token.logprob);
        separator = ",";
    }
    write_puts(w, "}");
}

/* Append to each list. is_first: the first token of a prompt, which has no logprob. */
static enum status add_token(struct choice *c, const struct server *srv,
                             const struct scored_token *t, bool is_first)
{
    struct writer w[LP_N];
    enum status s = OK;

    for (int k = 0; k < LP_N; k++) {
        w[k] = (struct writer){&c->lp[k], OK};
        write_comma(&w[k]);
    }
    write_token(&w[LP_TOKENS], srv, t->token.id, "bytes:", t->as_ids);
    if (is_first) {
        write_puts(&w[LP_VALUES], "null");
        write_puts(&w[LP_TOPS], "null");
    } else {
        write_logprob(&w[LP_VALUES], t->token.logprob);
        write_tops(&w[LP_TOPS], srv, t);
    }
    write_format(&w[LP_OFFSETS], "%llu", (unsigned long long)c->n_chars);
    for (int k = 0; k < LP_N; k++)
        s = s == OK ? w[k].status : s;
    return s;
}

static uint64_t n_chars_of(const char *text, size_t len)
{
    uint64_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80; /* first bytes of characters */
    return n;
}

enum status logprobs_add_completion(struct choice *c, const struct server *srv, uint32_t i,
                                    bool in_text)
{
    const struct request *r = c->request;
    uint32_t n_kept = r->sampling.n_logprobs;
    struct scored_token t = {r->out[i], n_kept ? r->out_top + (size_t)i * n_kept : NULL, c->n_tops,
                             c->tokens_as_ids};
    enum status s = add_token(c, srv, &t, false);
    struct buf piece;

    if (s != OK || !in_text)
        return s;
    buf_init(&piece, PIECE_BYTES_MAX);
    s = detok_feed(&c->chars, t.token.id, &piece);
    c->n_chars += n_chars_of(buf_str(&piece), piece.len);
    buf_fini(&piece);
    return s;
}

/* --- the echoed prompt --- */

static bool stands_at(const struct buf *text, size_t at, const char *bytes, size_t len)
{
    return len <= text->len - at && memcmp(buf_str(text) + at, bytes, len) == 0;
}

/* Advance in the echoed text by the prompt's next token. The echoed text is the client's own, and
 * the tokens may spell another text: special tokens and a leading space that the tokenizer added
 * are not in it, so they advance by nothing. Characters changed by normalization advance by as many
 * characters of the client's text. */
static enum status step_over(struct choice *c, const struct server *srv, uint32_t id)
{
    size_t len, at = c->echo_at;
    const char *bytes = token_bytes(srv, id, &len);
    struct buf piece;

    if (tokenizer_is_special(srv->tokenizer, id) && !stands_at(c->echo, at, bytes, len))
        return OK;
    buf_init(&piece, PIECE_BYTES_MAX);
    enum status s = detok_feed(&c->prompt_chars, id, &piece);
    const char *text = buf_str(&piece);
    if (s == OK && at == 0 && piece.len > 0 && text[0] == ' ' && c->echo->data[0] != ' ')
        text++;
    len = piece.len - (size_t)(text - buf_str(&piece));
    if (s == OK && stands_at(c->echo, at, text, len)) {
        c->echo_at += len;
    } else if (s == OK) {
        for (uint64_t n = n_chars_of(text, len); n > 0 && c->echo_at < c->echo->len; n--)
            do
                c->echo_at++;
            while (c->echo_at < c->echo->len &&
                   ((unsigned char)c->echo->data[c->echo_at] & 0xc0) == 0x80);
    }
    c->n_chars += n_chars_of(buf_str(c->echo) + at, c->echo_at - at);
    buf_fini(&piece);
    return s;
}

enum status logprobs_add_prompt(struct choice *c, const struct server *srv, uint32_t i)
{
    const struct request *r = c->scored;
    uint32_t n_kept = r->sampling.n_logprobs;
    struct scored_token t = {r->prompt_out[i], n_kept ? r->prompt_top + (size_t)i * n_kept : NULL,
                             c->n_tops, c->tokens_as_ids};

    t.token.id = r->prompt.ids[i];
    enum status s = add_token(c, srv, &t, i == 0);
    if (s == OK && c->has_detok && c->echo->len > 0)
        s = step_over(c, srv, t.token.id);
    if (i + 1 < r->prompt.n_ids)
        return s;
    for (int k = 0; k < LP_N; k++)
        c->n_echo_bytes[k] = c->lp[k].len;
    c->n_chars = n_chars_of(buf_str(c->echo), c->echo->len); /* offset of the answer's own text */
    return s;
}

enum status logprobs_copy_prompt(struct choice *c, const struct choice *from)
{
    enum status s = OK;

    for (int k = 0; s == OK && k < LP_N; k++)
        s = buf_append(&c->lp[k], buf_str(&from->lp[k]), from->n_echo_bytes[k]);
    c->n_echoed = from->scored->prompt.n_ids;
    c->n_chars = n_chars_of(buf_str(c->echo), c->echo->len);
    return s;
}

/* --- prompt_logprobs --- */

/* rank: from 1; 0: unknown. */
static void write_ranked(struct writer *w, const struct server *srv, struct out_token t,
                         uint32_t rank)
{
    write_format(w, "\"%u\":{\"logprob\":", t.id);
    write_logprob(w, t.logprob);
    if (rank > 0)
        write_format(w, ",\"rank\":%u,\"decoded_token\":", rank);
    else
        write_puts(w, ",\"rank\":null,\"decoded_token\":");
    write_token(w, srv, t.id, "", false);
    write_puts(w, "}");
}

enum status logprobs_add_ranked(struct choice *c, const struct server *srv, uint32_t n_tops,
                                uint32_t i)
{
    const struct request *r = c->request;
    const struct out_top *tops = n_tops ? r->prompt_top + (size_t)i * r->sampling.n_logprobs : NULL;
    struct out_token token = {r->prompt.ids[i], r->prompt_out[i].logprob};
    struct writer w = {&c->ranked, OK};
    uint32_t rank = 0;

    write_comma(&w);
    if (i == 0) {
        write_puts(&w, "null");
        return w.status;
    }
    for (uint32_t k = 0; k < n_tops; k++)
        if (tops[k].id == token.id)
            rank = k + 1;
    write_puts(&w, "{");
    write_ranked(&w, srv, token, rank);
    for (uint32_t k = 0; k < n_tops; k++) {
        if (k + 1 == rank)
            continue;
        write_puts(&w, ",");
        write_ranked(&w, srv, (struct out_token){tops[k].id, tops[k].logprob}, k + 1);
    }
    write_puts(&w, "}");
    return w.status;
}
