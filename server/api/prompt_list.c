/* prompt_list.c - the prompts of a text completion (prompt.h). */
#include <stdio.h>
#include <stdlib.h>

#include "engine/text/tokenizer/tokenizer.h"
#include "server/api/params.h"
#include "server/api/prompt.h"
#include "server/api/prompt_cut.h"
#include "server/server.h"

/* Read a prompt: a string or an array of ids. */
static enum status parse_one(struct prompt *p, const struct server *srv, const struct json *v,
                             const char *name, unsigned flags, bool want_text, struct buf *why)
{
    size_t len;
    enum status s;

    if (js_is(v, JS_STRING)) {
        const char *text = js_string(v, &len);
        s = prompt_from_text(p, srv, text, len, flags, why);
        if (s == OK && want_text)
            s = buf_append(&p->text, text, len);
        return s;
    }
    if (!js_is(v, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "%s: expected a string or an array of token ids, got %s",
                       name, js_type_name(js_typeof(v)));
    s = prompt_from_ids(p, srv, v, name, why);
    if (s == OK && want_text && srv->tokenizer)
        s = prompt_decode(srv, prompt_ids(p), prompt_n_ids(p), true, &p->text);
    return s;
}

enum status prompt_list_parse(struct prompt **out, uint32_t *n_out, const struct server *srv,
                              const struct json *body, const struct params *params, struct buf *why)
{
    const struct json *v = js_get_set(body, "prompt");
    bool is_list = js_is(v, JS_ARRAY) && !js_is(js_at(v, 0), JS_INT);
    size_t n = is_list ? js_len(v) : 1;
    char name[32] = "prompt";
    unsigned flags;
    enum status s = prompt_text_flags(body, params->add_special, &flags, why);

    *out = NULL;
    *n_out = 0;
    if (s != OK)
        return s;
    if (!v)
        return buf_why(why, ERR_INVALID, "prompt: is required");
    if (js_is(v, JS_ARRAY) && js_len(v) == 0)
        return buf_why(why, ERR_INVALID, "prompt: must not be empty");
    if (n > PARAMS_N_REQUESTS_MAX)
        return buf_why(why, ERR_INVALID, "prompt: %zu entries, at most %d are taken", n,
                       PARAMS_N_REQUESTS_MAX);
    struct prompt *list = calloc(n, sizeof *list);
    if (!list)
        return buf_why(why, ERR_NOMEM, "out of memory");
    for (size_t i = 0; s == OK && i < n; i++) {
        prompt_init(&list[i], prompt_n_ids_max(params, srv));
        if (is_list)
            snprintf(name, sizeof name, "prompt[%zu]", i);
        s = parse_one(&list[i], srv, is_list ? js_at(v, i) : v, name, flags, params->echo, why);
        if (s == OK && prompt_n_ids(&list[i]) == 0)
            s = buf_why(why, ERR_INVALID, "%s: must not be empty", name);
    }
    if (s == OK) {
        *out = list;
        *n_out = (uint32_t)n;
    } else {
        prompt_list_free(list, (uint32_t)n);
    }
    return s;
}

void prompt_list_free(struct prompt *list, uint32_t n)
{
    for (uint32_t i = 0; list && i < n; i++)
        prompt_fini(&list[i]);
    free(list);
}
