/* test_cache_table.c - the tables that tarnctl prints of a server's JSON, valid or not. */
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#include "clients/tarnctl/cache_table.h"

static const char store[] =
    "{\"object\":\"cache\",\"policy\":\"contest\",\"block_tokens\":32,\"block_bytes\":3145728,"
    "\"tiers\":["
    "{\"name\":\"device\",\"bytes\":67108864,\"blocks\":{\"total\":2048,\"free\":1,\"cached\":2000,"
    "\"in_use\":40,\"in_transfer\":7},\"nodes\":300,\"hit_tokens\":4096,\"evicted_blocks\":12,"
    "\"moved_in_blocks\":13,\"order\":\"worth\"},"
    "{\"name\":\"host\",\"bytes\":1000,\"blocks\":{\"total\":50,\"leaked\":2},\"order\":null},"
    "{\"name\":\"disk\",\"bytes\":3145728000,\"blocks\":{\"total\":1000,\"free\":600,"
    "\"cached\":390,\"in_use\":8,\"in_transfer\":2},\"nodes\":77,\"hit_tokens\":88,"
    "\"evicted_blocks\":99,\"moved_in_blocks\":111,\"order\":\"clock\"}],"
    "\"tokens\":{\"queried\":400,\"hit\":100,\"restored\":3,\"hit_rate\":0.25},"
    "\"swapped_blocks\":{\"spilled_ahead\":21,\"spilled_on_demand\":22,\"fetched_ahead\":23,"
    "\"fetched_on_demand\":24,\"expected_lost\":25},"
    "\"disk\":{\"io\":\"io_uring\",\"direct\":true,\"hung\":true,\"extent_bytes\":3145728,"
    "\"index_s\":0.3125,\"found_blocks\":380,\"preloaded_blocks\":31,\"dropped_records\":"
    "{\"torn\":3,\"foreign\":0,\"impossible\":0,\"misnamed\":0,\"orphaned\":1,\"doubled\":0},"
    "\"read_bytes\":2048,\"written_bytes\":3145728,\"read_bytes_per_s\":1000,\"reads_failed\":5,"
    "\"writes_failed\":0,\"timeouts\":6,\"corrupt_blocks\":7,\"not_worth\":8},"
    "\"tree\":{\"nodes\":5,\"spans\":1000,\"holds\":6,\"held_blocks\":8,\"metadata_bytes\":2048},"
    "\"top_spans\":[{\"key\":\"0123456789abcdef0123\",\"depth\":0,\"tokens\":256,\"blocks\":8,"
    "\"blocks_by_tier\":{\"device\":6,\"host\":2,\"disk\":4},\"children\":3,\"uses\":12,"
    "\"hit_tokens\":3072,"
    "\"idle_s\":1.25,\"in_use\":true,\"held\":true}],\"copies_failed\":4}";

/* The printed text; the caller frees it. */
static char *printed(enum status (*print)(FILE *, const char *, size_t), const char *json,
                     enum status want)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    assert_non_null(f);
    enum status s = print(f, json, strlen(json));
    fclose(f);
    if (s != want)
        fail_msg("%s: %s", json, status_name(s));
    return text;
}

/* Check the line that begins with `first`. words: the line with single spaces. */
static void expect_line(const char *text, const char *first, const char *words)
{
    char line[256] = "";
    const char *at = text;

    while (at && strncmp(at, first, strlen(first)) != 0) {
        at = strchr(at, '\n');
        at = at ? at + 1 : NULL;
    }
    if (!at)
        fail_msg("no line \"%s\" in\n%s", first, text);
    for (size_t n = 0; *at != '\n' && n + 1 < sizeof line; at++)
        if (*at != ' ' || (n > 0 && line[n - 1] != ' '))
            line[n++] = *at;
    assert_string_equal(line, words);
}

static void every_tier_and_span_is_a_line(void **state)
{
    char *text = printed(cache_table_print, store, OK);

    (void)state;
    expect_line(text, "device", "device 64.0M 2048 40 2000 1 7 300 4096 12 13 worth");
    expect_line(text, "host", "host 1000 50 - - - - - - - - -");
    expect_line(text, "policy", "policy: contest; a block: 32 tokens, 3.0M");
    expect_line(text, "prompt",
                "prompt tokens: 400 looked up, 100 found (25.0 %); 3 found again "
                "after a preemption");
    expect_line(text, "tree",
                "tree: 1000 spans, 5 nodes, 8 held blocks (6 holds), 2.0K of "
                "bookkeeping");
    expect_line(text, "swapped",
                "swapped blocks: 21 out ahead, 22 on demand; 23 in ahead, 24 on "
                "demand; 25 lost although expected");
    expect_line(text, "copies", "copies that failed: 4");
    expect_line(text, "LEAKED", "LEAKED: 2 blocks of tier 2 are in no state");
    expect_line(text, "spans by", "spans by tokens found, 1 of 1000");
    expect_line(text, "0123", "0123456789ab 0 256 8 6 2 4 3 12 3072 1.2 in use, held");
    free(text);
}

static void the_pool_is_a_line(void **state)
{
    char *text = printed(
        cache_table_print,
        "{\"object\":\"cache\",\"tiers\":[],\"pool\":{\"name\":\"blue\",\"transport\":\"ucx\","
        "\"directory_up\":true,\"instances\":4,\"peers\":3,\"lookups\":30,"
        "\"found\":12,\"pulled_bytes\":2048,\"lent_bytes\":3145728,\"queries\":96,"
        "\"queries_failed\":1,\"attended_rows\":7}}",
        OK);

    (void)state;
    expect_line(text, "pool",
                "pool blue: 4 instances, 3 connected, ucx; 30 lookups, 12 found, 2.0K read, 3.0M "
                "sent");
    expect_line(text, "queries", "queries: 96 sent, 1 without an answer; 7 rows for others");
    assert_null(strstr(text, "POOL"));
    free(text);
    text = printed(cache_table_print,
                   "{\"object\":\"cache\",\"tiers\":[],\"pool\":{\"name\":\"\u202e\"}}", OK);
    expect_line(text, "POOL", "POOL: the directory does not answer now");
    free(text);
    text = printed(cache_table_print, "{\"object\":\"cache\",\"tiers\":[],\"pool\":null}", OK);
    assert_null(strstr(text, "pool"));
    free(text);
}

static void spans_of_documents_have_their_titles(void **state)
{
    char *text = printed(cache_table_print,
                         "{\"object\":\"cache\",\"tiers\":[],\"top_spans\":["
                         "{\"key\":\"aa\",\"document\":{\"id\":\"i\",\"title\":\"Café "
                         "\\u202e\"}},{\"key\":\"bb\",\"held\":true,\"document\":{\"id\":\"j\","
                         "\"title\":\"\"}},{\"key\":\"cc\"}]}",
                         OK);

    (void)state;
    assert_non_null(strstr(text, " document\n"));
    expect_line(text, "aa", "aa - - - - - - - - - - Café ?");
    expect_line(text, "bb", "bb - - - - - - - - - - held j");
    expect_line(text, "cc", "cc - - - - - - - - - - ");
    free(text);
}

static void the_disk_says_how_it_works_and_what_went_wrong(void **state)
{
    char *text = printed(cache_table_print, store, OK);

    (void)state;
    expect_line(text, "disk ", "disk 2.9G 1000 8 390 600 2 77 88 99 111 clock");
    expect_line(text, "disk:",
                "disk: io_uring, O_DIRECT; since the start 2.0K read, 3.0M written, "
                "31 blocks preloaded");
    expect_line(text, "disk at",
                "disk at start: 380 blocks found in 0.31 s; 3 torn, 1 orphaned "
                "not used");
    expect_line(text, "DISK: 5", "DISK: 5 reads failed, 6 took too long, 7 corrupt blocks");
    expect_line(text, "DISK: it", "DISK: it does not answer now");
    free(text);
    /* A disk without failures, and no disk. */
    text = printed(cache_table_print,
                   "{\"object\":\"cache\",\"tiers\":[],\"disk\":{\"io\":"
                   "\"threads\",\"direct\":false,\"hung\":false,\"index_s\":0,"
                   "\"found_blocks\":0,\"dropped_records\":{\"torn\":0}}}",
                   OK);
    expect_line(text, "disk:",
                "disk: threads, page cache; since the start 0 read, 0 written, "
                "0 blocks preloaded");
    expect_line(text, "disk at", "disk at start: 0 blocks found in 0.00 s");
    assert_null(strstr(text, "DISK"));
    free(text);
    text = printed(cache_table_print, "{\"object\":\"cache\",\"tiers\":[],\"disk\":null}", OK);
    assert_null(strstr(text, "disk"));
    free(text);
}

static void columns_stand_below_their_heads(void **state)
{
    char *text = printed(cache_table_print, store, OK);
    const char *device = strstr(text, "\ndevice"), *host = strstr(text, "\nhost");

    (void)state;
    /* The size column is aligned right with its head. */
    assert_int_equal(strstr(text, "size") + 4 - text, strstr(device, "64.0M") + 5 - device - 1);
    assert_int_equal(strstr(device, "64.0M") + 5 - device, strstr(host, "1000") + 4 - host);
    free(text);
}

static void missing_and_wrong_fields_are_dashes(void **state)
{
    char *text = printed(cache_table_print,
                         "{\"object\":\"cache\",\"tiers\":[{\"name\":7,"
                         "\"blocks\":[1],\"nodes\":\"x\"},3],\"tokens\":[],\"top_spans\":[{},4]}",
                         OK);

    (void)state;
    expect_line(text, "- ", "- 0 - - - - - - - - - -");
    assert_non_null(strstr(text, "spans by tokens found, 2 of 0"));
    assert_null(strstr(text, "swapped")); /* older servers do not report it */
    free(text);
}

static void a_server_cannot_talk_to_the_terminal(void **state)
{
    char *text = printed(cache_table_print,
                         "{\"object\":\"cache\",\"policy\":\"\\u0007\","
                         "\"tiers\":[{\"name\":\"\\u001b[2J\\n\",\"order\":\"a much longer word "
                         "than any cell has room for\"}],\"top_spans\":[{\"key\":"
                         "\"\\u001b]0;x\\u0007\"}]}",
                         OK);

    (void)state;
    for (const char *p = text; *p; p++)
        assert_true(*p == '\n' || (*p >= ' ' && *p <= '~'));
    assert_non_null(strstr(text, "?[2J?"));
    free(text);
}

static void more_rows_than_fit_are_left_out(void **state)
{
    static char json[1 << 16];
    size_t n = (size_t)snprintf(json, sizeof json,
                                "{\"object\":\"cache\",\"tiers\":[],"
                                "\"top_spans\":[{}");

    (void)state;
    for (int i = 0; i < 5000; i++)
        n += (size_t)snprintf(json + n, sizeof json - n, ",{}");
    snprintf(json + n, sizeof json - n, "]}");
    char *text = printed(cache_table_print, json, OK);
    assert_non_null(strstr(text, "5001 of 0"));
    free(text);
}

static void other_json_prints_nothing(void **state)
{
    static const char *const wrong[] = {"",
                                        "{",
                                        "[]",
                                        "3",
                                        "{}",
                                        "{\"object\":\"list\"}",
                                        "{\"object\":\"cache\"}",
                                        "{\"object\":\"cache\",\"tiers\":{}}"};

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *text = printed(cache_table_print, wrong[i], ERR_INVALID);
        assert_string_equal(text, "");
        free(text);
        text = printed(cache_reset_print, wrong[i], ERR_INVALID);
        assert_string_equal(text, "");
        free(text);
        text = printed(cache_erase_print, wrong[i], ERR_INVALID);
        assert_string_equal(text, "");
        free(text);
    }
}

static void forgetting_says_how_much(void **state)
{
    char *text = printed(cache_reset_print,
                         "{\"object\":\"cache.reset\",\"cached_blocks\":"
                         "{\"device\":12,\"host\":3},\"holds\":1}",
                         OK);

    (void)state;
    assert_string_equal(text, "forgotten: 12 blocks on the device, 3 in host memory, 1 holds\n");
    free(text);
    text = printed(cache_reset_print,
                   "{\"object\":\"cache.reset\",\"cached_blocks\":"
                   "{\"device\":12,\"host\":3,\"disk\":9},\"holds\":1}",
                   OK);
    assert_string_equal(text, "forgotten: 12 blocks on the device, 3 in host memory, 9 on disk, "
                              "1 holds\n");
    free(text);
    text = printed(cache_reset_print, "{\"object\":\"cache.reset\",\"cached_blocks\":null}", OK);
    assert_string_equal(text, "forgotten\n");
    free(text);
    text = printed(cache_erase_print,
                   "{\"object\":\"cache.erase\",\"status\":\"ok\","
                   "\"span\":\"00\",\"blocks\":7}",
                   OK);
    assert_string_equal(text, "erased: a span and what was behind it, 7 blocks\n");
    free(text);
}

#define KEY_1 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define KEY_2 "0123456789ab0000000000000000000000000000000000000000000000000000"
#define KEY_3 "ffff456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static size_t find_key(char *key, const char *json, const char *first)
{
    return cache_key_find(key, json, strlen(json), first);
}

static void a_key_is_found_by_the_digits_that_are_shown(void **state)
{
    static const char spans[] = "{\"object\":\"cache\",\"top_spans\":[{\"key\":\"" KEY_1 "\"},4,"
                                "{\"key\":\"" KEY_2 "\"},{\"key\":\"ffff456789abc\"},{\"key\":7},"
                                "{\"key\":\"" KEY_3 "\"}]}";
    static const char *const wrong[] = {"", "{", "{}", "{\"object\":\"cache\"}",
                                        "{\"object\":\"cache\",\"top_spans\":3}"};
    char key[CACHE_KEY_DIGITS + 1];

    (void)state;
    assert_int_equal(find_key(key, spans, "FFFF456789ab"), 1); /* not the key that is too short */
    assert_string_equal(key, KEY_3);
    assert_int_equal(find_key(key, spans, "0123456789ab"), 2);
    assert_string_equal(key, KEY_1);
    assert_int_equal(find_key(key, spans, "0123456789ab0"), 1);
    assert_string_equal(key, KEY_2);
    assert_int_equal(find_key(key, spans, "123456789abc"), 0);
    assert_string_equal(key, "");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(find_key(key, wrong[i], "0123456789ab"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tier_and_span_is_a_line),
        cmocka_unit_test(the_pool_is_a_line),
        cmocka_unit_test(spans_of_documents_have_their_titles),
        cmocka_unit_test(the_disk_says_how_it_works_and_what_went_wrong),
        cmocka_unit_test(columns_stand_below_their_heads),
        cmocka_unit_test(missing_and_wrong_fields_are_dashes),
        cmocka_unit_test(a_server_cannot_talk_to_the_terminal),
        cmocka_unit_test(more_rows_than_fit_are_left_out),
        cmocka_unit_test(other_json_prints_nothing),
        cmocka_unit_test(forgetting_says_how_much),
        cmocka_unit_test(a_key_is_found_by_the_digits_that_are_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
