/* test_plain_specials.c - no text of a user, a tool or a document becomes a control token.
 *
 * The test takes every chat template of the shared data, with a tokenizer whose special tokens are
 * all bracketed words in the template, and a few foreign ones. Chats of several shapes have these
 * spellings in every field that users, tools and documents fill. Checks:
 *   - a foreign special token never appears in the ids, and
 *   - the special tokens of the prompt are those of the same chat with the spellings broken;
 *   - with parse_special the foreign ones do appear, so the test can fail, and
 *   - a chat without spellings has the same ids with parse_special and without.
 * Skipped (77) if the shared data are absent. */
#include <dirent.h>

#include "engine/text/chat_template.h"
#include "engine/text/spans.h"
#include "server/api/documents.h"
#include "server/api/prompt.h"
#include "server/server.h"
#include "tests/unit/engine/text/tokenizer/tokenizer_test.h"

#define N_SPELLINGS_MAX 400
#define FIRST_ID 256
#define LETTERS "abcdefghijklmnopqrstuvwxyz"
#define N_FOREIGN 3 /* the first ids, whose spellings are in no template */

static const char *const foreign[N_FOREIGN] = {"<|tarn_foreign|>", "<|Tarn Normalized|>",
                                               "[FOREIGN]"};

struct spellings {
    char text[N_SPELLINGS_MAX][64];
    uint32_t n;
};

static char templates_dir[512];

/* ---- the tokenizer of a template ---- */

static void add_spelling(struct spellings *s, const char *text, size_t len)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (strlen(s->text[i]) == len && memcmp(s->text[i], text, len) == 0)
            return;
    if (s->n < N_SPELLINGS_MAX && len < sizeof s->text[0])
        snprintf(s->text[s->n++], sizeof s->text[0], "%.*s", (int)len, text);
}

/* Find the words in <...> or [...] without spaces, quotes, braces or brackets inside. */
static void find_spellings(struct spellings *s, const char *source)
{
    for (size_t i = 0; i < N_FOREIGN; i++)
        add_spelling(s, foreign[i], strlen(foreign[i]));
    add_spelling(s, "<s>", 3);
    add_spelling(s, "</s>", 4);
    for (const char *p = source; *p; p++) {
        char close = *p == '<' ? '>' : *p == '[' ? ']' : 0;
        size_t n = close ? strcspn(p + 1, "<>[] \n\"'{}()%=:,") : 0;
        bool letters = n > 1 && strpbrk(p + 1, LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZ") < p + 1 + n;
        bool upper =
            letters && p[1] != '-' && (p[1] < '0' || p[1] > '9') && !(p[1] >= 'a' && p[1] <= 'z');
        if (letters && p[n + 1] == close && (close == '>' || upper))
            add_spelling(s, p, n + 2);
    }
}

static struct tokenizer *load_tokenizer(const struct spellings *s)
{
    struct recipe recipe = {.byte_letters = true,
                            .pretok = BYTE_LEVEL,
                            .decoder = BYTE_LEVEL,
                            .normalizer = "{\"type\":\"NFC\"}"};
    static const char config[] = "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}";
    struct buf added;

    buf_init(&added, 1 << 20);
    for (uint32_t i = 0; i < s->n; i++) {
        assert_ok(buf_printf(&added, "%s{\"id\":%u,\"special\":true,\"normalized\":%s,\"content\":",
                             i ? "," : "[", FIRST_ID + i, i % 2 ? "true" : "false"));
        assert_ok(js_write_string(&added, s->text[i], strlen(s->text[i])));
        assert_ok(buf_puts(&added, "}"));
    }
    assert_ok(buf_puts(&added, "]"));
    recipe.added = buf_str(&added);
    write_temp("tokenizer_config.json", config, sizeof config - 1);
    struct tokenizer *t = load_recipe(&recipe);
    buf_fini(&added);
    return t;
}

/* ---- chats ---- */

/* %s: the text of a user, a tool or a document. */
static const char *const chats[] = {
    "{'messages':[{'role':'user','content':'%s'}]}",
    "{'messages':[{'role':'user','content':'  %s  ','name':'%s'}],'add_generation_prompt':false}",
    "{'messages':[{'role':'system','content':'be brief'},{'role':'user','content':[{'type':'text',"
    "'text':'%s'},{'type':'text','text':'and %s'}]},{'role':'assistant','content':'yes'},"
    "{'role':'user','content':'%s'}]}",
    "{'messages':[{'role':'user','content':'%s'},{'role':'assistant','content':'','tool_calls':"
    "[{'id':'%s','type':'function','function':{'name':'f%s','arguments':{'%s':'%s','a':['%s',1]}}"
    "}]},"
    "{'role':'tool','tool_call_id':'%s','name':'f%s','content':'%s'},"
    "{'role':'user','content':'%s'}]}",
    "{'messages':[{'role':'user','content':'%s'},{'role':'assistant','content':null,'tool_calls':"
    "[{'id':'abcdefghi','type':'function','function':{'name':'f','arguments':"
    "'{\\\"a\\\":\\\"%s\\\"}'}}]},{'role':'tool','tool_call_id':'abcdefghi',"
    "'content':'{\\\"b\\\":\\\"%s\\\"}'}]}",
    "{'messages':[{'role':'system','content':'read'},{'role':'user','content':'q %s'}],"
    "'documents':[{'title':'%s','text':'%s'},{'text':'a\\n%s'}],'documents_placement':'system'}",
    "{'messages':[{'role':'user','content':'q %s'}],'documents':[{'title':'%s','text':'%s'}]}",
    "{'messages':[{'role':'user','content':'q %s'}],'documents':[{'title':'%s','text':'%s','k%s':"
    "'%s'}],'documents_placement':'template'}",
};
#define N_CHATS (sizeof chats / sizeof chats[0])

/* Make a chat with this text in place of each %s. parse_special: "true", "false" or NULL. */
static struct json *make_chat(const char *form, const char *text, const char *parse_special)
{
    /* Firefunction's template needs these. */
    static const char asked_for[] = "{\"functions\":\"none\",\"datetime\":\"now\"}";
    struct json *body = NULL, *kwargs = NULL;
    struct buf json;

    buf_init(&json, 1 << 22);
    for (const char *p = form; *p; p++) {
        if (p[0] == '%' && p[1] == 's')
            assert_ok(buf_puts(&json, text)), p++;
        else
            assert_ok(buf_putc(&json, *p == '\'' ? '"' : *p));
    }
    assert_ok(js_parse(&body, json.data, json.len, NULL));
    assert_ok(js_parse(&kwargs, asked_for, sizeof asked_for - 1, NULL));
    assert_ok(js_set(body, "chat_template_kwargs", kwargs));
    if (parse_special)
        assert_ok(js_set(body, "parse_special", js_new_bool(strcmp(parse_special, "true") == 0)));
    buf_fini(&json);
    return body;
}

/* Tokenize a chat. False: the template refuses it. */
static bool encode(const struct server *srv, const char *form, const char *text,
                   const char *parse_special, struct prompt *p)
{
    struct json *body = make_chat(form, text, parse_special);
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    prompt_init(p, 1 << 20);
    enum status s = prompt_from_chat(p, srv, body, false, &why);
    js_unref(body);
    if (s != OK && getenv("TARN_TEST_VERBOSE"))
        print_message("  %.60s...: %s\n", form, buf_str(&why));
    buf_fini(&why);
    return s == OK;
}

/* ---- checks ---- */

static size_t count_foreign(const struct prompt *p)
{
    size_t n = 0;

    for (uint32_t i = 0; i < prompt_n_ids(p); i++)
        n += prompt_ids(p)[i] >= FIRST_ID && prompt_ids(p)[i] < FIRST_ID + N_FOREIGN;
    return n;
}

static uint32_t next_special(const struct prompt *p, uint32_t *at)
{
    while (*at < prompt_n_ids(p) && prompt_ids(p)[*at] < FIRST_ID)
        (*at)++;
    return *at < prompt_n_ids(p) ? prompt_ids(p)[(*at)++] : 0;
}

static bool same_specials(const struct prompt *a, const struct prompt *b)
{
    uint32_t i = 0, k = 0, id;

    do
        id = next_special(a, &i);
    while (id == next_special(b, &k) && id != 0);
    return id == 0 && next_special(b, &k) == 0;
}

static bool same_ids(const struct prompt *a, const struct prompt *b)
{
    return a->ids.len == b->ids.len && memcmp(a->ids.data, b->ids.data, a->ids.len) == 0 &&
           a->span_ends.len == b->span_ends.len &&
           (a->span_ends.len == 0 ||
            memcmp(a->span_ends.data, b->span_ends.data, a->span_ends.len) == 0);
}

/* Write all spellings one after another. broken: changed so that none is a special token. */
static void write_spellings(const struct spellings *s, bool broken, struct buf *out)
{
    assert_ok(buf_puts(out, "x"));
    for (uint32_t i = 0; i < s->n; i++) {
        const char *t = s->text[i];
        if (broken)
            assert_ok(buf_printf(out, "%.1s.%s ", t, t + 1));
        else
            assert_ok(buf_printf(out, "%s ", t));
    }
    assert_ok(buf_puts(out, "y"));
}

/* Check a chat. False: the template refuses it. */
static bool check_chat(const struct server *srv, const char *name, const char *form,
                       const struct spellings *s)
{
    static const char benign[] = "What is \303\251 <b> [1]? \347\214\253\\n  It's e\314\201.";
    struct prompt hostile, old, twin, plain, plain_old;
    struct buf spelled, broken;

    buf_init(&spelled, 1 << 20);
    buf_init(&broken, 1 << 20);
    write_spellings(s, false, &spelled);
    write_spellings(s, true, &broken);
    bool ok = encode(srv, form, buf_str(&broken), NULL, &twin);
    bool hostile_ok = encode(srv, form, buf_str(&spelled), NULL, &hostile);
    bool old_ok = encode(srv, form, buf_str(&spelled), "true", &old);
    bool plain_ok = encode(srv, form, benign, NULL, &plain);
    bool plain_old_ok = encode(srv, form, benign, "true", &plain_old);
    if (hostile_ok != old_ok || plain_ok != plain_old_ok)
        fail_msg("%s: %s: refused in one way only", name, form);
    if (hostile_ok && count_foreign(&hostile) > 0)
        fail_msg("%s: %s: %zu foreign tokens", name, form, count_foreign(&hostile));
    if (old_ok && count_foreign(&old) == 0)
        fail_msg("%s: %s: no foreign token with parse_special", name, form);
    if (hostile_ok && ok && !same_specials(&hostile, &twin))
        fail_msg("%s: %s: other special tokens than with broken spellings", name, form);
    if (plain_ok && !same_ids(&plain, &plain_old))
        fail_msg("%s: %s: text without spellings has other ids", name, form);
    prompt_fini(&hostile);
    prompt_fini(&old);
    prompt_fini(&twin);
    prompt_fini(&plain);
    prompt_fini(&plain_old);
    buf_fini(&spelled);
    buf_fini(&broken);
    return hostile_ok && ok;
}

/* Check that text of the operator, the model and the template itself keeps its special tokens. */
static void check_trusted(const struct server *srv, const char *name)
{
    static const char form[] =
        "{'messages':[{'role':'system','content':'%s'},{'role':'user','content':'q'},"
        "{'role':'assistant','content':'%s'},{'role':'user','content':'q'}]}";
    struct prompt p, old;
    bool ok = encode(srv, form, foreign[0], NULL, &p);

    if (encode(srv, form, foreign[0], "true", &old) && ok && !same_ids(&p, &old))
        fail_msg("%s: system and assistant messages have other ids than they had", name);
    prompt_fini(&p);
    prompt_fini(&old);
}

/* Check all chats with a template. Return the number of chats that it does not refuse. */
static uint32_t check_template(const char *name, const char *source, size_t len)
{
    struct config config = {.parse_special = false};
    struct engine_info info = {.max_model_len = 1 << 20};
    struct spellings *s = calloc(1, sizeof *s);
    struct chat_template *template = NULL;
    uint32_t n_taken = 0;

    assert_non_null(s);
    find_spellings(s, source);
    if (chat_template_create(&template, source, len, NULL) != OK) {
        free(s);
        return 0;
    }
    struct tokenizer *t = load_tokenizer(s);
    struct server srv = {.config = &config, .info = &info, .tokenizer = t, .template = template};
    assert_ok(span_marks_create(&srv.span_marks, t));
    srv.kit.template = template;
    srv.kit.documents_lead = documents_lead(template);
    chat_traits_find(&srv.kit.traits, template);
    for (size_t i = 0; i < N_CHATS; i++)
        n_taken += check_chat(&srv, name, chats[i], s);
    check_trusted(&srv, name);
    span_marks_destroy(srv.span_marks);
    chat_template_destroy(template);
    tokenizer_destroy(t);
    free(s);
    return n_taken;
}

static size_t read_all(const char *name, char **out)
{
    char path[1024];
    struct buf b;
    size_t n;
    char piece[4096];

    snprintf(path, sizeof path, "%s/%s", templates_dir, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    buf_init(&b, 1 << 22);
    while ((n = fread(piece, 1, sizeof piece, f)) > 0)
        assert_ok(buf_append(&b, piece, n));
    fclose(f);
    *out = b.data;
    return b.len;
}

static void no_text_of_others_becomes_a_control_token(void **state)
{
    uint32_t n_templates = 0, n_taken = 0;
    DIR *dir = opendir(templates_dir);

    (void)state;
    assert_non_null(dir);
    make_temp_dir();
    for (struct dirent *e; (e = readdir(dir));) {
        size_t n = strlen(e->d_name);
        char *source = NULL;
        if (n < 6 || strcmp(e->d_name + n - 6, ".jinja") != 0)
            continue;
        size_t len = read_all(e->d_name, &source);
        uint32_t k = check_template(e->d_name, source, len);
        if (k == 0)
            fail_msg("%s takes none of the chats", e->d_name);
        n_templates++;
        n_taken += k;
        free(source);
    }
    closedir(dir);
    remove_temp_dir();
    print_message("%u templates, %u chats of %zu each\n", n_templates, n_taken, N_CHATS);
    assert_true(n_templates > 0);
}

/* One half of the spelling is the template's text, the other half the user's. */
static void a_spelling_across_the_border_is_text(void **state)
{
    static const char source[] = "{{ bos_token }}<|tarn_{% for m in messages %}{{ m.content }}"
                                 "_foreign|>{% endfor %}";
    static const char *const texts[] = {"foreign|>", "<|tarn", "", "<|tarn_foreign|",
                                        "n_foreign|>"};

    (void)state;
    make_temp_dir();
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct config config = {.parse_special = false};
        struct engine_info info = {.max_model_len = 1 << 20};
        struct spellings s = {.n = 0};
        struct server srv = {.config = &config, .info = &info};
        struct chat_template *template = NULL;
        struct prompt p, old;
        find_spellings(&s, source);
        assert_ok(chat_template_create(&template, source, sizeof source - 1, NULL));
        struct tokenizer *t = load_tokenizer(&s);
        srv.tokenizer = t;
        srv.template = srv.kit.template = template;
        assert_true(encode(&srv, chats[0], texts[i], NULL, &p));
        assert_true(encode(&srv, chats[0], texts[i], "true", &old));
        assert_int_equal(count_foreign(&p), 0);
        if (i < 2)
            assert_int_equal(count_foreign(&old), 1);
        prompt_fini(&p);
        prompt_fini(&old);
        chat_template_destroy(template);
        tokenizer_destroy(t);
    }
    remove_temp_dir();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_text_of_others_becomes_a_control_token),
        cmocka_unit_test(a_spelling_across_the_border_is_text),
    };
    const char *shared = getenv("TARN_SHARED");

    if (shared)
        snprintf(templates_dir, sizeof templates_dir, "%s/data/chat-templates-llamacpp", shared);
    else
        snprintf(templates_dir, sizeof templates_dir,
                 TARN_SOURCE_DIR "/../shared/data/chat-templates-llamacpp");
    if (access(templates_dir, R_OK) != 0)
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
