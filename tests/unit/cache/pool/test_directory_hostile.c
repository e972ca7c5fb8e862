/* The directory against a server that breaks the rules: the connection ends with words, or the
 * answer counts as nothing; the process and its bounds hold. */
#include <string.h>

#include "cache/pool/directory_inner.h"
#include "tests/temp_dir.h"
#include "tests/unit/cache/pool/directory_node.h"
#include "tests/unit/cache/pool/fake_redis.h"

static struct temp_dir dir;
static struct fake_redis fake;
static struct node node;

/* The answer to one command is another one. */
struct script {
    const char *command, *answer;
    unsigned n_seen, after; /* the first `after` ones are answered as usual */
};

static bool by_script(struct fake_redis *f, const char *command)
{
    struct script *s = f->arg;

    if (s->command && strcmp(command, s->command) == 0 && s->n_seen++ >= s->after) {
        fake_redis_say(f, s->answer);
        return true;
    }
    return fake_redis_polite(f, command);
}

static void start(struct script *script)
{
    char path[96];

    temp_dir_make(&dir);
    snprintf(path, sizeof path, "%s/redis.sock", dir.path);
    fake_redis_open(&fake, path, by_script, script);
    node_open(&node, 1, fake.url, "", 60000);
}

static void stop(void)
{
    node_close(&node);
    fake_redis_close(&fake);
    temp_dir_remove(&dir);
}

#define BOTH_UNTIL(condition) UNTIL(&node, 1, (fake_redis_step(&fake), (condition)))

#define ANY_WORDS "?"

/* words: the end of the connection is expected to be told in these; NULL: it goes on. */
static void check(const char *command, const char *answer, const char *words)
{
    struct script script = {command, answer, 0, 0};
    uint32_t n_lists;

    start(&script);
    if (words) {
        BOTH_UNTIL(node.n_down > 0);
        if (strcmp(words, ANY_WORDS) != 0)
            assert_string_equal(node.why, words);
        script.command = NULL; /* it has learned its lesson */
        n_lists = node.n_up;
        BOTH_UNTIL(node.n_up > n_lists);
    } else {
        BOTH_UNTIL(node.n_up > 0 && script.n_seen > 2);
        n_lists = node.n_lists;
        BOTH_UNTIL(node.n_lists > n_lists + 2);
        assert_int_equal(node.n_down, 0);
    }
    stop();
}

static void replies_that_break_the_rules_end_the_connection(void **state)
{
    (void)state;
    static const char too_long[] = "a reply of Redis is too long";
    static const char type[] = "Redis sent a reply of another type than was asked for";
    static const char foreign[] = "the other side does not speak the protocol of Redis";
    static const char surplus[] = "Redis sent a reply that was not asked for";

    check("SRANDMEMBER", "+OK\r\n", type);
    check("SRANDMEMBER", ":1\r\n", type);
    check("SRANDMEMBER", "$-1\r\n", type);
    check("SRANDMEMBER", "*2000000000\r\n", too_long);
    check("SRANDMEMBER", "*2049\r\n", too_long);
    check("SRANDMEMBER", "*-7\r\n", foreign);
    check("SRANDMEMBER", "*2\r\n:1\r\n*1\r\n:1\r\n", too_long);
    check("SRANDMEMBER", "*1\r\n*-1\r\n*0\r\n+OK\r\n:1\r\n", surplus);
    check("SRANDMEMBER", "*0\r\n:1\r\n", surplus);
    check("SRANDMEMBER", "*0\r\n*0\r\n", surplus);
    check("SRANDMEMBER", "*0\r\n$-1\r\n", surplus);
    check("SRANDMEMBER", "*0\r\n$1\r\na\r\n", surplus);
    check("SADD", ":1\r\n:1\r\n", type); /* the second one answers the next command */
    check("SADD", "hello\r\n", foreign);
    check("SADD", "$99999999999999999999\r\n", foreign);
    check("SADD", "HTTP/1.1 400 Bad Request\r\n\r\n", foreign);
    check("HRANDFIELD", "-LOADING Redis is loading the dataset in memory\r\n",
          "Redis is loading its data");
    check("HRANDFIELD", "-ERR unknown command `HRANDFIELD`\r\n", "Redis 6.2 or newer is needed");
    check("SET", "-ERR syntax error\r\n", "Redis 6.2 or newer is needed");
    check("SET", "-MOVED 3999 127.0.0.1:6381\r\n", "a Redis cluster is not supported");
    check("SET", "-\r\n", "Redis answered with an error");
}

/* Nobody asked Redis for them, and hiredis knows them from version 1 on. */
static void types_of_a_later_protocol_end_the_connection(void **state)
{
    static const char *const answers[] = {",1.5\r\n", "#t\r\n", "%2000000000\r\n",
                                          ">2000000000\r\n"};
    char answer[64];

    (void)state;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        snprintf(answer, sizeof answer, "*0\r\n%s", answers[i]);
        check("SRANDMEMBER", answer, ANY_WORDS);
    }
}

static void a_text_without_end_is_not_collected(void **state)
{
    (void)state;
    size_t n = 1u << 20;
    char *answer = malloc(n + 1);

    memset(answer, 'x', n);
    answer[n] = '\0';
    memcpy(answer, "$500000000\r\n", 12);
    check("SET", answer, "a reply of Redis is too long");
    memset(answer, 'x', 12);
    answer[0] = '+'; /* a line without end */
    check("SET", answer, "a reply of Redis is too long");
    memcpy(answer, "$5000\r\n", 7); /* complete, and longer than any record */
    memcpy(answer + 7 + 5000, "\r\n", 3);
    check("SET", answer, "a reply of Redis is too long");
    free(answer);
}

static void odd_answers_count_as_nothing(void **state)
{
    (void)state;
    check("SET", ":1\r\n", NULL);
    check("SRANDMEMBER", "*4\r\n$3\r\nabc\r\n:7\r\n$-1\r\n$16\r\nABCDEF0123456789\r\n", NULL);
    /* Its own id, whose record is not asked for. */
    check("SRANDMEMBER", "*1\r\n$16\r\n0000000000000001\r\n", NULL);
}

/* Lists of instances: SRANDMEMBER names ids 2 and 3, twice; MGET answers this. */
static const char *records;

static bool with_records(struct fake_redis *f, const char *command)
{
    if (strcmp(command, "SRANDMEMBER") == 0)
        fake_redis_say(f, "*3\r\n$16\r\n0000000000000002\r\n$16\r\n0000000000000003\r\n"
                          "$16\r\n0000000000000002\r\n");
    else if (strcmp(command, "MGET") == 0)
        fake_redis_say(f, records);
    else
        return fake_redis_polite(f, command);
    return true;
}

static void check_records(const char *answer, uint32_t n_listed)
{
    uint32_t n;

    records = answer;
    start(NULL);
    fake.answer = with_records;
    BOTH_UNTIL(node.n_lists >= 2);
    directory_instances(node.d, &n);
    assert_int_equal(n, n_listed);
    stop();
}

static void records_that_cannot_be_read_are_passed_over(void **state)
{
    (void)state;
    check_records("*2\r\n$-1\r\n$-1\r\n", 0);
    check_records("*2\r\n:1\r\n$5\r\n{\"a\":\r\n", 0);
    check_records("*2\r\n$2\r\n[]\r\n$58\r\n"
                  "{\"id\":\"0000000000000003\",\"fingerprint\":\"0123456789abcdef\"}\r\n",
                  1);
    /* The record of another instance. */
    check_records("*2\r\n$2\r\n{}\r\n$58\r\n"
                  "{\"id\":\"0000000000000002\",\"fingerprint\":\"0123456789abcdef\"}\r\n",
                  0);
}

static void holders_that_make_no_sense_are_passed_over(void **state)
{
    (void)state;
    static const char *const answers[] = {
        "*1\r\n$8\r\nabcdefgh\r\n",
        "*2\r\n$3\r\nabc\r\n$3\r\n264\r\n",
        "*3\r\n:1\r\n:2\r\n:3\r\n",
        "*2\r\n$-1\r\n$-1\r\n",
        "*2\r\n$8\r\nabcdefgh\r\n$3\r\n264\r\n", /* of an unknown instance */
        "*2\r\n$8\r\nabcdefgh\r\n$5\r\n99999\r\n",
        "*0\r\n",
    };

    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct script script = {"HRANDFIELD", answers[i], 0, 1};
        start(&script);
        BOTH_UNTIL(node.n_up > 0);
        uint8_t key[1][DIRECTORY_SEGMENT_BYTES] = {{1}};
        const uint8_t(*keys)[DIRECTORY_SEGMENT_BYTES] = (const void *)key;
        assert_ok(directory_lookup(node.d, keys, 1, 7));
        assert_ok(directory_count(node.d, keys, 1, 8));
        BOTH_UNTIL(node.n_found == 1 && node.n_counted == 1);
        assert_int_equal(node.event.counts[0].n_holders, 0);
        assert_int_equal(node.n_down, 0);
        stop();
    }
}

static void a_redis_with_too_many_clients_is_named(void **state)
{
    (void)state;
    struct script script = {0};

    start(&script);
    fake.greeting = "-ERR max number of clients reached\r\n";
    BOTH_UNTIL(node.n_down > 0);
    assert_string_equal(node.why, "Redis has too many clients (maxclients)");
    fake.greeting = NULL;
    BOTH_UNTIL(node.n_up > 0);
    stop();
}

static bool hang_up(struct fake_redis *f, const char *command)
{
    (void)f, (void)command;
    return false;
}

static void pauses_grow_and_the_same_words_are_told_once(void **state)
{
    (void)state;
    start(NULL);
    fake.answer = hang_up;
    for (int i = 0; i < 6000; i++) { /* a minute in steps of 10 ms */
        node_step(&node);
        while (fake_redis_step(&fake))
            node_step(&node);
        node.skipped += 10000000;
    }
    assert_int_equal(node.n_down, 1);
    assert_int_equal(node.n_up, 0);
    assert_string_equal(node.why, "Redis closed the connection");
    assert_in_range(fake.n_accepted, 12, 60);
    fake.answer = by_script;
    fake.arg = &(struct script){0};
    BOTH_UNTIL(node.n_up == 1);
    stop();
}

/* --- bounds --- */

static bool only_greet(struct fake_redis *f, const char *command)
{
    unsigned *n = f->arg;

    if (strcmp(command, "HRANDFIELD") == 0 && ++*n == 1)
        return fake_redis_polite(f, command);
    if (*n <= 1 && strncmp(command, "HRAND", 5) != 0 && strncmp(command, "HSET", 4) != 0)
        return fake_redis_polite(f, command);
    return true;
}

static void what_waits_for_answers_is_bounded(void **state)
{
    (void)state;
    unsigned n_probes = 0;
    uint8_t key[1][DIRECTORY_SEGMENT_BYTES] = {{1}};
    const uint8_t(*keys)[DIRECTORY_SEGMENT_BYTES] = (const void *)key;
    uint32_t n_taken = 0, n;

    start(NULL);
    fake.answer = only_greet;
    fake.arg = &n_probes;
    BOTH_UNTIL(node.n_up > 0);
    for (int prompt = 0; (n = node_announce(&node, prompt, DIRECTORY_PATH_MAX, 8)) > 0; prompt++)
        n_taken += n;
    assert_in_range(n_taken, 1024, PENDING_ANNOUNCED_MAX / 2);
    for (uint32_t i = 0; i < LOOKS_MAX; i++)
        assert_ok(directory_lookup(node.d, keys, 1, i));
    assert_int_equal(directory_lookup(node.d, keys, 1, LOOKS_MAX), ERR_BUSY);
    node_step(&node);
    fake_redis_step(&fake);
    node_step(&node);
    node.skipped += 31000000000ull;
    node_step(&node);
    assert_int_equal(node.n_down, 1);
    assert_int_equal(node.n_not_now, LOOKS_MAX);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replies_that_break_the_rules_end_the_connection),
        cmocka_unit_test(types_of_a_later_protocol_end_the_connection),
        cmocka_unit_test(a_text_without_end_is_not_collected),
        cmocka_unit_test(odd_answers_count_as_nothing),
        cmocka_unit_test(records_that_cannot_be_read_are_passed_over),
        cmocka_unit_test(holders_that_make_no_sense_are_passed_over),
        cmocka_unit_test(a_redis_with_too_many_clients_is_named),
        cmocka_unit_test(pauses_grow_and_the_same_words_are_told_once),
        cmocka_unit_test(what_waits_for_answers_is_bounded),
    };

    if (!redis_link_is_built()) {
        puts("built without hiredis");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
