#include "engine/model/hub.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define NAME_BYTES_MAX 256
#define PATH_BYTES_MAX 4096

struct hub_name {
    char org[NAME_BYTES_MAX];
    char name[NAME_BYTES_MAX];
    char revision[NAME_BYTES_MAX];
};

static bool is_directory(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The parts of a name become parts of a path, so slashes and ".." in them are refused. */
static bool is_plain(const char *s, size_t n)
{
    if (n == 0 || n >= NAME_BYTES_MAX || s[0] == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if (s[i] == '/' || s[i] == '@')
            return false;
    return true;
}

static bool split(const char *text, struct hub_name *out)
{
    const char *slash = strchr(text, '/');
    const char *at = strchr(text, '@');
    const char *end = at ? at : text + strlen(text);
    const char *revision = at ? at + 1 : "main";

    if (!slash || slash > end || !is_plain(text, (size_t)(slash - text)) ||
        !is_plain(slash + 1, (size_t)(end - slash - 1)) || !is_plain(revision, strlen(revision)))
        return false;
    snprintf(out->org, sizeof out->org, "%.*s", (int)(slash - text), text);
    snprintf(out->name, sizeof out->name, "%.*s", (int)(end - slash - 1), slash + 1);
    snprintf(out->revision, sizeof out->revision, "%s", revision);
    return true;
}

static void cache_root(char root[PATH_BYTES_MAX])
{
    const char *cache = getenv("HF_HUB_CACHE"), *home = getenv("HF_HOME"), *user = getenv("HOME");

    if (cache && cache[0])
        snprintf(root, PATH_BYTES_MAX, "%s", cache);
    else if (home && home[0])
        snprintf(root, PATH_BYTES_MAX, "%s/hub", home);
    else
        snprintf(root, PATH_BYTES_MAX, "%s/.cache/huggingface/hub", user ? user : "");
}

/* The commit that a branch or tag stands for; the name itself when there is no such ref. */
static enum status read_ref(const char *repo, const char *revision, char commit[NAME_BYTES_MAX])
{
    struct buf path;
    FILE *f = NULL;

    snprintf(commit, NAME_BYTES_MAX, "%s", revision);
    buf_init(&path, PATH_BYTES_MAX);
    enum status s = buf_printf(&path, "%s/refs/%s", repo, revision);
    if (s == OK)
        f = fopen(buf_str(&path), "r");
    if (f) {
        if (fgets(commit, NAME_BYTES_MAX, f))
            commit[strcspn(commit, " \r\n")] = '\0';
        fclose(f);
    }
    buf_fini(&path);
    return s;
}

static enum status find_snapshot(const struct hub_name *h, struct buf *path, struct buf *why)
{
    char root[PATH_BYTES_MAX], commit[NAME_BYTES_MAX];
    struct buf at;

    cache_root(root);
    buf_init(&at, 2 * PATH_BYTES_MAX);
    enum status s = buf_printf(&at, "%s/models--%s--%s", root, h->org, h->name);
    if (s == OK && !is_directory(buf_str(&at)))
        s = buf_why(why, ERR_NOT_FOUND,
                    "%s/%s is neither a directory nor in the Hugging Face cache at %s "
                    "(Tarn does not download)",
                    h->org, h->name, root);
    if (s == OK)
        s = read_ref(buf_str(&at), h->revision, commit);
    if (s == OK && !is_plain(commit, strlen(commit)))
        s = buf_why(why, ERR_NOT_FOUND, "%s/refs/%s names no commit", buf_str(&at), h->revision);
    if (s == OK)
        s = buf_printf(&at, "/snapshots/%s", commit);
    if (s == OK && !is_directory(buf_str(&at)))
        s = buf_why(why, ERR_NOT_FOUND, "%s/%s@%s is not in the Hugging Face cache: no %s", h->org,
                    h->name, h->revision, buf_str(&at));
    if (s == OK)
        s = buf_append(path, at.data, at.len);
    buf_fini(&at);
    return s;
}

enum status hub_resolve(const char *name, struct buf *path, struct buf *why)
{
    struct hub_name h;

    /* An existing directory takes precedence over a model in the cache. */
    if (is_directory(name))
        return buf_puts(path, name);
    if (!split(name, &h))
        return buf_why(why, ERR_NOT_FOUND, "there is no directory %s", name);
    return find_snapshot(&h, path, why);
}
