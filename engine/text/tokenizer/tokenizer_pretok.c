/* tokenizer_pretok.c - the pre-tokenizers of tokenizer.json: cut a section into pieces.
 *
 * Sequences are flattened into one list of steps, and every type is built from four kinds:
 *   SPLIT   cut each piece at the matches of a pattern
 *   PREFIX  put a space before each piece that has none
 *   META    replace spaces by U+2581, put one at the start, cut before each
 *   LETTERS replace each byte by its byte-level letter
 * LETTERS as the last step before BPE is skipped: BPE then starts from bytes, with the same
 * result. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"

enum step_kind { STEP_SPLIT, STEP_PREFIX, STEP_META, STEP_LETTERS };

enum behavior { ISOLATED, REMOVED, CONTIGUOUS, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT };

struct step {
    enum step_kind kind;
    enum behavior behavior;
    struct tok_regex *pattern; /* SPLIT; META: the replacement, where pieces are cut */
    bool invert;
    bool old_unicode;         /* SPLIT: the pattern itself handles characters newer than its Unicode
                                 version */
    bool splits;              /* META */
    enum tok_prepend prepend; /* META */
    char meta[8];             /* META: UTF-8 of the replacement */
    size_t meta_len;
};

struct tok_pretok {
    struct step steps[TOK_N_STEPS_MAX];
    size_t n_steps;
    bool byte_level; /* the last step was LETTERS and is skipped */
    bool has_byte_level;
};

/* GPT-2's pattern, the default of ByteLevel. */
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Punctuation in Hugging Face: that of ASCII, and the P categories of Unicode 8. The lookahead
 * excludes newer characters that PCRE2 knows; two characters have changed their category since. */
static const char punctuation_pattern[] =
    "(?!["
    "\\x{61d}\\x{9fd}\\x{a76}\\x{c77}\\x{c84}\\x{1b7d}-\\x{1b7e}\\x{2e43}-\\x{2e4f}"
    "\\x{2e52}-\\x{2e5d}\\x{10ead}\\x{10f55}-\\x{10f59}\\x{10f86}-\\x{10f89}"
    "\\x{1144b}-\\x{1144f}\\x{1145a}-\\x{1145b}\\x{1145d}\\x{11660}-\\x{1166c}\\x{116b9}"
    "\\x{1183b}\\x{11944}-\\x{11946}\\x{119e2}\\x{11a3f}-\\x{11a46}\\x{11a9a}-\\x{11a9c}"
    "\\x{11a9e}-\\x{11aa2}\\x{11c41}-\\x{11c45}\\x{11c70}-\\x{11c71}\\x{11ef7}-\\x{11ef8}"
    "\\x{11fff}\\x{12ff1}-\\x{12ff2}\\x{16e97}-\\x{16e9a}\\x{16fe2}\\x{1e95e}-\\x{1e95f}"
    "])[\\p{P}$+<=>^`|~\\x{166d}\\x{111c9}]";

/* ---- byte-level letters ---- */

/* Printable bytes are their own letters; the other bytes, in order, have letters from U+0100 on. */
static bool is_own_letter(unsigned b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

uint32_t tok_byte_letter(unsigned char byte)
{
    if (is_own_letter(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte < 0xa1)
        return 0x100u + 33 + (byte - 0x7fu);
    return 0x100u + 67; /* 0xad, the soft hyphen */
}

int tok_letter_byte(uint32_t c)
{
    if (c < 0x100)
        return is_own_letter(c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)c - 0x100;
    if (c <= 0x142)
        return (int)c - 0x121 + 0x7f;
    return c == 0x143 ? 0xad : -1;
}

/* ---- loading ---- */

static enum status add_step(struct tok_pretok *p, struct step **out, enum step_kind kind,
                            struct buf *why)
{
    if (p->n_steps == TOK_N_STEPS_MAX)
        return buf_why(why, ERR_UNSUPPORTED, "pre_tokenizer: more than %d steps", TOK_N_STEPS_MAX);
    *out = &p->steps[p->n_steps++];
    (*out)->kind = kind;
    return OK;
}

static enum status add_split(struct tok_pretok *p, const char *pattern, enum behavior behavior,
                             bool invert, struct buf *why)
{
    struct step *step = NULL;
    enum status s = add_step(p, &step, STEP_SPLIT, why);

    if (s != OK)
        return s;
    step->behavior = behavior;
    step->invert = invert;
    return tok_regex_create(&step->pattern, pattern, strlen(pattern), false, "pre_tokenizer", why);
}

static enum status get_behavior(const struct json *node, enum behavior *out, struct buf *why)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    const char *name = NULL;
    enum status s = js_get_str(node, "behavior", &name, NULL, why);

    if (s != OK || !name)
        return s;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum behavior)i;
            return OK;
        }
    }
    return buf_why(why, ERR_UNSUPPORTED, "pre_tokenizer: behavior %s is not supported", name);
}

static enum status load_byte_level(struct tok_pretok *p, const struct json *node, struct buf *why)
{
    bool prefix = true, use_regex = true;
    struct step *step = NULL;
    enum status s = js_get_bool(node, "add_prefix_space", &prefix, why);

    if (s == OK)
        s = js_get_bool(node, "use_regex", &use_regex, why);
    if (s == OK && prefix)
        s = add_step(p, &step, STEP_PREFIX, why);
    if (s == OK && use_regex)
        s = add_split(p, gpt2_pattern, ISOLATED, false, why);
    return s == OK ? add_step(p, &step, STEP_LETTERS, why) : s;
}

static enum status load_split(struct tok_pretok *p, const struct json *node, struct buf *why)
{
    struct step *step = NULL;
    enum status s = add_step(p, &step, STEP_SPLIT, why);

    if (s == OK)
        s = get_behavior(node, &step->behavior, why);
    if (s == OK)
        s = js_get_bool(node, "invert", &step->invert, why);
    if (s == OK)
        s = tok_regex_from_json(&step->pattern, js_get(node, "pattern"), "pre_tokenizer", why);
    return s;
}

static enum status load_digits(struct tok_pretok *p, const struct json *node, struct buf *why)
{
    bool individual = false;
    enum status s = js_get_bool(node, "individual_digits", &individual, why);

    return s == OK ? add_split(p, individual ? "\\p{N}" : "\\p{N}+", ISOLATED, false, why) : s;
}

static enum status add_punctuation(struct tok_pretok *p, enum behavior behavior, struct buf *why)
{
    enum status s = add_split(p, punctuation_pattern, behavior, false, why);

    if (s == OK)
        p->steps[p->n_steps - 1].old_unicode = true;
    return s;
}

static enum status load_punctuation(struct tok_pretok *p, const struct json *node, struct buf *why)
{
    enum behavior behavior = ISOLATED;
    enum status s = get_behavior(node, &behavior, why);

    return s == OK ? add_punctuation(p, behavior, why) : s;
}

static enum status load_bert(struct tok_pretok *p, struct buf *why)
{
    enum status s = add_split(p, "\\s+", REMOVED, false, why);

    return s == OK ? add_punctuation(p, ISOLATED, why) : s;
}

enum status tok_metaspace_prepend(const struct json *node, enum tok_prepend *out, struct buf *why)
{
    const char *scheme = NULL;
    bool prefix = true; /* the form in files before 2024 */
    enum status s = js_get_bool(node, "add_prefix_space", &prefix, why);

    if (s == OK)
        s = js_get_str(node, "prepend_scheme", &scheme, NULL, why);
    if (s != OK)
        return s;
    if (!scheme)
        *out = prefix ? TOK_PREPEND_ALWAYS : TOK_PREPEND_NEVER;
    else if (strcmp(scheme, "always") == 0)
        *out = TOK_PREPEND_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        *out = TOK_PREPEND_FIRST;
    else if (strcmp(scheme, "never") == 0)
        *out = TOK_PREPEND_NEVER;
    else
        return buf_why(why, ERR_INVALID, "Metaspace.prepend_scheme: unknown value %s", scheme);
    return OK;
}

static enum status load_metaspace(struct tok_pretok *p, const struct json *node, struct buf *why)
{
    const char *meta = "\xe2\x96\x81";
    size_t len = 3;
    enum tok_prepend prepend = TOK_PREPEND_ALWAYS;
    struct step *step = NULL;
    enum status s = js_get_str(node, "replacement", &meta, &len, why);

    if (s == OK)
        s = tok_metaspace_prepend(node, &prepend, why);
    if (s == OK)
        s = add_step(p, &step, STEP_META, why);
    if (s != OK)
        return s;
    if (len == 0 || len > 4 || utf8_size(meta[0]) != len)
        return buf_why(why, ERR_INVALID,
                       "pre_tokenizer: Metaspace.replacement: expected one "
                       "character");
    memcpy(step->meta, meta, len);
    step->meta_len = len;
    step->prepend = prepend;
    step->splits = true;
    step->behavior = MERGED_WITH_NEXT;
    s = js_get_bool(node, "split", &step->splits, why);
    if (s == OK)
        s = tok_regex_create(&step->pattern, meta, len, true, "pre_tokenizer", why);
    return s;
}

static enum status load_step(struct tok_pretok *p, const char *type, const struct json *node,
                             struct buf *why)
{
    if (strcmp(type, "ByteLevel") == 0)
        return load_byte_level(p, node, why);
    if (strcmp(type, "Split") == 0)
        return load_split(p, node, why);
    if (strcmp(type, "Metaspace") == 0)
        return load_metaspace(p, node, why);
    if (strcmp(type, "Digits") == 0)
        return load_digits(p, node, why);
    if (strcmp(type, "Punctuation") == 0)
        return load_punctuation(p, node, why);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_split(p, "\\s+", REMOVED, false, why);
    if (strcmp(type, "BertPreTokenizer") == 0)
        return load_bert(p, why);
    if (strcmp(type, "Whitespace") == 0) /* Rust's \w contains the joiners, Oniguruma's does not */
        return add_split(p, "[\\w\\x{200c}\\x{200d}]+|[^\\w\\x{200c}\\x{200d}\\s]+", REMOVED, true,
                         why);
    return buf_why(why, ERR_UNSUPPORTED, "pre_tokenizer: type %s is not supported", type);
}

static enum status load_node(struct tok_pretok *p, const struct json *node, struct buf *why)
{
    const char *type;
    enum status s = tok_node_type(node, "pre_tokenizer", &type, why);

    if (s != OK)
        return s;
    if (strcmp(type, "Sequence") != 0)
        return load_step(p, type, node, why);
    const struct json *list = js_get(node, "pretokenizers");
    if (!js_is(list, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "pre_tokenizer.pretokenizers: expected an array");
    for (size_t i = 0; i < js_len(list) && s == OK; i++)
        s = load_node(p, js_at(list, i), why);
    return s;
}

static void leave_last_letters_to_bpe(struct tok_pretok *p, bool bytes_to_model)
{
    for (size_t i = 0; i < p->n_steps; i++)
        p->has_byte_level |= p->steps[i].kind == STEP_LETTERS;
    if (bytes_to_model && p->n_steps > 0 && p->steps[p->n_steps - 1].kind == STEP_LETTERS) {
        p->byte_level = true;
        p->n_steps--;
    }
}

enum status tok_pretok_load(struct tok_pretok **out, const struct json *node, bool bytes_to_model,
                            struct buf *why)
{
    *out = NULL;
    if (js_is(node, JS_NULL))
        return OK;
    struct tok_pretok *p = calloc(1, sizeof *p);
    if (!p)
        return ERR_NOMEM;
    enum status s = load_node(p, node, why);
    if (s != OK) {
        tok_pretok_destroy(p);
        return s;
    }
    leave_last_letters_to_bpe(p, bytes_to_model);
    *out = p;
    return OK;
}

void tok_pretok_destroy(struct tok_pretok *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < TOK_N_STEPS_MAX; i++)
        tok_regex_destroy(p->steps[i].pattern);
    free(p);
}

bool tok_pretok_is_byte_level(const struct tok_pretok *p)
{
    return p && p->byte_level;
}

bool tok_pretok_has_byte_level(const struct tok_pretok *p)
{
    return p && p->has_byte_level;
}

bool tok_pretok_drops(const struct tok_pretok *p)
{
    for (size_t i = 0; p && i < p->n_steps; i++)
        if (p->steps[i].kind == STEP_SPLIT && p->steps[i].behavior == REMOVED)
            return true;
    return false;
}

/* ---- running ---- */

void tok_pieces_init(struct tok_pieces *p)
{
    *p = (struct tok_pieces){0};
    buf_init(&p->own[0], (size_t)TOK_TEXT_BYTES_MAX * 4);
    buf_init(&p->own[1], (size_t)TOK_TEXT_BYTES_MAX * 4);
    buf_init(&p->own_subject, (size_t)TOK_TEXT_BYTES_MAX * 4);
}

void tok_pieces_fini(struct tok_pieces *p)
{
    buf_fini(&p->own[0]);
    buf_fini(&p->own[1]);
    buf_fini(&p->own_subject);
    tok_vec_fini(&p->spans);
    tok_vec_fini(&p->spare);
}

static enum status push_span(struct tok_vec *spans, size_t start, size_t end)
{
    if (start == end)
        return OK;
    enum status s = tok_push(spans, (uint32_t)start);
    return s == OK ? tok_push(spans, (uint32_t)end) : s;
}

/* Turns the matches and gaps of a piece, in order, into spans by one behavior. `open`: the last
 * span may still grow. */
struct cutter {
    struct tok_vec *out;
    enum behavior behavior;
    size_t start, end;
    bool open, open_is_match;
};

static bool joins_open(const struct cutter *c, bool is_match)
{
    switch (c->behavior) {
    case CONTIGUOUS: return c->open_is_match == is_match;
    case MERGED_WITH_PREVIOUS: return is_match && !c->open_is_match;
    case MERGED_WITH_NEXT: return !is_match && c->open_is_match;
    case ISOLATED:
    case REMOVED: break;
    }
    return false;
}

static enum status cut(struct cutter *c, size_t start, size_t end, bool is_match)
{
    if (c->behavior == ISOLATED)
        return push_span(c->out, start, end);
    if (c->behavior == REMOVED)
        return is_match ? OK : push_span(c->out, start, end);
    if (c->open && joins_open(c, is_match)) {
        c->end = end;
        c->open_is_match = is_match;
        return OK;
    }
    enum status s = c->open ? push_span(c->out, c->start, c->end) : OK;
    c->open = true;
    c->open_is_match = is_match;
    c->start = start;
    c->end = end;
    return s;
}

static enum status cut_piece(const struct step *step, struct tok_find *find, struct tok_vec *out,
                             const char *text, size_t base, size_t len)
{
    struct cutter c = {.out = out, .behavior = step->behavior};
    size_t done = 0, from = 0, start, end;
    enum status s = OK;

    while (s == OK && from <= len) {
        s = tok_find_next(find, text + base, len, from, &start, &end);
        if (s == ERR_NOT_FOUND)
            break;
        if (s == OK && done != start)
            s = cut(&c, base + done, base + start, step->invert);
        if (s == OK)
            s = cut(&c, base + start, base + end, !step->invert);
        if (s != OK)
            return s;
        done = end;
        from = end;
        if (start == end) /* an empty match: skip one character */
            from = end < len ? end + utf8_size(text[base + end]) : len + 1;
    }
    if (s != OK && s != ERR_NOT_FOUND)
        return s;
    s = done != len ? cut(&c, base + done, base + len, step->invert) : OK;
    if (s == OK && c.open)
        s = push_span(out, c.start, c.end);
    return s;
}

static enum status run_split(const struct step *step, struct tok_pieces *p)
{
    struct tok_find find;
    const char *subject = step->old_unicode ? p->text : p->subject;
    enum status s = tok_find_init(&find, step->pattern);

    if (s != OK)
        return s;
    p->spare.n = 0;
    for (size_t i = 0; i < p->spans.n && s == OK; i += 2)
        s = cut_piece(step, &find, &p->spare, subject, p->spans.v[i],
                      p->spans.v[i + 1] - p->spans.v[i]);
    tok_find_fini(&find);
    struct tok_vec done = p->spare;
    p->spare = p->spans;
    p->spans = done;
    return s;
}

/* The buffer that p->text is not in. */
static struct buf *fresh_text(struct tok_pieces *p)
{
    struct buf *b = p->text == p->own[0].data ? &p->own[1] : &p->own[0];

    buf_reset(b);
    return b;
}

static enum status write_prefix(const struct tok_pieces *p, size_t i, bool no_prefix,
                                struct buf *out)
{
    const char *piece = p->text + p->spans.v[i];
    size_t len = p->spans.v[i + 1] - p->spans.v[i];
    enum status s = OK;

    if (piece[0] != ' ' && !(i == 0 && no_prefix))
        s = buf_putc(out, ' ');
    return s == OK ? buf_append(out, piece, len) : s;
}

static enum status write_meta(const struct step *step, const struct tok_pieces *p, size_t i,
                              bool at_start, bool no_prefix, struct buf *out)
{
    const char *c = p->text + p->spans.v[i], *end = p->text + p->spans.v[i + 1];
    bool first = i == 0 && at_start;
    bool has = *c == ' ' ||
               ((size_t)(end - c) >= step->meta_len && memcmp(c, step->meta, step->meta_len) == 0);
    enum status s = OK;

    if (!has && !(i == 0 && no_prefix) &&
        (step->prepend == TOK_PREPEND_ALWAYS || (step->prepend == TOK_PREPEND_FIRST && first)))
        s = buf_append(out, step->meta, step->meta_len);
    while (c < end && s == OK) {
        const char *space = memchr(c, ' ', (size_t)(end - c));
        s = buf_append(out, c, (size_t)((space ? space : end) - c));
        if (s == OK && space)
            s = buf_append(out, step->meta, step->meta_len);
        c = space ? space + 1 : end;
    }
    return s;
}

static enum status write_letters(const struct tok_pieces *p, size_t i, struct buf *out)
{
    enum status s = OK;

    for (uint32_t at = p->spans.v[i]; at < p->spans.v[i + 1] && s == OK; at++) {
        char utf8[4];
        s = buf_append(out, utf8, utf8_put(utf8, tok_byte_letter((unsigned char)p->text[at])));
    }
    return s;
}

static enum status take_text(struct tok_pieces *p, const char *text, size_t len)
{
    p->text = text;
    p->len = len;
    return tok_pattern_subject(text, len, &p->own_subject, &p->subject);
}

/* Run a step that changes the text: write all pieces to a new text, one after the other. */
static enum status run_rewrite(const struct step *step, struct tok_pieces *p, bool at_start,
                               bool no_prefix)
{
    struct buf *out = fresh_text(p);
    enum status s = buf_reserve(out, p->len + p->spans.n);

    for (size_t i = 0; i < p->spans.n && s == OK; i += 2) {
        size_t start = out->len;
        if (step->kind == STEP_PREFIX)
            s = write_prefix(p, i, no_prefix, out);
        else if (step->kind == STEP_META)
            s = write_meta(step, p, i, at_start, no_prefix, out);
        else
            s = write_letters(p, i, out);
        p->spans.v[i] = (uint32_t)start;
        p->spans.v[i + 1] = (uint32_t)out->len;
    }
    if (s == OK)
        s = take_text(p, buf_str(out), out->len);
    if (s == OK && step->kind == STEP_META && step->splits)
        s = run_split(step, p);
    return s;
}

enum status tok_pretok_run(const struct tok_pretok *pt, struct tok_pieces *p, const char *text,
                           size_t len, bool at_start, bool no_prefix)
{
    enum status s = take_text(p, text, len);

    p->spans.n = 0;
    if (s == OK)
        s = push_span(&p->spans, 0, len);
    for (size_t i = 0; pt && i < pt->n_steps && s == OK; i++) {
        const struct step *step = &pt->steps[i];
        if (step->kind == STEP_SPLIT)
            s = run_split(step, p);
        else
            s = run_rewrite(step, p, at_start, no_prefix);
    }
    return s;
}
