#include "engine/model/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "engine/model/safetensors.h"

struct checkpoint {
    struct safetensors *safetensors;
};

enum status checkpoint_open(struct checkpoint **out, const char *path, struct buf *why)
{
    struct checkpoint *c = calloc(1, sizeof *c);

    *out = NULL;
    if (!c)
        return buf_why(why, ERR_NOMEM, "out of memory");
    enum status s = safetensors_open(&c->safetensors, path, why);
    if (s == OK)
        *out = c;
    else
        checkpoint_close(c);
    return s;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    safetensors_close(c->safetensors);
    free(c);
}

const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name)
{
    static const char *const prefixes[] = {"model.", "bert.", "roberta."};
    const struct tensor *t = safetensors_find(c->safetensors, name);

    for (size_t i = 0; !t && i < sizeof prefixes / sizeof *prefixes; i++) {
        size_t n = strlen(prefixes[i]);

        if (strncmp(name, prefixes[i], n) == 0)
            t = safetensors_find(c->safetensors, name + n);
    }
    return t;
}

enum status checkpoint_file(struct checkpoint *c, const struct tensor *t, int *fd, uint64_t *offset,
                            struct buf *why)
{
    return safetensors_file(c->safetensors, t, fd, offset, why);
}
