#include "cache/pool/directory_inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* The list costs n records per heartbeat, n^2 in the whole pool: in large pools each instance reads
 * it less often, and learns of a death later. */
#define LIST_EACH_TIME_MAX 128u
#define REMOVED_MAX 64u /* dead ids of one list */

static void key_of(const struct directory *d, char out[KEY_BYTES_MAX], const char *kind,
                   const char *id)
{
    snprintf(out, KEY_BYTES_MAX, "%s%s%s", d->prefix, kind, id);
}

static void unexpected(struct directory *d)
{
    redis_link_end(d->link, REDIS_TYPE_WORDS);
}

/* --- writing --- */

/* Redis answers with the record that was there before. Without one, all that this instance wrote
 * may be gone: Redis lost its data, or took this instance for dead. */
static void written(void *arg, const struct redis_view *reply, uint32_t what)
{
    struct directory *d = arg;
    double s = (double)(d->now - d->beat_at) * 1e-9;

    directory_answered(arg, reply, what);
    if (!reply || reply->kind == REDIS_ERROR)
        return;
    d->stats.round_trip_s += (s - d->stats.round_trip_s) * (d->n_beats++ ? 0.2 : 1.0);
    if (reply->kind == REDIS_NOTHING && d->was_written)
        d->must_tell_up = d->state == STATE_UP;
    d->was_written = true;
}

void directory_write_self(struct directory *d)
{
    char key[KEY_BYTES_MAX], ids[KEY_BYTES_MAX], id[ID_HEX_BYTES + 1], ttl[16];

    directory_id_write(id, d->id);
    key_of(d, key, "i:", id);
    key_of(d, ids, "ids", "");
    snprintf(ttl, sizeof ttl, "%u", d->instance_ttl_ms);
    d->beat_at = d->now;
    directory_send(d, 6, (const char *[]){"SET", key, buf_str(&d->record), "PX", ttl, "GET"}, NULL,
                   written, 0);
    directory_send(d, 3, (const char *[]){"SADD", ids, id}, NULL, directory_answered, 0);
}

/* --- reading --- */

bool directory_is_alive(const struct directory *d, uint64_t id)
{
    uint32_t at;

    return map_get(&d->alive, id, &at);
}

const struct directory_instance *directory_instances(const struct directory *d, uint32_t *n)
{
    *n = d->n_instances;
    return d->instances;
}

static int by_name(const void *a, const void *b)
{
    const struct directory_instance *x = a, *y = b;
    int order = strcmp(x->name, y->name);

    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static void remove_ids(struct directory *d, const char (*removed)[ID_HEX_BYTES + 1], uint32_t n)
{
    const char *argv[REMOVED_MAX + 2] = {"SREM"};
    size_t lengths[REMOVED_MAX + 2] = {4};
    char ids[KEY_BYTES_MAX];

    if (n == 0)
        return;
    key_of(d, ids, "ids", "");
    argv[1] = ids;
    lengths[1] = strlen(ids);
    for (uint32_t i = 0; i < n; i++) {
        argv[i + 2] = removed[i];
        lengths[i + 2] = strlen(removed[i]);
    }
    directory_send(d, (int)n + 2, argv, lengths, directory_answered, 0);
}

static void set_list(struct directory *d, uint32_t n)
{
    qsort(d->instances, n, sizeof *d->instances, by_name);
    for (uint32_t i = 0; i < n; i++)
        map_put(&d->alive, d->instances[i].id, i);
    d->n_instances = n;
    d->must_tell_instances = true;
    d->is_beating = false;
}

static void clear_list(struct directory *d)
{
    for (uint32_t i = 0; i < d->n_instances; i++)
        map_remove(&d->alive, d->instances[i].id);
    d->n_instances = 0;
}

/* The records of asked_ids. A record that cannot be read is another version's: it is passed over
 * and stays. */
static void got_records(void *arg, const struct redis_view *reply, uint32_t what)
{
    struct directory *d = arg;
    char removed[REMOVED_MAX][ID_HEX_BYTES + 1];
    uint32_t n = 0, n_removed = 0;

    directory_answered(arg, reply, what);
    if (!reply || reply->kind == REDIS_ERROR)
        return;
    if (reply->kind != REDIS_LIST || reply->n != d->n_asked_ids) {
        unexpected(d);
        return;
    }
    clear_list(d);
    for (uint32_t i = 0; i < d->n_asked_ids; i++) {
        struct redis_view v = redis_link_at(reply, i);
        if (v.kind == REDIS_NOTHING && n_removed < REMOVED_MAX)
            directory_id_write(removed[n_removed++], d->asked_ids[i]);
        else if (v.kind == REDIS_TEXT &&
                 directory_record_read(&d->instances[n], d->asked_ids[i], v.text, v.n) == OK)
            n++;
    }
    set_list(d, n);
    remove_ids(d, removed, n_removed);
}

static bool ask_records(struct directory *d)
{
    uint32_t n = d->n_asked_ids;
    struct {
        char name[KEY_BYTES_MAX];
    } *keys = malloc(n * sizeof *keys);
    const char **argv = malloc((n + 1) * sizeof *argv);
    size_t *lengths = malloc((n + 1) * sizeof *lengths);
    bool is_sent = keys && argv && lengths;

    if (is_sent) {
        argv[0] = "MGET";
        lengths[0] = 4;
        for (uint32_t i = 0; i < n; i++) {
            char id[ID_HEX_BYTES + 1];
            directory_id_write(id, d->asked_ids[i]);
            key_of(d, keys[i].name, "i:", id);
            argv[i + 1] = keys[i].name;
            lengths[i + 1] = strlen(keys[i].name);
        }
        is_sent = directory_send(d, (int)n + 1, argv, lengths, got_records, 0);
    }
    free(keys);
    free(argv);
    free(lengths);
    return is_sent;
}

static bool was_asked(const struct directory *d, uint64_t id)
{
    for (uint32_t i = 0; i < d->n_asked_ids; i++)
        if (d->asked_ids[i] == id)
            return true;
    return false;
}

static void got_ids(void *arg, const struct redis_view *reply, uint32_t what)
{
    struct directory *d = arg;
    uint64_t id;

    directory_answered(arg, reply, what);
    if (!reply || reply->kind == REDIS_ERROR)
        return;
    if (reply->kind != REDIS_LIST || reply->n > DIRECTORY_INSTANCES_MAX) {
        unexpected(d);
        return;
    }
    d->n_asked_ids = 0;
    for (size_t i = 0; i < reply->n; i++) {
        struct redis_view v = redis_link_at(reply, i);
        if (v.kind == REDIS_TEXT && directory_id_read(&id, v.text, v.n) && id != d->id &&
            !was_asked(d, id))
            d->asked_ids[d->n_asked_ids++] = id;
    }
    if (d->n_asked_ids == 0) {
        clear_list(d);
        set_list(d, 0);
    } else if (!ask_records(d)) {
        d->is_beating = false;
    }
}

static void ask_list(struct directory *d)
{
    char ids[KEY_BYTES_MAX], n[16];

    key_of(d, ids, "ids", "");
    snprintf(n, sizeof n, "%u", DIRECTORY_INSTANCES_MAX);
    d->is_beating = directory_send(d, 3, (const char *[]){"SRANDMEMBER", ids, n}, NULL, got_ids, 0);
}

void directory_beat(struct directory *d)
{
    directory_write_self(d);
    if (d->n_beats % (1 + d->n_instances / LIST_EACH_TIME_MAX) == 0)
        ask_list(d);
}

void directory_heartbeat(struct directory *d, const struct directory_instance *self)
{
    ASSERT(self->id == d->id);
    if (directory_record_write(&d->record, self) != OK)
        buf_reset(&d->record);
    if (d->state == STATE_UP && !d->is_beating && d->record.len > 0)
        directory_beat(d);
}
