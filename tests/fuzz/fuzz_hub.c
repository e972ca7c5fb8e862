/* fuzz_hub.c - any bytes as a hub's list of files (engine/model/hub_list.h) and, in the second part
 * of the input, as its index of weights and as a model's name. An accepted file stays inside of
 * its directory, and names and checksums have their form. */
#include "base/check.h"
#include "base/json.h"
#include "engine/model/hub.h"
#include "engine/model/hub_list.h"
#include "tests/fuzz/fuzz.h"

#define NAME_BYTES 512

static void check_file(const struct hub_list *l, const struct hub_file *f)
{
    size_t n = strlen(f->sum);

    ASSERT(hub_is_inside(f->path) && f->path[0] != '/' && !strstr(f->path, "/../"));
    ASSERT(strncmp(f->path, "../", 3) != 0 && strcmp(f->path, "..") != 0);
    ASSERT(n == (f->is_large ? 64 : 40) && strspn(f->sum, "0123456789abcdef") == n);
    ASSERT(f->n_bytes <= (uint64_t)1 << 42);
    ASSERT(hub_list_find(l, f->path) == f);
}

static void check_choice(struct hub_list *l, const char *wanted, const struct json *index)
{
    size_t n_wanted = 0;

    for (size_t i = 0; i < l->n; i++)
        l->files[i].is_wanted = false;
    enum status s = hub_list_choose(l, wanted, NULL);
    for (size_t i = 0; i < l->n; i++)
        n_wanted += l->files[i].is_wanted;
    ASSERT(s != OK || n_wanted > 0);
    if (s == OK && index)
        (void)!hub_list_choose_shards(l, index, NULL);
    for (size_t i = 0; s == OK && wanted[0] && i < l->n; i++)
        ASSERT(!l->files[i].is_wanted || strcasestr(l->files[i].path, "gguf") || index ||
               strcmp(l->files[i].path, wanted) == 0);
}

static void check_name(const char *text, size_t n)
{
    char name[NAME_BYTES];
    struct hub_name h;

    if (n >= sizeof name)
        return;
    memcpy(name, text, n);
    name[n] = '\0';
    if (!hub_name_parse(name, &h))
        return;
    ASSERT(!strchr(h.org, '/') && !strchr(h.name, '/') && !strchr(h.revision, '/'));
    ASSERT(h.org[0] && h.org[0] != '.' && h.name[0] && h.name[0] != '.');
    ASSERT(h.revision[0] && h.revision[0] != '.');
    ASSERT(!h.file[0] || hub_is_inside(h.file));
    (void)hub_is_later_part(h.file);
    ASSERT(!hub_is_same_split(h.file, "x"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);
    struct json *index = NULL;
    struct hub_list l;

    if (in.second) {
        check_name(in.second, in.second_len);
        if (js_parse(&index, in.second, in.second_len, NULL) != OK)
            index = NULL;
    }
    check_name(in.first, in.first_len);
    if (hub_list_parse(&l, in.first, in.first_len, NULL) == OK) {
        for (size_t i = 0; i < l.n; i++)
            check_file(&l, &l.files[i]);
        check_choice(&l, "", index);
        check_choice(&l, "q4_k_m", NULL);
        (void)!hub_list_include(&l, "*.json", NULL);
        hub_list_fini(&l);
    }
    js_unref(index);
    return 0;
}
