/* Directories of the disk tier: created, locked, bounded, resized, and hostile or too full ones.
 * Waits for a lock use the test's clock, and file system errors are injected. */
#include "tests/unit/test.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/check.h"
#include "cache/disk/disk_room.h"
#include "tests/unit/cache/disk/disk_world.h"

/* --- a file system that refuses --- */

static struct {
    int fallocate_error;                  /* 0: none */
    uint64_t n_bytes_max;                 /* limit of a file; 0: none */
    uint64_t n_total_bytes, n_free_bytes; /* 0, 0: the real numbers */
    bool no_direct, has_reserved;
    uint32_t fail_in; /* the allocation that fails; 0: none */
    uint32_t n_sleeps;
    int unlock_fd, unlock_at; /* closed at the n-th sleep */
} fs = {.unlock_fd = -1};

int __real_fallocate(int fd, int mode, off_t offset, off_t n);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t n);
int __real_fcntl(int fd, int what, ...);
int __wrap_fcntl(int fd, int what, ...);
void __wrap_clock_sleep_ns(uint64_t ns);
int __real_fstatvfs(int fd, struct statvfs *out);
int __wrap_fstatvfs(int fd, struct statvfs *out);

int __wrap_fallocate(int fd, int mode, off_t offset, off_t n)
{
    if (fs.fallocate_error) {
        errno = fs.fallocate_error;
        return -1;
    }
    if (fs.n_bytes_max && (uint64_t)(offset + n) > fs.n_bytes_max) {
        assert_int_equal(__real_fallocate(fd, mode, offset, (off_t)fs.n_bytes_max), 0);
        errno = ENOSPC; /* written up to the limit */
        return -1;
    }
    int r = __real_fallocate(fd, mode, offset, n);
    fs.has_reserved = r == 0;
    return r;
}

int __wrap_fcntl(int fd, int what, ...)
{
    va_list ap;

    va_start(ap, what);
    int arg = va_arg(ap, int);
    va_end(ap);
    if (what == F_SETFL && (arg & O_DIRECT) && fs.no_direct) {
        errno = EINVAL;
        return -1;
    }
    return __real_fcntl(fd, what, arg);
}

int __wrap_fstatvfs(int fd, struct statvfs *out)
{
    int r = __real_fstatvfs(fd, out);

    if (r == 0 && fs.n_total_bytes) {
        out->f_frsize = 4096;
        out->f_blocks = fs.n_total_bytes / 4096;
        out->f_bavail = fs.n_free_bytes / 4096;
    }
    return r;
}

void __wrap_clock_sleep_ns(uint64_t ns)
{
    fake_now += ns;
    if (++fs.n_sleeps == (uint32_t)fs.unlock_at && fs.unlock_fd >= 0) {
        close(fs.unlock_fd);
        fs.unlock_fd = -1;
    }
}

/* --- memory that runs out --- */

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);

static bool no_memory(void)
{
    return fs.fail_in > 0 && --fs.fail_in == 0;
}

void *__wrap_malloc(size_t n)
{
    return no_memory() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return no_memory() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return no_memory() ? NULL : __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return no_memory() ? NULL : __real_aligned_alloc(align, n);
}

/* --- helpers --- */

struct place {
    struct world w;
    struct disk_dir d;
    struct buf why;
};

static void begin_place(struct place *p, uint32_t n_extents)
{
    memset(p, 0, sizeof *p);
    memset(&fs, 0, sizeof fs);
    fs.unlock_fd = -1;
    fake_now = SECOND_NS;
    world_init(&p->w, AIO_AUTO, n_extents);
    buf_init(&p->why, BUF_WHY_MAX);
}

static void end_place(struct place *p)
{
    buf_fini(&p->why);
    world_fini(&p->w);
    fake_now = 0;
}

static enum status open_place(struct place *p)
{
    return disk_dir_open(&p->d, &p->w.config.dir, &p->why);
}

static void must_open(struct place *p)
{
    if (open_place(p) != OK)
        fail_msg("%s", buf_str(&p->why));
}

/* Assert that the reason contains `what`. */
static void assert_says(const struct place *p, const char *what)
{
    if (!strstr(buf_str(&p->why), what))
        fail_msg("\"%s\" does not say \"%s\"", buf_str(&p->why), what);
}

static struct stat stat_of(const struct place *p, const char *name)
{
    char path[256];
    struct stat st;

    file_path(path, sizeof path, &p->w, name);
    assert_int_equal(lstat(path, &st), 0);
    return st;
}

static bool is_there(const struct place *p, const char *name)
{
    char path[256];

    file_path(path, sizeof path, &p->w, name);
    return access(path, F_OK) == 0;
}

static void write_file(const struct place *p, const char *name, uint64_t offset, const void *data,
                       size_t n)
{
    char path[256];

    file_path(path, sizeof path, &p->w, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, data, n, (off_t)offset), n);
    close(fd);
}

/* Write a valid header directly to the disk. */
static void plant(struct place *p, uint32_t extent)
{
    struct disk_record r = record_of(&p->w, extent);
    uint8_t header[DISK_HEADER_BYTES];

    disk_header_encode(header, &r, p->w.fingerprint, extent);
    write_file(p, "table", DISK_PAGE_BYTES + (uint64_t)extent * DISK_HEADER_BYTES, header,
               sizeof header);
}

static enum disk_verdict verdict(const struct place *p, uint32_t extent)
{
    struct disk_reader reader;
    struct disk_record r;

    disk_reader_init(&reader, p->w.fingerprint);
    return disk_header_decode(
        &reader, &r, p->d.table + DISK_PAGE_BYTES + (size_t)extent * DISK_HEADER_BYTES, extent);
}

/* --- made and found again --- */

static void a_new_directory_is_private_and_as_large_as_asked(void **state)
{
    char path[96];
    struct stat st;
    struct place p;

    (void)state;
    begin_place(&p, 100);
    snprintf(path, sizeof path, "%s/a/b", p.w.path);
    p.w.config.dir.path = path; /* missing parent folders are created as well */
    must_open(&p);
    assert_int_equal(p.d.super.n_extents, 100);
    assert_int_equal(p.d.super.extent_bytes, EXTENT_BYTES);
    assert_true(p.d.is_new);
    assert_string_equal(p.d.why_new, "");
    assert_int_equal((uintptr_t)p.d.table % DISK_PAGE_BYTES, 0);
    for (uint32_t e = 0; e < 100; e++)
        assert_int_equal(verdict(&p, e), DISK_EMPTY);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    memcpy(p.w.path, path, strlen(path) + 1);
    assert_int_equal(stat_of(&p, ".").st_mode & 0777, 0700);
    assert_int_equal(stat_of(&p, "lock").st_mode & 0777, 0600);
    assert_int_equal(stat_of(&p, "table").st_mode & 0777, 0600);
    st = stat_of(&p, "data");
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(st.st_size, 100 * EXTENT_BYTES);
    assert_true(!fs.has_reserved || (uint64_t)st.st_blocks * 512 >= 100 * EXTENT_BYTES);
    disk_dir_close(&p.d);
    disk_dir_close(&p.d); /* closing a zeroed struct is allowed */
    *strstr(p.w.path, "/a/b") = '\0';
    end_place(&p);
}

static void reopening_keeps_the_records(void **state)
{
    struct place p;

    (void)state;
    begin_place(&p, 100);
    must_open(&p);
    disk_dir_close(&p.d);
    plant(&p, 0);
    plant(&p, 99);
    for (int i = 0; i < 2; i++) {
        fs.no_direct = i; /* without direct I/O the page cache is used */
        must_open(&p);
        assert_false(p.d.is_new);
        assert_true(!i || !p.d.is_direct);
        assert_int_equal(verdict(&p, 0), DISK_VALID);
        assert_int_equal(verdict(&p, 99), DISK_VALID);
        assert_int_equal(verdict(&p, 98), DISK_EMPTY);
        disk_dir_close(&p.d);
    }
    end_place(&p);
}

static void another_superblock_starts_an_empty_directory(void **state)
{
    static const struct {
        const char *says;
        int what;
    } cases[] = {{"checksum", 0}, {"fingerprint", 1}, {"sizes", 2}, {"shorter", 3}};
    uint8_t page[DISK_PAGE_BYTES];
    char path[256];
    struct disk_super super;
    struct place p;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        begin_place(&p, 100);
        must_open(&p);
        super = p.d.super;
        disk_dir_close(&p.d);
        plant(&p, 7);
        read_file(&p.w, "table", 0, page, sizeof page);
        if (cases[i].what == 0)
            page[100] ^= 1;
        super.fingerprint[3] ^= cases[i].what == 1;
        super.segment_tokens = cases[i].what == 2 ? 128 : super.segment_tokens;
        if (cases[i].what > 0)
            disk_super_encode(page, &super);
        write_file(&p, "table", 0, page, sizeof page);
        file_path(path, sizeof path, &p.w, "table");
        if (cases[i].what == 3)
            assert_int_equal(truncate(path, 1000), 0);
        must_open(&p);
        assert_true(p.d.is_new);
        if (!strstr(p.d.why_new, cases[i].says))
            fail_msg("\"%s\" does not say \"%s\"", p.d.why_new, cases[i].says);
        assert_int_equal(verdict(&p, 7), DISK_EMPTY);
        disk_dir_close(&p.d);
        must_open(&p); /* it can be opened afterwards */
        assert_false(p.d.is_new);
        disk_dir_close(&p.d);
        end_place(&p);
    }
}

static void a_reader_needs_no_lock(void **state)
{
    char path[256];
    struct disk_dir r;
    struct place p;

    (void)state;
    begin_place(&p, 100);
    file_path(path, sizeof path, &p.w, ".");
    assert_int_equal(disk_dir_open_to_read(&r, path, &p.why), ERR_NOT_FOUND);
    must_open(&p);
    plant(&p, 5);
    assert_ok(disk_dir_open_to_read(&r, path, &p.why)); /* also while a server runs */
    assert_memory_equal(&r.super, &p.d.super, sizeof r.super);
    assert_int_not_equal(r.table[DISK_PAGE_BYTES + 5 * DISK_HEADER_BYTES], 0);
    disk_dir_close(&r);
    disk_dir_close(&p.d);
    file_path(path, sizeof path, &p.w, "table");
    assert_int_equal(truncate(path, 2 * DISK_PAGE_BYTES), 0);
    file_path(path, sizeof path, &p.w, ".");
    assert_int_equal(disk_dir_open_to_read(&r, path, &p.why), ERR_CORRUPT);
    assert_says(&p, "superblock says");
    write_file(&p, "table", 50, "?", 1);
    assert_int_equal(disk_dir_open_to_read(&r, path, &p.why), ERR_CORRUPT);
    disk_dir_close(&r);
    end_place(&p);
}

/* --- locked --- */

static void a_second_server_is_refused(void **state)
{
    char pid[32];
    struct disk_dir second;
    struct place p;

    (void)state;
    begin_place(&p, 100);
    must_open(&p);
    uint64_t before = fake_now;
    assert_int_equal(disk_dir_open(&second, &p.w.config.dir, &p.why), ERR_BUSY);
    assert_true(fake_now - before >= DISK_LOCK_WAIT_NS);
    snprintf(pid, sizeof pid, "(pid %ld)", (long)getpid());
    assert_says(&p, pid);
    assert_says(&p, p.w.path);
    assert_says(&p, "a directory of its own");
    assert_true(is_there(&p, "data"));
    disk_dir_close(&second); /* has no effect, as after a failed open */
    disk_dir_close(&p.d);
    must_open(&p);
    disk_dir_close(&p.d);
    end_place(&p);
}

/* The last requests of a killed server hold the file that they write, not the lock file. */
static void the_last_requests_of_a_killed_server_are_waited_for(void **state)
{
    static const char *const names[] = {"lock", "table", "data"};
    char path[256];
    struct place p;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        begin_place(&p, 100);
        must_open(&p);
        disk_dir_close(&p.d);
        file_path(path, sizeof path, &p.w, names[i]);
        fs.unlock_fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_int_equal(flock(fs.unlock_fd, LOCK_EX), 0);
        fs.unlock_at = 7;
        must_open(&p);
        assert_int_equal(fs.n_sleeps, 7);
        disk_dir_close(&p.d);
        end_place(&p);
    }
}

/* --- hostile --- */

static void links_others_and_open_directories_are_refused(void **state)
{
    char path[256], link[256];
    struct place p;

    (void)state;
    begin_place(&p, 100);
    snprintf(path, sizeof path, "%s/real", p.w.path);
    snprintf(link, sizeof link, "%s/link", p.w.path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(symlink(path, link), 0);
    p.w.config.dir.path = link;
    assert_int_equal(open_place(&p), ERR_INVALID);
    assert_says(&p, "link");
    p.w.config.dir.path = path;
    assert_int_equal(chmod(path, 0777), 0);
    assert_int_equal(open_place(&p), ERR_INVALID);
    assert_says(&p, "others may write");
    assert_int_equal(chmod(path, 0755), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_int_equal(open_place(&p), ERR_INVALID);
        assert_says(&p, "another user");
    }
    p.w.config.dir.path = "";
    assert_int_equal(open_place(&p), ERR_INVALID);
    p.w.config.dir.path = p.w.path;
    must_open(&p);
    disk_dir_close(&p.d);
    end_place(&p);
}

static void links_and_fifos_instead_of_files_are_refused(void **state)
{
    char dir[256], path[256];
    struct place p;

    (void)state;
    begin_place(&p, 100);
    file_path(dir, sizeof dir, &p.w, "");
    assert_int_equal(mkdir(dir, 0700), 0);
    file_path(path, sizeof path, &p.w, "table");
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_equal(open_place(&p), ERR_IO);
    assert_says(&p, "table");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(open_place(&p), ERR_INVALID); /* and opening does not wait for the FIFO's other
                                                      end */
    assert_says(&p, "no file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(chmod(dir, 0770), 0);
    assert_int_equal(open_place(&p), ERR_INVALID);
    assert_says(&p, "others may write");
    assert_int_equal(chmod(dir, 0700), 0);
    must_open(&p);
    disk_dir_close(&p.d);
    file_path(path, sizeof path, &p.w, "data");
    assert_int_equal(chmod(path, 0666), 0);
    must_open(&p); /* made private again */
    assert_int_equal(stat_of(&p, "data").st_mode & 0777, 0600);
    disk_dir_close(&p.d);
    end_place(&p);
}

/* --- how large --- */

static void a_directory_is_resized_to_the_bound(void **state)
{
    struct place p;

    (void)state;
    begin_place(&p, 100);
    must_open(&p);
    disk_dir_close(&p.d);
    for (uint32_t e = 0; e < 100; e++)
        plant(&p, e);
    p.w.config.dir.n_bytes_max = bytes_for(70);
    must_open(&p);
    assert_int_equal(p.d.super.n_extents, 70);
    for (uint32_t e = 0; e < 70; e++)
        assert_int_equal(verdict(&p, e), DISK_VALID);
    assert_int_equal(stat_of(&p, "data").st_size, 70 * EXTENT_BYTES);
    assert_int_equal(stat_of(&p, "table").st_size, disk_table_bytes(70));
    disk_dir_close(&p.d);
    p.w.config.dir.n_bytes_max = bytes_for(120);
    for (int i = 0; i < 2; i++) { /* a cut record does not come back */
        must_open(&p);
        assert_int_equal(p.d.super.n_extents, 120);
        assert_false(p.d.is_new);
        for (uint32_t e = 0; e < 120; e++)
            assert_int_equal(verdict(&p, e), e < 70 ? DISK_VALID : DISK_EMPTY);
        assert_int_equal(stat_of(&p, "data").st_size, 120 * EXTENT_BYTES);
        disk_dir_close(&p.d);
    }
    end_place(&p);
}

static void a_cut_file_is_made_whole_again(void **state)
{
    char path[256];
    struct place p;

    (void)state;
    begin_place(&p, 100);
    must_open(&p);
    disk_dir_close(&p.d);
    plant(&p, 3);
    plant(&p, 90);
    file_path(path, sizeof path, &p.w, "data");
    assert_int_equal(truncate(path, 5), 0);
    file_path(path, sizeof path, &p.w, "table");
    assert_int_equal(truncate(path, 3 * DISK_PAGE_BYTES - 100), 0);
    must_open(&p);
    assert_false(p.d.is_new);
    assert_int_equal(verdict(&p, 3), DISK_VALID);
    assert_int_equal(verdict(&p, 90), DISK_EMPTY);
    assert_int_equal(stat_of(&p, "data").st_size, 100 * EXTENT_BYTES);
    disk_dir_close(&p.d);
    end_place(&p);
}

static void too_small_a_bound_is_refused_with_numbers(void **state)
{
    struct place p;

    (void)state;
    begin_place(&p, DISK_EXTENTS_MIN);
    p.w.config.dir.n_bytes_max--;
    assert_int_equal(open_place(&p), ERR_INVALID);
    assert_says(&p, "{kv_disk_bytes} is ");
    assert_says(&p, "needs 7");
    assert_false(is_there(&p, "lock")); /* no file is left */
    assert_false(is_there(&p, "."));
    p.w.config.dir.n_bytes_max++;
    must_open(&p);
    disk_dir_close(&p.d);
    end_place(&p);
}

static void a_full_file_system_is_refused_and_left_as_it_was(void **state)
{
    struct place p;

    (void)state;
    begin_place(&p, 100);
    fs.n_bytes_max = 30 * EXTENT_BYTES;
    assert_int_equal(open_place(&p), ERR_IO);
    assert_says(&p, "but refused the 1.2 MiB more that {kv_disk_bytes} asks for");
    assert_false(is_there(&p, "."));
    fs.n_bytes_max = 0;
    must_open(&p);
    disk_dir_close(&p.d);
    plant(&p, 5);
    p.w.config.dir.n_bytes_max = bytes_for(200);
    fs.n_bytes_max = 150 * EXTENT_BYTES;
    assert_int_equal(open_place(&p), ERR_IO);
    assert_int_equal(stat_of(&p, "data").st_size, 100 * EXTENT_BYTES);
    assert_true((uint64_t)stat_of(&p, "data").st_blocks * 512 < 120 * EXTENT_BYTES);
    p.w.config.dir.n_bytes_max = bytes_for(100);
    must_open(&p);
    assert_int_equal(verdict(&p, 5), DISK_VALID);
    disk_dir_close(&p.d);
    end_place(&p);
}

/* The same with too little free space: no file is allocated, and others can still write. */
static void too_little_free_space_is_refused_before_anything_is_taken(void **state)
{
    const uint64_t wanted = bytes_for(100);
    struct place p;

    (void)state;
    begin_place(&p, 100);
    fs.n_total_bytes = UINT64_C(60) << 30;
    fs.n_free_bytes = (UINT64_C(1) << 30) + wanted / 2;
    assert_int_equal(open_place(&p), ERR_IO);
    assert_says(&p, "has 1.0 GiB free, of which 1.0 GiB stay free, and {kv_disk_bytes} asks for "
                    "1.2 MiB more");
    assert_false(fs.has_reserved);
    assert_false(is_there(&p, "."));
    fs.n_free_bytes = (UINT64_C(1) << 30) + wanted + 4096;
    must_open(&p);
    assert_true(fs.has_reserved);
    disk_dir_close(&p.d);
    plant(&p, 5);
    /* The files exist already and need no more space, so a full file system is no error. */
    fs.n_free_bytes = 0;
    must_open(&p);
    disk_dir_close(&p.d);
    p.w.config.dir.n_bytes_max = bytes_for(200);
    fs.n_total_bytes = UINT64_C(100) << 20; /* 5 percent of it must stay free */
    fs.n_free_bytes = UINT64_C(6) << 20;
    fs.has_reserved = false;
    assert_int_equal(open_place(&p), ERR_IO);
    assert_says(&p, "has 6.0 MiB free, of which 5.0 MiB stay free");
    assert_false(fs.has_reserved);
    assert_int_equal(stat_of(&p, "data").st_size, 100 * EXTENT_BYTES);
    fs.n_free_bytes = UINT64_C(7) << 20;
    must_open(&p);
    assert_int_equal(verdict(&p, 5), DISK_VALID);
    disk_dir_close(&p.d);
    fs.n_total_bytes = 0;
    end_place(&p);
}

static void without_fallocate_files_are_still_created(void **state)
{
    struct place p;

    (void)state;
    begin_place(&p, 100);
    fs.fallocate_error = EOPNOTSUPP;
    must_open(&p);
    assert_int_equal(stat_of(&p, "data").st_size, 100 * EXTENT_BYTES);
    disk_dir_close(&p.d);
    end_place(&p);
}

static void without_memory_opening_fails_and_leaks_nothing(void **state)
{
    enum status s = ERR_NOMEM;
    uint32_t n_failed = 0;
    struct place p;

    (void)state;
    begin_place(&p, 100);
    fake_now = 0; /* threads need the real clock */
    p.w.config.backend = AIO_THREADS;
    assert_ok(buf_reserve(&p.why, 500)); /* allocated before allocations fail */
    for (uint32_t n = 1; s != OK; n++) {
        buf_reset(&p.why);
        fs.fail_in = n;
        s = disk_open(&p.w.d, &p.w.config, &p.why);
        bool hit = fs.fail_in == 0;
        fs.fail_in = 0;
        n_failed += s != OK;
        assert_true(s == OK ? p.w.d != NULL : s == ERR_NOMEM && hit && p.w.d == NULL);
        assert_true(s == OK || p.why.len > 0);
    }
    assert_true(n_failed > 12);
    world_close(&p.w);
    end_place(&p);
}

/* --- several models in one PATH --- */

static void open_model(struct place *p, struct disk_dir *d, uint8_t model)
{
    p->w.fingerprint[0] = model;
    if (disk_dir_open(d, &p->w.config.dir, &p->why) != OK)
        fail_msg("%s", buf_str(&p->why));
}

static bool has_model(struct place *p, uint8_t model)
{
    p->w.fingerprint[0] = model;
    return is_there(p, "data");
}

/* A directory of another model, as another run may have left it. */
static void make_model(struct place *p, uint8_t model, uint64_t n_bytes, time_t age)
{
    static const char *const names[] = {"table", "data", "lock"};
    struct timespec at[2] = {{.tv_sec = 1000000 - age}, {.tv_sec = 1000000 - age}};
    char path[256];

    p->w.fingerprint[0] = model;
    file_path(path, sizeof path, &p->w, "");
    assert_int_equal(mkdir(path, 0700), 0);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        file_path(path, sizeof path, &p->w, names[i]);
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0 && ftruncate(fd, i == 1 ? (off_t)n_bytes : 0) == 0);
        close(fd);
    }
    assert_int_equal(utimensat(AT_FDCWD, path, at, 0), 0);
}

static void other_models_make_room(void **state)
{
    char path[256];
    struct place p;

    (void)state;
    begin_place(&p, 64);
    open_model(&p, &p.d, 1);
    assert_int_equal(p.d.n_removed_dirs, 0);
    disk_dir_close(&p.d);
    /* A folder of someone else is neither touched nor counted. */
    snprintf(path, sizeof path, "%s/somebody", p.w.path);
    assert_int_equal(mkdir(path, 0700), 0);
    open_model(&p, &p.d, 2);
    assert_int_equal(p.d.super.n_extents, 64);
    assert_int_equal(p.d.n_removed_dirs, 1);
    assert_true(p.d.n_removed_bytes >= 64 * EXTENT_BYTES);
    assert_false(has_model(&p, 1));
    assert_int_equal(access(path, F_OK), 0);
    disk_dir_close(&p.d);
    end_place(&p);
}

static void only_as_many_directories_as_needed_are_removed_oldest_first(void **state)
{
    struct disk_room room;
    char own[DISK_NAME_BYTES];
    struct place p;

    (void)state;
    begin_place(&p, 64);
    make_model(&p, 1, 100000, 100);
    make_model(&p, 2, 100000, 300);
    make_model(&p, 3, 100000, 200);
    make_model(&p, 4, 100000, 400);
    int root = open(p.w.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    memset(own, 'f', 64);
    memcpy(own + 64, "-v1", 4);
    char lock[256];
    file_path(lock, sizeof lock, &p.w, "lock"); /* the fourth model's server runs: its directory
                                                   stays and counts */
    int fd = open(lock, O_RDONLY | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_ok(disk_room_make(&room, root, p.w.path, own, 500000, 100000, &p.why));
    assert_int_equal(room.n_removed, 0);
    assert_int_equal(room.n_left, 100000);
    assert_int_equal(room.n_running, 1);
    assert_int_equal(room.n_running_bytes, 100000);
    assert_ok(disk_room_make(&room, root, p.w.path, own, 500000, 100001, &p.why));
    assert_int_equal(room.n_removed, 1);
    assert_int_equal(room.n_removed_bytes, 100000);
    assert_int_equal(room.n_left, 200000);
    assert_true(has_model(&p, 1) && !has_model(&p, 2) && has_model(&p, 3));
    assert_ok(disk_room_make(&room, root, p.w.path, own, 500000, 250000, &p.why));
    assert_true(has_model(&p, 1) && !has_model(&p, 3));
    assert_ok(disk_room_make(&room, root, p.w.path, own, 500000, 500000, &p.why));
    assert_int_equal(room.n_left, 400000);
    assert_true(!has_model(&p, 1) && has_model(&p, 4));
    close(fd);
    close(root);
    end_place(&p);
}

static void running_servers_keep_what_they_have(void **state)
{
    struct disk_dir running;
    struct place p;

    (void)state;
    begin_place(&p, 70);
    open_model(&p, &running, 1);
    p.w.fingerprint[0] = 2;
    p.w.config.dir.n_bytes_max = bytes_for(70) + bytes_for(63);
    assert_int_equal(open_place(&p), ERR_INVALID);
    assert_says(&p, "1 other running server has");
    assert_false(is_there(&p, "."));
    p.w.config.dir.n_bytes_max = bytes_for(70) + bytes_for(80);
    open_model(&p, &p.d, 2);
    assert_in_range(p.d.super.n_extents, 80, 81);
    assert_int_equal(p.d.n_removed_dirs, 0);
    assert_true(has_model(&p, 1));
    disk_dir_close(&p.d);
    disk_dir_close(&running);
    end_place(&p);
}

static void directory_names_are_recognized(void **state)
{
    char name[200];

    (void)state;
    memset(name, 'a', 64);
    memcpy(name + 64, "-v1", 4);
    assert_true(disk_room_is_ours(name));
    memcpy(name + 64, "-v207", 6);
    assert_true(disk_room_is_ours(name));
    memcpy(name + 64, "-v", 3);
    assert_false(disk_room_is_ours(name));
    memcpy(name + 64, "-v1x", 5);
    assert_false(disk_room_is_ours(name));
    memcpy(name + 64, "-w1", 4);
    assert_false(disk_room_is_ours(name));
    name[64] = '\0';
    assert_false(disk_room_is_ours(name));
    memcpy(name + 64, "-v1", 4);
    name[10] = 'g';
    assert_false(disk_room_is_ours(name));
    name[10] = 'a';
    memset(name + 66, '1', 40);
    name[106] = '\0';
    assert_false(disk_room_is_ours(name));
    assert_false(disk_room_is_ours(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_directory_is_private_and_as_large_as_asked),
        cmocka_unit_test(reopening_keeps_the_records),
        cmocka_unit_test(another_superblock_starts_an_empty_directory),
        cmocka_unit_test(a_reader_needs_no_lock),
        cmocka_unit_test(a_second_server_is_refused),
        cmocka_unit_test(the_last_requests_of_a_killed_server_are_waited_for),
        cmocka_unit_test(links_others_and_open_directories_are_refused),
        cmocka_unit_test(links_and_fifos_instead_of_files_are_refused),
        cmocka_unit_test(a_directory_is_resized_to_the_bound),
        cmocka_unit_test(a_cut_file_is_made_whole_again),
        cmocka_unit_test(too_small_a_bound_is_refused_with_numbers),
        cmocka_unit_test(a_full_file_system_is_refused_and_left_as_it_was),
        cmocka_unit_test(too_little_free_space_is_refused_before_anything_is_taken),
        cmocka_unit_test(without_fallocate_files_are_still_created),
        cmocka_unit_test(without_memory_opening_fails_and_leaks_nothing),
        cmocka_unit_test(other_models_make_room),
        cmocka_unit_test(only_as_many_directories_as_needed_are_removed_oldest_first),
        cmocka_unit_test(running_servers_keep_what_they_have),
        cmocka_unit_test(directory_names_are_recognized),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
