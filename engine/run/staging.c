#include "engine/run/staging.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

struct staging {
    struct device *d;
    size_t n_bytes_max;
    unsigned char *pinned[2];
    struct device_event *copied[2];
    unsigned char *on_device; /* NULL: a host device */
    uint32_t which;           /* buffer of the step that is filled now */
    size_t n_bytes;           /* in it */
};

enum status staging_create(struct staging **out, struct device *d, size_t n_bytes_max)
{
    struct staging *s = calloc(1, sizeof *s);
    enum status status = OK;

    *out = NULL;
    if (!s)
        return ERR_NOMEM;
    s->d = d;
    s->n_bytes_max = n_bytes_max;
    if (!device_is_host(d)) {
        for (int i = 0; status == OK && i < 2; i++) {
            s->pinned[i] = device_alloc_pinned(d, n_bytes_max);
            status = s->pinned[i] ? device_event_create(d, &s->copied[i]) : ERR_NOMEM;
        }
        s->on_device = device_alloc(d, n_bytes_max);
        if (!s->on_device)
            status = ERR_NOMEM;
    }
    if (status != OK) {
        staging_destroy(s);
        return status;
    }
    *out = s;
    return OK;
}

void staging_destroy(struct staging *s)
{
    if (!s)
        return;
    if (s->on_device) /* a copy may be under way */
        (void)!device_stream_wait(s->d, NULL);
    for (int i = 0; i < 2; i++) {
        device_event_destroy(s->d, s->copied[i]);
        device_free_pinned(s->d, s->pinned[i]);
    }
    device_free(s->d, s->on_device);
    free(s);
}

enum status staging_begin(struct staging *s)
{
    if (!s->on_device)
        return OK;
    s->which ^= 1;
    s->n_bytes = 0;
    return device_event_wait(s->d, s->copied[s->which]);
}

const void *staging_add(struct staging *s, const void *array, size_t n_bytes)
{
    size_t at = s->n_bytes;

    if (!s->on_device)
        return array;
    ASSERT(n_bytes <= s->n_bytes_max - at);
    if (n_bytes > 0)
        memcpy(s->pinned[s->which] + at, array, n_bytes);
    s->n_bytes += STAGING_BYTES(n_bytes);
    ASSERT(s->n_bytes <= s->n_bytes_max);
    return s->on_device + at;
}

enum status staging_send(struct staging *s)
{
    if (!s->on_device || s->n_bytes == 0)
        return OK;
    enum status status =
        device_upload_async(s->d, NULL, s->on_device, s->pinned[s->which], s->n_bytes);
    return status == OK ? device_event_record(s->d, s->copied[s->which], NULL) : status;
}
