/* fuzz_directory.c - any bytes as what a Redis answers, and as the record of an instance.
 *
 * The first part of an input is a byte, the size of the pieces in which the rest arrives, and that
 * rest: the answers to a heartbeat, a lookup of 20 segments, a count of two and an announcement,
 * after a valid greeting. The second part is the record of an instance.
 *
 * Checks beyond crashes: every lookup and count ends with exactly one event, with holders that the
 * list of instances has; a connection that is lost has words; an accepted record reads back as the
 * same record. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/log.h"
#include "cache/pool/directory_inner.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/cache/pool/fake_redis.h"

#define STEPS_MAX 200

static bool no_answer(struct fake_redis *f, const char *command)
{
    (void)f, (void)command;
    return true;
}

static char path[64];

static void remove_socket(void)
{
    unlink(path);
}

/* One server for all inputs. */
static struct fake_redis *server(void)
{
    static struct fake_redis f;

    if (!path[0]) {
        snprintf(path, sizeof path, "/tmp/tarn-fuzz-directory-%d", (int)getpid());
        atexit(remove_socket);
        fake_redis_open(&f, path, fake_redis_polite, NULL);
        log_init(LOG_ERROR, false);
    }
    fake_redis_hang_up(&f);
    return &f;
}

static void check_holders(const struct directory *d, const struct directory_event *e)
{
    uint32_t n, n_known = 0;
    const struct directory_instance *all = directory_instances(d, &n);

    ASSERT(e->n_holders <= DIRECTORY_HOLDERS_MAX && e->at < 20);
    for (uint32_t h = 0; h < e->n_holders; h++)
        for (uint32_t i = 0; i < n; i++)
            n_known += all[i].id == e->holders[h].id;
    ASSERT(n_known == e->n_holders);
}

struct seen {
    unsigned n_up, n_looks, n_downs;
};

static void take_events(struct directory *d, struct seen *seen)
{
    struct directory_event e;

    while (directory_next(d, &e)) {
        seen->n_up += e.kind == DIRECTORY_UP;
        seen->n_looks += e.kind >= DIRECTORY_FOUND;
        seen->n_downs += e.kind == DIRECTORY_DOWN;
        if (e.kind == DIRECTORY_DOWN)
            ASSERT(e.why && e.why[0]);
        if (e.kind == DIRECTORY_FOUND)
            check_holders(d, &e);
        if (e.kind == DIRECTORY_COUNTED)
            ASSERT(e.n_counts == 2 && e.counts[0].n_holders <= REDIS_ELEMENTS_MAX);
    }
}

static void queue_commands(struct directory *d)
{
    uint8_t keys[20][DIRECTORY_SEGMENT_BYTES];
    const uint8_t(*all)[DIRECTORY_SEGMENT_BYTES] = (const void *)keys;
    struct directory_segment s = {.tier = 1, .n_blocks = 8};

    for (int i = 0; i < 20; i++)
        memset(keys[i], i, sizeof keys[i]);
    ASSERT(directory_lookup(d, all, 20, 1) == OK);
    ASSERT(directory_count(d, all, 2, 2) == OK);
    ASSERT(directory_announce(d, &s, 1) == 1);
}

static void answer(const uint8_t *bytes, size_t n)
{
    struct fake_redis *f = server();
    struct directory_config config = {.url = f->url, .id = 1};
    struct directory_instance self = {.id = 1};
    struct directory *d = NULL;
    struct seen seen = {0};
    size_t piece = n > 0 ? 1 + bytes[0] * 16u : 1, at = n > 0;
    uint64_t now = 1;

    ASSERT(directory_open(&d, &config, NULL) == OK);
    directory_heartbeat(d, &self);
    f->answer = fake_redis_polite;
    for (int i = 0; i < STEPS_MAX && seen.n_up == 0; i++) {
        directory_progress(d, now++);
        take_events(d, &seen);
        if (seen.n_up == 0)
            fake_redis_step(f);
    }
    ASSERT(seen.n_up == 1);
    f->answer = no_answer;
    queue_commands(d);
    for (int i = 0; i < STEPS_MAX && directory_is_up(d); i++) {
        size_t more = n - at < piece ? n - at : piece;
        if (more > 0)
            ASSERT(buf_append(&f->out, bytes + at, more) == OK);
        at += more;
        directory_progress(d, now++);
        bool is_active = fake_redis_step(f);
        directory_progress(d, now++);
        take_events(d, &seen);
        if (!is_active && at == n)
            break;
    }
    fake_redis_hang_up(f);
    while (directory_is_up(d))
        directory_progress(d, now++);
    take_events(d, &seen);
    ASSERT(seen.n_looks == 2 && seen.n_downs == 1);
    directory_close(d);
}

static void record(const char *text, size_t n)
{
    struct directory_instance r, again;
    struct buf out;

    if (directory_record_read(&r, 1, text, n) != OK)
        return;
    buf_init(&out, RECORD_BYTES_MAX);
    ASSERT(directory_record_write(&out, &r) == OK);
    ASSERT(directory_record_read(&again, 1, out.data, out.len) == OK);
    ASSERT(memcmp(&r, &again, sizeof r) == 0);
    buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);

    if (redis_link_is_built())
        answer((const uint8_t *)in.first, in.first_len);
    if (in.second)
        record(in.second, in.second_len);
    return 0;
}
