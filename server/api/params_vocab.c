#include "server/api/params_vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/run/vocab_mask.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "server/server.h"

/* --- logit_bias --- */

static enum status parse_bias(const char *key, const struct json *value, uint32_t n_vocab,
                              struct logit_bias *out, struct buf *why)
{
    char *end;

    unsigned long id = strtoul(key, &end, 10);
    if (key[0] < '0' || key[0] > '9' || *end != '\0')
        return buf_why(why, ERR_INVALID, "logit_bias: \"%.32s\" is no token id", key);
    if (id >= n_vocab)
        return buf_why(why, ERR_INVALID, "logit_bias: token id %.20s is outside of the vocabulary",
                       key);
    if (!js_is(value, JS_INT) && !js_is(value, JS_REAL))
        return buf_why(why, ERR_INVALID, "logit_bias: expected a number for token %lu, got %s", id,
                       js_type_name(js_typeof(value)));
    double bias = js_number(value);
    if (!(bias >= -100 && bias <= 100))
        return buf_why(why, ERR_INVALID, "logit_bias: %g for token %lu is outside of [-100, 100]",
                       bias, id);
    *out = (struct logit_bias){.id = (uint32_t)id, .bias = (float)bias};
    return OK;
}

static enum status read_logit_bias(struct params *p, const struct server *srv,
                                   const struct json *body, struct buf *why)
{
    const struct json *o = js_get_set(body, "logit_bias");
    size_t n = js_len(o);
    enum status s = OK;

    if (!o)
        return OK;
    if (!js_is(o, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "logit_bias: expected an object, got %s",
                       js_type_name(js_typeof(o)));
    if (n > SAMPLING_N_LOGIT_BIAS_MAX)
        return buf_why(why, ERR_INVALID, "logit_bias: %zu entries, at most %d are taken", n,
                       SAMPLING_N_LOGIT_BIAS_MAX);
    if (n == 0)
        return OK;
    p->logit_bias = calloc(n, sizeof *p->logit_bias);
    if (!p->logit_bias)
        return buf_why(why, ERR_NOMEM, "out of memory");
    for (void *it = js_first(o); s == OK && it; it = js_next(o, it)) {
        s = parse_bias(js_it_key(it), js_it_value(it), srv->info->n_vocab,
                       &p->logit_bias[p->sampling.n_logit_bias], why);
        if (s == OK)
            p->sampling.n_logit_bias++;
    }
    p->sampling.logit_bias = p->logit_bias;
    return s;
}

/* --- allowed_token_ids --- */

static enum status read_allowed(struct params *p, const struct server *srv, const struct json *body,
                                struct buf *why)
{
    const struct json *v = js_get_set(body, "allowed_token_ids");
    uint32_t n_vocab = srv->info->n_vocab;

    if (!v)
        return OK;
    if (!js_is(v, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "allowed_token_ids: expected an array, got %s",
                       js_type_name(js_typeof(v)));
    if (js_len(v) == 0)
        return buf_why(why, ERR_INVALID, "allowed_token_ids: must not be empty");
    p->allowed = calloc(vocab_mask_n_words(n_vocab), sizeof *p->allowed);
    if (!p->allowed)
        return buf_why(why, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < js_len(v); i++) {
        const struct json *id = js_at(v, i);
        if (!js_is(id, JS_INT) || js_int(id) < 0 || js_int(id) >= n_vocab)
            return buf_why(why, ERR_INVALID, "allowed_token_ids[%zu]: expected a token id below %u",
                           i, n_vocab);
        vocab_mask_allow(p->allowed, (uint32_t)js_int(id));
    }
    p->sampling.rules.allowed = p->allowed;
    return OK;
}

void params_allow_label(struct params *p, const struct server *srv, uint32_t k)
{
    const uint32_t *ids = (const uint32_t *)(const void *)p->labels.data;

    if (p->labels.len == 0)
        return;
    memset(p->allowed, 0, vocab_mask_n_words(srv->info->n_vocab) * sizeof *p->allowed);
    vocab_mask_allow(p->allowed, ids[k]);
}

/* --- bad_words --- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Append the ids of a word to those of the words before. */
static enum status add_word(struct params *p, const struct server *srv, const char *text,
                            size_t len)
{
    size_t n_bytes = p->word_ids.len;
    enum status s = tokenizer_encode(srv->tokenizer, text, len,
                                     TOKENIZE_PARSE_SPECIAL | TOKENIZE_CONTINUES, &p->word_ids);
    if (s != OK || p->word_ids.len == n_bytes)
        return s;
    s = buf_u32(&p->word_ends, (uint32_t)(p->word_ids.len / sizeof(uint32_t)));
    p->sampling.rules.n_words += s == OK;
    return s;
}

/* Add the word with and without a space before it. */
static enum status read_word(struct params *p, const struct server *srv, const struct json *v,
                             size_t i, struct buf *why)
{
    char word[1 + BAD_WORD_BYTES_MAX] = " ";
    size_t len;

    if (!js_is(v, JS_STRING))
        return buf_why(why, ERR_INVALID, "bad_words[%zu]: expected a string, got %s", i,
                       js_type_name(js_typeof(v)));
    const char *text = js_string(v, &len);
    for (; len > 0 && is_space(*text); len--)
        text++;
    if (len == 0)
        return buf_why(why, ERR_INVALID, "bad_words[%zu]: must not be empty", i);
    if (len > BAD_WORD_BYTES_MAX)
        return buf_why(why, ERR_INVALID, "bad_words[%zu]: longer than %d bytes", i,
                       BAD_WORD_BYTES_MAX);
    memcpy(word + 1, text, len);
    enum status s = add_word(p, srv, text, len);
    if (s == OK)
        s = add_word(p, srv, word, len + 1);
    if (s == ERR_TOO_LARGE)
        return buf_why(why, ERR_INVALID, "bad_words: more than %d tokens in all words together",
                       VOCAB_N_WORD_IDS_MAX);
    return s == OK ? OK
                   : buf_why(why, s, "bad_words[%zu]: cannot be tokenized: %s", i, status_words(s));
}

static enum status read_bad_words(struct params *p, const struct server *srv,
                                  const struct json *body, struct buf *why)
{
    const struct json *v = js_get_set(body, "bad_words");
    enum status s = OK;

    if (!v)
        return OK;
    if (!js_is(v, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "bad_words: expected an array of strings, got %s",
                       js_type_name(js_typeof(v)));
    if (js_len(v) > VOCAB_N_WORDS_MAX / 2)
        return buf_why(why, ERR_INVALID, "bad_words: %zu entries, at most %d are taken", js_len(v),
                       VOCAB_N_WORDS_MAX / 2);
    if (js_len(v) > 0 && !srv->tokenizer)
        return buf_why(why, ERR_UNSUPPORTED,
                       "bad_words: this model has no tokenizer; use logit_bias or "
                       "allowed_token_ids");
    for (size_t i = 0; s == OK && i < js_len(v); i++)
        s = read_word(p, srv, js_at(v, i), i, why);
    p->sampling.rules.word_ends = (const uint32_t *)(const void *)p->word_ends.data;
    p->sampling.rules.word_ids = (const uint32_t *)(const void *)p->word_ids.data;
    return s;
}

enum status params_read_vocab(struct params *p, const struct server *srv, const struct json *body,
                              struct buf *why)
{
    enum status s = read_logit_bias(p, srv, body, why);

    buf_init(&p->word_ends, VOCAB_N_WORDS_MAX * sizeof(uint32_t));
    buf_init(&p->word_ids, VOCAB_N_WORD_IDS_MAX * sizeof(uint32_t));
    if (s == OK)
        s = read_allowed(p, srv, body, why);
    return s == OK ? read_bad_words(p, srv, body, why) : s;
}

/* --- thoughts --- */

/* The ids of the end marker, and of what stands behind it in every answer. */
static enum status encode_end(struct thought_rule *rule, const struct server *srv, const char *name,
                              struct buf *why)
{
    struct buf text, ids;

    buf_init(&text, 256);
    buf_init(&ids, sizeof rule->end_ids);
    enum status s = buf_printf(&text, "%s%s", rule->format->ends[0], rule->format->behind);
    if (s == OK)
        s = tokenizer_encode(srv->tokenizer, buf_str(&text), text.len,
                             TOKENIZE_PARSE_SPECIAL | TOKENIZE_CONTINUES, &ids);
    rule->n_end_ids = (uint32_t)(ids.len / sizeof *rule->end_ids);
    if (s == OK)
        memcpy(rule->end_ids, buf_str(&ids), ids.len);
    for (uint32_t i = 0; s == OK && i < rule->n_end_ids; i++)
        s = rule->end_ids[i] < srv->info->n_vocab ? OK : ERR_UNSUPPORTED;
    if (s != OK || rule->n_end_ids == 0)
        s = buf_why(why, s == ERR_NOMEM ? s : ERR_UNSUPPORTED,
                    "%s: the tokens of this model cannot write the end of its thoughts", name);
    buf_fini(&text);
    buf_fini(&ids);
    return s;
}

enum status params_read_thoughts(struct params *p, const struct server *srv,
                                 const struct json *body, struct buf *why)
{
    static const char *const names[] = {"thinking_token_budget", "thinking_budget"};
    const char *name = js_get_set(body, names[0]) ? names[0] : names[1];
    int64_t n = -1;
    enum status s = js_get_i64(body, name, -1, INT32_MAX, &n, why);

    if (s != OK || n < 0 || !p->reasoning)
        return s;
    p->thoughts = (struct thought_rule){.format = p->reasoning, .n_max = (uint32_t)n};
    return encode_end(&p->thoughts, srv, name, why);
}

/* --- what is left --- */

static void forbid_ends(const struct params *p, const struct server *srv, uint32_t *mask)
{
    const struct engine_info *info = srv->info;

    for (uint32_t i = 0; i < info->n_eos_ids; i++)
        if (info->eos_ids[i] < info->n_vocab)
            vocab_mask_forbid(mask, info->eos_ids[i]);
    for (uint32_t i = 0; i < p->stopping.n_stop_ids; i++)
        vocab_mask_forbid(mask, p->stopping.stop_ids[i]);
}

enum status params_check_vocab(const struct params *p, const struct server *srv, struct buf *why)
{
    const struct vocab_rules *rules = &p->sampling.rules;
    uint32_t n_vocab = srv->info->n_vocab;
    enum status s = OK;

    if (!rules->allowed && rules->n_words == 0)
        return OK;
    uint32_t *mask = malloc(vocab_mask_n_words(n_vocab) * sizeof *mask);
    if (!mask)
        return buf_why(why, ERR_NOMEM, "out of memory");
    vocab_mask_allow_all(mask, n_vocab);
    if (rules->allowed)
        vocab_mask_narrow(mask, rules->allowed, n_vocab);
    vocab_rules_forbid(rules, NULL, 0, mask);
    if (!vocab_mask_allows_any(mask, mask, n_vocab))
        s = buf_why(why, ERR_INVALID, "bad_words: forbid every token that an answer may have");
    forbid_ends(p, srv, mask);
    if (s == OK && p->stopping.min_tokens > 0 && !vocab_mask_allows_any(mask, mask, n_vocab))
        s = buf_why(why, ERR_INVALID,
                    "min_tokens: every token that an answer may have would end it");
    free(mask);
    return s;
}
