/* Random operations on the disk tier against a naive model, on a device that fails, reorders, hangs
 * and dies. Each extent is free, in progress, or holds exactly the bytes written. The test reads
 * the extents and reopens the directory to check it. */
#include "tests/unit/test.h"

#include "tests/unit/cache/disk/disk_world.h"
#include "tests/unit/cache/disk/fake_aio.h"

#ifndef N_LIVES
#define N_LIVES 150u
#endif
#define N_STEPS 250u
/* five pages of headers, the last one not full, so many records share a page */
#define N_EXTENTS 70u
#define TIMEOUT_NS SECOND_NS

enum what { FREE, WRITING, HELD, FAILED, CLEARING, ERASING };

struct model {
    struct world w;
    uint64_t seed, n_draws;
    enum what what[N_EXTENTS];
    uint32_t no[N_EXTENTS];      /* number of the record that the extent holds, or may still hold */
    uint32_t reading[N_EXTENTS]; /* units that read the extent */
    uint32_t next_no, n_units;   /* in progress */
    uint32_t n_written, n_read, n_failed, n_hung, n_deaths;
};

static uint32_t draw(struct model *m, uint32_t below)
{
    return rng_u32(m->seed, m->n_draws++) % below;
}

/* Choose up to 8 extents in that state, often adjacent ones. */
static uint32_t choose(struct model *m, enum what what, uint32_t *out)
{
    uint32_t n = 0, n_max = 1 + draw(m, 8), step = draw(m, 3) ? 1 : 1 + draw(m, N_EXTENTS - 1);
    uint32_t e = draw(m, N_EXTENTS);

    for (uint32_t i = 0; i < N_EXTENTS && n < n_max; i++, e = (e + step) % N_EXTENTS) {
        bool twice = false;
        for (uint32_t k = 0; k < n; k++)
            twice |= out[k] == e;
        if (m->what[e] == what && !twice)
            out[n++] = e;
    }
    return n;
}

static void write_some(struct model *m)
{
    uint32_t e[8], n = choose(m, FREE, e);

    if (n == 0 || disk_n_free_slots(m->w.d) < n)
        return;
    enum status s = begin_write(&m->w, m->next_no, e, n, n);
    assert_true(s == OK || s == ERR_BUSY);
    for (uint32_t i = 0; s == OK && i < n; i++) {
        m->what[e[i]] = WRITING;
        m->no[e[i]] = m->next_no + i;
    }
    m->next_no += n;
    m->n_units += s == OK;
}

static void read_some(struct model *m)
{
    uint32_t e[8], n = choose(m, HELD, e);

    if (n == 0 || disk_n_free_slots(m->w.d) < n)
        return;
    enum status s = begin_read(&m->w, e, n, n);
    assert_true(s == OK || s == ERR_BUSY);
    for (uint32_t i = 0; s == OK && i < n; i++)
        m->reading[e[i]]++;
    m->n_units += s == OK;
}

static void clear_some(struct model *m)
{
    uint32_t e[8], kept = 0, n = choose(m, HELD, e);
    bool erase = draw(m, 3) == 0;

    for (uint32_t i = 0; i < n; i++)
        if (!m->reading[e[i]])
            e[kept++] = e[i];
    disk_clear(m->w.d, e, kept, erase);
    for (uint32_t i = 0; i < kept; i++)
        m->what[e[i]] = erase ? ERASING : CLEARING;
}

static void check_zeros(struct model *m, uint32_t extent)
{
    static uint8_t payload[EXTENT_BYTES];

    read_file(&m->w, "data", (uint64_t)extent * EXTENT_BYTES, payload, sizeof payload);
    for (uint32_t i = 0; i < sizeof payload; i++)
        assert_int_equal(payload[i], 0);
}

static void take_event(struct model *m, const struct disk_done *done)
{
    struct disk_record r;

    m->n_units -= done->event != DISK_CLEARED;
    m->n_failed += done->status != OK;
    for (uint32_t i = 0; i < done->n; i++) {
        uint32_t e = done->extents[i];
        switch (done->event) {
        case DISK_WRITE_DONE:
            assert_int_equal(m->what[e], WRITING);
            m->what[e] = done->status == OK ? HELD : FAILED;
            m->n_written += done->status == OK;
            break;
        case DISK_READ_DONE:
            m->reading[e]--;
            if (done->status == OK)
                assert_true(is_payload(slot_at(&m->w, done->slots[i]), m->no[e]));
            m->n_read += done->status == OK;
            break;
        case DISK_CLEARED:
            assert_true(m->what[e] == FAILED || m->what[e] == CLEARING || m->what[e] == ERASING);
            if (m->what[e] == ERASING)
                check_zeros(m, e);
            assert_int_equal(look_on_disk(&m->w, e, &r), DISK_EMPTY);
            m->what[e] = FREE;
            break;
        }
    }
    if (done->event == DISK_READ_DONE && done->status == OK)
        disk_give_slots(m->w.d, done->slots, done->n);
}

static uint32_t poll_some(struct model *m, uint64_t passed_ns)
{
    struct disk_done done[4];

    fake_now += passed_ns;
    uint32_t n = disk_poll(m->w.d, fake_now, done, 1 + draw(m, 4));
    for (uint32_t i = 0; i < n; i++)
        take_event(m, &done[i]);
    return n;
}

/* No request ends within the deadline: each unit must still be reported as over. */
static void hang(struct model *m)
{
    bool was_busy = fake.n > 0;

    fake.holds = true;
    poll_some(m, TIMEOUT_NS);
    while (poll_some(m, 1))
        ;
    assert_int_equal(m->n_units, 0);
    assert_true(!was_busy || disk_is_hung(m->w.d));
    m->n_hung += disk_is_hung(m->w.d);
    write_some(m); /* refused, or no unit hangs */
    assert_true(m->n_units == 0 || !disk_is_hung(m->w.d));
    fake.holds = false;
}

/* A unit reported as done is on disk; a unit in progress is on disk as a whole or not at all. */
static void check_reopened(struct model *m)
{
    struct disk_record r;
    struct disk_done done;

    for (uint32_t e = 0; e < N_EXTENTS; e++) {
        enum disk_verdict v = disk_look(m->w.d, e, &r);
        bool may = m->what[e] != FREE, must = m->what[e] == HELD;
        assert_true(v == DISK_VALID ? may : !must);
        if (v == DISK_VALID) {
            assert_int_equal(r.ids[0], m->no[e]);
            fake_check_payload(e, &r);
            m->what[e] = HELD;
        } else if (v != DISK_EMPTY) { /* the mark of an extent that is to be erased */
            assert_true(m->what[e] == ERASING);
            disk_clear(m->w.d, &e, 1, false);
        } else {
            m->what[e] = FREE;
        }
        m->reading[e] = 0;
    }
    m->n_units = 0;
    for (; disk_is_busy(m->w.d); fake_now += SECOND_NS / 100)
        if (disk_poll(m->w.d, fake_now, &done, 1))
            take_event(m, &done);
}

/* Killed or closed. Closing ends the requests in progress. */
static void die(struct model *m, bool killed)
{
    m->n_deaths += killed;
    while (killed && fake.n > 0 && draw(m, 4))
        (void)fake_end(draw(m, fake.n)); /* the kernel still carries out some requests */
    fake.is_dead = killed;
    fake.n_busy = 0;
    world_close(&m->w);
    fake.is_dead = false;
    assert_int_equal(fake.n, 0);
    assert_true(world_open(&m->w));
    check_reopened(m);
}

static void step(struct model *m)
{
    uint32_t what = draw(m, 100);

    if (what < 22)
        write_some(m);
    else if (what < 37)
        read_some(m);
    else if (what < 47)
        clear_some(m);
    else if (what < 51)
        hang(m);
    else if (what < 52)
        fake.n_busy = 1 + draw(m, 5);
    else if (what < 53)
        die(m, draw(m, 2));
    else
        poll_some(m, SECOND_NS / 200);
}

static void live(struct model *m, uint64_t seed)
{
    memset(m, 0, sizeof *m);
    m->seed = seed;
    m->next_no = 1;
    world_init(&m->w, AIO_AUTO, N_EXTENTS);
    m->w.config.timeout_ns = TIMEOUT_NS;
    fake_reset(&m->w);
    fake.shuffle = seed % 5 ? seed : 0;
    fake.fail_one_in = seed % 3 == 0 ? 10 : seed % 3 == 1 ? 60 : 0;
    fake.fail_half = seed % 2;
    assert_true(world_open(&m->w));
    for (uint32_t i = 0; i < N_STEPS; i++)
        step(m);
    /* When the device works again, all waiting requests end. */
    fake.fail_one_in = 0;
    while (disk_is_busy(m->w.d))
        poll_some(m, SECOND_NS / 100);
    assert_int_equal(m->n_units, 0);
    assert_int_equal(disk_n_free_slots(m->w.d), N_SLOTS);
    assert_false(disk_is_hung(m->w.d));
    for (uint32_t e = 0; e < N_EXTENTS; e++)
        assert_true(m->what[e] == FREE || m->what[e] == HELD);
    die(m, false);
    world_close(&m->w);
    world_fini(&m->w);
}

static void each_extent_holds_what_was_written_or_nothing(void **state)
{
    uint32_t n_written = 0, n_read = 0, n_failed = 0, n_hung = 0, n_deaths = 0;
    struct model m;

    (void)state;
    for (uint64_t seed = 1; seed <= N_LIVES; seed++) {
        fake_now = SECOND_NS;
        live(&m, seed);
        n_written += m.n_written;
        n_read += m.n_read;
        n_failed += m.n_failed;
        n_hung += m.n_hung;
        n_deaths += m.n_deaths;
    }
    fake_now = 0;
    print_message("%u blocks written, %u read, %u units failed, %u times hung\n", n_written, n_read,
                  n_failed, n_hung);
    assert_true(n_written > 10 * N_LIVES && n_read > 10 * N_LIVES && n_failed > N_LIVES &&
                n_hung > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_extent_holds_what_was_written_or_nothing),
    };

    world_in_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
