/* tokenizer_gguf.c - a tokenizer and a chat template from the metadata of a GGUF file.
 *
 * The file has the vocabulary in arrays, and names for everything else. The arrays go directly into
 * the tables of the model; for the steps around the model, and for the tokens that are matched in
 * text, this file writes the members of a tokenizer.json that stand for the names, and the readers
 * of tokenizer.json do the rest. So both files of a model give the same ids.
 *
 *   tokenizer.ggml.model   the tokenizer here
 *   gpt2                   BPE on bytes; tokenizer.ggml.pre names how text is cut
 *   llama                  SentencePiece's BPE: no merges, but scores of the joined tokens
 *   bert                   WordPiece
 *   t5                     Unigram
 *
 * Tokens of the types control and unknown are special tokens, as are the ones by which a text
 * begins and ends, whatever their type. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/text/tokenizer/tokenizer_gguf.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"

#define META "\342\226\201"
#define TEMPLATE_BYTES_MAX (16u << 20)

/* ---- the keys ---- */

static enum status read_kind(struct gguf_source *f)
{
    static const char *const names[] = {"gpt2", "llama", "bert", "t5"}; /* enum gguf_tokens */
    const char *name = NULL;
    enum status s = gguf_get_str(f->g, GGUF_KEY "model", &name, NULL, f->why);

    if (s != OK)
        return s;
    if (!name)
        return buf_why(f->why, ERR_INVALID, GGUF_KEY "model: missing; the file has no tokenizer");
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            f->kind = (enum gguf_tokens)i;
            return OK;
        }
    }
    return buf_why(
        f->why, ERR_UNSUPPORTED,
        GGUF_KEY "model: \"%.80s\" is not supported; supported are gpt2, llama, bert, t5", name);
}

/* Files from before tokenizer.ggml.pre existed: only these families had one way to cut text. */
static const char *pre_of_architecture(const struct gguf_source *f)
{
    static const char *const pairs[][2] = {
        {"gpt2", "gpt-2"},
        {"gptneox", "gpt-neox"},
        {"falcon", "falcon"},
        {"starcoder", "starcoder"},
    };
    const char *architecture = NULL;

    if (gguf_get_str(f->g, "general.architecture", &architecture, NULL, NULL) == OK && architecture)
        for (size_t i = 0; i < ARRAY_SIZE(pairs); i++)
            if (strcmp(architecture, pairs[i][0]) == 0)
                return pairs[i][1];
    return NULL;
}

static enum status read_pre(struct gguf_source *f)
{
    const char *name = NULL;
    enum status s = gguf_get_str(f->g, GGUF_KEY "pre", &name, NULL, f->why);

    if (s == OK && !name)
        name = pre_of_architecture(f);
    if (s == OK && !name)
        s = buf_why(f->why, ERR_UNSUPPORTED,
                    GGUF_KEY
                    "pre: missing, so how to cut text is unknown; convert the model again with "
                    "a llama.cpp of May 2024 or later");
    return s == OK ? tok_gguf_pre_find(&f->pre, name, f->why) : s;
}

static bool is_number(enum gguf_type type)
{
    return type != GGUF_STRING && type != GGUF_BOOL && type != GGUF_ARRAY;
}

/* Read an array with a number for each token; n = 0: absent. */
static enum status read_numbers(struct gguf_source *f, const char *key, struct gguf_array *out)
{
    enum status s = gguf_get_array(f->g, key, out, f->why);

    if (s != OK || !gguf_has(f->g, key))
        return s;
    if (!is_number(out->type))
        return buf_why(f->why, ERR_INVALID, "%s: expected an array of numbers", key);
    if (out->n < f->tokens.n)
        return buf_why(f->why, ERR_INVALID, "%s: has %llu values for %llu tokens", key,
                       (unsigned long long)out->n, (unsigned long long)f->tokens.n);
    return OK;
}

static enum status read_arrays(struct gguf_source *f)
{
    bool scored = f->kind == TOKENS_LLAMA || f->kind == TOKENS_T5;
    enum status s = gguf_get_array(f->g, GGUF_KEY "tokens", &f->tokens, f->why);

    if (s != OK)
        return s;
    if (f->tokens.n == 0 || f->tokens.type != GGUF_STRING)
        return buf_why(f->why, ERR_INVALID, GGUF_KEY "tokens: expected an array of strings");
    if (f->tokens.n > TOK_N_VOCAB_MAX)
        return buf_why(f->why, ERR_INVALID, GGUF_KEY "tokens: more than %u tokens",
                       TOK_N_VOCAB_MAX);
    s = read_numbers(f, GGUF_KEY "token_type", &f->types);
    if (s == OK && scored)
        s = read_numbers(f, GGUF_KEY "scores", &f->scores);
    if (s == OK && scored && f->scores.n == 0)
        s = buf_why(f->why, ERR_INVALID, GGUF_KEY "scores: missing");
    return s;
}

static enum gguf_token_type type_in_file(const struct gguf_source *f, uint32_t id)
{
    double type = f->types.n ? gguf_array_number(&f->types, id) : TYPE_NORMAL;

    return type > TYPE_NORMAL && type <= TYPE_BYTE ? (enum gguf_token_type)type : TYPE_NORMAL;
}

/* Read the id of a token. `usual` is what files without the key mean, if such a token there has the
 * type for it; TOKEN_NONE: nothing. All bits set in a file means none, too. */
static enum status read_id(struct gguf_source *f, const char *key, uint32_t usual, uint32_t *out)
{
    uint64_t id = UINT32_MAX;
    enum status s = gguf_get_u64(f->g, key, 0, UINT32_MAX, &id, f->why);

    *out = TOKEN_NONE;
    if (s != OK)
        return s;
    if (!gguf_has(f->g, key)) {
        if (usual < f->tokens.n &&
            (f->types.n == 0 || type_in_file(f, usual) == TYPE_CONTROL ||
             type_in_file(f, usual) == TYPE_UNKNOWN || f->kind == TOKENS_BERT))
            *out = usual;
        return OK;
    }
    if (id != UINT32_MAX && id >= f->tokens.n)
        return buf_why(f->why, ERR_INVALID, "%s: %llu is not one of the %llu tokens", key,
                       (unsigned long long)id, (unsigned long long)f->tokens.n);
    *out = (uint32_t)id;
    return OK;
}

static enum status read_ids(struct gguf_source *f)
{
    static const struct {
        uint32_t bos, eos, unk, sep;
    } usual[] = {
        [TOKENS_GPT2] = {TOKEN_NONE, TOKEN_NONE, TOKEN_NONE, TOKEN_NONE},
        [TOKENS_LLAMA] = {1, 2, 0, TOKEN_NONE},
        [TOKENS_BERT] = {101, TOKEN_NONE, 100, 102},
        [TOKENS_T5] = {TOKEN_NONE, 1, 2, TOKEN_NONE},
    };
    uint32_t cls = usual[f->kind].bos;
    enum status s = OK;

    if (f->kind == TOKENS_BERT)
        s = read_id(f, GGUF_KEY "cls_token_id", cls, &cls);
    if (s == OK)
        s = read_id(f, GGUF_KEY "bos_token_id", cls, &f->bos);
    if (s == OK)
        s = read_id(f, GGUF_KEY "eos_token_id", usual[f->kind].eos, &f->eos);
    if (s == OK)
        s = read_id(f, GGUF_KEY "eot_token_id", TOKEN_NONE, &f->eot);
    if (s == OK)
        s = read_id(f, GGUF_KEY "eom_token_id", TOKEN_NONE, &f->eom);
    if (s == OK)
        s = read_id(f, GGUF_KEY "unknown_token_id", usual[f->kind].unk, &f->unk);
    /* The name of the key is misspelled in the format. */
    return s == OK ? read_id(f, GGUF_KEY "seperator_token_id", usual[f->kind].sep, &f->sep) : s;
}

/* Read whether a token is added to each text. To add one that the file does not name is an error
 * where the file says so, and has no effect where it is the default. */
static enum status read_add(struct gguf_source *f, const char *key, const char *id_key, uint32_t id,
                            bool *out)
{
    enum status s = gguf_get_bool(f->g, key, out, f->why);

    if (s == OK && *out && id == TOKEN_NONE && gguf_has(f->g, key))
        return buf_why(f->why, ERR_INVALID, "%s: true, but %s is missing", key, id_key);
    *out = *out && id != TOKEN_NONE;
    return s;
}

static enum status read_options(struct gguf_source *f)
{
    enum status s;

    f->add_bos = f->pre ? f->pre->add_bos : f->kind != TOKENS_T5;
    f->add_eos = f->kind == TOKENS_T5;
    f->add_space = f->kind == TOKENS_LLAMA || f->kind == TOKENS_T5;
    s = read_add(f, GGUF_KEY "add_bos_token", GGUF_KEY "bos_token_id", f->bos, &f->add_bos);
    if (s == OK)
        s = read_add(f, GGUF_KEY "add_eos_token", GGUF_KEY "eos_token_id", f->eos, &f->add_eos);
    if (s == OK)
        s = gguf_get_bool(f->g, GGUF_KEY "add_space_prefix", &f->add_space, f->why);
    if (s == OK)
        s = gguf_get_bool(f->g, GGUF_KEY "remove_extra_whitespaces", &f->joins_spaces, f->why);
    return s;
}

/* ---- tokens ---- */

enum gguf_token_type tok_gguf_type(const struct gguf_source *f, uint32_t id)
{
    if (id == f->bos || id == f->eos || id == f->eot || id == f->eom || id == f->sep)
        return TYPE_CONTROL;
    return id == f->unk && f->kind != TOKENS_GPT2 ? TYPE_UNKNOWN : type_in_file(f, id);
}

/* WordPiece in GGUF marks pieces that begin a word; the pieces here mark the others. */
static enum status wordpiece_text(struct gguf_source *f, uint32_t id, const char **text,
                                  size_t *len)
{
    bool begins = *len >= strlen(META) && memcmp(*text, META, strlen(META)) == 0;

    if (begins && *len > strlen(META)) {
        *text += strlen(META);
        *len -= strlen(META);
        return OK;
    }
    if (tok_gguf_is_special(f, id) || *len == 0 || ((*text)[0] == '[' && (*text)[*len - 1] == ']'))
        return OK;
    buf_reset(&f->piece);
    enum status s = buf_puts(&f->piece, "##");
    if (s == OK)
        s = buf_append(&f->piece, *text, *len);
    *text = buf_str(&f->piece);
    *len = f->piece.len;
    return s;
}

/* Read the text of a token, valid until the next call. *len = 0: the id is unused; so are the ids
 * by which converters fill a vocabulary up to the size of the embedding. */
static enum status token_text(struct gguf_source *f, uint32_t id, const char **text, size_t *len)
{
    char filler[24];
    enum gguf_token_type type = type_in_file(f, id);

    *text = gguf_array_str(f->g, &f->tokens, id, len);
    if (!*text)
        return buf_why(f->why, ERR_INVALID, GGUF_KEY "tokens[%u]: not a string", id);
    if (*len > UINT16_MAX)
        return buf_why(f->why, ERR_INVALID, GGUF_KEY "tokens[%u]: longer than %d bytes", id,
                       UINT16_MAX);
    if (!utf8_is_valid(*text, *len))
        return buf_why(f->why, ERR_INVALID, GGUF_KEY "tokens[%u]: not UTF-8", id);
    int n = snprintf(filler, sizeof filler, "[PAD%u]", id);
    if ((type == TYPE_USER || type == TYPE_UNUSED) && *len == (size_t)n &&
        memcmp(*text, filler, *len) == 0)
        *len = 0;
    return f->kind == TOKENS_BERT ? wordpiece_text(f, id, text, len) : OK;
}

/* Whether special tokens take white space behind them, as those of Phi-3 do. The format has no
 * place for this fact. */
static bool strips_right(const struct gguf_source *f, const char *text, size_t len)
{
    static const char *const others[] = {"<unk>", "<s>", "<|endoftext|>"};
    const char *architecture = NULL;

    if (f->kind != TOKENS_LLAMA ||
        gguf_get_str(f->g, "general.architecture", &architecture, NULL, NULL) != OK ||
        !architecture || strcmp(architecture, "phi3") != 0)
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        if (strlen(others[i]) == len && memcmp(text, others[i], len) == 0)
            return false;
    return true;
}

/* Mark a token as one that is matched in text, and describe it. */
static enum status add_to_text(struct gguf_source *f, uint32_t id, const char *text, size_t len,
                               size_t n_before)
{
    bool special = tok_gguf_is_special(f, id);

    f->t->vocab.tokens[id].flags |= TOK_ADDED | (special ? TOK_SPECIAL : 0u);
    enum status s = buf_printf(&f->json,
                               "%s{\"id\":%u,\"special\":%s,\"normalized\":false,"
                               "\"rstrip\":%s,\"content\":",
                               n_before ? "," : "", id, special ? "true" : "false",
                               special && strips_right(f, text, len) ? "true" : "false");
    if (s == OK)
        s = js_write_string(&f->json, text, len);
    return s == OK ? buf_putc(&f->json, '}') : s;
}

/* Enter all tokens, and write the member "added_tokens". */
static enum status load_tokens(struct gguf_source *f)
{
    uint32_t n = (uint32_t)f->tokens.n;
    size_t n_added = 0;
    enum status s = tok_vocab_init(&f->t->vocab, GGUF_KEY "tokens", n, n);

    if (s == OK)
        s = buf_puts(&f->json, "\"added_tokens\":[");
    for (uint32_t id = 0; id < n && s == OK; id++) {
        const char *text;
        size_t len;
        s = token_text(f, id, &text, &len);
        if (s != OK || len == 0)
            continue;
        s = tok_vocab_put(&f->t->vocab, text, len, id, f->why);
        if (s == OK && (tok_gguf_is_special(f, id) || tok_gguf_type(f, id) == TYPE_USER))
            s = add_to_text(f, id, text, len, n_added++);
    }
    return s == OK ? buf_puts(&f->json, "]") : s;
}

/* ---- the steps around the model ---- */

static enum status write_llama(struct gguf_source *f)
{
    return buf_printf(
        &f->json,
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" META "\"}]},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" META "\"},\"content\":\" \"},"
        "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}%s]}",
        f->add_space ? "{\"type\":\"Prepend\",\"prepend\":\"" META "\"}," : "",
        f->add_space ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}" : "");
}

static enum status write_bert(struct gguf_source *f)
{
    bool lowercase = true, strips = true;
    enum status s = gguf_get_bool(f->g, GGUF_KEY "normalizer.lowercase", &lowercase, f->why);

    strips = lowercase;
    if (s == OK)
        s = gguf_get_bool(f->g, GGUF_KEY "normalizer.strip_accents", &strips, f->why);
    if (s != OK)
        return s;
    return buf_printf(&f->json,
                      "\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,"
                      "\"handle_chinese_chars\":true,\"strip_accents\":%s,\"lowercase\":%s},"
                      "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
                      "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}",
                      strips ? "true" : "false", lowercase ? "true" : "false");
}

static enum status write_base64(struct buf *out, const unsigned char *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    enum status s = OK;

    for (size_t i = 0; i < n && s == OK; i += 3) {
        uint32_t bits = (uint32_t)bytes[i] << 16 | (i + 1 < n ? (uint32_t)bytes[i + 1] << 8 : 0) |
                        (i + 2 < n ? bytes[i + 2] : 0);
        char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63],
                        i + 1 < n ? digits[bits >> 6 & 63] : '=',
                        i + 2 < n ? digits[bits & 63] : '='};
        s = buf_append(out, four, sizeof four);
    }
    return s;
}

static enum status write_charsmap(struct gguf_source *f)
{
    struct gguf_array map = {0};
    enum status s = gguf_get_array(f->g, GGUF_KEY "precompiled_charsmap", &map, f->why);

    if (s != OK || map.n == 0)
        return s;
    if (map.type != GGUF_I8 && map.type != GGUF_U8)
        return buf_why(f->why, ERR_INVALID,
                       GGUF_KEY "precompiled_charsmap: expected an array of bytes");
    s = buf_puts(&f->json, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
    if (s == OK)
        s = write_base64(&f->json, map.data, map.n);
    return s == OK ? buf_printf(&f->json, "\"}%s", f->joins_spaces ? "," : "") : s;
}

/* Spaces at the end go and runs of spaces become one, if joins_spaces; those at the start meet the
 * space that Metaspace puts there. */
static enum status write_t5(struct gguf_source *f)
{
    const char *scheme = f->add_space ? "always" : "never";
    enum status s = buf_puts(&f->json, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");

    if (s == OK)
        s = write_charsmap(f);
    if (s == OK && f->joins_spaces)
        s = buf_puts(&f->json, "{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true},"
                               "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},"
                               "\"content\":\"" META "\"}");
    for (int i = 0; i < 2 && s == OK; i++)
        s = buf_printf(&f->json,
                       "%s{\"type\":\"Metaspace\",\"replacement\":\"" META "\","
                       "\"prepend_scheme\":\"%s\",\"split\":true}",
                       i == 0 ? "]},\"pre_tokenizer\":" : ",\"decoder\":", scheme);
    return s;
}

static enum status write_steps(struct gguf_source *f)
{
    enum status s = buf_putc(&f->json, ',');

    if (s != OK)
        return s;
    switch (f->kind) {
    case TOKENS_GPT2:
        s = tok_gguf_pre_write(f->pre, &f->json);
        return s == OK ? buf_puts(&f->json, ",\"decoder\":{\"type\":\"ByteLevel\"}") : s;
    case TOKENS_LLAMA: return write_llama(f);
    case TOKENS_BERT: return write_bert(f);
    case TOKENS_T5: return write_t5(f);
    }
    return ERR_INTERNAL;
}

static enum status load_steps(struct gguf_source *f, const struct json *root)
{
    struct tokenizer *t = f->t;
    enum status s = tok_normalizer_load(&t->normalizer, js_get(root, "normalizer"), f->why);

    if (s == OK)
        s = tok_pretok_load(&t->pretok, js_get(root, "pre_tokenizer"), f->kind == TOKENS_GPT2,
                            f->why);
    if (s == OK)
        s = tok_gguf_model_load(f);
    if (s == OK)
        s = tok_added_load(&t->added, &t->added_normalized, &t->vocab, t->normalizer,
                           js_get(root, "added_tokens"), f->why);
    if (s == OK)
        s = tok_decoder_load(t, js_get(root, "decoder"), f->why);
    if (s == OK && f->add_bos)
        s = tok_push(&t->before, f->bos);
    if (s == OK && f->kind == TOKENS_BERT && f->sep != TOKEN_NONE)
        s = tok_push(&t->after, f->sep);
    if (s == OK && f->add_eos && f->kind != TOKENS_BERT)
        s = tok_push(&t->after, f->eos);
    return s;
}

/* ---- what tokenizer_config.json has ---- */

static enum status name_token(const struct gguf_source *f, uint32_t id, uint32_t *out, char **text)
{
    *out = id;
    if (id == TOKEN_NONE || !f->t->vocab.tokens[id].piece)
        return OK;
    return tok_copy_text(text, f->t->vocab.tokens[id].piece, f->t->vocab.tokens[id].piece_len);
}

/* Write the key of the chat template: "default" or the first one of several, if there is no plain
 * one. Empty: none. */
static enum status template_key(struct gguf_source *f, struct buf *key)
{
    struct gguf_array names = {0};
    enum status s = gguf_get_array(f->g, "tokenizer.chat_templates", &names, f->why);
    const char *chosen = NULL;
    size_t chosen_len = 0;

    if (s == OK && gguf_has(f->g, "tokenizer.chat_template"))
        return buf_puts(key, "tokenizer.chat_template");
    for (uint64_t i = 0; i < names.n && s == OK; i++) {
        size_t len = 0;
        const char *name = gguf_array_str(f->g, &names, i, &len);
        if (!name)
            return buf_why(f->why, ERR_INVALID,
                           "tokenizer.chat_templates: expected an array of strings");
        if (!chosen || (len == 7 && memcmp(name, "default", 7) == 0)) {
            chosen = name;
            chosen_len = len;
        }
    }
    if (s == OK && chosen)
        s = buf_printf(key, "tokenizer.chat_template.%.*s",
                       (int)(chosen_len < 256 ? chosen_len : 256), chosen);
    return s;
}

static enum status load_template(struct gguf_source *f)
{
    struct buf key;
    const char *text = NULL;
    size_t len = 0;

    buf_init(&key, 4096);
    enum status s = template_key(f, &key);
    if (s == OK && key.len > 0)
        s = gguf_get_str(f->g, buf_str(&key), &text, &len, f->why);
    if (s == OK && text && (len > TEMPLATE_BYTES_MAX || !utf8_is_valid(text, len)))
        s = buf_why(f->why, ERR_INVALID, "%s: not UTF-8, or longer than %u bytes", buf_str(&key),
                    TEMPLATE_BYTES_MAX);
    if (s == OK && text)
        s = tok_copy_text(&f->t->chat_template, text, len);
    buf_fini(&key);
    return s;
}

/* ---- all of it ---- */

static enum status read_all(struct gguf_source *f)
{
    struct json *root = NULL;
    enum status s = read_kind(f);

    if (s == OK && f->kind == TOKENS_GPT2)
        s = read_pre(f);
    if (s == OK)
        s = read_arrays(f);
    if (s == OK)
        s = read_ids(f);
    if (s == OK)
        s = read_options(f);
    if (s == OK)
        s = buf_putc(&f->json, '{');
    if (s == OK)
        s = load_tokens(f);
    if (s == OK)
        s = write_steps(f);
    if (s == OK)
        s = buf_putc(&f->json, '}');
    if (s == OK)
        s = js_parse(&root, buf_str(&f->json), f->json.len, f->why);
    if (s == OK)
        s = load_steps(f, root);
    js_unref(root);
    if (s == OK)
        s = name_token(f, f->bos, &f->t->bos_id, &f->t->bos_text);
    if (s == OK)
        s = name_token(f, f->eos, &f->t->eos_id, &f->t->eos_text);
    return s == OK ? load_template(f) : s;
}

enum status tok_gguf_load(struct tokenizer *t, const char *path, struct buf *why)
{
    struct gguf *g = NULL;
    enum status s = gguf_open(&g, path, why);

    if (s != OK)
        return s;
    struct gguf_source f = {.t = t, .g = g, .why = why};
    buf_init(&f.piece, (size_t)UINT16_MAX * 4);
    buf_init(&f.json, TOK_FILE_BYTES_MAX);
    s = read_all(&f);
    if (s == ERR_TOO_LARGE)
        s = buf_why(why, s, GGUF_KEY "tokens: the tokens take too much memory");
    buf_fini(&f.piece);
    buf_fini(&f.json);
    gguf_close(g);
    return s;
}
