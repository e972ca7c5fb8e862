/* test_keys.c - reading of correct key files, and of files with every kind of mistake. */
#include "tests/unit/server/server_test.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/auth/keys.h"
#include "server/auth/ratelimit.h"

#define GOOD "{'keys': [{'name': 'a', 'key': 'sk-aaaaaaaa'}]}"

static void quote(char *out, size_t n_out, const char *text)
{
    size_t n = strlen(text);

    assert_true(n < n_out);
    for (size_t i = 0; i <= n; i++)
        out[i] = text[i] == '\'' ? '"' : text[i];
}

static enum status parse(struct key_list *list, const char *text, struct buf *why)
{
    char copy[8192];

    quote(copy, sizeof copy, text);
    return keys_add_text(list, copy, strlen(copy), why);
}

/* Check that a text is refused with exactly these mistakes, and that the list is unchanged. */
static void refuses_all(const char *text, const char *const *lines, size_t n_lines)
{
    struct key_list list;
    struct buf why;
    size_t n = 0;

    buf_init(&why, KEYS_WORDS_BYTES_MAX);
    keys_init(&list, NULL);
    assert_ok(keys_add_flag(&list, "flag-key-0001", false, &why));
    assert_int_not_equal(parse(&list, text, &why), OK);
    assert_int_equal(list.n, 1);
    for (char *line = strtok(why.data, "\n"); line; line = strtok(NULL, "\n"), n++) {
        if (n >= n_lines || !strstr(line, lines[n]))
            fail_msg("%s\nline %zu: \"%s\", expected \"%s\"", text, n, line,
                     n < n_lines ? lines[n] : "(no more)");
    }
    if (n != n_lines)
        fail_msg("%s: %zu mistakes found, expected %zu", text, n, n_lines);
    keys_fini(&list);
    buf_fini(&why);
}

static void refuses(const char *text, const char *words)
{
    refuses_all(text, &words, 1);
}

#define KEY(more) "{'keys': [{'name': 'a', 'key': 'sk-aaaaaaaa'" more "}]}"

static void a_good_file_is_read(void **state)
{
    struct key_list list;
    struct buf why;
    char text[1024];
    uint8_t digest[32], hash[32];
    char hex[65];

    (void)state;
    hash_blake2b(digest, sizeof digest, "sk-bbbbbbbb", 11, NULL, 0);
    hash_hex(hex, digest, sizeof digest);
    snprintf(text, sizeof text,
             "{'keys': [{'name': 'a', 'key': 'sk-aaaaaaaa', 'tenant': 'team', 'weight': 2.5,"
             "'requests_per_minute': 60, 'tokens_per_minute': 1000, 'kv_bytes': '2G'},"
             "{'name': 'b', 'key_blake2b': '%s', 'kv_bytes': 4096}]}",
             hex);
    buf_init(&why, KEYS_WORDS_BYTES_MAX);
    keys_init(&list, NULL);
    if (parse(&list, text, &why) != OK)
        fail_msg("%s", buf_str(&why));
    assert_int_equal(list.n, 2);
    const struct key_spec *a = &list.specs[0], *b = &list.specs[1];
    assert_string_equal(a->name, "a");
    assert_string_equal(a->tenant, "team");
    assert_float_equal(a->weight, 2.5, 0);
    assert_int_equal(a->requests_per_minute, 60);
    assert_int_equal(a->tokens_per_minute, 1000);
    assert_int_equal(a->kv_bytes, UINT64_C(2) << 30);
    assert_false(a->admin);
    assert_string_equal(b->tenant, "");
    assert_float_equal(b->weight, 1, 0);
    assert_int_equal(b->requests_per_minute, 0);
    assert_int_equal(b->kv_bytes, 4096);
    /* A key_blake2b identifies the same key as its text. */
    keys_hash(&list, "sk-bbbbbbbb", 11, hash);
    assert_memory_equal(hash, b->hash, sizeof hash);
    keys_hash(&list, "sk-aaaaaaaa", 11, hash);
    assert_memory_equal(hash, a->hash, sizeof hash);
    keys_fini(&list);
    buf_fini(&why);
}

static void stored_keys_are_neither_text_nor_plain_hash(void **state)
{
    struct key_list one, two;
    uint8_t plain[32], hash_one[32], hash_two[32];

    (void)state;
    keys_init(&one, NULL);
    keys_init(&two, NULL);
    hash_blake2b(plain, sizeof plain, "secret-key", 10, NULL, 0);
    keys_hash(&one, "secret-key", 10, hash_one);
    keys_hash(&two, "secret-key", 10, hash_two);
    assert_memory_not_equal(hash_one, plain, 32);
    assert_memory_not_equal(hash_one, hash_two, 32); /* each process has a random secret */
    keys_fini(&one);
    keys_fini(&two);
}

static void a_file_that_is_no_key_file_is_reported(void **state)
{
    (void)state;
    refuses("", "malformed JSON at line 1");
    refuses("sk-aaaaaaaa\nsk-bbbbbbbb\n", "malformed JSON at line 1");
    refuses("{'keys': [{'name': 'a',\n 'key': 'sk-aaaaaaaa',}]}", "malformed JSON at line 2");
    refuses("[]", "expected an object {\"keys\": [...]}, got an array");
    refuses("'x'", "got a string");
    refuses("{}", "keys: is missing");
    refuses("{'keys': {}}", "keys: expected an array, got an object");
    refuses("{'keys': []}", "keys: is empty");
    refuses("{'keys': ['sk-aaaaaaaa']}", "keys[0]: expected an object, got a string");
    refuses("{'keys': [{'name': 'a', 'key': 'sk-aaaaaaaa', 'name': 'b'}]}",
            "malformed JSON at line 1, column 52: duplicate object key");
    refuses("{'keys': [{'name': 'a', 'key': 'sk-aaaaaaaa'}], 'kyes': 1}",
            "unknown field \"kyes\", did you mean \"keys\"?");
}

static void every_field_is_checked(void **state)
{
    (void)state;
    refuses("{'keys': [{'key': 'sk-aaaaaaaa'}]}", "keys[0].name: is missing");
    refuses("{'keys': [{'name': '', 'key': 'sk-aaaaaaaa'}]}", "keys[0].name: must not be empty");
    refuses("{'keys': [{'name': 3, 'key': 'sk-aaaaaaaa'}]}",
            "keys[0].name: expected a string, got an integer");
    refuses("{'keys': [{'name': 'a b', 'key': 'sk-aaaaaaaa'}]}", "keys[0].name: may hold only");
    refuses("{'keys': [{'name': 'a\\u0000', 'key': 'sk-aaaaaaaa'}]}", "name: may hold only");
    refuses("{'keys': [{'name': 'api-key-1', 'key': 'sk-aaaaaaaa'}]}",
            "\"api-key-1\" is kept for keys of the command line");
    refuses("{'keys': [{'name': '0123456789012345678901234567890123456789012345678901234567890123"
            "4', 'key': 'sk-aaaaaaaa'}]}",
            "is 65 bytes long, at most 64");
    refuses("{'keys': [{'name': 'a'}]}", "keys[0].key: is missing, and so is key_blake2b");
    refuses("{'keys': [{'name': 'a', 'key': ''}]}", "keys[0].key: must not be empty");
    refuses("{'keys': [{'name': 'a', 'key': null}]}", "key: expected a string, got null");
    refuses("{'keys': [{'name': 'a', 'key': 'short'}]}", "key: is 5 bytes long, expected 8 to 512");
    refuses("{'keys': [{'name': 'a', 'key': 'with space'}]}", "key: may hold only visible ASCII");
    refuses("{'keys': [{'name': 'a', 'key': 'umlaut-\\u00e4\\u00e4'}]}", "key: may hold only");
    refuses("{'keys': [{'name': 'a', 'key_blake2b': '12ab'}]}",
            "key_blake2b: expected 64 hex digits, got 4 bytes");
    refuses("{'keys': [{'name': 'a', 'key_blake2b': 'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"
            "zzzzzzzzzzzzzzzzzzz'}]}",
            "expected 64 hex digits, got 64 bytes");
    refuses(KEY(", 'key_blake2b': 'x'"), "key: only one of key and key_blake2b");
    refuses(KEY(", 'tenant': ''"), "keys[0].tenant: must not be empty");
    refuses(KEY(", 'tenant': ['x']"), "keys[0].tenant: expected a string, got an array");
    refuses(KEY(", 'tenant': 'a/b'"), "keys[0].tenant: may hold only");
    refuses(KEY(", 'weight': '1'"), "keys[0].weight: expected a number, got a string");
    refuses(KEY(", 'weight': 0"), "keys[0].weight: 0 is outside of [0.01, 1000]");
    refuses(KEY(", 'weight': -2"), "keys[0].weight: -2 is outside");
    refuses(KEY(", 'weight': 1e9"), "keys[0].weight: 1e+09 is outside");
    refuses(KEY(", 'requests_per_minute': -1"),
            "keys[0].requests_per_minute: -1 is outside of [1, 1000000000]");
    refuses(KEY(", 'requests_per_minute': 1.5"), "expected a whole number, got a number");
    refuses(KEY(", 'requests_per_minute': true"), "expected a whole number, got a boolean");
    refuses(KEY(", 'tokens_per_minute': 0"), "tokens_per_minute: 0 would let nothing pass");
    refuses(KEY(", 'tokens_per_minute': 1000000001"), "tokens_per_minute: 1000000001 is outside");
    refuses(KEY(", 'tokens_per_minute': 99999999999999999999"),
            "tokens_per_minute: expected a whole number");
    refuses(KEY(", 'kv_bytes': '2X'"), "kv_bytes: expected a size such as 512M or 2G");
    refuses(KEY(", 'kv_bytes': -5"), "kv_bytes: -5 is outside");
    refuses(KEY(", 'kv_bytes': '0'"), "kv_bytes: expected a size");
    refuses(KEY(", 'kv_bytes': null"), "kv_bytes: expected a whole number, got null");
    refuses(KEY(", 'request_per_minute': 5"),
            "unknown field \"request_per_minute\", did you mean \"requests_per_minute\"?");
    refuses(KEY(", 'colour': 'red'"), "keys[0]: unknown field \"colour\"");
}

static void keys_names_and_tenants_must_differ(void **state)
{
    (void)state;
    refuses("{'keys': [{'name': 'a', 'key': 'sk-aaaaaaaa'}, {'name': 'a', 'key': 'sk-bbbbbbbb'}]}",
            "keys[1].name: \"a\" is also the name of keys[0]");
    refuses("{'keys': [{'name': 'a', 'key': 'sk-aaaaaaaa'}, {'name': 'b', 'key': 'sk-aaaaaaaa'}]}",
            "keys[1].key: is the same as that of keys[0]");
    refuses("{'keys': [{'name': 'a', 'key': 'flag-key-0001'}]}",
            "keys[0].key: is also given to --api-key");
    refuses("{'keys': [{'name': 'a', 'key': 'sk-aaaaaaaa'},"
            "{'name': 'b', 'key': 'sk-bbbbbbbb', 'tenant': 'a'}]}",
            "keys[1].tenant: \"a\" is the name of keys[0]");
}

static void all_mistakes_are_told_at_once(void **state)
{
    static const char *const lines[] = {
        "keys[0].key: must not be empty",
        "keys[1]: unknown field \"nmae\", did you mean \"name\"?",
        "keys[1].name: is missing",
        "keys[1].weight: expected a number",
        "keys[2]: expected an object",
        "keys[3].name: \"x\" is also the name of keys[0]",
        "keys[3].kv_bytes: -1 is outside",
    };

    (void)state;
    refuses_all("{'keys': [{'name': 'x', 'key': ''},"
                "{'nmae': 'y', 'key': 'sk-yyyyyyyy', 'weight': []}, 7,"
                "{'name': 'x', 'key': 'sk-zzzzzzzz', 'kv_bytes': -1}]}",
                lines, sizeof lines / sizeof lines[0]);
}

static void no_words_hold_a_key(void **state)
{
    static const char *const texts[] = {
        "{'keys': [{'name': 'a', 'key': 'sk-SECRETSECRET' 'x'}]}",
        "{'keys': [{'name': 'a', 'key': 'sk-SECRET SECRET'}]}",
        "{'keys': [{'name': 'sk-SECRET SECRET', 'key': 'sk-aaaaaaaa'}]}",
        "{'keys': [{'sk-SECRETSECRET': 'a'}]}",
        "{'keys': [{'sk-SECRETSECRET': 'a', 'sk-SECRETSECRET': 'b'}]}",
        "{'sk-SECRETSECRET': 'a'}",
        "sk-SECRETSECRET",
        "{'keys': [{'name': 'a', 'key': sk-SECRETSECRET}]}",
    };
    struct key_list list;
    struct buf why;

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        buf_init(&why, KEYS_WORDS_BYTES_MAX);
        keys_init(&list, NULL);
        assert_int_not_equal(parse(&list, texts[i], &why), OK);
        assert_true(why.len > 0);
        if (strstr(why.data, "SECRET"))
            fail_msg("%s: %s", texts[i], why.data);
        keys_fini(&list);
        buf_fini(&why);
    }
}

static void too_many_keys_are_refused(void **state)
{
    struct key_list list;
    struct buf text, why;

    (void)state;
    buf_init(&text, 1 << 20);
    buf_init(&why, KEYS_WORDS_BYTES_MAX);
    keys_init(&list, NULL);
    for (int n = KEYS_N_MAX; n <= KEYS_N_MAX + 1; n++) {
        buf_reset(&text);
        assert_ok(buf_puts(&text, "{\"keys\":["));
        for (int i = 0; i < n; i++)
            assert_ok(
                buf_printf(&text, "%s{\"name\":\"n%d\",\"key\":\"sk-%08d\"}", i ? "," : "", i, i));
        assert_ok(buf_puts(&text, "]}"));
        assert_int_equal(keys_add_text(&list, text.data, text.len, &why),
                         n > KEYS_N_MAX ? ERR_INVALID : OK);
        assert_int_equal(list.n, n > KEYS_N_MAX ? 0 : KEYS_N_MAX);
        keys_fini(&list);
        keys_init(&list, NULL);
    }
    assert_non_null(strstr(buf_str(&why), "keys: has 1025, at most 1024 are taken"));
    keys_fini(&list);
    buf_fini(&text);
    buf_fini(&why);
}

static void flags_become_keys(void **state)
{
    struct key_list list;
    struct buf why;

    (void)state;
    buf_init(&why, KEYS_WORDS_BYTES_MAX);
    keys_init(&list, NULL);
    assert_ok(keys_add_flag(&list, "first,, second\n,first,", false, &why));
    assert_ok(keys_add_flag(&list, "boss", true, &why));
    assert_int_equal(list.n, 3);
    assert_string_equal(list.specs[0].name, "api-key-1");
    assert_string_equal(list.specs[1].name, "api-key-2");
    assert_string_equal(list.specs[2].name, "admin-api-key-1");
    assert_true(list.specs[2].admin && !list.specs[0].admin);
    assert_int_equal(keys_add_flag(&list, "second", true, &why), ERR_INVALID);
    assert_non_null(strstr(why.data, "--admin-api-key: is also given to --api-key"));
    assert_null(strstr(why.data, "second"));
    keys_fini(&list);
    buf_fini(&why);
}

/* --- files --- */

static void write_file(const char *path, const char *text, size_t n, mode_t mode)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    assert_int_equal(chmod(path, mode), 0);
}

static enum status add_file(const char *path, struct buf *why, struct buf *warning)
{
    struct key_list list;

    keys_init(&list, NULL);
    enum status s = keys_add_file(&list, path, why, warning);
    keys_fini(&list);
    return s;
}

static void files_are_checked(void **state)
{
    char dir[] = "/tmp/tarn-test-keys-XXXXXX", path[64], good[128];
    struct buf why, warning;

    (void)state;
    quote(good, sizeof good, GOOD);
    buf_init(&why, BUF_WHY_MAX);
    buf_init(&warning, BUF_WHY_MAX);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/keys.json", dir);
    assert_int_equal(add_file(path, &why, &warning), ERR_NOT_FOUND);
    assert_non_null(strstr(why.data, "cannot open it: No such file"));
    assert_int_equal(add_file(dir, &why, &warning), ERR_INVALID);
    assert_non_null(strstr(why.data, "is a directory, not a file"));
    write_file(path, good, strlen(good), 0600);
    assert_ok(add_file(path, &why, &warning));
    assert_int_equal(warning.len, 0);
    write_file(path, good, strlen(good), 0644);
    assert_ok(add_file(path, &why, &warning)); /* allowed, with a warning */
    assert_non_null(strstr(warning.data, "has mode 0644, others may read or change it"));
    char *big = calloc(1, KEYS_FILE_BYTES_MAX + 1);
    assert_non_null(big);
    write_file(path, big, KEYS_FILE_BYTES_MAX + 1, 0600);
    assert_int_equal(add_file(path, &why, &warning), ERR_TOO_LARGE);
    assert_non_null(strstr(why.data, "is larger than 1048576 bytes"));
    write_file(path, "", 0, 0600);
    assert_int_equal(add_file(path, &why, NULL), ERR_INVALID);
    free(big);
    unlink(path);
    rmdir(dir);
    buf_fini(&why);
    buf_fini(&warning);
}

static int start(void **state)
{
    (void)state;
    return hash_init() == OK ? 0 : 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_file_is_read),
        cmocka_unit_test(stored_keys_are_neither_text_nor_plain_hash),
        cmocka_unit_test(a_file_that_is_no_key_file_is_reported),
        cmocka_unit_test(every_field_is_checked),
        cmocka_unit_test(keys_names_and_tenants_must_differ),
        cmocka_unit_test(all_mistakes_are_told_at_once),
        cmocka_unit_test(no_words_hold_a_key),
        cmocka_unit_test(too_many_keys_are_refused),
        cmocka_unit_test(flags_become_keys),
        cmocka_unit_test(files_are_checked),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
