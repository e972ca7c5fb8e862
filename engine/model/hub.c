#include "engine/model/hub.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"

#define GGUF ".gguf"
#define N_FILES_MAX 512 /* GGUF files of a directory */
#define N_LISTED_MAX 8  /* in a message */
#define DEPTH_MAX 2     /* of folders in which GGUF files are searched */
#define SPLIT_CHARS 20  /* -00001-of-00005.gguf */
#define INDEX_BYTES_MAX ((size_t)64 << 20)

static bool is_directory(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool is_file(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static bool has_file(const char *dir, const char *name)
{
    char path[HUB_PATH_BYTES_MAX];

    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && is_file(path);
}

/* --- names --- */

/* The parts of a name become parts of a path, so slashes and ".." in them are refused. */
static bool is_plain(const char *s, size_t n)
{
    if (n == 0 || n >= HUB_NAME_BYTES_MAX || s[0] == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if (s[i] == '/' || s[i] == '@' || s[i] == '\\' || (unsigned char)s[i] < 0x20 ||
            s[i] == 0x7F)
            return false;
    return true;
}

bool hub_is_inside(const char *path)
{
    const char *part = path;

    if (!path[0] || strlen(path) >= HUB_FILE_BYTES_MAX)
        return false;
    for (const char *p = path;; p++) {
        if (*p == '\\' || (unsigned char)*p == 0x7F || (*p && (unsigned char)*p < 0x20))
            return false;
        if (*p && *p != '/')
            continue;
        size_t n = (size_t)(p - part);
        if (n == 0 || n >= HUB_NAME_BYTES_MAX || (part[0] == '.' && n == 1) ||
            (part[0] == '.' && part[1] == '.'))
            return false;
        if (!*p)
            return true;
        part = p + 1;
    }
}

bool hub_name_parse(const char *text, struct hub_name *out)
{
    const char *slash = strchr(text, '/');
    const char *colon = strchr(text, ':');
    const char *at = strchr(text, '@');
    const char *end = colon ? colon : text + strlen(text);

    if (at && at > end)
        at = NULL; /* part of a file's name */
    const char *name_end = at ? at : end;
    const char *revision = at ? at + 1 : "main";
    size_t n_revision = at ? (size_t)(end - revision) : strlen(revision);
    if (!slash || slash > name_end || !is_plain(text, (size_t)(slash - text)) ||
        !is_plain(slash + 1, (size_t)(name_end - slash - 1)) || !is_plain(revision, n_revision) ||
        (colon && !hub_is_inside(colon + 1)))
        return false;
    snprintf(out->org, sizeof out->org, "%.*s", (int)(slash - text), text);
    snprintf(out->name, sizeof out->name, "%.*s", (int)(name_end - slash - 1), slash + 1);
    snprintf(out->revision, sizeof out->revision, "%.*s", (int)n_revision, revision);
    snprintf(out->file, sizeof out->file, "%s", colon ? colon + 1 : "");
    return true;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);

    return n >= n_end && strcasecmp(text + n - n_end, end) == 0;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

bool hub_fits(const char *path, const char *wanted)
{
    if (!ends_with(path, GGUF))
        return false;
    if (strcmp(path, wanted) == 0 || strcmp(last_part(path), wanted) == 0)
        return true;
    if (strcasestr(path, "mmproj"))
        return false;
    return !wanted[0] || (!ends_with(wanted, GGUF) && strcasestr(path, wanted));
}

/* The number of a split file's part and the end of the text before it; 0: the file is not split. */
static unsigned split_part(const char *path, size_t *n_before)
{
    size_t n = strlen(path);
    unsigned part, n_parts;
    int n_read = 0;

    if (n <= SPLIT_CHARS)
        return 0;
    *n_before = n - SPLIT_CHARS;
    if (sscanf(path + *n_before, "-%5u-of-%5u.gguf%n", &part, &n_parts, &n_read) != 2 ||
        n_read != SPLIT_CHARS || part > n_parts)
        return 0;
    return part;
}

bool hub_is_later_part(const char *path)
{
    size_t n;

    return split_part(path, &n) > 1;
}

bool hub_is_same_split(const char *a, const char *b)
{
    size_t n_a, n_b;

    return split_part(a, &n_a) && split_part(b, &n_b) && n_a == n_b && memcmp(a, b, n_a) == 0 &&
           strcmp(a + n_a + 6, b + n_b + 6) == 0;
}

/* --- a GGUF file in a directory --- */

struct found {
    char *paths[N_FILES_MAX]; /* below the directory */
    size_t n;
};

static void free_found(struct found *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->paths[i]);
}

/* Add the GGUF files below dir/below that fit. Folders that cannot be read have none. */
static enum status find_files(struct found *f, const char *dir, const char *below,
                              const char *wanted, unsigned depth)
{
    char path[HUB_PATH_BYTES_MAX], full[2 * HUB_PATH_BYTES_MAX];
    struct dirent *e;
    enum status s = OK;

    snprintf(full, sizeof full, "%s/%s", dir, below);
    DIR *d = opendir(full);
    while (d && s == OK && (e = readdir(d)) && f->n < N_FILES_MAX) {
        int n = snprintf(path, sizeof path, "%s%s%s", below, below[0] ? "/" : "", e->d_name);
        if (e->d_name[0] == '.' || n >= (int)sizeof path)
            continue;
        snprintf(full, sizeof full, "%s/%s", dir, path);
        if (is_directory(full) && depth > 1) {
            s = find_files(f, dir, path, wanted, depth - 1);
        } else if (is_file(full) && hub_fits(path, wanted) && !hub_is_later_part(path)) {
            f->paths[f->n] = strdup(path);
            s = f->paths[f->n] ? OK : ERR_NOMEM;
            f->n += s == OK;
        }
    }
    if (d)
        closedir(d);
    return s;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum status tell_several(const struct found *f, const char *dir, struct buf *why)
{
    char list[BUF_WHY_MAX / 2];
    size_t len = 0;

    list[0] = '\0';
    for (size_t i = 0; i < f->n && i < N_LISTED_MAX && len < sizeof list; i++)
        len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "", f->paths[i]);
    return buf_why(why, ERR_INVALID,
                   "%s has %zu GGUF files that fit: name one of them, as in org/name:FILE or by "
                   "its path: %s%s",
                   dir, f->n, list, f->n > N_LISTED_MAX ? ", ..." : "");
}

/* Append the only GGUF file of dir that fits to *path. ERR_NOT_FOUND: none, without words. */
static enum status choose_file(const char *dir, const char *wanted, struct buf *path,
                               struct buf *why)
{
    struct found f = {.n = 0};
    enum status s = find_files(&f, dir, "", wanted, DEPTH_MAX);

    qsort(f.paths, f.n, sizeof *f.paths, compare_paths);
    for (size_t i = 0; s == OK && wanted[0] && i < f.n && f.n > 1; i++)
        if (strcmp(f.paths[i], wanted) == 0) { /* others only contain the name */
            char *only = f.paths[i];
            f.paths[i] = f.paths[0];
            f.paths[0] = only;
            while (f.n > 1)
                free(f.paths[--f.n]);
        }
    if (s != OK)
        s = buf_why(why, s, "out of memory");
    else if (f.n == 0)
        s = ERR_NOT_FOUND;
    else if (f.n > 1)
        s = tell_several(&f, dir, why);
    else
        s = buf_printf(path, "%s/%s", dir, f.paths[0]);
    free_found(&f);
    return s;
}

/* A directory with config.json is a model by itself; another one may have a GGUF file. */
static enum status resolve_directory(const char *dir, const char *wanted, struct buf *path,
                                     struct buf *why)
{
    enum status s;

    if (!wanted[0] && has_file(dir, "config.json"))
        return buf_puts(path, dir);
    s = choose_file(dir, wanted, path, why);
    if (s == ERR_NOT_FOUND && wanted[0])
        return buf_why(why, s, "%s has no GGUF file that fits %s", dir, wanted);
    return s == ERR_NOT_FOUND ? buf_puts(path, dir) : s; /* loading says what is missing */
}

/* --- the cache --- */

void hub_cache_root(char root[HUB_PATH_BYTES_MAX])
{
    const char *cache = getenv("HF_HUB_CACHE"), *home = getenv("HF_HOME"), *user = getenv("HOME");

    if (cache && cache[0])
        snprintf(root, HUB_PATH_BYTES_MAX, "%s", cache);
    else if (home && home[0])
        snprintf(root, HUB_PATH_BYTES_MAX, "%s/hub", home);
    else
        snprintf(root, HUB_PATH_BYTES_MAX, "%s/.cache/huggingface/hub", user ? user : "");
}

enum status hub_repo_path(const struct hub_name *h, struct buf *path)
{
    char root[HUB_PATH_BYTES_MAX];

    hub_cache_root(root);
    return buf_printf(path, "%s/models--%s--%s", root, h->org, h->name);
}

/* The commit that a branch or tag stands for; the name itself when there is no such ref. */
static enum status read_ref(const char *repo, const char *revision, char commit[HUB_NAME_BYTES_MAX])
{
    struct buf path, text;

    snprintf(commit, HUB_NAME_BYTES_MAX, "%s", revision);
    buf_init(&path, 2 * HUB_PATH_BYTES_MAX);
    buf_init(&text, HUB_NAME_BYTES_MAX - 1);
    enum status s = buf_printf(&path, "%s/refs/%s", repo, revision);
    if (s == OK && file_read(&text, buf_str(&path), NULL) == OK && text.len > 0) {
        snprintf(commit, HUB_NAME_BYTES_MAX, "%s", buf_str(&text));
        commit[strcspn(commit, " \r\n")] = '\0';
    }
    buf_fini(&text);
    buf_fini(&path);
    return s;
}

static enum status find_snapshot(const struct hub_name *h, struct buf *path, struct buf *why)
{
    char root[HUB_PATH_BYTES_MAX], commit[HUB_NAME_BYTES_MAX];
    struct buf at;

    hub_cache_root(root);
    buf_init(&at, 2 * HUB_PATH_BYTES_MAX);
    enum status s = hub_repo_path(h, &at);
    if (s == OK && !is_directory(buf_str(&at)))
        s = buf_why(why, ERR_NOT_FOUND,
                    "%s/%s is neither a directory nor in the Hugging Face cache at %s "
                    "(to get it: tarnctl models download %s/%s)",
                    h->org, h->name, root, h->org, h->name);
    if (s == OK)
        s = read_ref(buf_str(&at), h->revision, commit);
    if (s == OK && !is_plain(commit, strlen(commit)))
        s = buf_why(why, ERR_NOT_FOUND, "%s/refs/%s names no commit", buf_str(&at), h->revision);
    if (s == OK)
        s = buf_printf(&at, "/snapshots/%s", commit);
    if (s == OK && !is_directory(buf_str(&at)))
        s = buf_why(why, ERR_NOT_FOUND,
                    "%s/%s@%s is not in the Hugging Face cache: no %s "
                    "(to get it: tarnctl models download %s/%s@%s)",
                    h->org, h->name, h->revision, buf_str(&at), h->org, h->name, h->revision);
    if (s == OK)
        s = resolve_directory(buf_str(&at), h->file, path, why);
    buf_fini(&at);
    return s;
}

enum status hub_resolve(const char *name, struct buf *path, struct buf *why)
{
    struct hub_name h;

    /* A file or directory of that name takes precedence over a model in the cache. */
    if (is_directory(name))
        return resolve_directory(name, "", path, why);
    if (is_file(name) && ends_with(name, GGUF))
        return buf_puts(path, name);
    if (is_file(name))
        return buf_why(why, ERR_NOT_FOUND,
                       "%s is a file: give the directory that has the model's config.json and "
                       "*.safetensors, or a .gguf file",
                       name);
    if (!hub_name_parse(name, &h))
        return buf_why(why, ERR_NOT_FOUND,
                       "there is no directory %s, and a name in the Hugging Face cache is "
                       "org/name[@revision][:FILE.gguf]",
                       name);
    return find_snapshot(&h, path, why);
}

/* Whether all files that the index of a directory lists are there. */
static bool has_shards(const char *dir)
{
    char path[HUB_PATH_BYTES_MAX];
    struct json *index = NULL;
    struct buf why;

    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    if (!is_file(path))
        return has_file(dir, "model.safetensors");
    buf_init(&why, BUF_WHY_MAX);
    enum status s = js_parse_file(&index, path, INDEX_BYTES_MAX, &why);
    buf_fini(&why);
    if (s != OK)
        return false;
    const struct json *map = js_get(index, "weight_map");
    bool has_all = js_is(map, JS_OBJECT) && js_len(map) > 0;
    const char *last = "";
    for (void *it = js_first(map); has_all && it; it = js_next(map, it)) {
        const struct json *v = js_it_value(it);
        const char *file = js_is(v, JS_STRING) ? js_string(v, NULL) : "";
        has_all = strcmp(file, last) == 0 || (file[0] && has_file(dir, file));
        last = file;
    }
    js_unref(index);
    return has_all;
}

/* Whether all parts of a split GGUF model lie beside its first one. */
static bool has_parts(const char *path)
{
    char other[HUB_PATH_BYTES_MAX];
    size_t n_before = 0;
    unsigned n_parts = 1;

    if (!split_part(path, &n_before))
        return true;
    if (sscanf(path + n_before + 6, "-of-%5u", &n_parts) != 1)
        return false;
    for (unsigned i = 2; i <= n_parts; i++) {
        snprintf(other, sizeof other, "%.*s-%05u%s", (int)n_before, path, i, path + n_before + 6);
        if (!is_file(other))
            return false;
    }
    return true;
}

static bool is_whole(const char *path)
{
    if (!is_directory(path))
        return has_parts(path);
    return has_file(path, "config.json") && has_shards(path);
}

bool hub_has_model(const char *name)
{
    struct buf path, why;

    buf_init(&path, 2 * HUB_PATH_BYTES_MAX);
    buf_init(&why, BUF_WHY_MAX);
    enum status s = hub_resolve(name, &path, &why);
    /* Several files that fit: nothing is missing, but one has to be named. */
    bool has = s == ERR_INVALID || (s == OK && is_whole(buf_str(&path)));
    buf_fini(&path);
    buf_fini(&why);
    return has;
}
