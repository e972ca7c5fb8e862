/* Render shared chat-templates-llamacpp and compare with the output of jinja2 3.1.6. At least 95 %
 * must be equal; those that differ are printed. Exit code 77 (skipped) without ../shared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "engine/text/chat_template.h"

#define FILE_MAX_BYTES ((size_t)4 << 20)
#define OUT_MAX_BYTES ((size_t)1 << 20)
#define NOW_S 1735787045 /* 2025-01-02 03:04:05 UTC, the clock of the expected renderings */

static char dir[4096];

static void find_dir(void)
{
    const char *shared = getenv("TARN_SHARED");

    if (shared)
        snprintf(dir, sizeof dir, "%s/data/chat-templates-llamacpp", shared);
#ifdef TARN_SOURCE_DIR
    else
        snprintf(dir, sizeof dir, "%s/../shared/data/chat-templates-llamacpp", TARN_SOURCE_DIR);
#endif
}

static enum status read_text(const char *name, struct buf *out)
{
    char path[8192], chunk[65536];
    size_t n;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        return ERR_NOT_FOUND;
    enum status s = OK;
    while (s == OK && (n = fread(chunk, 1, sizeof chunk, f)) > 0)
        s = buf_append(out, chunk, n);
    fclose(f);
    return s;
}

/* The case's variables, and the fixed ones of every case. */
static struct json *context_of(struct json *cases, const char *name)
{
    struct json *context = js_copy_deep(js_get(js_get(cases, "cases"), name));
    struct json *fixed = js_get(cases, "context");
    static const char *const keys[] = {"bos_token", "eos_token"};

    for (size_t i = 0; i < 2; i++)
        if (js_set(context, keys[i], js_ref(js_get(fixed, keys[i]))) != OK)
            abort();
    return context;
}

static bool render_line(struct json *cases, const struct json *line, struct buf *out,
                        struct buf *why)
{
    struct chat_template *t = NULL;
    struct buf source;
    struct json *context = context_of(cases, js_string(js_get(line, "case"), NULL));

    buf_init(&source, FILE_MAX_BYTES);
    enum status s = read_text(js_string(js_get(line, "template"), NULL), &source);
    if (s == OK)
        s = chat_template_create(&t, buf_str(&source), source.len, why);
    if (s == OK)
        s = chat_template_render(t, context, NOW_S, out, why);
    chat_template_destroy(t);
    buf_fini(&source);
    js_unref(context);
    return s == OK;
}

static bool check_line(struct json *cases, const struct json *line)
{
    struct buf out, why;
    size_t len;
    const char *expected = js_string(js_get(line, "rendered"), &len);

    buf_init(&out, OUT_MAX_BYTES);
    buf_init(&why, BUF_WHY_MAX);
    bool rendered = render_line(cases, line, &out, &why);
    bool equal = rendered && out.len == len && memcmp(buf_str(&out), expected, len) == 0;
    if (!equal) {
        size_t at = 0;
        while (at < len && at < out.len && expected[at] == out.data[at])
            at++;
        printf("differs: %s %s: %s at byte %zu\n  expected ...%.120s\n  got      ...%.120s\n",
               js_string(js_get(line, "template"), NULL), js_string(js_get(line, "case"), NULL),
               rendered ? "text" : buf_str(&why), at, expected + at,
               at <= out.len ? buf_str(&out) + at : "");
    }
    buf_fini(&out);
    buf_fini(&why);
    return equal;
}

int main(void)
{
    struct buf text, why;
    struct json *cases, *line;
    int n_equal = 0, n_lines = 0;

    find_dir();
    buf_init(&text, FILE_MAX_BYTES);
    buf_init(&why, BUF_WHY_MAX);
    if (read_text("expected_cases.json", &text) != OK) {
        printf("skipped: no shared data at '%s'\n", dir);
        return 77;
    }
    if (js_parse(&cases, buf_str(&text), text.len, &why) != OK)
        return 1;
    buf_reset(&text);
    if (read_text("expected_renderings.jsonl", &text) != OK)
        return 1;
    for (char *p = text.data, *end; p && *p; p = end ? end + 1 : NULL) {
        end = strchr(p, '\n');
        if (js_parse(&line, p, end ? (size_t)(end - p) : strlen(p), &why) != OK)
            return 1;
        if (js_get(line, "rendered")) {
            n_lines++;
            n_equal += check_line(cases, line);
        }
        js_unref(line);
    }
    printf("chat templates: %d of %d renderings equal\n", n_equal, n_lines);
    js_unref(cases);
    buf_fini(&text);
    buf_fini(&why);
    return n_lines > 0 && n_equal * 100 >= n_lines * 95 ? 0 : 1;
}
