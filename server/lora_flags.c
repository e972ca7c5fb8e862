#include "server/lora_flags.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/adapters.h"
#include "server/api/embeddings.h"
#include "server/server.h"

void lora_flags_apply(struct engine_config *e, const struct config *c)
{
    bool wanted = c->lora_modules.n > 0 || c->lora_dir[0];

    e->max_adapters = wanted ? (uint32_t)c->max_loras : 0;
    e->max_adapter_rank = (uint32_t)c->max_lora_rank;
}

/* Names are printed in lists and in labels of metrics, which separate them by commas. */
static enum status check_name(const struct server *srv, const char *name, struct buf *why)
{
    size_t n = strlen(name);

    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 127 || name[i] == ',')
            return buf_why(why, ERR_INVALID,
                           "lora_name: a name has no commas and no control characters");
    if (n == 0 || n >= ADAPTER_NAME_BYTES)
        return buf_why(why, ERR_INVALID, "lora_name: expected 1 to %d bytes, got %zu",
                       ADAPTER_NAME_BYTES - 1, n);
    if (server_find_model(srv, name) || embeddings_find(srv->embeddings, name) ||
        embeddings_find(srv->classifier, name))
        return buf_why(why, ERR_INVALID, "lora_name: \"%.200s\" is the name of a served model",
                       name);
    return OK;
}

static enum status check_base(const char *base, struct buf *why)
{
    size_t n = base ? strlen(base) : 0;

    return n < ADAPTER_NAME_BYTES
               ? OK
               : buf_why(why, ERR_INVALID, "base_model_name: expected at most %d bytes, got %zu",
                         ADAPTER_NAME_BYTES - 1, n);
}

static enum status load(struct server *srv, const struct lora_module *m, const char *dir,
                        bool replace, struct buf *why)
{
    enum status s = check_name(srv, m->name, why);

    if (s == OK)
        s = check_base(m->base, why);
    return s == OK
               ? adapters_load(engine_adapters(srv->engine), m->name, dir, m->base, replace, why)
               : s;
}

/* Read vLLM's form of a module, {"name", "path", "base_model_name"}. The texts are *doc's. */
static enum status read_object(const char *item, struct json **doc, struct lora_module *m,
                               struct buf *why)
{
    enum status s = js_parse(doc, item, strlen(item), why);

    if (s == OK)
        s = js_get_str(*doc, "name", &m->name, NULL, why);
    if (s == OK)
        s = js_get_str(*doc, "path", &m->path, NULL, why);
    if (s == OK)
        s = js_get_str(*doc, "base_model_name", &m->base, NULL, why);
    if (s == OK && (!m->name || !m->path))
        s = buf_why(why, ERR_INVALID, "expected {\"name\": NAME, \"path\": FOLDER}");
    return s;
}

static enum status load_item(struct server *srv, const char *item, struct buf *why)
{
    const char *at = strchr(item, '=');
    char name[ADAPTER_NAME_BYTES] = "";
    struct lora_module m = {0};
    struct json *doc = NULL;
    enum status s = OK;

    if (item[0] == '{') {
        s = read_object(item, &doc, &m, why);
    } else if (!at || at == item || !at[1] || (size_t)(at - item) >= sizeof name) {
        s = buf_why(why, ERR_INVALID, "expected NAME=FOLDER");
    } else {
        memcpy(name, item, (size_t)(at - item));
        m.name = name;
        m.path = at + 1;
    }
    if (s == OK)
        s = load(srv, &m, m.path, false, why);
    js_unref(doc);
    return s;
}

enum status lora_flags_load(struct server *srv, struct buf *why)
{
    const struct option_list *list = &srv->config->lora_modules;
    enum status s = OK;
    struct buf words;

    buf_init(&words, BUF_WHY_MAX);
    for (uint32_t i = 0; s == OK && i < list->n; i++)
        if ((s = load_item(srv, list->v[i], &words)) != OK)
            buf_why(why, s, "--lora-modules %.200s: %s", list->v[i], buf_str(&words));
    buf_fini(&words);
    return s;
}

/* Resolve a folder to its real path, and refuse one outside of --lora-dir. */
static enum status resolve(const struct server *srv, const char *path, char real[PATH_MAX],
                           struct buf *why)
{
    char dir[PATH_MAX], joined[PATH_MAX];

    if (!realpath(srv->config->lora_dir, dir))
        return buf_why(why, ERR_NOT_FOUND, "--lora-dir %.400s cannot be opened",
                       srv->config->lora_dir);
    size_t n = strlen(dir);
    int len = path[0] == '/' ? snprintf(joined, sizeof joined, "%s", path)
                             : snprintf(joined, sizeof joined, "%s/%s", dir, path);
    /* A folder that is not there and one outside are the same answer: which files there are is no
     * caller's business. */
    if (len < 0 || len >= (int)sizeof joined || !realpath(joined, real) ||
        strncmp(real, dir, n) != 0 || (n > 1 && real[n] != '/'))
        return buf_why(why, ERR_NOT_FOUND,
                       "lora_path: there is no such folder in the folder of --lora-dir");
    return OK;
}

enum status lora_flags_load_at_run_time(struct server *srv, const struct lora_module *m,
                                        bool replace, struct buf *why)
{
    char real[PATH_MAX];

    if (!srv->config->lora_dir[0])
        return buf_why(why, ERR_FORBIDDEN,
                       "adapters cannot be loaded while this server runs: it was started without "
                       "--lora-dir");
    enum status s = resolve(srv, m->path, real, why);
    if (s == OK)
        s = load(srv, m, real, replace, why);
    if (s != OK)
        config_name_options(why);
    return s;
}
