/* The single steps of tokenizer.c: pre-tokenizers and normalizers, one by one.
 * Expected values were written by Hugging Face tokenizers 0.23.3. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"
#include "tests/unit/test.h"

struct step_case {
    const char *json, *text, *want;
};

static const struct step_case pretok_cases[] = {
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"-+\"},\"behavior\":\"Isolated\",\"invert\":"
     "false}",
     "-a--bc-d---", "-|a|--|bc|-|d|---"},
    {"{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"Isolated\",\"invert\":"
     "false}",
     "-a--bc-d---", "-|a|-|-|bc|-|d|-|-|-"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"-+\"},\"behavior\":\"Isolated\",\"invert\":"
     "true}",
     "-a--bc-d---", "-|a|--|bc|-|d|---"},
    {"{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"Isolated\",\"invert\":"
     "true}",
     "-a--bc-d---", "-|a|-|-|bc|-|d|-|-|-"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"-+\"},\"behavior\":\"Removed\",\"invert\":f"
     "alse}",
     "-a--bc-d---", "a|bc|d"},
    {"{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"Removed\",\"invert\":f"
     "alse}",
     "-a--bc-d---", "a|bc|d"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"-+\"},\"behavior\":\"Removed\",\"invert\":t"
     "rue}",
     "-a--bc-d---", "-|--|-|---"},
    {"{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"Removed\",\"invert\":t"
     "rue}",
     "-a--bc-d---", "-|-|-|-|-|-|-"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"-+\"},\"behavior\":\"Contiguous\",\"invert"
     "\":false}",
     "-a--bc-d---", "-|a|--|bc|-|d|---"},
    {"{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"Contiguous\",\"invert"
     "\":false}",
     "-a--bc-d---", "-|a|--|bc|-|d|---"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"-+\"},\"behavior\":\"Contiguous\",\"invert"
     "\":true}",
     "-a--bc-d---", "-|a|--|bc|-|d|---"},
    {"{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"Contiguous\",\"invert"
     "\":true}",
     "-a--bc-d---", "-|a|--|bc|-|d|---"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"-+\"},\"behavior\":\"MergedWithPrevious\","
     "\"invert\":false}",
     "-a--bc-d---", "-|a--|bc-|d---"},
    {"{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"MergedWithPrevious\","
     "\"invert\":false}",
     "-a--bc-d---", "-|a-|-|bc-|d-|-|-"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"-+\"},\"behavior\":\"MergedWithPrevious\","
     "\"invert\":true}",
     "-a--bc-d---", "-a|--bc|-d|---"},
    {"{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"MergedWithPrevious\","
     "\"invert\":true}",
     "-a--bc-d---", "-a|-|-bc|-d|-|-|-"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"-+\"},\"behavior\":\"MergedWithNext\",\"inv"
     "ert\":false}",
     "-a--bc-d---", "-a|--bc|-d|---"},
    {"{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"MergedWithNext\",\"inv"
     "ert\":false}",
     "-a--bc-d---", "-a|-|-bc|-d|-|-|-"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"-+\"},\"behavior\":\"MergedWithNext\",\"inv"
     "ert\":true}",
     "-a--bc-d---", "-|a--|bc-|d---"},
    {"{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"MergedWithNext\",\"inv"
     "ert\":true}",
     "-a--bc-d---", "-|a-|-|bc-|d-|-|-"},
    {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":tr"
     "ue}",
     "Hi  you've 12\012", "\304\240Hi|\304\240|\304\240you|'ve|\304\24012|\304\212"},
    {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":tr"
     "ue}",
     " Hi", "\304\240Hi"},
    {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":f"
     "alse,\"trim_offsets\":true,\"use_regex\":true},{\"type\":\"Digits\",\"individual_digits"
     "\":true}]}",
     "x12 \303\262\302\262", "x|1|2|\304\240\303\203|\302\262|\303\202|\302\262"},
    {"{\"type\":\"Digits\",\"individual_digits\":false}", "a12\331\243b", "a|12\331\243|b"},
    {"{\"type\":\"Digits\",\"individual_digits\":true}", "a12\342\205\247b",
     "a|1|2|\342\205\247|b"},
    {"{\"type\":\"Punctuation\",\"behavior\":\"Isolated\"}", "a,,b$\342\200\224c",
     "a|,|,|b|$|\342\200\224|c"},
    {"{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}", "a,,b$\342\200\224c",
     "a|,,|b|$\342\200\224|c"},
    {"{\"type\":\"Whitespace\"}", "it's  a_b \340\244\250\340\244\277!?",
     "it|'|s|a_b|\340\244\250\340\244\277|!?"},
    {"{\"type\":\"WhitespaceSplit\"}", " a\302\240b\341\240\216c\302\205d ", "a|b\341\240\216c|d"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^\\\\s]+\"},\"behavior\":\"Isolated\",\"in"
     "vert\":false}",
     "a\341\240\216b c", "a\341\240\216b| |c"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\w+\"},\"behavior\":\"Isolated\",\"inver"
     "t\":false}",
     "a\314\201b-c", "a\314\201b|-|c"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?=[A-Z])\"},\"behavior\":\"Isolated\",\"in"
     "vert\":false}",
     "aBcDe", "a|Bc|De"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"^.\"},\"behavior\":\"Isolated\",\"invert\":"
     "false}",
     "ab\012cd", "a|b\012|c|d"},
    {"{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"always\",\"spli"
     "t\":true}",
     "a b  c", "\342\226\201a|\342\226\201b|\342\226\201|\342\226\201c"},
    {"{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"never\",\"split"
     "\":true}",
     " a b", "\342\226\201a|\342\226\201b"},
    {"{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"first\",\"split"
     "\":false}",
     "a b", "\342\226\201a\342\226\201b"},
    {"{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"always\",\"split\":tr"
     "ue}",
     "_a b", "_a|_b"},
};

static const struct step_case normalizer_cases[] = {
    {"{\"type\":\"NFC\"}", "e\314\201\341\204\200\341\205\241\341\206\250 \342\204\253",
     "\303\251\352\260\201 \303"
     "\205"},
    {"{\"type\":\"NFD\"}", "\303\251\352\260\201", "e\314\201\341\204\200\341\205\241\341\206\250"},
    {"{\"type\":\"NFKC\"}", "\357\254\201\302\275\357\274\241", "fi1\342\201\2042A"},
    {"{\"type\":\"NFKD\"}", "\357\254\201\303\251", "fie\314\201"},
    {"{\"type\":\"NFC\"}", "a\314\201\314\226", "\303\241\314\226"},
    {"{\"type\":\"NFC\"}", "\315\204\340\245\230\342\204\246",
     "\314\210\314\201\340\244\225\340\244\274\316\251"},
    {"{\"type\":\"NFC\"}",
     "q\314\207\314\243\314\201\314\226\314\201\314\226\314\201\314\226\314\201\314\226\314"
     "\201\314\226\314\201\314\226\314\201\314\226\314\201\314\226\314\201\314\226\314\201\314"
     "\226",
     "q\314\243\314\226\314\226\314\226\314\226\314\226\314\226\314\226\314\226\314"
     "\226\314\226\314\207\314\201\314\201\314\201\314\201\314\201\314\201\314\201\314\201\314"
     "\201\314\201"},
    {"{\"type\":\"Lowercase\"}", "ABC\304\260\303\211\341\272\236\316\243",
     "abci\314\207\303\251\303\237\317\203"},
    {"{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}", " \343\200\200a b\012 ",
     "a b"},
    {"{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}", " a ", "a "},
    {"{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true}", "  ", ""},
    {"{\"type\":\"Prepend\",\"prepend\":\"\\u2581\"}", "ab", "\342\226\201ab"},
    {"{\"type\":\"Prepend\",\"prepend\":\"\\u2581\"}", "", ""},
    {"{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\\u2581\"}", " a  b",
     "\342\226\201a\342\226\201\342\226\201b"},
    {"{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\"-\"}", "a   b c  ",
     "a-b c-"},
    {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"\"}", "banana", "bnn"},
    {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"_\"},{\"type"
     "\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}]}",
     "a b", "_a_b"},
};

static struct json *parse(const char *text)
{
    struct json *j = NULL;

    assert_ok(js_parse(&j, text, strlen(text), NULL));
    return j;
}

/* Pieces with | between them; byte-level pieces as letters, as Hugging Face shows them. */
static void show_pieces(struct buf *out, const struct tok_pretok *pt, const struct tok_pieces *p)
{
    for (size_t i = 0; i < p->spans.n; i += 2) {
        assert_ok(i ? buf_putc(out, '|') : OK);
        for (uint32_t at = p->spans.v[i]; at < p->spans.v[i + 1]; at++) {
            char letter[4] = {p->text[at]};
            size_t n = 1;
            if (tok_pretok_is_byte_level(pt))
                n = utf8_put(letter, tok_byte_letter((unsigned char)p->text[at]));
            assert_ok(buf_append(out, letter, n));
        }
    }
}

static void check_pretok(const struct step_case *c, bool no_prefix, const char *want)
{
    struct json *j = parse(c->json);
    struct tok_pretok *pt = NULL;
    struct tok_pieces pieces;
    struct buf shown;

    buf_init(&shown, 4096);
    tok_pieces_init(&pieces);
    assert_ok(tok_pretok_load(&pt, j, true, NULL));
    assert_ok(tok_pretok_run(pt, &pieces, c->text, strlen(c->text), true, no_prefix));
    show_pieces(&shown, pt, &pieces);
    assert_string_equal(buf_str(&shown), want);
    buf_fini(&shown);
    tok_pieces_fini(&pieces);
    tok_pretok_destroy(pt);
    js_unref(j);
}

static void pre_tokenizers_cut_as_hugging_face_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pretok_cases / sizeof pretok_cases[0]; i++)
        check_pretok(&pretok_cases[i], false, pretok_cases[i].want);
}

/* Counts that Ruby and PCRE2 interpret differently. */
#define COUNTED_TEXT                                                                               \
    "1234567 12 aaaaaab abcabab {1,3}+ ]bc \303\251\303\251\303\251\303\251"                       \
    " \347\214\253\347\212\254\347\214\253\347\212\254 abbbb 4"
static const struct step_case count_cases[] = {
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{N}{1,3}+\"},\"behav"
     "ior\":\"Isolated\"}",
     COUNTED_TEXT,
     "1234567| |12| aaaaaab abcabab {|1|,|3|}+ ]bc \303\251\303\251\303\251"
     "\303\251 \347\214\253\347\212\254\347\214\253\347\212\254 abbbb |4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\d{2}+\"},\"behavior\""
     ":\"Isolated\"}",
     COUNTED_TEXT,
     "123456|7 |12| aaaaaab abcabab {1,3}+ ]bc \303\251\303\251\303\251\303"
     "\251 \347\214\253\347\212\254\347\214\253\347\212\254 abbbb 4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\d{2,}+\"},\"behavior"
     "\":\"Isolated\"}",
     COUNTED_TEXT,
     "1234567| |12| aaaaaab abcabab {1,3}+ ]bc \303\251\303\251\303\251\303"
     "\251 \347\214\253\347\212\254\347\214\253\347\212\254 abbbb 4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[0-9]{1,3}++\"},\"behavio"
     "r\":\"Isolated\"}",
     COUNTED_TEXT,
     "1234567| |12| aaaaaab abcabab {|1|,|3|}+ ]bc \303\251\303\251\303\251"
     "\303\251 \347\214\253\347\212\254\347\214\253\347\212\254 abbbb |4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:ab|c){1,2}+\"},\"behav"
     "ior\":\"Isolated\"}",
     COUNTED_TEXT,
     "1234567 12 aaaaa|ab| |abcabab| {1,3}+ ]b|c| \303\251\303\251\303\251"
     "\303\251 \347\214\253\347\212\254\347\214\253\347\212\254 |ab|bbb 4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a{1,2}+a\"},\"behavior\":"
     "\"Isolated\"}",
     COUNTED_TEXT,
     "1234567 12 |aaaaaa|b abcabab {1,3}+ ]bc \303\251\303\251\303\251\303"
     "\251 \347\214\253\347\212\254\347\214\253\347\212\254 abbbb 4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{N}{1,3}+(?=\\\\d)\""
     "},\"behavior\":\"Isolated\"}",
     COUNTED_TEXT,
     "123456|7 |1|2 aaaaaab abcabab {1,3}+ ]bc \303\251\303\251\303\251\303"
     "\251 \347\214\253\347\212\254\347\214\253\347\212\254 abbbb 4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a(b)){1,2}+\"},\"behavio"
     "r\":\"Isolated\"}",
     COUNTED_TEXT,
     "1234567 12 aaaaa|ab| |ab|c|abab| {1,3}+ ]bc \303\251\303\251\303\251"
     "\303\251 \347\214\253\347\212\254\347\214\253\347\212\254 |ab|bbb 4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a{1,3}?+b\"},\"behavior\""
     ":\"Isolated\"}",
     COUNTED_TEXT,
     "1234567 12 |aaaaaab| |ab|c|ab|ab| {1,3}+ ]bc \303\251\303\251\303\251"
     "\303\251 \347\214\253\347\212\254\347\214\253\347\212\254 |ab|bbb 4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\x{61}{1,2}+|\\\\x62{2"
     "}+\"},\"behavior\":\"Isolated\"}",
     COUNTED_TEXT,
     "1234567 12 |aaaaaa|b |a|bc|a|b|a|b {1,3}+ ]bc \303\251\303\251\303\251"
     "\303\251 \347\214\253\347\212\254\347\214\253\347\212\254 |a|bbbb| 4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a{2}{2}\"},\"behavior\":"
     "\"Isolated\"}",
     COUNTED_TEXT,
     "1234567 12 |aaaa|aab abcabab {1,3}+ ]bc \303\251\303\251\303\251\303"
     "\251 \347\214\253\347\212\254\347\214\253\347\212\254 abbbb 4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a{2}?b|1{3}?2\"},\"behavi"
     "or\":\"Isolated\"}",
     COUNTED_TEXT,
     "1|2|34567 1|2| aaaa|aab| a|b|ca|b|a|b| {1,3}+ ]|b|c \303\251\303\251"
     "\303\251\303\251 \347\214\253\347\212\254\347\214\253\347\212\254 a|b|"
     "b|b|b| 4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[ab\\\\]]{2}*c\"},\"behav"
     "ior\":\"Isolated\"}",
     COUNTED_TEXT,
     "1234567 12 aaaaaab |abc|abab {1,3}+ |]bc| \303\251\303\251\303\251\303"
     "\251 \347\214\253\347\212\254\347\214\253\347\212\254 abbbb 4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"b{,2}+c|\\\\d{,2}4\"},\"b"
     "ehavior\":\"Isolated\"}",
     COUNTED_TEXT,
     "1|234|567 12 aaaaaab a|bc|abab {1,3}+ ]|bc| \303\251\303\251\303\251"
     "\303\251 \347\214\253\347\212\254\347\214\253\347\212\254 abbbb |4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?<d>\\\\d){1,2}+\"},\"be"
     "havior\":\"Isolated\"}",
     COUNTED_TEXT,
     "1234567| |12| aaaaaab abcabab {|1|,|3|}+ ]bc \303\251\303\251\303\251"
     "\303\251 \347\214\253\347\212\254\347\214\253\347\212\254 abbbb |4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\303\251{1,2}+|\\\\p{Han}"
     "{2}+\"},\"behavior\":\"Isolated\"}",
     COUNTED_TEXT,
     "1234567 12 aaaaaab abcabab {1,3}+ ]bc |\303\251\303\251\303\251\303"
     "\251| |\347\214\253\347\212\254\347\214\253\347\212\254| abbbb 4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a{1,2}+|{\"},\"behavior\""
     ":\"Isolated\"}",
     COUNTED_TEXT,
     "1234567 12 |aaaaaa|b |a|bc|a|b|a|b |{|1,3}+ ]bc \303\251\303\251\303"
     "\251\303\251 \347\214\253\347\212\254\347\214\253\347\212\254 |a|bbbb "
     "4"},
    {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\" ?\\\\p{L}+|\\\\p{N}{1,3}"
     "+| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s+\"},\"behavior\":\"Is"
     "olated\"}",
     COUNTED_TEXT,
     "1234567| |12| aaaaaab| abcabab| {|1|,|3|}+| ]|bc| \303\251\303\251\303"
     "\251\303\251| \347\214\253\347\212\254\347\214\253\347\212\254| abbbb|"
     " |4"},
};

static void counted_repeats_mean_what_they_mean_to_hugging_face(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof count_cases / sizeof count_cases[0]; i++)
        check_pretok(&count_cases[i], false, count_cases[i].want);
}

static void a_million_counted_digits_are_one_piece(void **state)
{
    struct json *j = parse("{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":"
                           "{\"Regex\":\"\\\\p{N}{1,3}+\"}}");
    const size_t len = 1000000;
    struct tok_pretok *pt = NULL;
    struct tok_pieces pieces;
    char *digits = malloc(len);

    (void)state;
    assert_non_null(digits);
    memset(digits, '7', len);
    tok_pieces_init(&pieces);
    assert_ok(tok_pretok_load(&pt, j, true, NULL));
    assert_ok(tok_pretok_run(pt, &pieces, digits, len, true, false));
    assert_int_equal(pieces.spans.n, 2);
    assert_int_equal(pieces.spans.v[1], len);
    tok_pieces_fini(&pieces);
    tok_pretok_destroy(pt);
    js_unref(j);
    free(digits);
}

static void continued_text_gets_no_space_in_front(void **state)
{
    const struct step_case meta = {"{\"type\":\"Metaspace\",\"split\":true}", "a b", ""};
    const struct step_case bytes = {"{\"type\":\"ByteLevel\",\"use_regex\":false}", "a b", ""};

    (void)state;
    check_pretok(&meta, true, "a|\342\226\201b");
    check_pretok(&bytes, true, "a\304\240b");
}

static void check_normalizer(const struct step_case *c)
{
    struct json *j = parse(c->json);
    struct tok_normalizer *n = NULL;
    struct buf text;

    buf_init(&text, 1 << 20);
    assert_ok(buf_puts(&text, c->text));
    assert_ok(tok_normalizer_load(&n, j, NULL));
    assert_ok(tok_normalize(n, &text, false, NULL));
    assert_string_equal(buf_str(&text), c->want);
    buf_fini(&text);
    tok_normalizer_destroy(n);
    js_unref(j);
}

static void normalizers_write_as_hugging_face_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof normalizer_cases / sizeof normalizer_cases[0]; i++)
        check_normalizer(&normalizer_cases[i]);
}

/* utf8proc's own sort would need 10^10 steps here, and the test would time out. */
static void a_text_of_nothing_but_marks_normalizes_in_linear_time(void **state)
{
    const int n_pairs = 100000;
    struct json *j = parse("{\"type\":\"NFC\"}");
    struct tok_normalizer *n = NULL;
    struct buf text;

    (void)state;
    buf_init(&text, 1 << 20);
    assert_ok(buf_putc(&text, 'q'));
    for (int i = 0; i < n_pairs; i++)
        assert_ok(buf_puts(&text, "\314\201\314\226")); /* class 230, class 220 */
    assert_ok(tok_normalizer_load(&n, j, NULL));
    assert_ok(tok_normalize(n, &text, false, NULL));
    assert_int_equal(text.len, 1 + 4 * n_pairs);
    assert_memory_equal(text.data + 1, "\314\226", 2);
    assert_memory_equal(text.data + text.len - 2, "\314\201", 2);
    buf_fini(&text);
    tok_normalizer_destroy(n);
    js_unref(j);
}

static void byte_letters_are_a_bijection(void **state)
{
    (void)state;
    for (unsigned b = 0; b < 256; b++)
        assert_int_equal(tok_letter_byte(tok_byte_letter((unsigned char)b)), b);
    assert_int_equal(tok_letter_byte(' '), -1);
    assert_int_equal(tok_letter_byte(0x144), -1);
}

static void refused(const char *json, enum status want, const char *word, bool pretok)
{
    struct json *j = parse(json);
    struct tok_pretok *pt = NULL;
    struct tok_normalizer *n = NULL;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = pretok ? tok_pretok_load(&pt, j, true, &why) : tok_normalizer_load(&n, j, &why);
    assert_int_equal(s, want);
    assert_non_null(strstr(buf_str(&why), word));
    assert_null(pt);
    assert_null(n);
    buf_fini(&why);
    js_unref(j);
}

static void unknown_steps_are_refused_by_name(void **state)
{
    (void)state;
    refused("{\"type\":\"UnicodeScripts\"}", ERR_UNSUPPORTED, "UnicodeScripts", true);
    refused("{\"type\":\"Punctuation\",\"behavior\":\"Odd\"}", ERR_UNSUPPORTED, "Odd", true);
    refused("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}}", ERR_INVALID, "pattern", true);
    refused("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a[b]]\"}}", ERR_UNSUPPORTED, "class",
            true);
    refused("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"}}", ERR_UNSUPPORTED, "&&", true);
    refused("{\"type\":\"Split\",\"pattern\":7}", ERR_INVALID, "pattern", true);
    refused("{\"type\":\"Sequence\"}", ERR_INVALID, "pretokenizers", true);
    refused("[]", ERR_INVALID, "type", true);
    refused("{\"type\":\"Metaspace\",\"prepend_scheme\":\"x\"}", ERR_INVALID, "prepend_scheme",
            true);
    refused("{\"type\":\"Metaspace\",\"replacement\":\"ab\"}", ERR_INVALID, "replacement", true);
    refused("{\"type\":\"Odd\"}", ERR_UNSUPPORTED, "Odd", false);
    refused("{\"type\":\"Prepend\"}", ERR_INVALID, "prepend", false);
    refused("{\"type\":\"Replace\",\"content\":\"\",\"pattern\":{\"String\":\"\"}}", ERR_INVALID,
            "empty", false);
}

static void a_pattern_that_backtracks_for_ever_is_an_error(void **state)
{
    struct json *j = parse("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+a+)+[bc]\"}}");
    struct tok_pretok *pt = NULL;
    struct tok_pieces pieces;
    char text[64];

    (void)state;
    memset(text, 'a', sizeof text);
    tok_pieces_init(&pieces);
    assert_ok(tok_pretok_load(&pt, j, true, NULL));
    assert_int_equal(tok_pretok_run(pt, &pieces, text, sizeof text, true, false), ERR_INVALID);
    tok_pieces_fini(&pieces);
    tok_pretok_destroy(pt);
    js_unref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pre_tokenizers_cut_as_hugging_face_does),
        cmocka_unit_test(counted_repeats_mean_what_they_mean_to_hugging_face),
        cmocka_unit_test(a_million_counted_digits_are_one_piece),
        cmocka_unit_test(continued_text_gets_no_space_in_front),
        cmocka_unit_test(normalizers_write_as_hugging_face_does),
        cmocka_unit_test(a_text_of_nothing_but_marks_normalizes_in_linear_time),
        cmocka_unit_test(byte_letters_are_a_bijection),
        cmocka_unit_test(unknown_steps_are_refused_by_name),
        cmocka_unit_test(a_pattern_that_backtracks_for_ever_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
