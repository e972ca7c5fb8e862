/* api_adapters.c - POST /v1/load_lora_adapter and /v1/unload_lora_adapter (vLLM), and the same
 * without /v1 (SGLang): adapters come and go while the server runs. */
#include "server/api/api.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/adapters.h"
#include "server/api/body.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/lora_flags.h"
#include "server/server.h"

#define BODY_BYTES_MAX ((size_t)32 << 20)

/* Whether the call came by SGLang's path, whose answer is an object. */
static bool is_sglang(const struct http_exchange *x)
{
    return strncmp(http_path(x), "/v1/", 4) != 0;
}

static enum status read_text(const struct json *body, const char *name, const char **out,
                             struct buf *why)
{
    *out = NULL;
    enum status s = js_get_str(body, name, out, NULL, why);

    return s == OK && (!*out || !**out) ? buf_why(why, ERR_INVALID, "%s: is required", name) : s;
}

static enum status load(struct server *srv, const struct json *body, const char **name,
                        struct buf *why)
{
    struct lora_module m = {0};
    bool replace = false;
    enum status s = read_text(body, "lora_name", name, why);

    if (s == OK)
        s = read_text(body, "lora_path", &m.path, why);
    if (s == OK)
        s = js_get_str(body, "base_model_name", &m.base, NULL, why);
    if (s == OK)
        s = js_get_bool(body, "load_inplace", &replace, why);
    m.name = *name;
    return s == OK ? lora_flags_load_at_run_time(srv, &m, replace, why) : s;
}

static enum status unload(struct server *srv, const struct json *body, const char **name,
                          struct buf *why)
{
    struct adapters *as = engine_adapters(srv->engine);
    enum status s = read_text(body, "lora_name", name, why);

    if (s != OK)
        return s;
    return as ? adapters_unload(as, *name, why)
              : buf_why(why, ERR_NOT_FOUND, "lora_name: no adapter is loaded");
}

/* The object of SGLang, with all adapters that are loaded now. */
static void reply_loaded(struct server *srv, struct http_exchange *x)
{
    struct adapter *list[ADAPTERS_MAX];
    uint32_t n = adapters_list(engine_adapters(srv->engine), list, ADAPTERS_MAX);
    struct buf text;
    struct writer w = {&text, OK};

    buf_init(&text, BODY_BYTES_MAX);
    write_puts(&w, "{\"success\":true,\"error_message\":\"\",\"loaded_adapters\":{");
    for (uint32_t i = 0; i < n; i++) {
        write_puts(&w, i ? "," : "");
        write_json(&w, adapter_name(list[i]), strlen(adapter_name(list[i])));
        write_puts(&w, ":");
        write_json(&w, adapter_path(list[i]), strlen(adapter_path(list[i])));
        adapter_unref(list[i]);
    }
    write_puts(&w, "}}");
    api_reply(x, &w);
}

static void reply_text(struct http_exchange *x, const char *name, const char *what)
{
    struct buf text;

    buf_init(&text, BODY_BYTES_MAX);
    if (buf_printf(&text, "Success: LoRA adapter '%s' %s successfully.", name, what) == OK)
        http_reply(x, 200, "text/plain; charset=utf-8", &text);
    else
        error_reply(x, ERR_NOMEM, NULL, status_words(ERR_NOMEM));
    buf_fini(&text);
}

static void serve(struct server *srv, struct http_exchange *x, const char *what,
                  enum status (*change)(struct server *, const struct json *, const char **,
                                        struct buf *))
{
    struct json *body = body_read(x);
    const char *name = NULL;
    struct buf why;

    if (!body)
        return; /* body_read() has answered */
    buf_init(&why, BUF_WHY_MAX);
    enum status s = change(srv, body, &name, &why);
    if (s != OK)
        error_reply(x, s, s == ERR_NOT_FOUND ? "adapter_not_found" : NULL, buf_str(&why));
    else if (is_sglang(x))
        reply_loaded(srv, x);
    else
        reply_text(x, name, what);
    buf_fini(&why);
    js_unref(body);
}

void api_adapter_load(struct server *srv, struct http_exchange *x)
{
    serve(srv, x, "added", load);
}

void api_adapter_unload(struct server *srv, struct http_exchange *x)
{
    serve(srv, x, "removed", unload);
}
