#include "engine/model/hub_download.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "engine/model/hub_cache.h"
#include "engine/model/hub_get.h"

#define LIST_BYTES_MAX ((size_t)32 << 20)
#define INDEX_BYTES_MAX ((size_t)64 << 20)
#define SPARE_BYTES ((uint64_t)64 << 20) /* of the disk, for links and others */
#define PROGRESS_NS UINT64_C(100000000)
#define WAIT_NS UINT64_C(200000000) /* between two looks at another process' lock */

struct task {
    const struct hub_download *d;
    struct hub_name name;
    struct hub hub;
    struct hub_cache cache;
    struct hub_list list;
    struct hub_progress progress;
    uint64_t told_ns;
    struct hub_blob blob;
};

static enum status stop_if_asked(const struct task *t, struct buf *why)
{
    return t->d->stop && atomic_load(t->d->stop) ? buf_why(why, ERR_CANCELLED, "stopped") : OK;
}

static void tell(struct task *t, bool now)
{
    uint64_t ns = clock_now_ns();

    if (!t->d->progress || (!now && ns - t->told_ns < PROGRESS_NS))
        return;
    t->told_ns = ns;
    t->d->progress(t->d->arg, &t->progress);
}

/* --- the list of files --- */

static uint64_t nothing_here(void *arg)
{
    return ((struct buf *)arg)->len;
}

static enum status begin_text(void *arg, uint64_t from, struct buf *why)
{
    (void)from; /* no range was asked for unless bytes are here, which are all dropped */
    (void)why;
    buf_reset(arg);
    return OK;
}

static enum status add_text(void *arg, const void *bytes, size_t n, struct buf *why)
{
    enum status s = buf_append(arg, bytes, n);

    return s == OK ? OK : buf_why(why, s, "the hub's list of files: %s", status_words(s));
}

static enum status get_list(struct task *t, struct buf *why)
{
    struct buf path, text;
    char what[3 * HUB_NAME_BYTES_MAX];
    struct hub_sink sink = {UINT64_MAX, LIST_BYTES_MAX, nothing_here, begin_text, add_text, &text};

    buf_init(&path, HUB_URL_BYTES_MAX);
    buf_init(&text, LIST_BYTES_MAX + 1);
    snprintf(what, sizeof what, "%s/%s@%s", t->name.org, t->name.name, t->name.revision);
    enum status s = buf_puts(&path, "api/models/");
    if (s == OK)
        s = hub_write_url(&path, t->name.org, false);
    if (s == OK)
        s = buf_putc(&path, '/');
    if (s == OK)
        s = hub_write_url(&path, t->name.name, false);
    if (s == OK)
        s = buf_puts(&path, "/revision/");
    if (s == OK)
        s = hub_write_url(&path, t->name.revision, false);
    if (s == OK)
        s = buf_puts(&path, "?blobs=true");
    s = s == OK ? hub_get(&t->hub, buf_str(&path), what, &sink, why)
                : buf_why(why, s, "%s: the name is too long", what);
    if (s == OK)
        s = hub_list_parse(&t->list, buf_str(&text), text.len, why);
    buf_fini(&path);
    buf_fini(&text);
    return s;
}

static enum status choose(struct task *t, struct buf *why)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < t->d->n_globs; i++)
        s = hub_list_include(&t->list, t->d->globs[i], why);
    return t->d->n_globs == 0 ? hub_list_choose(&t->list, t->name.file, why) : s;
}

/* --- a file --- */

static uint64_t blob_here(void *arg)
{
    return ((struct task *)arg)->blob.n_here;
}

static enum status begin_blob(void *arg, uint64_t from, struct buf *why)
{
    struct task *t = arg;

    return hub_blob_cut(&t->blob, from, why);
}

static enum status add_blob(void *arg, const void *bytes, size_t n, struct buf *why)
{
    struct task *t = arg;
    enum status s = hub_blob_add(&t->blob, bytes, n, why);

    t->progress.n_here = t->blob.n_here;
    tell(t, false);
    return s;
}

static enum status get_blob(struct task *t, const struct hub_file *f, struct buf *why)
{
    struct hub_sink sink = {f->n_bytes, f->n_bytes, blob_here, begin_blob, add_blob, t};
    struct buf path;

    if (t->blob.n_here == f->n_bytes)
        return OK;
    buf_init(&path, HUB_URL_BYTES_MAX);
    enum status s = hub_write_url(&path, t->name.org, false);
    if (s == OK)
        s = buf_putc(&path, '/');
    if (s == OK)
        s = hub_write_url(&path, t->name.name, false);
    if (s == OK)
        s = buf_printf(&path, "/resolve/%s/", t->list.commit);
    if (s == OK)
        s = hub_write_url(&path, f->path, true);
    s = s == OK ? hub_get(&t->hub, buf_str(&path), f->path, &sink, why)
                : buf_why(why, s, "%s: the name is too long", f->path);
    buf_fini(&path);
    return s;
}

/* Wait until no other process writes the blob. */
static enum status open_blob(struct task *t, const struct hub_file *f, bool *is_whole,
                             struct buf *why)
{
    enum status s;

    while ((s = hub_blob_open(&t->blob, &t->cache, f, t->d->stop, is_whole, why)) == ERR_BUSY) {
        t->progress.is_waiting = true;
        t->progress.n_here = hub_cache_bytes_here(&t->cache, f);
        tell(t, false);
        s = stop_if_asked(t, why);
        if (s != OK)
            return s;
        clock_sleep_ns(WAIT_NS);
    }
    t->progress.is_waiting = false;
    return s;
}

/* An unfinished file that another program left may be wrong: drop it once and begin again. */
static enum status fill_blob(struct task *t, const struct hub_file *f, struct buf *why)
{
    bool had_some = t->blob.n_here > 0;
    enum status s = get_blob(t, f, why);

    if (s == OK)
        s = hub_blob_finish(&t->blob, why);
    hub_blob_close(&t->blob);
    if (s != ERR_CORRUPT || !had_some)
        return s;
    bool is_whole;
    s = open_blob(t, f, &is_whole, why);
    if (s != OK || is_whole)
        return s;
    s = get_blob(t, f, why);
    if (s == OK)
        s = hub_blob_finish(&t->blob, why);
    hub_blob_close(&t->blob);
    return s;
}

static enum status get_file(struct task *t, const struct hub_file *f, struct buf *why)
{
    bool is_whole;
    uint64_t n_before = t->progress.n_all_here;

    t->progress.path = f->path;
    t->progress.n_bytes = f->n_bytes;
    t->progress.n_here = 0;
    t->progress.is_done = t->progress.was_here = false;
    t->progress.file++;
    enum status s = open_blob(t, f, &is_whole, why);
    if (s == OK && !is_whole) {
        t->progress.n_here = t->blob.n_here;
        tell(t, true);
        s = fill_blob(t, f, why);
    }
    if (s == OK)
        s = hub_cache_link(&t->cache, t->list.commit, f, why);
    if (s == OK) {
        t->progress.n_all_here = n_before + f->n_bytes;
        t->progress.n_here = f->n_bytes;
        t->progress.is_done = true;
        t->progress.was_here = is_whole;
        tell(t, true);
    }
    return s;
}

/* --- all files --- */

/* Count the wanted files and check that there is room for what is missing. */
static enum status check_space(struct task *t, struct buf *why)
{
    uint64_t n_missing = 0, n_free = 0;

    t->progress.n_all_bytes = 0;
    t->progress.n_files = 0;
    for (size_t i = 0; i < t->list.n; i++) {
        const struct hub_file *f = &t->list.files[i];
        if (!f->is_wanted)
            continue;
        t->progress.n_files++;
        t->progress.n_all_bytes += f->n_bytes;
        n_missing += f->n_bytes - hub_cache_bytes_here(&t->cache, f);
    }
    enum status s = hub_cache_free_bytes(&t->cache, &n_free, why);
    if (s == OK && n_missing > 0 && n_missing + SPARE_BYTES > n_free)
        s = buf_why(why, ERR_FULL,
                    "%.2f GB are missing of the model, and %s has %.2f GB free: make room, or set "
                    "HF_HOME to a directory on a larger disk",
                    (double)n_missing * 1e-9, t->cache.root, (double)n_free * 1e-9);
    return s;
}

static enum status get_files(struct task *t, struct buf *why)
{
    enum status s = check_space(t, why);

    t->progress.n_all_here = 0;
    t->progress.file = 0;
    for (size_t i = 0; s == OK && i < t->list.n; i++)
        if (t->list.files[i].is_wanted) {
            s = get_file(t, &t->list.files[i], why);
            if (s == OK)
                s = stop_if_asked(t, why);
        }
    return s;
}

/* Read the index, which is here now, and mark the files of weights that it lists. */
static enum status choose_shards(struct task *t, struct buf *why)
{
    struct json *index = NULL;
    struct buf path;

    buf_init(&path, 2 * HUB_PATH_BYTES_MAX);
    enum status s = hub_cache_snapshot(&t->cache, t->list.commit, &path);
    if (s == OK)
        s = buf_puts(&path, "/" HUB_INDEX_FILE);
    if (s == OK)
        s = js_parse_file(&index, buf_str(&path), INDEX_BYTES_MAX, why);
    if (s == OK)
        s = hub_list_choose_shards(&t->list, index, why);
    js_unref(index);
    buf_fini(&path);
    return s;
}

static enum status run(struct task *t, struct buf *why)
{
    enum status s = get_list(t, why);

    if (s == OK)
        s = choose(t, why);
    if (s == OK)
        s = hub_cache_open(&t->cache, &t->name, why);
    if (s == OK)
        s = get_files(t, why);
    const struct hub_file *index = s == OK ? hub_list_find(&t->list, HUB_INDEX_FILE) : NULL;
    if (index && index->is_wanted && t->d->n_globs == 0) {
        s = choose_shards(t, why);
        if (s == OK)
            s = get_files(t, why);
    }
    return s == OK ? hub_cache_set_ref(&t->cache, t->name.revision, t->list.commit, why) : s;
}

enum status hub_download(const struct hub_download *d, struct buf *path, struct buf *why)
{
    struct task *t = calloc(1, sizeof *t);

    if (!t)
        return buf_why(why, ERR_NOMEM, "out of memory");
    t->d = d;
    enum status s = hash_init();
    if (s != OK)
        buf_why(why, s, "libsodium does not start");
    else if (!hub_name_parse(d->name, &t->name))
        s = buf_why(why, ERR_INVALID, "\"%s\": expected org/name[@revision][:FILE.gguf]", d->name);
    else
        s = hub_open(&t->hub, d->stop, why);
    if (s == OK) {
        s = run(t, why);
        hub_close(&t->hub);
    }
    if (s == OK && path)
        s = hub_cache_snapshot(&t->cache, t->list.commit, path);
    hub_list_fini(&t->list);
    free(t);
    return s;
}
