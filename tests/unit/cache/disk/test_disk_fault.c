/* The disk tier's engine on a device where each request in turn fails, is late, or never ends. The
 * test sets the clock. */
#include "tests/unit/test.h"

#include <sys/file.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include "tests/unit/cache/disk/disk_world.h"
#include "tests/unit/cache/disk/fake_aio.h"

#define N_EXTENTS 100u
#define TIMEOUT_NS SECOND_NS

static void begin_world(struct world *w)
{
    fake_now = 5 * SECOND_NS;
    world_init(w, AIO_AUTO, N_EXTENTS);
    w->config.timeout_ns = TIMEOUT_NS;
    fake_reset(w);
    assert_true(world_open(w));
}

static void end_world(struct world *w)
{
    fake.holds = false;
    world_close(w);
    world_fini(w);
    fake_now = 0;
}

/* Poll for at most one event. */
static uint32_t poll_one(struct world *w, struct disk_done *done)
{
    return disk_poll(w->d, fake_now, done, 1);
}

static void no_event(struct world *w)
{
    struct disk_done done;

    assert_int_equal(poll_one(w, &done), 0);
}

static struct disk_done one_event(struct world *w, enum disk_event event, enum status status)
{
    struct disk_done done = {.n = 0};

    assert_int_equal(poll_one(w, &done), 1);
    assert_int_equal(done.event, event);
    assert_int_equal(done.status, status);
    return done;
}

/* Expect that n extents are returned. Return one bit for each of the first 64 extents. */
static uint64_t expect_cleared(struct world *w, uint32_t n)
{
    struct disk_done done;
    uint64_t which = 0;

    for (uint32_t i = 0; i < 1000 && n > 0; i++, fake_now += SECOND_NS / 100)
        if (poll_one(w, &done)) {
            assert_int_equal(done.event, DISK_CLEARED);
            which |= UINT64_C(1) << (done.extents[0] % 64);
            n--;
        }
    assert_int_equal(n, 0);
    return which;
}

/* Let the i-th of the held requests in progress end at the next poll. */
static void end_held(uint32_t i)
{
    assert_true(fake.holds && i < fake.n);
    fake.ends = true;
    fake.ends_at = i;
}

/* --- order --- */

static void no_header_is_on_the_disk_before_all_payloads(void **state)
{
    const uint32_t e[8] = {0, 2, 4, 6, 20, 22, 40, 99};
    struct disk_record r;
    struct world w;

    (void)state;
    begin_world(&w);
    fake.holds = true;
    assert_ok(begin_write(&w, 1, e, 8, 7));
    assert_int_equal(fake.n, 8);
    for (uint32_t left = 8; left > 0; left--) {
        assert_int_equal(fake.n, left);
        for (uint32_t k = 0; k < left; k++)
            assert_false(fake_is_table(fake.ops[k].fd));
        end_held(left % 3 % left);
        no_event(&w);
    }
    /* Four pages of headers; the unit is not done before the last one is. */
    assert_int_equal(fake.n, 4);
    assert_int_equal(disk_n_free_slots(w.d), N_SLOTS);
    for (uint32_t left = 4; left > 0; left--) {
        for (uint32_t k = 0, n = 0; k < 8; k++) {
            n += look_on_disk(&w, e[k], &r) == DISK_VALID;
            assert_true(k < 7 || n < 8);
        }
        end_held(left / 2);
        if (left > 1)
            no_event(&w);
    }
    (void)one_event(&w, DISK_WRITE_DONE, OK);
    for (uint32_t k = 0; k < 8; k++)
        assert_int_equal(look_on_disk(&w, e[k], &r), DISK_VALID);
    fake.holds = false;
    check_records(&w, 1, e, 8);
    end_world(&w);
}

static void adjacent_blocks_go_as_one_request(void **state)
{
    const uint32_t row[8] = {30, 31, 32, 33, 34, 35, 36, 37}, two[8] = {1, 2, 3, 9, 8, 7, 6, 5};
    struct world w;

    (void)state;
    begin_world(&w);
    fake.holds = true;
    assert_ok(begin_write(&w, 1, row, 8, 0));
    assert_int_equal(fake.n, 1);
    assert_int_equal(fake.ops[0].n_bytes, 8 * EXTENT_BYTES);
    assert_ok(begin_write(&w, 11, two, 8, 0));
    assert_int_equal(fake.n, 1 + 6);
    fake.holds = false;
    for (int i = 0; i < 2; i++)
        assert_int_equal(next_event(&w).status, OK);
    check_records(&w, 1, row, 8);
    check_records(&w, 11, two, 8);
    end_world(&w);
}

/* A header that changes while its page is written goes out with the next write of that page. */
static void a_page_does_not_change_while_it_is_written(void **state)
{
    const uint32_t a = 1, b = 2;
    struct disk_record r;
    struct world w;

    (void)state;
    begin_world(&w);
    fake.holds = true;
    assert_ok(begin_write(&w, 10, &a, 1, 1));
    end_held(0);
    no_event(&w);
    assert_true(fake.n == 1 && fake_is_table(fake.ops[0].fd));
    assert_ok(begin_write(&w, 20, &b, 1, 2));
    end_held(1); /* its payload; the page of a is still in progress */
    no_event(&w);
    assert_int_equal(fake.n, 1);
    end_held(0);
    (void)one_event(&w, DISK_WRITE_DONE, OK);
    assert_int_equal(look_on_disk(&w, a, &r), DISK_VALID);
    assert_int_equal(look_on_disk(&w, b, &r), DISK_EMPTY);
    assert_int_equal(fake.n, 1);
    disk_clear(w.d, &a, 1, false);
    end_held(0);
    (void)one_event(&w, DISK_WRITE_DONE, OK); /* of b; a is still there */
    assert_int_equal(look_on_disk(&w, a, &r), DISK_VALID);
    end_held(0);
    (void)one_event(&w, DISK_CLEARED, OK);
    assert_int_equal(look_on_disk(&w, a, &r), DISK_EMPTY);
    assert_int_equal(look_on_disk(&w, b, &r), DISK_VALID);
    end_world(&w);
}

/* The steps are the mark, the zeros, the empty header. After a death between them, the next server
 * continues. */
static void an_interrupted_erase_is_finished_after_a_restart(void **state)
{
    static uint8_t payload[EXTENT_BYTES];
    const uint32_t e = 42;
    struct disk_record r;
    struct world w;

    (void)state;
    for (uint32_t n_ended = 0; n_ended <= 3; n_ended++) {
        begin_world(&w);
        write_now(&w, 5, &e, 1);
        fake.holds = true;
        disk_clear(w.d, &e, 1, true);
        for (uint32_t k = 0; k < n_ended; k++) {
            no_event(&w);
            assert_int_equal(fake.n, 1);
            assert_int_equal(fake_is_table(fake.ops[0].fd), k != 1);
            end_held(0);
        }
        if (n_ended == 3)
            (void)one_event(&w, DISK_CLEARED, OK);
        else
            no_event(&w);
        fake.is_dead = true;
        fake.holds = false;
        world_close(&w);
        fake.is_dead = false;
        assert_true(world_open(&w));
        enum disk_verdict v = disk_look(w.d, e, &r);
        assert_true(n_ended == 0   ? v == DISK_VALID
                    : n_ended == 3 ? v == DISK_EMPTY
                                   : v != DISK_VALID && v != DISK_EMPTY);
        clear_now(&w, &e, 1, n_ended == 0);
        read_file(&w, "data", (uint64_t)e * EXTENT_BYTES, payload, sizeof payload);
        for (uint32_t i = 0; i < sizeof payload; i++)
            assert_int_equal(payload[i], 0);
        assert_int_equal(look_on_disk(&w, e, &r), DISK_EMPTY);
        end_world(&w);
    }
}

/* --- failures --- */

struct script {
    const char *name;
    int error;
    bool half;
};

/* Take events until no request is in progress. `holds` [N_EXTENTS] is the state of the extents: 0
 * or the number of the record. */
static void take_all(struct world *w, uint32_t *holds, uint32_t *n_failed)
{
    struct disk_done done;

    for (; disk_is_busy(w->d); fake_now += SECOND_NS / 100) {
        if (!poll_one(w, &done))
            continue;
        *n_failed += done.status != OK;
        for (uint32_t i = 0; i < done.n; i++) {
            uint32_t e = done.extents[i];
            if (done.event == DISK_WRITE_DONE && done.status == OK)
                holds[e] = (uint32_t)done.tag + i;
            if (done.event == DISK_READ_DONE && done.status == OK)
                assert_true(is_payload(slot_at(w, done.slots[i]), holds[e]));
            if (done.event == DISK_CLEARED)
                holds[e] = 0;
        }
        if (done.event == DISK_READ_DONE && done.status == OK)
            disk_give_slots(w->d, done.slots, done.n);
    }
    assert_int_equal(disk_n_free_slots(w->d), N_SLOTS);
}

static void write_free(struct world *w, const uint32_t *holds, uint32_t first_no, const uint32_t *e,
                       uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (holds[e[i]] != 0)
            return;
    assert_ok(begin_write(w, first_no, e, n, first_no));
}

static void clear_held(struct world *w, const uint32_t *holds, const uint32_t *e, uint32_t n,
                       bool erase)
{
    for (uint32_t i = 0; i < n; i++)
        if (holds[e[i]] != 0)
            disk_clear(w->d, &e[i], 1, erase);
}

static void read_held(struct world *w, const uint32_t *holds, const uint32_t *e, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (holds[e[i]] == 0)
            return;
    assert_ok(begin_read(w, e, n, 0));
}

/* Run all operations of a disk once. Return whether the request to fail was reached. */
static bool run_script(const struct script *script, uint64_t fail_nth)
{
    const uint32_t a[8] = {0, 1, 2, 3, 17, 18, 40, 98}, b[3] = {4, 5, 60}, c[2] = {6, 80};
    uint32_t holds[N_EXTENTS] = {0}, n_failed = 0;
    struct disk_record r;
    struct world w;

    begin_world(&w);
    fake.fail_nth = fail_nth;
    fake.fail_error = script->error;
    fake.fail_half = script->half;
    write_free(&w, holds, 100, a, 8);
    write_free(&w, holds, 200, b, 3);
    take_all(&w, holds, &n_failed);
    read_held(&w, holds, a, 8);
    read_held(&w, holds, b, 3);
    take_all(&w, holds, &n_failed);
    clear_held(&w, holds, a, 4, false);
    clear_held(&w, holds, b, 3, true);
    write_free(&w, holds, 300, c, 2);
    take_all(&w, holds, &n_failed);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(holds[b[i]], 0); /* tried again after the failure */
    write_free(&w, holds, 400, a, 3);
    take_all(&w, holds, &n_failed);
    assert_true(n_failed <= 2); /* a page may hold headers of two units */
    bool hit = fake.n_failed == 1;
    fake.fail_nth = 0;
    world_close(&w);
    assert_true(world_open(&w));
    for (uint32_t e = 0; e < N_EXTENTS; e++) {
        assert_int_equal(disk_look(w.d, e, &r), holds[e] ? DISK_VALID : DISK_EMPTY);
        if (holds[e])
            check_records(&w, holds[e], &e, 1);
    }
    end_world(&w);
    return hit;
}

static void no_wrong_record_is_kept_whichever_request_fails(void **state)
{
    static const struct script scripts[] = {
        {"EIO", EIO, false}, {"ENOSPC, half written", ENOSPC, true}, {"a short file", 0, false}};
    uint64_t n;

    (void)state;
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        for (n = 1; run_script(&scripts[i], n); n++)
            ;
        print_message("%s: %u requests\n", scripts[i].name, (unsigned)n - 1);
        assert_true(n > 25);
    }
}

static void a_failed_unit_says_why_and_gives_all_back(void **state)
{
    const uint32_t e[8] = {10, 12, 14, 16, 30, 32, 34, 36};
    struct disk_stats stats;
    struct disk_record r;
    struct world w;

    (void)state;
    begin_world(&w);
    fake.fail_nth = 5;
    assert_ok(begin_write(&w, 1, e, 8, 3)); /* one of 8 payloads */
    struct disk_done done = one_event(&w, DISK_WRITE_DONE, ERR_IO);
    assert_int_equal(done.error, EIO);
    assert_int_equal(done.tag, 3);
    assert_int_equal(disk_n_free_slots(w.d), N_SLOTS);
    (void)expect_cleared(&w, 8);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(disk_look(w.d, e[i], &r), DISK_EMPTY);
    write_now(&w, 1, e, 8);
    fake.fail_nth = fake.n_ever + 8;
    assert_ok(begin_read(&w, e, 8, 4));
    done = one_event(&w, DISK_READ_DONE, ERR_IO);
    assert_int_equal(done.error, EIO);
    check_records(&w, 1, e, 8);
    disk_stats(w.d, &stats);
    assert_int_equal(stats.n_writes_failed, 1);
    assert_int_equal(stats.n_reads_failed, 1);
    end_world(&w);
}

static void a_header_that_cannot_be_written_is_no_record(void **state)
{
    const uint32_t e[3] = {3, 20, 50}; /* on three pages, one of which fails */
    struct disk_record r;
    struct world w;

    (void)state;
    begin_world(&w);
    fake.fail_nth = 5;
    fake.fail_half = true;
    assert_ok(begin_write(&w, 1, e, 3, 0));
    no_event(&w); /* payloads */
    struct disk_done done = one_event(&w, DISK_WRITE_DONE, ERR_IO);
    assert_int_equal(done.error, EIO);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(disk_look(w.d, e[i], &r), DISK_EMPTY);
    (void)expect_cleared(&w, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(look_on_disk(&w, e[i], &r), DISK_EMPTY);
    end_world(&w);
}

static void a_failed_clear_is_retried(void **state)
{
    const uint32_t e[4] = {1, 2, 30, 31};
    struct disk_record r;
    struct world w;

    (void)state;
    for (int erase = 0; erase < 2; erase++) {
        begin_world(&w);
        write_now(&w, 1, e, 4);
        fake.shuffle = 1;
        fake.fail_one_in = 1; /* all requests */
        disk_clear(w.d, e, 4, erase);
        for (uint32_t i = 0; i < 100; i++, fake_now += SECOND_NS / 100)
            no_event(&w);
        assert_true(fake.n_failed > 4 && fake.n_failed < 40); /* not at each call */
        assert_true(disk_is_busy(w.d));
        fake.fail_one_in = 0;
        (void)expect_cleared(&w, 4);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(look_on_disk(&w, e[i], &r), DISK_EMPTY);
        assert_false(disk_is_busy(w.d));
        end_world(&w);
    }
}

static void closing_tries_again_what_failed(void **state)
{
    const uint32_t e = 30;
    struct disk_record r;
    struct world w;

    (void)state;
    for (uint32_t erase = 0; erase < 2; erase++) {
        for (uint32_t nth = 1; nth <= 1 + 2 * erase; nth++) {
            begin_world(&w);
            write_now(&w, 1, &e, 1);
            disk_clear(w.d, &e, 1, erase);
            fake.fail_nth = fake.n_ever + nth;
            world_close(&w);
            assert_int_equal(fake.n_failed, 1);
            assert_int_equal(look_on_disk(&w, e, &r), DISK_EMPTY);
            assert_true(world_open(&w));
            end_world(&w);
        }
    }
}

/* --- no room, no time --- */

static void a_full_queue_delays_but_loses_nothing(void **state)
{
    const uint32_t a[3] = {1, 3, 5}, b[2] = {7, 50};
    struct world w;

    (void)state;
    begin_world(&w);
    write_now(&w, 11, a, 3);
    for (uint32_t n = 1; n < 12; n++) {
        fake.n_busy = n;
        assert_ok(begin_write(&w, 21, b, 2, 21));
        assert_ok(begin_read(&w, a, 3, 5));
        for (uint32_t seen = 0; seen < 2; fake_now += SECOND_NS / 100) {
            struct disk_done done;
            if (poll_one(&w, &done) == 0)
                continue;
            assert_int_equal(done.status, OK);
            seen++;
            if (done.event == DISK_READ_DONE)
                disk_give_slots(w.d, done.slots, done.n);
        }
        fake.n_busy = n;
        disk_clear(w.d, b, 2, n % 2);
        (void)expect_cleared(&w, 2);
    }
    end_world(&w);
}

static void a_unit_that_never_starts_ends_at_its_deadline(void **state)
{
    const uint32_t a[2] = {1, 3}, b[2] = {40, 41};
    struct world w;

    (void)state;
    begin_world(&w);
    write_now(&w, 11, a, 2);
    fake.n_busy = UINT32_MAX;
    assert_ok(begin_write(&w, 21, b, 2, 1));
    assert_ok(begin_read(&w, a, 2, 2));
    fake_now += TIMEOUT_NS - 1;
    no_event(&w);
    fake_now += 1;
    assert_int_equal(one_event(&w, DISK_WRITE_DONE, ERR_TIMEOUT).tag, 1);
    struct disk_done done = one_event(&w, DISK_READ_DONE, ERR_TIMEOUT);
    assert_int_equal(done.tag, 2);
    assert_int_equal(done.took_ns, TIMEOUT_NS);
    assert_int_equal(disk_n_free_slots(w.d), N_SLOTS);
    (void)expect_cleared(&w, 2);
    assert_false(disk_is_hung(w.d)); /* no request is in the kernel */
    fake.n_busy = 0;
    check_records(&w, 11, a, 2);
    end_world(&w);
}

static void more_units_than_there_are_is_busy(void **state)
{
    uint32_t e, n = 0;
    struct world w;

    (void)state;
    begin_world(&w);
    e = 5;
    write_now(&w, 1, &e, 1);
    fake.holds = true;
    while (disk_n_free_slots(w.d) > 0) {
        assert_ok(begin_read(&w, &e, 1, n));
        n++;
    }
    assert_int_equal(n, N_SLOTS);
    fake.holds = false;
    for (uint32_t i = 0; i < n; i++) {
        struct disk_done done = next_event(&w);
        assert_int_equal(done.status, OK);
        assert_int_equal(done.tag, i);
        disk_give_slots(w.d, done.slots, 1);
    }
    end_world(&w);
}

/* --- hung --- */

static void a_hung_read_is_over_and_its_slots_stay_reserved(void **state)
{
    const uint32_t e[3] = {10, 11, 12};
    uint32_t free_now[N_SLOTS];
    struct disk_stats stats;
    struct world w;

    (void)state;
    begin_world(&w);
    write_now(&w, 1, e, 3);
    fake.holds = true;
    assert_ok(begin_read(&w, e, 3, 9));
    no_event(&w);
    fake_now += TIMEOUT_NS;
    struct disk_done done = one_event(&w, DISK_READ_DONE, ERR_TIMEOUT);
    assert_true(disk_is_hung(w.d) && disk_is_busy(w.d));
    assert_int_equal(done.tag, 9);
    assert_int_equal(disk_n_free_slots(w.d), N_SLOTS - 3);
    /* All other slots now have new owners. Late requests must not write to them. */
    assert_true(disk_take_slots(w.d, free_now, N_SLOTS - 3));
    for (uint32_t i = 0; i < N_SLOTS - 3; i++)
        memset(slot_at(&w, free_now[i]), 0x5A, EXTENT_BYTES);
    assert_int_equal(disk_read(w.d, e, free_now, 3, 1), ERR_BUSY);
    fake.holds = false;
    no_event(&w);
    assert_false(disk_is_hung(w.d));
    assert_int_equal(disk_n_free_slots(w.d), 3);
    for (uint32_t i = 0; i < N_SLOTS - 3; i++)
        for (uint32_t k = 0; k < EXTENT_BYTES; k++)
            assert_int_equal(slot_at(&w, free_now[i])[k], 0x5A);
    disk_give_slots(w.d, free_now, N_SLOTS - 3);
    check_records(&w, 1, e, 3);
    disk_stats(w.d, &stats);
    assert_int_equal(stats.n_timeouts, 1);
    end_world(&w);
}

static void a_hung_write_keeps_slots_and_extents_until_it_ends(void **state)
{
    const uint32_t e[3] = {10, 20, 30};
    struct disk_record r;
    struct world w;

    (void)state;
    begin_world(&w);
    fake.holds = true;
    assert_ok(begin_write(&w, 1, e, 3, 9));
    fake_now += TIMEOUT_NS / 2;
    end_held(1); /* one of three ends in time */
    no_event(&w);
    fake_now += TIMEOUT_NS / 2;
    (void)one_event(&w, DISK_WRITE_DONE, ERR_TIMEOUT);
    for (uint32_t i = 0; i < 5; i++, fake_now += TIMEOUT_NS) {
        no_event(&w);
        assert_true(disk_is_hung(w.d));
        assert_int_equal(disk_n_free_slots(w.d), N_SLOTS - 3);
    }
    assert_int_equal(fake.n, 2);
    fake.holds = false;
    (void)expect_cleared(&w, 3);
    assert_int_equal(disk_n_free_slots(w.d), N_SLOTS);
    assert_false(disk_is_hung(w.d) || disk_is_busy(w.d));
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(look_on_disk(&w, e[i], &r), DISK_EMPTY);
    write_now(&w, 1, e, 3);
    end_world(&w);
}

static void a_header_that_comes_too_late_is_cleared_again(void **state)
{
    const uint32_t e[2] = {10, 11};
    struct disk_record r;
    struct world w;

    (void)state;
    begin_world(&w);
    fake.holds = true;
    assert_ok(begin_write(&w, 1, e, 2, 9));
    fake_now += TIMEOUT_NS / 2; /* the write of the header page begins later than its unit */
    end_held(0);
    no_event(&w);
    assert_true(fake.n == 1 && fake_is_table(fake.ops[0].fd));
    fake_now += TIMEOUT_NS / 2;
    (void)one_event(&w, DISK_WRITE_DONE, ERR_TIMEOUT);
    assert_true(disk_is_hung(w.d));
    assert_int_equal(disk_n_free_slots(w.d), N_SLOTS); /* the payloads were written */
    no_event(&w);
    assert_int_equal(fake.n, 1);
    end_held(0);
    no_event(&w);
    assert_int_equal(look_on_disk(&w, e[0], &r), DISK_VALID); /* too late */
    assert_int_equal(disk_look(w.d, e[0], &r), DISK_EMPTY);
    assert_false(disk_is_hung(w.d));
    fake.holds = false;
    (void)expect_cleared(&w, 2);
    assert_int_equal(look_on_disk(&w, e[0], &r), DISK_EMPTY);
    end_world(&w);
}

static void a_clear_can_hang_like_any_request(void **state)
{
    const uint32_t e[2] = {10, 50};
    struct world w;

    (void)state;
    for (int erase = 0; erase < 2; erase++) {
        begin_world(&w);
        write_now(&w, 1, e, 2);
        fake.holds = true;
        disk_clear(w.d, e, 1, erase);
        no_event(&w);
        fake_now += TIMEOUT_NS;
        no_event(&w);
        assert_true(disk_is_hung(w.d));
        disk_clear(w.d, e + 1, 1, false);
        no_event(&w);
        assert_int_equal(fake.n, 1); /* no new request is sent to a hung disk */
        fake.holds = false;
        (void)expect_cleared(&w, 2);
        end_world(&w);
    }
}

static void a_hung_disk_is_left_as_it_is(void **state)
{
    const uint32_t e[2] = {10, 50};
    char path[256];
    struct world w;

    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    __lsan_disable(); /* memory that the kernel may still read is never freed */
#endif
    begin_world(&w);
    write_now(&w, 1, e, 1);
    fake.holds = true;
    assert_ok(begin_write(&w, 2, e + 1, 1, 0));
    disk_clear(w.d, e, 1, true);
    no_event(&w);
    file_path(path, sizeof path, &w, "lock");
    assert_int_equal(disk_close(w.d, fake_now + SECOND_NS), ERR_TIMEOUT);
#if defined(__SANITIZE_ADDRESS__)
    __lsan_enable();
#endif
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0); /* no other process gets the lock */
    close(fd);
    world_fini(&w);
    fake_now = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_header_is_on_the_disk_before_all_payloads),
        cmocka_unit_test(adjacent_blocks_go_as_one_request),
        cmocka_unit_test(a_page_does_not_change_while_it_is_written),
        cmocka_unit_test(an_interrupted_erase_is_finished_after_a_restart),
        cmocka_unit_test(no_wrong_record_is_kept_whichever_request_fails),
        cmocka_unit_test(a_failed_unit_says_why_and_gives_all_back),
        cmocka_unit_test(a_header_that_cannot_be_written_is_no_record),
        cmocka_unit_test(a_failed_clear_is_retried),
        cmocka_unit_test(closing_tries_again_what_failed),
        cmocka_unit_test(a_full_queue_delays_but_loses_nothing),
        cmocka_unit_test(a_unit_that_never_starts_ends_at_its_deadline),
        cmocka_unit_test(more_units_than_there_are_is_busy),
        cmocka_unit_test(a_hung_read_is_over_and_its_slots_stay_reserved),
        cmocka_unit_test(a_hung_write_keeps_slots_and_extents_until_it_ends),
        cmocka_unit_test(a_header_that_comes_too_late_is_cleared_again),
        cmocka_unit_test(a_clear_can_hang_like_any_request),
        cmocka_unit_test(a_hung_disk_is_left_as_it_is),
    };

    world_in_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
