/* tokenizer_gguf_pre.c - the pre-tokenizers that GGUF files name in tokenizer.ggml.pre.
 *
 * A GGUF file has a name instead of the normalizer and pre-tokenizer of tokenizer.json. The table
 * below returns what the models' own tokenizer.json files contain, so that both files of a model
 * give the same ids. "default" is the one that llama.cpp computes for files of unknown origin. */
#include <string.h>

#include "base/check.h"
#include "engine/text/tokenizer/tokenizer_internal.h"

/* Steps that are not patterns. A pattern cuts a piece at its matches, which become pieces too. */
#define DIGIT "@digit"             /* each digit is a piece */
#define DIGITS "@digits"           /* each run of digits is a piece */
#define PUNCTUATION "@punctuation" /* each run of punctuation is a piece */
#define GPT2 "@gpt2"               /* GPT-2's pattern, on bytes */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
/* Words with at most one other character before them, numbers, other characters, white space. */
#define WORDS(number)                                                                              \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" number " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"         \
                 "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define ONE_DIGIT WORDS("\\p{N}|")
#define THREE_DIGITS WORDS("\\p{N}{1,3}|")
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
/* Words in which a capital letter begins a new piece; `end` is what may follow a word. */
#define CASED(end, number)                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" end "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER     \
    "*" end "|" number " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT4O CASED(CONTRACTIONS "?", "\\p{N}{1,3}|")
/* GPT-2's pattern as a pattern, for "default". */
#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define DEEPSEEK3                                                                                  \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"           \
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *names; /* separated by blanks */
    struct tok_pre pre;
} table[] = {
    {"default",
     {.steps = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2_PATTERN, "\\p{N}+", "[0-9][0-9][0-9]"}}},
    {"gpt-2 phi-2 gigachat jais exaone4 trillion mellum", {.steps = {GPT2}}},
    {"gpt-neox olmo mpt", {.normalizer = "NFC", .steps = {GPT2}}},
    {"starcoder refact smollm codeshell exaone minerva-7b", {.steps = {DIGIT, GPT2}}},
    {"command-r", {.normalizer = "NFC", .steps = {DIGIT, GPT2}}},
    {"falcon", {.steps = {PUNCTUATION, GPT2, DIGITS, "[0-9][0-9][0-9]"}}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     {.steps = {THREE_DIGITS}, .ignore_merges = true, .add_bos = true}},
    {"dbrx smaug-bpe glm4 chatglm-bpe", {.steps = {THREE_DIGITS}}},
    {"qwen2 deepseek-r1-qwen stablelm2", {.normalizer = "NFC", .steps = {ONE_DIGIT}}},
    {"megrez hunyuan grok-2 solar-open", {.steps = {ONE_DIGIT}}},
    {"qwen35",
     {.normalizer = "NFC",
      .steps = {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                             "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)"
                             "|\\s+"}}},
    {"tekken", {.steps = {CASED("", "\\p{N}|")}, .ignore_merges = true, .add_bos = true}},
    {"gpt-4o llama4 kanana2 minimax-m2", {.steps = {GPT4O}}},
    {"deepseek-llm",
     {.steps =
          {"[\\r\\n]", /* letters of Latin, Greek, Cyrillic and other scripts with two cases */
           "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌ"
           "Ύ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
           "Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ί"
           "ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻ"
           "Ȿ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-"
           "ｚ"
           "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
           "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", "[一-龥ࠀ-一가-퟿]+", DIGIT}}},
    {"deepseek-coder",
     {.steps = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGIT}}},
    {"deepseek-v3 hunyuan-dense joyai-llm",
     {.steps = {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3}}},
    {"bailingmoe bailingmoe2 llada-moe",
     {.steps = {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}"
                "| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}}},
    {"seed-coder",
     {.steps = {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}"
                             "| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}}},
};

static bool is_in(const char *names, const char *name)
{
    size_t len = strlen(name);

    if (len == 0 || strchr(name, ' '))
        return false;
    for (const char *at = names; (at = strstr(at, name)); at += len)
        if ((at == names || at[-1] == ' ') && (at[len] == ' ' || at[len] == '\0'))
            return true;
    return false;
}

enum status tok_gguf_pre_find(const struct tok_pre **out, const char *name, struct buf *why)
{
    struct buf known;

    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        if (is_in(table[i].names, name)) {
            *out = &table[i].pre;
            return OK;
        }
    }
    buf_init(&known, 4096);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        (void)!buf_printf(&known, " %s", table[i].names);
    buf_why(why, ERR_UNSUPPORTED, "tokenizer.ggml.pre: \"%.80s\" is not supported; known names:%s",
            name, buf_str(&known));
    buf_fini(&known);
    return ERR_UNSUPPORTED;
}

static enum status write_step(const char *step, struct buf *json)
{
    if (strcmp(step, DIGIT) == 0)
        return buf_puts(json, "{\"type\":\"Digits\",\"individual_digits\":true}");
    if (strcmp(step, DIGITS) == 0)
        return buf_puts(json, "{\"type\":\"Digits\",\"individual_digits\":false}");
    if (strcmp(step, PUNCTUATION) == 0)
        return buf_puts(json, "{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}");
    if (strcmp(step, GPT2) == 0)
        return buf_puts(json, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}");
    enum status s = buf_puts(json, "{\"type\":\"Split\",\"behavior\":\"Isolated\","
                                   "\"invert\":false,\"pattern\":{\"Regex\":");
    if (s == OK)
        s = js_write_string(json, step, strlen(step));
    return s == OK ? buf_puts(json, "}}") : s;
}

enum status tok_gguf_pre_write(const struct tok_pre *p, struct buf *json)
{
    bool letters = false; /* whether a step writes byte-level letters */
    enum status s = OK;

    if (p->normalizer)
        s = buf_printf(json, "\"normalizer\":{\"type\":\"%s\"},", p->normalizer);
    if (s == OK)
        s = buf_puts(json, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (size_t i = 0; i < ARRAY_SIZE(p->steps) && p->steps[i] && s == OK; i++) {
        s = write_step(p->steps[i], json);
        letters = letters || strcmp(p->steps[i], GPT2) == 0;
        if (s == OK && (!letters || (i + 1 < ARRAY_SIZE(p->steps) && p->steps[i + 1])))
            s = buf_putc(json, ',');
    }
    if (s == OK && !letters)
        s = buf_puts(json, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                           "\"use_regex\":false}");
    return s == OK ? buf_puts(json, "]}") : s;
}
