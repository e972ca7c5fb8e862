/* test_pool_secret.c - the file of --pool-secret: what is read, what is refused. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "server/auth/pool_secret.h"

static char dir[] = "/tmp/tarn-test-pool-secret-XXXXXX";
static char path[96];
static const char text[] = "0123456789abcdef0123456789abcdef";

static void write_file(const char *bytes, size_t n, mode_t mode)
{
    FILE *f;

    unlink(path);
    assert_non_null(f = fopen(path, "w"));
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    assert_int_equal(chmod(path, mode), 0);
}

static void reads(const char *bytes, size_t n, uint8_t member[SECRET_BYTES],
                  uint8_t scope[SECRET_BYTES])
{
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    write_file(bytes, n, 0600);
    if (pool_secret_read(path, member, scope, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
}

static void refuses(const char *file, enum status status, const char *words)
{
    uint8_t member[SECRET_BYTES], scope[SECRET_BYTES];
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(pool_secret_read(file, member, scope, &why), status);
    if (!strstr(buf_str(&why), words) || strstr(buf_str(&why), text))
        fail_msg("said \"%s\" instead of \"%s\"", buf_str(&why), words);
    buf_fini(&why);
}

static void equal_files_give_equal_secrets(void **state)
{
    uint8_t member[4][SECRET_BYTES], scope[4][SECRET_BYTES];

    (void)state;
    reads(text, strlen(text), member[0], scope[0]);
    reads("0123456789abcdef0123456789abcdef \r\n\n", 36, member[1], scope[1]);
    reads("0123456789abcdef0123456789abcdeF", 32, member[2], scope[2]);
    reads("0123456789abcdef\0", 17, member[3], scope[3]); /* bytes that are no text */
    assert_memory_equal(member[0], member[1], SECRET_BYTES);
    assert_memory_equal(scope[0], scope[1], SECRET_BYTES);
    for (int i = 0; i < 4; i++) {
        assert_memory_not_equal(member[i], scope[i], SECRET_BYTES);
        for (int k = 2; k < i; k++) {
            assert_memory_not_equal(member[i], member[k], SECRET_BYTES);
            assert_memory_not_equal(scope[i], scope[k], SECRET_BYTES);
        }
    }
    assert_memory_not_equal(member[0], member[2], SECRET_BYTES);
    assert_memory_not_equal(member[0], member[3], SECRET_BYTES);
}

static void a_file_that_is_no_secret_is_refused(void **state)
{
    static char long_text[4097];

    (void)state;
    unlink(path);
    refuses(path, ERR_NOT_FOUND, "--pool-secret: ");
    refuses(dir, ERR_INVALID, "is not a regular file");
    write_file("", 0, 0600);
    refuses(path, ERR_INVALID, "is empty");
    write_file(" \n\n", 3, 0600);
    refuses(path, ERR_INVALID, "is empty");
    write_file("0123456789abcde\n", 16, 0600);
    refuses(path, ERR_INVALID, "has 15 bytes, at least 16 are needed");
    memset(long_text, 'x', sizeof long_text);
    write_file(long_text, sizeof long_text, 0600);
    refuses(path, ERR_INVALID, "has more than 4096 bytes");
}

static void a_file_that_others_may_read_is_refused(void **state)
{
    static const mode_t bad[] = {0604, 0644, 0602, 0620, 0660, 0666};
    uint8_t member[SECRET_BYTES], scope[SECRET_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file(text, strlen(text), bad[i]);
        refuses(path, ERR_FORBIDDEN, "may be read or written by other users (mode 06");
    }
    write_file(text, strlen(text), 0440); /* as a volume of Kubernetes has it */
    assert_ok(pool_secret_read(path, member, scope, NULL));
}

static int start(void **state)
{
    (void)state;
    if (!mkdtemp(dir) || hash_init() != OK)
        return 1;
    snprintf(path, sizeof path, "%s/secret", dir);
    return 0;
}

static int end(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_files_give_equal_secrets),
        cmocka_unit_test(a_file_that_is_no_secret_is_refused),
        cmocka_unit_test(a_file_that_others_may_read_is_refused),
    };

    return cmocka_run_group_tests(tests, start, end);
}
