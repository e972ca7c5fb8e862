/* test_disk_verify.c - each fault injected into a directory is found, counted and located. */
#include "tests/unit/test.h"

#include <sys/file.h>

#include "base/buf.h"
#include "cache/disk/disk_verify.h"
#include "tests/unit/cache/disk/disk_files.h"

#define BLOCK_BYTES 4999 /* not whole pages */
#define N_EMPTY (DISK_FILES_EXTENTS - DISK_FILES_RECORDS)

static struct disk_files files;

static int set_up(void **state)
{
    (void)state;
    disk_files_init(&files, BLOCK_BYTES, 0xAB);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    disk_files_fini(&files);
    return 0;
}

static void check_sum(const struct disk_report *r)
{
    uint32_t n = r->n_empty + r->n_good + r->n_changed;

    for (int f = 0; f < DISK_N_FAULTS; f++)
        n += r->n_by_fault[f];
    assert_int_equal(n, r->super.n_extents);
}

/* Write the directory from memory to files and verify it. */
static struct disk_report verified(const struct disk_verify_watch *watch)
{
    struct disk_report r;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    disk_files_write(&files);
    if (disk_verify(&r, files.dir, watch, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
    check_sum(&r);
    return r;
}

/* Expect n faults of this kind and no others; the first one at `first`. */
static struct disk_report expect_faults(enum disk_fault fault, uint32_t n, uint32_t first)
{
    struct disk_report r = verified(NULL);

    for (int f = 0; f < DISK_N_FAULTS; f++)
        if (r.n_by_fault[f] != (f == (int)fault ? n : 0))
            fail_msg("%u %s", r.n_by_fault[f], disk_fault_name(f));
    assert_int_equal(r.n_places, n);
    assert_int_equal(r.places[0].fault, fault);
    assert_int_equal(r.places[0].extent, first);
    assert_int_equal(disk_report_n_damaged(&r), disk_fault_is_harmless(fault) ? 0 : n);
    return r;
}

static uint8_t *header(uint32_t k)
{
    return disk_files_header(&files, disk_files_extent(k));
}

/* The last record of a path, so no other record depends on it. */
#define LAST 7u

static void a_sound_directory_is_fine(void **state)
{
    struct disk_report r = verified(NULL);

    (void)state;
    assert_int_equal(r.n_good, DISK_FILES_RECORDS);
    assert_int_equal(r.n_empty, N_EMPTY);
    assert_int_equal(r.n_registered, DISK_FILES_PATH);
    assert_int_equal(r.n_tokens, DISK_FILES_RECORDS / DISK_FILES_PATH * (3 * 32 + 5));
    assert_int_equal(r.n_places, 0);
    assert_int_equal(disk_report_n_damaged(&r), 0);
    assert_int_equal(r.n_file_bytes, files.n_table_bytes + files.n_data_bytes);
    assert_memory_equal(&r.super.fingerprint, files.super.fingerprint, KV_FINGERPRINT_BYTES);
    assert_false(r.is_in_use);
}

static void an_empty_directory_is_fine(void **state)
{
    struct disk_report r;

    (void)state;
    memset(files.table + DISK_PAGE_BYTES, 0, files.n_table_bytes - DISK_PAGE_BYTES);
    r = verified(NULL);
    assert_int_equal(r.n_empty, DISK_FILES_EXTENTS);
    assert_int_equal(disk_report_n_damaged(&r), 0);
}

static void bytes_after_the_last_header_are_counted(void **state)
{
    uint8_t *end = files.table + DISK_PAGE_BYTES + DISK_FILES_EXTENTS * DISK_HEADER_BYTES;
    uint8_t *page_end = files.table + files.n_table_bytes;

    (void)state;
    assert_true(end < page_end);
    assert_int_equal(verified(NULL).n_stray_bytes, 0);
    end[0] = 1;
    page_end[-1] = 0xff;
    struct disk_report r = verified(NULL);
    assert_int_equal(r.n_stray_bytes, 2);
    assert_int_equal(r.n_good, DISK_FILES_RECORDS);
    assert_int_equal(disk_report_n_damaged(&r), 0);
    end[0] = page_end[-1] = 0;
}

static void a_flipped_bit_in_a_header_is_found(void **state)
{
    (void)state;
    for (uint32_t bit = 0; bit < 8 * DISK_HEADER_BYTES; bit += 61) {
        header(LAST)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct disk_report r = expect_faults(DISK_FAULT_TORN, 1, disk_files_extent(LAST));
        assert_int_equal(r.n_good, DISK_FILES_RECORDS - 1);
        header(LAST)[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void a_flipped_bit_in_a_payload_is_found(void **state)
{
    uint8_t *payload = disk_files_payload(&files, disk_files_extent(2));

    (void)state;
    for (uint32_t at = 0; at < BLOCK_BYTES; at += (BLOCK_BYTES - 1) / 17) { /* the last byte too */
        payload[at] ^= 0x10;
        expect_faults(DISK_FAULT_PAYLOAD, 1, disk_files_extent(2));
        payload[at] ^= 0x10;
    }
}

static void bytes_after_a_payload_are_ignored(void **state)
{
    (void)state;
    for (uint32_t e = 0; e < DISK_FILES_EXTENTS; e++)
        memset(disk_files_payload(&files, e) + BLOCK_BYTES, 0xEE,
               files.super.extent_bytes - BLOCK_BYTES);
    struct disk_report r = verified(NULL);
    assert_int_equal(r.n_good, DISK_FILES_RECORDS);
}

static uint32_t some_empty_extent(void)
{
    static const uint8_t zeros[DISK_HEADER_BYTES];
    uint32_t e = 0;

    while (memcmp(disk_files_header(&files, e), zeros, sizeof zeros) != 0)
        e++;
    return e;
}

static void a_header_that_was_moved_is_foreign(void **state)
{
    uint32_t e = some_empty_extent();

    (void)state;
    memcpy(disk_files_header(&files, e), header(LAST), DISK_HEADER_BYTES);
    memcpy(disk_files_payload(&files, e), disk_files_payload(&files, disk_files_extent(LAST)),
           BLOCK_BYTES);
    expect_faults(DISK_FAULT_FOREIGN, 1, e);
}

/* One page has 16 headers: the extents of both pages have foreign headers. */
static void exchanged_header_pages_are_foreign(void **state)
{
    uint8_t page[DISK_PAGE_BYTES], *first = files.table + DISK_PAGE_BYTES;
    struct disk_report r;

    (void)state;
    memcpy(page, first, sizeof page);
    memcpy(first, first + DISK_PAGE_BYTES, sizeof page);
    memcpy(first + DISK_PAGE_BYTES, page, sizeof page);
    r = verified(NULL);
    assert_int_equal(r.n_good, 0);
    assert_true(r.n_by_fault[DISK_FAULT_FOREIGN] > 0);
    /* Headers that do not fit on the last page are missing. */
    assert_true(r.n_by_fault[DISK_FAULT_FOREIGN] + r.n_empty == DISK_FILES_EXTENTS);
}

static void impossible_and_misnamed_headers_are_found(void **state)
{
    (void)state;
    header(LAST)[36] = 33; /* tokens */
    disk_files_seal(header(LAST));
    expect_faults(DISK_FAULT_IMPOSSIBLE, 1, disk_files_extent(LAST));
    disk_files_put(&files, &files.records[LAST], disk_files_extent(LAST));
    header(LAST)[48] ^= 1; /* key */
    disk_files_seal(header(LAST));
    expect_faults(DISK_FAULT_MISNAMED, 1, disk_files_extent(LAST));
}

static void all_records_after_a_gap_are_orphans(void **state)
{
    struct disk_report r;

    (void)state;
    memset(header(4), 0, DISK_HEADER_BYTES); /* the first of its path */
    uint32_t first = DISK_FILES_EXTENTS;
    for (uint32_t k = 5; k < 8; k++)
        if (disk_files_extent(k) < first)
            first = disk_files_extent(k);
    r = expect_faults(DISK_FAULT_ORPHANED, 3, first);
    assert_int_equal(r.n_good, DISK_FILES_RECORDS - 4);
    assert_int_equal(r.n_empty, N_EMPTY + 1);
    assert_int_equal(r.n_registered, 0); /* the record was the whole path */
}

/* The key does not include the position: a child that does not begin where its parent ends is
 * lost. */
static void a_path_with_a_jump_ends_there(void **state)
{
    struct disk_record moved = files.records[6];

    (void)state;
    moved.pos0++;
    disk_files_put(&files, &moved, disk_files_extent(6));
    struct disk_report r = verified(NULL);
    assert_int_equal(r.n_by_fault[DISK_FAULT_ORPHANED], 2);
    assert_int_equal(disk_report_n_damaged(&r), 0);
}

static void expect_one_orphan(const struct disk_record *r)
{
    disk_files_put(&files, r, disk_files_extent(LAST));
    expect_faults(DISK_FAULT_ORPHANED, 1, disk_files_extent(LAST));
}

/* In the middle of a segment, a block follows a full block of its span. */
static void a_block_that_cannot_follow_its_parent_is_lost(void **state)
{
    struct disk_record r = files.records[LAST], p = files.records[LAST - 1];

    (void)state;
    r.depth = 1;
    expect_one_orphan(&r);
    r.flags ^= DISK_STARTS_SEGMENT;
    disk_files_name(&r, files.super.fingerprint);
    disk_files_put(&files, &r, disk_files_extent(LAST));
    struct disk_report report = verified(NULL); /* a new span may begin there */
    assert_int_equal(report.n_good, DISK_FILES_RECORDS);
    p.depth = 2; /* but span depths do not decrease */
    disk_files_put(&files, &p, disk_files_extent(LAST - 1));
    report = verified(NULL);
    assert_int_equal(report.n_by_fault[DISK_FAULT_ORPHANED], 2); /* both records: p starts no new
                                                                    segment */
    p.flags |= DISK_STARTS_SEGMENT;
    disk_files_name(&p, files.super.fingerprint);
    disk_files_put(&files, &p, disk_files_extent(LAST - 1));
    r.parent = p.key;
    disk_files_name(&r, files.super.fingerprint);
    expect_one_orphan(&r);
    p = files.records[LAST - 1];
    p.n_tokens = 31;
    p.ids[31] = 0;
    disk_files_name(&p, files.super.fingerprint);
    disk_files_put(&files, &p, disk_files_extent(LAST - 1));
    r = files.records[LAST];
    r.parent = p.key;
    r.pos0--;
    disk_files_name(&r, files.super.fingerprint);
    expect_one_orphan(&r);
}

static void a_first_block_that_starts_no_segment_is_lost(void **state)
{
    struct disk_record r = files.records[LAST];

    (void)state;
    memset(&r.parent, 0, sizeof r.parent);
    r.pos0 = 0;
    disk_files_name(&r, files.super.fingerprint);
    expect_one_orphan(&r);
}

static void an_extent_being_erased_is_no_fault(void **state)
{
    (void)state;
    memcpy(header(LAST), disk_erase_mark, DISK_HEADER_BYTES);
    memset(disk_files_payload(&files, disk_files_extent(LAST)), 0, BLOCK_BYTES);
    struct disk_report r = expect_faults(DISK_FAULT_ERASING, 1, disk_files_extent(LAST));
    assert_int_equal(r.n_good, DISK_FILES_RECORDS - 1);
}

/* A parent with a wrong payload is a miss, but its children are still checked. */
static void a_wrong_payload_makes_no_orphans(void **state)
{
    (void)state;
    disk_files_payload(&files, disk_files_extent(4))[0] ^= 1;
    expect_faults(DISK_FAULT_PAYLOAD, 1, disk_files_extent(4));
}

static void of_two_records_the_older_is_doubled(void **state)
{
    uint32_t e = some_empty_extent(), at = disk_files_extent(LAST);
    struct disk_record again = files.records[LAST];

    (void)state;
    memcpy(disk_files_payload(&files, e), disk_files_payload(&files, at), BLOCK_BYTES);
    again.no++;
    disk_files_put(&files, &again, e);
    struct disk_report r = expect_faults(DISK_FAULT_DOUBLED, 1, at);
    assert_int_equal(r.n_good, DISK_FILES_RECORDS);
    again.no -= 2;
    disk_files_put(&files, &again, e);
    r = expect_faults(DISK_FAULT_DOUBLED, 1, e);
    assert_int_equal(r.n_good, DISK_FILES_RECORDS);
}

static void of_many_records_only_the_newest_is_good(void **state)
{
    struct disk_record again = files.records[LAST];
    struct disk_report r;
    uint32_t newest = 0;

    (void)state;
    for (uint32_t n = 0; n < N_EMPTY; n++) {
        uint32_t e = some_empty_extent();
        memcpy(disk_files_payload(&files, e), disk_files_payload(&files, disk_files_extent(LAST)),
               BLOCK_BYTES);
        again.no = 200 + (n * 3 + 1) % 5; /* 201 204 202 200 */
        newest = again.no == 204 ? e : newest;
        disk_files_put(&files, &again, e);
    }
    r = verified(NULL);
    assert_int_equal(r.n_by_fault[DISK_FAULT_DOUBLED], N_EMPTY);
    for (uint32_t i = 0; i < r.n_places; i++)
        assert_int_not_equal(r.places[i].extent, newest);
}

/* An extent counts once, by its worst fault. */
static void an_extent_counts_once(void **state)
{
    (void)state;
    memset(header(4), 0, DISK_HEADER_BYTES);
    disk_files_payload(&files, disk_files_extent(5))[17] ^= 1; /* orphaned as well */
    struct disk_report r = verified(NULL);
    assert_int_equal(r.n_by_fault[DISK_FAULT_ORPHANED], 2);
    assert_int_equal(r.n_by_fault[DISK_FAULT_PAYLOAD], 1);
}

static void more_faults_than_places_are_counted(void **state)
{
    struct disk_report r;

    (void)state;
    for (uint32_t k = 0; k < DISK_FILES_RECORDS; k++)
        disk_files_payload(&files, disk_files_extent(k))[BLOCK_BYTES - 1] ^= 0x80;
    r = verified(NULL);
    assert_int_equal(r.n_by_fault[DISK_FAULT_PAYLOAD], DISK_FILES_RECORDS);
    for (uint32_t i = 1; i < r.n_places; i++)
        assert_true(r.places[i].extent > r.places[i - 1].extent);
    _Static_assert(DISK_REPORT_PLACES_MAX >= DISK_FILES_RECORDS, "all of them have a place");
}

static void extents_behind_the_end_of_the_file_are_unreadable(void **state)
{
    char path[256];
    struct disk_report r;

    (void)state;
    disk_files_write(&files);
    snprintf(path, sizeof path, "%s/data", files.dir);
    assert_int_equal(truncate(path, (off_t)(17 * files.super.extent_bytes + 4096)), 0);
    enum status s = disk_verify(&r, files.dir, NULL, NULL);
    if (s != OK) { /* refused as a whole, which is also correct */
        assert_true(s == ERR_CORRUPT);
        return;
    }
    check_sum(&r);
    uint32_t n_behind = 0;
    for (uint32_t k = 0; k < DISK_FILES_RECORDS; k++)
        n_behind += disk_files_extent(k) >= 17;
    assert_true(n_behind > 0);
    assert_int_equal(r.n_by_fault[DISK_FAULT_UNREADABLE], n_behind);
    assert_int_equal(r.n_good, DISK_FILES_RECORDS - n_behind);
}

/* Larger than the read buffer, and not a multiple of it. */
static void a_huge_extent_is_read_in_pieces(void **state)
{
    struct disk_record r = files.records[0];
    struct disk_report report;

    (void)state;
    free(files.data);
    files.super.block_bytes = ((uint64_t)8 << 20) + 4099;
    files.super.extent_bytes = disk_extent_bytes(files.super.block_bytes);
    files.super.n_extents = 1;
    files.n_data_bytes = files.super.extent_bytes;
    files.n_table_bytes = disk_table_bytes(1);
    files.data = calloc(1, files.n_data_bytes);
    assert_non_null(files.data);
    for (size_t i = 0; i < files.n_data_bytes; i += 997)
        files.data[i] = (uint8_t)i;
    r.payload_crc = hash_crc32c(0, files.data, files.super.block_bytes);
    memset(files.table, 0, files.n_table_bytes);
    disk_super_encode(files.table, &files.super);
    disk_files_put(&files, &r, 0);
    report = verified(NULL);
    assert_int_equal(report.n_good, 1);
    files.data[files.super.block_bytes - 1] ^= 1;
    expect_faults(DISK_FAULT_PAYLOAD, 1, 0);
}

/* --- beside a server --- */

static int hold_lock(int how)
{
    char path[256];

    snprintf(path, sizeof path, "%s/lock", files.dir);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, how | LOCK_NB), 0);
    return fd;
}

static void a_running_server_is_reported(void **state)
{
    int fd = hold_lock(LOCK_EX);
    struct disk_report r = verified(NULL);

    (void)state;
    assert_true(r.is_in_use);
    assert_int_equal(r.n_good, DISK_FILES_RECORDS);
    close(fd);
    r = verified(NULL);
    assert_false(r.is_in_use);
    fd = hold_lock(LOCK_EX); /* verify released its lock */
    close(fd);
    fd = hold_lock(LOCK_SH); /* another process that verifies the directory */
    r = verified(NULL);
    assert_false(r.is_in_use);
    close(fd);
}

static void start_a_server(void *arg, uint64_t n_done, uint64_t n_all)
{
    int *fd = arg;

    (void)n_done;
    (void)n_all;
    if (*fd < 0)
        *fd = hold_lock(LOCK_EX);
}

static void a_server_started_meanwhile_is_reported(void **state)
{
    int fd = -1;
    struct disk_verify_watch watch = {start_a_server, &fd};
    struct disk_report r = verified(&watch);

    (void)state;
    assert_true(r.is_in_use);
    close(fd);
}

static void overwrite(const char *name, uint64_t at, size_t n)
{
    static const uint8_t zeros[DISK_PAGE_BYTES];
    char path[256];

    snprintf(path, sizeof path, "%s/%s", files.dir, name);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0 && n <= sizeof zeros);
    assert_int_equal(pwrite(fd, zeros, n, (off_t)at), n);
    close(fd);
}

/* Simulate a server while payloads are read: it frees the last extent and writes it again. */
static void free_the_last_extent(void *arg, uint64_t n_done, uint64_t n_all)
{
    uint32_t *n_calls = arg, e = DISK_FILES_EXTENTS - 1;

    assert_true(n_done <= n_all);
    assert_int_equal(n_all, DISK_FILES_RECORDS * files.super.extent_bytes);
    if ((*n_calls)++ > 0)
        return;
    assert_true(n_done < n_all);
    overwrite("table", DISK_PAGE_BYTES + (uint64_t)e * DISK_HEADER_BYTES, DISK_HEADER_BYTES);
    overwrite("data", e * files.super.extent_bytes, 4096);
}

static void a_change_by_a_running_server_is_no_fault(void **state)
{
    uint32_t n_calls = 0;
    struct disk_verify_watch watch = {free_the_last_extent, &n_calls};
    struct disk_report r;

    (void)state;
    int fd = hold_lock(LOCK_EX);
    r = verified(&watch);
    assert_true(n_calls > 1);
    assert_int_equal(r.n_changed, 1);
    assert_int_equal(r.n_good, DISK_FILES_RECORDS - 1);
    assert_int_equal(disk_report_n_damaged(&r), 0);
    close(fd);
    n_calls = 0;
    r = verified(&watch); /* no lock is held, so the change was not made by a server */
    assert_int_equal(r.n_by_fault[DISK_FAULT_PAYLOAD], 1);
    assert_int_equal(r.places[0].extent, DISK_FILES_EXTENTS - 1);
}

/* --- paths that are no directory of the disk tier --- */

static void refuse(const char *dir, enum status want, const char *word)
{
    struct disk_report r;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = disk_verify(&r, dir, NULL, &why);
    if (s != want || !strstr(buf_str(&why), word) || !strstr(buf_str(&why), dir))
        fail_msg("%s: %s: \"%s\"", dir, status_name(s), buf_str(&why));
    buf_fini(&why);
}

static void a_superblock_that_does_not_hold_is_an_error(void **state)
{
    (void)state;
    files.table[30] ^= 1;
    disk_files_write(&files);
    refuse(files.dir, ERR_CORRUPT, "checksum");
    memset(files.table, 0, DISK_PAGE_BYTES);
    disk_files_write(&files);
    refuse(files.dir, ERR_CORRUPT, "superblock");
}

static void files_of_another_model_are_an_error(void **state)
{
    (void)state;
    memset(files.super.fingerprint, 0xCD, KV_FINGERPRINT_BYTES);
    disk_super_encode(files.table, &files.super);
    disk_files_write(&files);
    refuse(files.dir, ERR_CORRUPT, "another model");
}

static void a_directory_may_have_any_other_name(void **state)
{
    char dir[192];
    struct disk_report r;

    (void)state;
    disk_files_write(&files);
    snprintf(dir, sizeof dir, "%s/copy of it", files.root);
    assert_int_equal(rename(files.dir, dir), 0);
    assert_ok(disk_verify(&r, dir, NULL, NULL));
    assert_int_equal(r.n_good, DISK_FILES_RECORDS);
    assert_int_equal(rename(dir, files.dir), 0);
}

static void a_directory_of_another_version_is_refused(void **state)
{
    char dir[192];

    (void)state;
    snprintf(dir, sizeof dir, "%.*s7", (int)strlen(files.dir) - 1, files.dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    refuse(dir, ERR_UNSUPPORTED, "version 7");
}

static void missing_and_short_files_are_errors(void **state)
{
    char table[256];
    struct disk_report r;

    (void)state;
    refuse(files.dir, ERR_NOT_FOUND, "table");
    refuse("/nowhere/at/all", ERR_NOT_FOUND, "table");
    snprintf(table, sizeof table, "%s/table", files.dir);
    for (off_t n = 0; n < (off_t)files.n_table_bytes; n += 1000) {
        disk_files_write(&files);
        assert_int_equal(truncate(table, n), 0);
        enum status s = disk_verify(&r, files.dir, NULL, NULL);
        if (n < DISK_PAGE_BYTES)
            assert_int_equal(s, ERR_CORRUPT);
        else if (s == OK) /* a missing file is empty */
            check_sum(&r);
        else
            assert_int_equal(s, ERR_CORRUPT);
    }
}

/* --- what there is to check --- */

static void directories_are_found_by_their_names(void **state)
{
    struct disk_dirs dirs;
    char path[256];

    (void)state;
    assert_ok(disk_dirs_find(&dirs, files.root, NULL)); /* an empty directory is recognized by its
                                                           name */
    assert_int_equal(dirs.n, 1);
    assert_string_equal(dirs.paths[0], files.dir);
    disk_dirs_fini(&dirs);
    snprintf(path, sizeof path, "%.*s12", (int)strlen(files.dir) - 1, files.dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%.*sx", (int)strlen(files.dir) - 1, files.dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/lost+found", files.root);
    assert_int_equal(mkdir(path, 0700), 0);
    disk_files_write_one(files.root, "notes", NULL, 0);
    assert_ok(disk_dirs_find(&dirs, files.root, NULL));
    assert_int_equal(dirs.n, 2);
    assert_string_equal(dirs.paths[0], files.dir);
    assert_non_null(strstr(dirs.paths[1], "-v12"));
    disk_dirs_fini(&dirs);
}

static void a_path_with_a_table_is_the_directory_itself(void **state)
{
    struct disk_dirs dirs;

    (void)state;
    disk_files_write(&files);
    assert_ok(disk_dirs_find(&dirs, files.dir, NULL));
    assert_int_equal(dirs.n, 1);
    assert_string_equal(dirs.paths[0], files.dir);
    disk_dirs_fini(&dirs);
}

static void a_path_without_directories_is_an_error(void **state)
{
    struct disk_dirs dirs;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(disk_dirs_find(&dirs, "/nowhere/at/all", &why), ERR_NOT_FOUND);
    assert_non_null(strstr(buf_str(&why), "/nowhere/at/all"));
    assert_int_equal(disk_dirs_find(&dirs, files.dir, &why), ERR_NOT_FOUND);
    assert_non_null(strstr(buf_str(&why), "neither a table nor"));
    disk_files_write_one(files.root, "notes", NULL, 0);
    char path[256];
    snprintf(path, sizeof path, "%s/notes", files.root);
    assert_int_equal(disk_dirs_find(&dirs, path, &why), ERR_IO);
    disk_dirs_fini(&dirs);
    buf_fini(&why);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_sound_directory_is_fine),
        TEST(an_empty_directory_is_fine),
        TEST(bytes_after_the_last_header_are_counted),
        TEST(a_flipped_bit_in_a_header_is_found),
        TEST(a_flipped_bit_in_a_payload_is_found),
        TEST(bytes_after_a_payload_are_ignored),
        TEST(a_header_that_was_moved_is_foreign),
        TEST(exchanged_header_pages_are_foreign),
        TEST(impossible_and_misnamed_headers_are_found),
        TEST(all_records_after_a_gap_are_orphans),
        TEST(a_path_with_a_jump_ends_there),
        TEST(a_block_that_cannot_follow_its_parent_is_lost),
        TEST(a_first_block_that_starts_no_segment_is_lost),
        TEST(an_extent_being_erased_is_no_fault),
        TEST(a_wrong_payload_makes_no_orphans),
        TEST(of_two_records_the_older_is_doubled),
        TEST(of_many_records_only_the_newest_is_good),
        TEST(an_extent_counts_once),
        TEST(more_faults_than_places_are_counted),
        TEST(extents_behind_the_end_of_the_file_are_unreadable),
        TEST(a_huge_extent_is_read_in_pieces),
        TEST(a_running_server_is_reported),
        TEST(a_server_started_meanwhile_is_reported),
        TEST(a_change_by_a_running_server_is_no_fault),
        TEST(a_superblock_that_does_not_hold_is_an_error),
        TEST(files_of_another_model_are_an_error),
        TEST(a_directory_may_have_any_other_name),
        TEST(a_directory_of_another_version_is_refused),
        TEST(missing_and_short_files_are_errors),
        TEST(directories_are_found_by_their_names),
        TEST(a_path_with_a_table_is_the_directory_itself),
        TEST(a_path_without_directories_is_an_error),
    };

    if (hash_init() != OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
