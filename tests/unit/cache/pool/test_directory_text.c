/* The texts of the directory: its URL, and the record of an instance. */
#include <string.h>

#include "cache/pool/directory_inner.h"
#include "tests/unit/test.h"

/* --- URLs --- */

static void check_url(const char *text, const char *host, uint16_t port, uint32_t database,
                      const char *user, const char *password)
{
    struct directory_url u;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (directory_url_parse(&u, text, &why) != OK)
        fail_msg("%s: %s", text, buf_str(&why));
    assert_string_equal(u.host, host);
    assert_int_equal(u.is_unix, port == 0);
    assert_int_equal(u.port, port);
    assert_int_equal(u.database, database);
    assert_string_equal(u.user, user);
    assert_string_equal(u.password, password);
    buf_fini(&why);
}

static void urls_are_read(void **state)
{
    (void)state;
    check_url("redis://h", "h", 6379, 0, "", "");
    check_url("redis://redis.tarn.svc:6380/3", "redis.tarn.svc", 6380, 3, "", "");
    check_url("redis://10.0.0.1:1/", "10.0.0.1", 1, 0, "", "");
    check_url("redis://[::1]:65535/15", "::1", 65535, 15, "", "");
    check_url("redis://[fe80::1%25eth0]", "fe80::1%eth0", 6379, 0, "", "");
    check_url("redis://:pa%2Fss@h", "h", 6379, 0, "", "pa/ss");
    check_url("redis://u:p:q@r@h:7", "h", 7, 0, "u", "p:q@r");
    check_url("unix:///run/redis.sock", "/run/redis.sock", 0, 0, "", "");
    check_url("unix:///run/a%20b@c?db=2", "/run/a b@c", 0, 2, "", "");
    check_url("unix://u:p@/r", "/r", 0, 0, "u", "p");
}

static void other_urls_are_refused_without_their_password(void **state)
{
    (void)state;
    static const struct {
        const char *url, *words;
    } bad[] = {
        {"", "a URL redis://"},
        {"localhost:6379", "a URL redis://"},
        {"http://h", "a URL redis://"},
        {"rediss://:secret@h:6379", "rediss:// is not supported"},
        {"redis://", "no host"},
        {"redis://:secret@", "no host"},
        {"redis://:secret@h:0", "\"0\" is no port"},
        {"redis://h:70000", "no port"},
        {"redis://h:6379x", "no port"},
        {"redis://::1:6379", "no host"},
        {"redis://fe80::1", "no port"},
        {"redis://[::1", "brackets"},
        {"redis://[::1]x", "brackets"},
        {"redis://h/one", "no number of a database"},
        {"redis://h/1/2", "no number of a database"},
        {"redis://h/-1", "no number of a database"},
        {"redis://h?db=1", "behind the host"},
        {"redis://secret@h", "without a password"},
        {"redis://:@h", "without a password"},
        {"redis://:secret%2@h", "too long or broken"},
        {"redis://:secret%+1@h", "too long or broken"},
        {"redis://:secret%00@h", "too long or broken"},
        {"unix://", "no path"},
        {"unix://run/x", "no path"},
        {"unix:///x?database=1", "only ?db=n"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct directory_url u;
        struct buf why;
        buf_init(&why, BUF_WHY_MAX);
        assert_int_equal(directory_url_parse(&u, bad[i].url, &why),
                         strncmp(bad[i].url, "rediss:", 7) == 0 ? ERR_UNSUPPORTED : ERR_INVALID);
        if (!strstr(buf_str(&why), bad[i].words))
            fail_msg("%s: %s", bad[i].url, buf_str(&why));
        assert_null(strstr(buf_str(&why), "secret"));
        buf_fini(&why);
    }
}

static void names_of_pools_are_plain_words(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "A",   "a b", "a:b",
        "a/b", "ä",   "a234567890123456789012345678901234567890123456789012345678901234"};

    if (!redis_link_is_built())
        skip();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct directory_config config = {.url = "redis://h", .pool = bad[i], .id = 1};
        struct directory *d;
        struct buf why;
        buf_init(&why, BUF_WHY_MAX);
        assert_int_equal(directory_open(&d, &config, &why), ERR_INVALID);
        assert_non_null(strstr(buf_str(&why), "a-z, 0-9 and -"));
        buf_fini(&why);
    }
}

static void a_program_without_hiredis_says_so(void **state)
{
    (void)state;
    struct directory_config config = {.url = "redis://h", .id = 1};
    struct directory *d;
    struct buf why;

    if (redis_link_is_built())
        skip();
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(directory_open(&d, &config, &why), ERR_UNSUPPORTED);
    assert_non_null(strstr(buf_str(&why), "without hiredis"));
    buf_fini(&why);
}

/* --- records --- */

static void ids_are_sixteen_digits(void **state)
{
    (void)state;
    char text[ID_HEX_BYTES + 1];
    uint64_t id;

    directory_id_write(text, 0xFEDCBA9876543210ull);
    assert_string_equal(text, "fedcba9876543210");
    assert_true(directory_id_read(&id, text, 16));
    assert_true(id == 0xFEDCBA9876543210ull);
    assert_false(directory_id_read(&id, "0000000000000000", 16));
    assert_false(directory_id_read(&id, "000000000000000g", 16));
    assert_false(directory_id_read(&id, "00000000000000\0001", 16));
    assert_false(directory_id_read(&id, text, 15));
}

static void a_record_is_read_as_it_was_written(void **state)
{
    (void)state;
    struct directory_instance a = {.id = 0x8000000000000001ull,
                                   .name = "ein \"Name\" \xC3\xA4",
                                   .address = "tcp://[::1]:9",
                                   .http = "https://h:1",
                                   .fingerprint = {0, 1, 254, 255, 4, 5, 6, 7},
                                   .n_blocks = UINT32_MAX,
                                   .n_free_blocks = 1,
                                   .n_waiting = 2,
                                   .n_running = 3,
                                   .load = 4,
                                   .is_leaving = true,
                                   .version = "0.1.0",
                                   .member = "0123456789abcdef"};
    struct directory_instance b;
    struct buf text;

    buf_init(&text, RECORD_BYTES_MAX);
    assert_ok(directory_record_write(&text, &a));
    memset(&b, 0xFF, sizeof b);
    assert_ok(directory_record_read(&b, a.id, text.data, text.len));
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(directory_record_read(&b, 1, text.data, text.len), ERR_INVALID);
    /* Every field as long as it may be, of bytes that JSON escapes. */
    memset(a.name, '"', sizeof a.name - 1);
    memset(a.address, '"', sizeof a.address - 1);
    memset(a.http, '"', sizeof a.http - 1);
    memset(a.version, '"', sizeof a.version - 1);
    assert_ok(directory_record_write(&text, &a));
    assert_ok(directory_record_read(&b, a.id, text.data, text.len));
    assert_memory_equal(&a, &b, sizeof a);
    buf_fini(&text);
}

#define RECORD(fields)                                                                             \
    "{\"id\":\"0000000000000001\",\"fingerprint\":\"0123456789abcdef\"" fields "}"

static void a_record_that_breaks_a_rule_is_refused_and_newer_ones_are_not(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "{}",
        "null",
        "[\"id\"]",
        "{\"id\":\"0000000000000001\"}",
        "{\"id\":1,\"fingerprint\":\"0123456789abcdef\"}",
        "{\"id\":\"0000000000000001\",\"fingerprint\":\"0123456789abcde\"}",
        "{\"id\":\"0000000000000001\",\"fingerprint\":\"0123456789abcdeF\"}",
        RECORD(",\"id\":\"0000000000000001\""),
        RECORD(",\"name\":7"),
        RECORD(",\"name\":\"a\\u0000b\""),
        RECORD(",\"name\":\"a\\nb\""),
        RECORD(",\"name\":\"\\u001b[31m\""),
        RECORD(",\"version\":\"a text that is far too long\""),
        RECORD(",\"blocks\":-1"),
        RECORD(",\"blocks\":4294967296"),
        RECORD(",\"blocks\":1.5"),
        RECORD(",\"leaving\":1"),
        RECORD("") "x",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    };
    struct directory_instance untouched, r;

    memset(&untouched, 0x5A, sizeof untouched);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        r = untouched;
        if (directory_record_read(&r, 1, bad[i], strlen(bad[i])) == OK)
            fail_msg("accepted: %s", bad[i]);
        assert_memory_equal(&r, &untouched, sizeof r);
    }
    static const char newer[] = RECORD(",\"a field of a later version\":{\"a\":[1,2]}");
    assert_ok(directory_record_read(&r, 1, newer, strlen(newer)));
    assert_string_equal(r.name, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(urls_are_read),
        cmocka_unit_test(other_urls_are_refused_without_their_password),
        cmocka_unit_test(names_of_pools_are_plain_words),
        cmocka_unit_test(a_program_without_hiredis_says_so),
        cmocka_unit_test(ids_are_sixteen_digits),
        cmocka_unit_test(a_record_is_read_as_it_was_written),
        cmocka_unit_test(a_record_that_breaks_a_rule_is_refused_and_newer_ones_are_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
