/* prompt.h - from a generated request to the bytes that are sent.
 *
 * Owns    nothing; a style's strings are borrowed.
 * Thread  any.
 * Errors  ERR_INVALID, ERR_TOO_LARGE, ERR_NOMEM with words.
 * Units   tokens become words by the style's tokens_per_word. */
#ifndef TARN_LOADGEN_LOAD_PROMPT_H
#define TARN_LOADGEN_LOAD_PROMPT_H

#include "base/buf.h"
#include "clients/c/tarn_client.h"
#include "loadgen/load/request.h"

struct prompt_style {
    enum tarn_kind kind;
    const char *model;      /* NULL: not sent */
    bool ids;               /* completions with token ids instead of text */
    uint32_t id_lo, id_hi;  /* ids are drawn from [lo, hi) */
    double tokens_per_word; /* of words.h, as the server counts; 1: not known */
    double overhead_tokens; /* what the template (or BOS) adds */
    bool documents_field;   /* chat: our extension; else plain text in the same order */
    bool stream;
    bool ignore_eos;
    double temperature, top_p; /* TARN_UNSET_REAL: not sent */
    int64_t sampling_seed;     /* TARN_UNSET: not sent */
    bool send_session;         /* session_id, an extension */
    const char *extra_body;    /* JSON object, or NULL */
};

/* Answers of earlier turns; text NULL: made from the part's id. */
struct prompt_answers {
    const struct tarn_text *turns; /* [n] */
    uint32_t n;
};

/* tarn_body_fini() on OK. `answers` may be NULL. */
NODISCARD enum status prompt_build(struct tarn_body *out, const struct prompt_style *style,
                                   const struct load_request *r,
                                   const struct prompt_answers *answers, struct buf *why);

#endif
