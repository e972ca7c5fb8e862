/* Each allocation of tarnctl cache verify fails once. The program then reports the failure, and
 * never calls a directory fine or damaged that it has not read completely. Nothing leaks.
 *
 * malloc is replaced for this binary; under a sanitizer, which replaces it too, the test is
 * skipped. */
#include "tests/unit/test.h"
#include "tests/unit/fault.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    return 77;
}

#else

#include <malloc.h>

#include "clients/tarnctl/verify.h"
#include "tests/unit/cache/disk/disk_files.h"

#define N_FAILURES_MAX 1000
#define TEXT_BYTES 8192

extern void *__libc_memalign(size_t alignment, size_t n);
void *aligned_alloc(size_t alignment, size_t n);

void *aligned_alloc(size_t alignment, size_t n)
{
    return fails() ? NULL : __libc_memalign(alignment, n);
}

struct output {
    FILE *file;
    char buffer[TEXT_BYTES], text[TEXT_BYTES];
};

static struct output out, err;

/* Open files with preallocated buffers, so that printing does not allocate. */
static void open_output(struct output *o)
{
    o->file = tmpfile();
    assert_non_null(o->file);
    assert_int_equal(setvbuf(o->file, o->buffer, _IOFBF, sizeof o->buffer), 0);
}

static void read_output(struct output *o)
{
    rewind(o->file);
    size_t n = fread(o->text, 1, sizeof o->text - 1, o->file);
    o->text[n] = '\0';
    rewind(o->file);
    assert_int_equal(ftruncate(fileno(o->file), 0), 0);
}

/* Allocated bytes. main() turns malloc's per-thread cache off, which would count as allocated. */
static size_t in_use(void)
{
    struct mallinfo2 m = mallinfo2();

    return m.uordblks + m.hblkhd;
}

/* Verify with the `which`-th allocation failing. Return the exit code; -1: there was none. */
static int verify_failing(const char *path, bool json, long which)
{
    size_t before = in_use();

    fail_in = which;
    int code = verify_path(out.file, err.file, path, json);
    long left = fail_in;
    fail_in = 0;
    assert_int_equal(in_use(), before);
    read_output(&out);
    read_output(&err);
    return which > 0 && left > 0 ? -1 : code; /* -1: there are fewer allocations */
}

static void check(struct disk_files *files, int want_code, bool json)
{
    char want[TEXT_BYTES];
    long i;

    assert_int_equal(verify_failing(files->root, json, 0), want_code);
    memcpy(want, out.text, sizeof want);
    for (i = 1; i < N_FAILURES_MAX; i++) {
        int code = verify_failing(files->root, json, i);
        if (code < 0)
            break;
        /* Messages may be cut when memory is short, so only the code is checked then. */
        if (code != VERIFY_UNREADABLE && (code != want_code || strcmp(out.text, want) != 0))
            fail_msg("failure %ld: code %d\n%s%s", i, code, out.text, err.text);
        if (code == VERIFY_UNREADABLE)
            assert_memory_equal(err.text, "tarnctl: ", 9);
    }
    assert_true(i > 5 && i < N_FAILURES_MAX);
}

static void without_memory_it_says_so(void **state)
{
    struct disk_files files;

    (void)state;
    disk_files_init(&files, 5000, 0xAB);
    disk_files_write(&files);
    check(&files, VERIFY_FINE, false);
    check(&files, VERIFY_FINE, true);
    disk_files_payload(&files, disk_files_extent(3))[1] ^= 1;
    disk_files_write(&files);
    check(&files, VERIFY_DAMAGED, true);
    disk_files_fini(&files);
}

int main(int argc, char **argv)
{
    (void)argc;
    if (!getenv("GLIBC_TUNABLES")) {
        if (setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1) == 0)
            execv("/proc/self/exe", argv);
        return 1;
    }
    mallopt(M_MXFAST, 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(without_memory_it_says_so)};

    if (hash_init() != OK)
        return 1;
    open_output(&out);
    open_output(&err);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
