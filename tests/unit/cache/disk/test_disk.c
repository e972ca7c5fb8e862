/* The disk tier's engine on real files, with both back ends of base/aio. test_disk_fault.c and
 * test_disk_random.c have a device that fails when told to. */
#include "tests/unit/test.h"

#include <errno.h>
#include <sys/wait.h>

#include "tests/unit/cache/disk/disk_world.h"

#define N_EXTENTS 100u /* not a multiple of the headers in a page */

static const enum aio_backend both[] = {AIO_URING, AIO_THREADS};

#define EACH_BACK_END(w)                                                                           \
    for (int b_ = 0; b_ < 2; b_++)                                                                 \
        if (world_init(&(w), both[b_], N_EXTENTS), !world_open(&(w)))                              \
            world_fini(&(w));                                                                      \
        else

static void a_read_returns_the_written_bytes(void **state)
{
    const uint32_t row[8] = {8, 9, 10, 11, 12, 13, 14, 15}, apart[8] = {99, 3, 4, 5, 50, 0, 17, 16};
    struct disk_stats stats;
    struct world w;

    (void)state;
    EACH_BACK_END(w)
    {
        assert_int_equal(disk_directory(w.d)->super.n_extents, N_EXTENTS);
        write_now(&w, 100, row, 8);
        write_now(&w, 200, apart, 8);
        write_now(&w, 300, &(uint32_t){40}, 1);
        check_records(&w, 100, row, 8);
        check_records(&w, 200, apart, 8);
        check_records(&w, 203, apart + 3, 3);
        check_records(&w, 300, &(uint32_t){40}, 1);
        settle(&w);
        assert_int_equal(disk_n_free_slots(w.d), N_SLOTS);
        disk_stats(w.d, &stats);
        assert_int_equal(stats.n_written_bytes, 17 * BLOCK_BYTES);
        assert_int_equal(stats.n_read_bytes, 20 * BLOCK_BYTES);
        assert_int_equal(
            stats.n_reads_failed + stats.n_writes_failed + stats.n_timeouts + stats.n_corrupt, 0);
        assert_true(stats.memory_bytes >= disk_table_bytes(N_EXTENTS));
        assert_string_equal(disk_io_name(w.d), both[b_] == AIO_URING ? "io_uring" : "threads");
        world_close(&w);
        world_fini(&w);
    }
}

static void reopening_finds_what_was_done_and_nothing_else(void **state)
{
    const uint32_t a[8] = {0, 1, 2, 3, 4, 5, 6, 7}, b[3] = {20, 31, 99};
    struct disk_record r;
    struct world w;

    (void)state;
    EACH_BACK_END(w)
    {
        assert_true(disk_directory(w.d)->is_new);
        write_now(&w, 1, a, 8);
        write_now(&w, 11, b, 3);
        clear_now(&w, a + 4, 2, false);
        world_close(&w); /* writes the waiting headers */
        assert_true(world_open(&w));
        assert_false(disk_directory(w.d)->is_new);
        for (uint32_t e = 0; e < N_EXTENTS; e++) {
            bool held = e < 4 || e == 6 || e == 7 || e == 20 || e == 31 || e == 99;
            assert_int_equal(disk_look(w.d, e, &r), held ? DISK_VALID : DISK_EMPTY);
        }
        check_records(&w, 1, a, 4);
        check_records(&w, 11, b, 3);
        /* Later writes have larger numbers, also after the directory was opened again. */
        write_now(&w, 50, &(uint32_t){5}, 1);
        struct disk_record late;
        assert_int_equal(disk_look(w.d, 5, &late), DISK_VALID);
        assert_int_equal(disk_look(w.d, 99, &r), DISK_VALID);
        assert_true(late.no > r.no);
        world_close(&w);
        world_fini(&w);
    }
}

static void a_cleared_extent_can_be_written_again(void **state)
{
    const uint32_t e[4] = {5, 6, 7, 40};
    struct disk_record r;
    struct world w;

    (void)state;
    EACH_BACK_END(w)
    {
        for (uint32_t life = 0; life < 5; life++) {
            write_now(&w, 10 * life, e, 4);
            check_records(&w, 10 * life, e, 4);
            clear_now(&w, e, 4, life % 2);
            assert_int_equal(look_on_disk(&w, 6, &r), DISK_EMPTY);
        }
        clear_now(&w, e, 4, false); /* the extents are empty, and are returned all the same */
        world_close(&w);
        world_fini(&w);
    }
}

static void an_erased_extent_holds_zeros(void **state)
{
    static uint8_t payload[EXTENT_BYTES];
    const uint32_t e[8] = {1, 2, 3, 4, 60, 61, 62, 98};
    struct disk_record r;
    struct world w;

    (void)state;
    EACH_BACK_END(w)
    {
        write_now(&w, 1, e, 8);
        read_file(&w, "data", 3 * EXTENT_BYTES, payload, EXTENT_BYTES);
        assert_true(is_payload(payload, 3));
        for (uint32_t i = BLOCK_BYTES; i < EXTENT_BYTES; i++)
            assert_int_equal(payload[i], 0); /* no byte of the slot's previous content */
        clear_now(&w, e, 8, true);
        for (uint32_t i = 0; i < 8; i++) {
            read_file(&w, "data", (uint64_t)e[i] * EXTENT_BYTES, payload, EXTENT_BYTES);
            for (uint32_t k = 0; k < EXTENT_BYTES; k++)
                assert_int_equal(payload[k], 0);
            assert_int_equal(look_on_disk(&w, e[i], &r), DISK_EMPTY);
        }
        world_close(&w);
        world_fini(&w);
    }
}

static void changed_bytes_are_corrupt_not_read(void **state)
{
    const uint32_t e[3] = {30, 31, 32};
    char path[256];
    struct disk_stats stats;
    struct disk_done done;
    struct world w;

    (void)state;
    EACH_BACK_END(w)
    {
        write_now(&w, 1, e, 3);
        world_close(&w);
        file_path(path, sizeof path, &w, "data");
        int fd = open(path, O_RDWR | O_CLOEXEC);
        assert_int_equal(pwrite(fd, "x", 1, 31 * EXTENT_BYTES + BLOCK_BYTES - 1), 1);
        close(fd);
        assert_true(world_open(&w));
        assert_ok(begin_read(&w, e, 3, 5));
        done = next_event(&w);
        assert_int_equal(done.event, DISK_READ_DONE);
        assert_int_equal(done.status, ERR_CORRUPT);
        assert_int_equal(disk_n_free_slots(w.d), N_SLOTS); /* released by itself */
        check_records(&w, 1, e, 1);
        check_records(&w, 3, e + 2, 1);
        assert_ok(begin_read(&w, &(uint32_t){33}, 1, 6)); /* no record is there */
        assert_int_equal(next_event(&w).status, ERR_CORRUPT);
        disk_stats(w.d, &stats);
        assert_int_equal(stats.n_corrupt, 2);
        world_close(&w);
        world_fini(&w);
    }
}

static void adjacent_slots_are_reserved_if_possible(void **state)
{
    uint32_t a[8], b[N_SLOTS];
    struct world w;

    (void)state;
    EACH_BACK_END(w)
    {
        assert_true(disk_take_slots(w.d, a, 3));
        assert_true(disk_take_slots(w.d, b, 8));
        disk_give_slots(w.d, a + 1, 2);
        assert_true(disk_take_slots(w.d, a + 1, 4));
        for (int i = 1; i < 8; i++)
            assert_int_equal(b[i], b[i - 1] + 1);
        for (int i = 2; i < 5; i++)
            assert_int_equal(a[i], a[i - 1] + 1);
        disk_give_slots(w.d, a, 5);
        disk_give_slots(w.d, b, 8);
        assert_false(disk_take_slots(w.d, b, N_SLOTS + 1));
        assert_true(disk_take_slots(w.d, b, N_SLOTS));
        assert_int_equal(disk_n_free_slots(w.d), 0);
        for (uint32_t i = 0; i < N_SLOTS; i += 2) /* no range is free, but that many slots are */
            disk_give_slots(w.d, &b[i], 1);
        assert_true(disk_take_slots(w.d, a, 8));
        for (uint32_t i = 0; i < 8; i++)
            assert_int_equal(a[i], 2 * i);
        disk_give_slots(w.d, a, 8);
        for (uint32_t i = 1; i < N_SLOTS; i += 2)
            disk_give_slots(w.d, &b[i], 1);
        assert_int_equal(disk_n_free_slots(w.d), N_SLOTS);
        world_close(&w);
        world_fini(&w);
    }
}

static void many_units_are_under_way_at_once(void **state)
{
    uint32_t e[8], n_done = 0;
    struct disk_done done[3];
    struct world w;

    (void)state;
    EACH_BACK_END(w)
    {
        for (uint32_t k = 0; k < 10; k++) {
            for (uint32_t i = 0; i < 8; i++)
                e[i] = 8 * k + (i + k) % 8;
            while (disk_n_free_slots(w.d) < 8)
                n_done += disk_poll(w.d, clock_now_ns(), done, 3);
            assert_ok(begin_write(&w, 8 * k, e, 8, k));
        }
        for (; disk_is_busy(w.d); usleep(20))
            n_done += disk_poll(w.d, clock_now_ns(), done, 3);
        assert_int_equal(n_done, 10);
        n_done = 0;
        for (uint32_t k = 0; k < 10; k++) {
            for (uint32_t i = 0; i < 8; i++)
                e[i] = 8 * k + (i + k) % 8;
            check_records(&w, 8 * k, e, 8);
        }
        world_close(&w);
        world_fini(&w);
    }
}

static void closing_ends_what_is_under_way(void **state)
{
    uint32_t e[8] = {0, 1, 2, 3, 4, 5, 6, 7}, f[3] = {20, 40, 60};
    struct disk_record r;
    struct world w;

    (void)state;
    EACH_BACK_END(w)
    {
        write_now(&w, 1, e, 8);
        disk_clear(w.d, e, 4, true);
        assert_ok(begin_write(&w, 100, f, 3, 1));
        world_close(&w);
        assert_true(world_open(&w));
        for (uint32_t i = 0; i < N_EXTENTS; i++)
            assert_int_equal(disk_look(w.d, i, &r) == DISK_VALID,
                             (i >= 4 && i < 8) || i == 20 || i == 40 || i == 60);
        check_records(&w, 100, f, 3);
        world_close(&w);
        world_fini(&w);
    }
}

/* --- killed --- */

#define N_KILLS 30

struct word {
    uint32_t what; /* 'w': a unit was written, 'c': an extent will be cleared */
    uint32_t first_no, n, extents[DISK_UNIT_BLOCKS_MAX];
};

static void say(int fd, const struct word *word)
{
    if (write(fd, word, sizeof *word) != sizeof *word)
        _exit(1);
}

/* Write and clear units until killed. A clear is announced before it, a write reported after it. */
static void live(struct world *w, int fd, uint64_t seed)
{
    struct word at[N_EXTENTS / 8] = {{0}};

    if (!world_open(w))
        _exit(1);
    for (uint32_t k = 0;; k++) {
        struct word *u = &at[rng_u32(seed, 2 * k) % (N_EXTENTS / 8)];
        uint32_t first = (uint32_t)(u - at) * 8;
        if (u->n > 0) {
            u->what = 'c';
            say(fd, u);
            clear_now(w, u->extents, u->n, k % 3 == 0);
        }
        *u = (struct word){.what = 'w', .first_no = 100 * k, .n = 1 + rng_u32(seed, 2 * k + 1) % 8};
        for (uint32_t i = 0; i < u->n; i++)
            u->extents[i] = first + (i + k) % 8;
        write_now(w, u->first_no, u->extents, u->n);
        say(fd, u);
    }
}

/* Read the killed process's reports. held [N_EXTENTS]: the number of the record that must be there,
 * or 0. */
static uint32_t listen_to(int fd, uint32_t *held)
{
    uint32_t n_words = 0;
    struct word word;

    for (; read(fd, &word, sizeof word) == sizeof word; n_words++)
        for (uint32_t i = 0; i < word.n; i++)
            held[word.extents[i]] = word.what == 'w' ? word.first_no + i + 1 : 0;
    return n_words;
}

/* Check that the directory has complete records only, including those that must be there. Clear all
 * other extents. */
static void check_after_death(struct world *w, const uint32_t *held)
{
    struct disk_record r;

    for (uint32_t e = 0; e < N_EXTENTS; e++) {
        enum disk_verdict v = disk_look(w->d, e, &r);
        if (held[e])
            assert_int_equal(v, DISK_VALID);
        if (v == DISK_VALID) {
            check_records(w, r.ids[0], &e, 1);
            assert_true(!held[e] || held[e] == r.ids[0] + 1);
        }
        if (v != DISK_EMPTY)
            clear_now(w, &e, 1, false);
    }
}

static void a_killed_process_leaves_whole_records_and_loses_none(void **state)
{
    uint32_t n_words = 0;
    struct world w;

    (void)state;
    EACH_BACK_END(w)
    {
        world_close(&w);
        for (uint32_t k = 0; k < N_KILLS / 2; k++) {
            uint32_t held[N_EXTENTS] = {0};
            int fds[2], how;
            assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
            assert_int_equal(fcntl(fds[1], F_SETPIPE_SZ, 1 << 20) > 0, 1);
            pid_t pid = fork();
            assert_true(pid >= 0);
            if (pid == 0)
                live(&w, fds[1], 1000 * k + (uint64_t)b_);
            close(fds[1]);
            usleep(1000 + rng_u32(9, k) % 20000);
            kill(pid, SIGKILL);
            assert_int_equal(waitpid(pid, &how, 0), pid);
            assert_true(WIFSIGNALED(how));
            n_words += listen_to(fds[0], held);
            close(fds[0]);
            assert_true(world_open(&w)); /* waits for the last requests of the killed process */
            check_after_death(&w, held);
            world_close(&w);
        }
        world_fini(&w);
    }
    print_message("%u reports\n", n_words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_read_returns_the_written_bytes),
        cmocka_unit_test(reopening_finds_what_was_done_and_nothing_else),
        cmocka_unit_test(a_cleared_extent_can_be_written_again),
        cmocka_unit_test(an_erased_extent_holds_zeros),
        cmocka_unit_test(changed_bytes_are_corrupt_not_read),
        cmocka_unit_test(adjacent_slots_are_reserved_if_possible),
        cmocka_unit_test(many_units_are_under_way_at_once),
        cmocka_unit_test(closing_ends_what_is_under_way),
        cmocka_unit_test(a_killed_process_leaves_whole_records_and_loses_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
