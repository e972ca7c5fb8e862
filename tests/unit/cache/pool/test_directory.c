/* The directory against a real redis-server: what one instance announces others find, and what
 * happens to Redis costs entries and nothing else. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "tests/unit/cache/pool/directory_node.h"
#include "tests/unit/cache/pool/redis_server.h"

#define TTL_MS 1000 /* of an instance that is to die in a test */
#define LONG_MS 60000

static struct redis_server redis;
static struct node nodes[4];

/* Nodes 1..n in one pool, each knowing the others. */
static void start_pool(int n, uint32_t ttl_ms)
{
    redis_start(&redis, NULL, NULL);
    for (int i = 0; i < n; i++)
        node_open(&nodes[i], (uint64_t)i + 1, redis.url, "", ttl_ms);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            UNTIL(nodes, n, i == j ? nodes[i].n_up : node_knows(&nodes[i], (uint64_t)j + 1));
}

static void stop_pool(void)
{
    for (int i = 0; i < 4; i++)
        node_close(&nodes[i]);
    redis_stop(&redis);
}

/* --- instances --- */

static void instances_see_each_other_as_they_describe_themselves(void **state)
{
    (void)state;
    uint32_t n;

    start_pool(2, LONG_MS);
    nodes[1].self.n_blocks = 4000000000u;
    nodes[1].self.n_running = 7;
    nodes[1].self.is_leaving = true;
    memcpy(nodes[1].self.fingerprint, "\x00\x01\xFE\xFFkey\x80", 8);
    strcpy(nodes[1].self.http, "http://10.0.0.2:8000");
    UNTIL(nodes, 2, directory_instances(nodes[0].d, &n)[0].is_leaving);
    const struct directory_instance *seen = directory_instances(nodes[0].d, &n);
    assert_int_equal(n, 1);
    assert_memory_equal(seen, &nodes[1].self, sizeof *seen);
    stop_pool();
}

static void an_instance_that_closes_is_gone_before_its_record_expires(void **state)
{
    (void)state;
    start_pool(3, LONG_MS);
    node_close(&nodes[2]);
    UNTIL(nodes, 2, !node_knows(&nodes[0], 3) && !node_knows(&nodes[1], 3));
    assert_true(node_knows(&nodes[0], 2));
    redis_do(&redis, "SCARD tarn:default:ids", ":2");
    stop_pool();
}

static void two_pools_in_one_redis_do_not_see_each_other(void **state)
{
    (void)state;
    char other_database[160];

    redis_start(&redis, NULL, NULL);
    snprintf(other_database, sizeof other_database, "%s?db=2", redis.url);
    node_open(&nodes[0], 1, redis.url, "a", LONG_MS);
    node_open(&nodes[1], 2, redis.url, "b", LONG_MS);
    node_open(&nodes[2], 3, other_database, "a", LONG_MS);
    for (int i = 0; i < 3; i++) {
        UNTIL(nodes, 3, nodes[i].n_up == 1);
        assert_int_equal(node_announce(&nodes[i], 1, 2, 8), 2);
    }
    for (int i = 0; i < 3; i++) {
        uint32_t n;
        UNTIL(nodes, 3, nodes[i].n_lists >= 3);
        directory_instances(nodes[i].d, &n);
        assert_int_equal(n, 0);
        node_lookup(nodes, 3, &nodes[i], 1, 2);
        assert_int_equal(nodes[i].event.n_holders, 0);
    }
    redis_do(&redis, "HLEN tarn:a:s:prompt0001seg000", ":1");
    stop_pool();
}

/* These answers need not wake a thread that sleeps until the directory has an answer for it. */
static void nobody_waits_for_answers_to_announcements(void **state)
{
    (void)state;
    start_pool(2, LONG_MS);
    for (int i = 0; i < 2; i++) { /* nothing is under way */
        nodes[i].beat_at = UINT64_MAX;
        UNTIL(nodes, 2, !directory_is_awaited(nodes[i].d));
    }
    assert_int_equal(node_announce(&nodes[0], 1, 3, 8), 3);
    assert_int_equal(node_announce(&nodes[0], 1, 1, 0), 1);
    assert_false(directory_is_awaited(nodes[0].d));
    uint8_t key[1][DIRECTORY_SEGMENT_BYTES];
    segment_key(key[0], 1, 2);
    assert_ok(directory_lookup(nodes[0].d, (const uint8_t(*)[DIRECTORY_SEGMENT_BYTES])key, 1, 7));
    assert_true(directory_is_awaited(nodes[0].d));
    UNTIL(nodes, 2, nodes[0].n_found == 1 && !directory_is_awaited(nodes[0].d));
    node_open(&nodes[2], 3, redis.url, "", LONG_MS);
    assert_true(directory_is_awaited(nodes[2].d)); /* it is not connected yet */
    stop_pool();
}

/* Records of ids 1000..1000 + n, which also hold the first segment of prompt 1. */
static void add_instances(int n)
{
    int fd = redis_connect(&redis);
    char text[1024], answer[4096];
    size_t want = 0, got = 0;

    for (int i = 0; i < n; i++) {
        int id = 1000 + i;
        char json[256];
        snprintf(json, sizeof json,
                 "{\"id\":\"%016x\",\"name\":\"n%d\",\"fingerprint\":\"0000000000000000\"}", id,
                 id);
        int length =
            snprintf(text, sizeof text,
                     "*3\r\n$3\r\nSET\r\n$31\r\ntarn:default:i:%016x\r\n$%zu\r\n%s\r\n"
                     "*3\r\n$4\r\nSADD\r\n$16\r\ntarn:default:ids\r\n$16\r\n%016x\r\n"
                     "*4\r\n$4\r\nHSET\r\n$31\r\ntarn:default:s:prompt0001seg000\r\n$8\r\n",
                     id, strlen(json), json, id);
        assert_int_equal(write(fd, text, (size_t)length), length);
        char field[8] = {0, 0, 0, 0, 0, 0, (char)(id >> 8), (char)id};
        assert_int_equal(write(fd, field, 8), 8);
        assert_int_equal(write(fd, "\r\n$3\r\n264\r\n", 11), 11); /* tier 1, 8 blocks */
        for (want += 5 + 4 + 4; got < want;) {
            ssize_t r = read(fd, answer, sizeof answer);
            assert_true(r > 0);
            got += (size_t)r;
        }
    }
    close(fd);
}

static void a_lookup_answers_the_same_amount_however_many_instances_there_are(void **state)
{
    (void)state;
    uint32_t n;

    start_pool(1, LONG_MS);
    add_instances(300);
    UNTIL(nodes, 1, (directory_instances(nodes[0].d, &n), n) == 300);
    node_lookup(nodes, 1, &nodes[0], 1, 3);
    assert_int_equal(nodes[0].event.at, 0);
    assert_int_equal(nodes[0].event.n_holders, DIRECTORY_HOLDERS_MAX);
    for (uint32_t i = 0; i < DIRECTORY_HOLDERS_MAX; i++) {
        const struct directory_holder *h = &nodes[0].event.holders[i];
        assert_true(node_knows(&nodes[0], h->id));
        assert_int_equal(h->tier, 1);
        assert_int_equal(h->n_blocks, 8);
        for (uint32_t j = 0; j < i; j++)
            assert_true(nodes[0].event.holders[j].id != h->id);
    }
    node_count(nodes, 1, &nodes[0], 1, 1);
    assert_in_range(nodes[0].event.counts[0].n_holders, DIRECTORY_HOLDERS_MAX, 300);
    stop_pool();
}

/* --- segments --- */

static void the_deepest_segment_with_a_holder_is_found(void **state)
{
    (void)state;
    static const int lengths[] = {1, 2, 16, 17, 100, 333, DIRECTORY_PATH_MAX};
    int prompt = 0;

    start_pool(2, LONG_MS);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int n = lengths[i], step = n > 100 ? 37 : n > 16 ? 5 : 1;
        for (int held = 0; held <= n; held = held + step > n && held < n ? n : held + step) {
            prompt++;
            assert_int_equal(node_announce(&nodes[1], prompt, held, 8), held);
            /* The answer to a lookup of the same connection: the announcement was taken. */
            node_lookup(nodes, 2, &nodes[1], prompt, 1);
            node_lookup(nodes, 2, &nodes[0], prompt, n);
            assert_int_equal(nodes[0].event.n_holders, held > 0);
            if (held > 0) {
                assert_int_equal(nodes[0].event.at, held - 1);
                assert_int_equal(nodes[0].event.holders[0].id, 2);
                assert_int_equal(nodes[0].event.holders[0].tier, 1);
                assert_int_equal(nodes[0].event.holders[0].n_blocks, 8);
            }
        }
    }
    stop_pool();
}

static void an_instance_is_not_told_of_itself(void **state)
{
    (void)state;
    start_pool(2, LONG_MS);
    node_announce(&nodes[0], 1, 4, 8);
    node_announce(&nodes[1], 1, 2, 3);
    node_lookup(nodes, 2, &nodes[1], 1, 1);
    node_lookup(nodes, 2, &nodes[0], 1, 4);
    assert_int_equal(nodes[0].event.at, 1);
    assert_int_equal(nodes[0].event.n_holders, 1);
    assert_int_equal(nodes[0].event.holders[0].id, 2);
    assert_int_equal(nodes[0].event.holders[0].n_blocks, 3);
    stop_pool();
}

static void an_instance_that_leaves_is_named_last(void **state)
{
    (void)state;
    uint32_t n;

    start_pool(4, LONG_MS);
    nodes[1].self.is_leaving = true;
    UNTIL(nodes, 4, directory_instances(nodes[0].d, &n)[0].is_leaving);
    for (int i = 1; i < 4; i++)
        node_announce(&nodes[i], 1, 1, 8);
    UNTIL(nodes, 4, (node_lookup(nodes, 4, &nodes[0], 1, 1), nodes[0].event.n_holders == 3));
    assert_int_equal(nodes[0].event.holders[2].id, 2);
    stop_pool();
}

static void a_withdrawn_segment_is_not_found(void **state)
{
    (void)state;
    start_pool(2, LONG_MS);
    node_announce(&nodes[1], 1, 5, 8);
    node_announce(&nodes[1], 1, 5, 0);
    node_lookup(nodes, 2, &nodes[1], 1, 1);
    node_lookup(nodes, 2, &nodes[0], 1, 5);
    assert_int_equal(nodes[0].event.n_holders, 0);
    redis_do(&redis, "EXISTS tarn:default:s:prompt0001seg004", ":0");
    stop_pool();
}

static void a_segment_expires_unless_it_is_announced_again(void **state)
{
    (void)state;
    struct directory_config config = {.id = 9, .segment_ttl_s = 1};

    start_pool(1, LONG_MS);
    config.url = redis.url;
    node_open(&nodes[1], 9, redis.url, "", LONG_MS);
    node_close(&nodes[1]);
    assert_ok(directory_open(&nodes[1].d, &config, NULL));
    nodes[1].n_up = 0;
    UNTIL(nodes, 2, nodes[1].n_up == 1 && node_knows(&nodes[0], 9));
    node_announce(&nodes[1], 1, 2, 8);
    node_lookup(nodes, 2, &nodes[1], 1, 1);
    redis_do(&redis, "EXPIRE tarn:default:s:prompt0001seg000 100 GT", ":1"); /* it had a life */
    UNTIL(nodes, 2, (node_lookup(nodes, 2, &nodes[0], 1, 2), nodes[0].event.at == 0));
    assert_int_equal(nodes[0].event.n_holders, 1);
    redis_do(&redis, "EXISTS tarn:default:s:prompt0001seg001", ":0");
    stop_pool();
}

static void a_dead_holder_is_not_returned_and_is_forgotten(void **state)
{
    (void)state;
    char answer[256];

    start_pool(3, TTL_MS);
    node_announce(&nodes[2], 1, 3, 8);
    node_announce(&nodes[1], 1, 2, 8);
    node_lookup(nodes, 3, &nodes[1], 1, 1);
    node_lookup(nodes, 3, &nodes[2], 1, 1);
    nodes[2].is_frozen = true;
    UNTIL(nodes, 3, !node_knows(&nodes[0], 3));
    UNTIL(nodes, 3, (node_lookup(nodes, 3, &nodes[0], 1, 3), nodes[0].event.n_holders == 1));
    assert_int_equal(nodes[0].event.at, 1);
    assert_int_equal(nodes[0].event.holders[0].id, 2);
    /* Lookups that meet entries of the dead instance remove them, and its id leaves the set. */
    UNTIL(nodes, 3,
          (node_lookup(nodes, 3, &nodes[0], 1, 3),
           redis_ask(&redis, answer, "EXISTS tarn:default:s:prompt0001seg002"),
           strcmp(answer, ":0") == 0));
    UNTIL(nodes, 3,
          (redis_ask(&redis, answer, "SISMEMBER tarn:default:ids 0000000000000003"),
           strcmp(answer, ":0") == 0));
    /* The instance was only stopped: it notices that others took it for dead, and announces again.
     * */
    nodes[2].is_frozen = false;
    UNTIL(nodes, 3, nodes[2].n_up >= 2);
    node_announce(&nodes[2], 1, 3, 8);
    UNTIL(nodes, 3, (node_lookup(nodes, 3, &nodes[0], 1, 3), nodes[0].event.at == 2));
    stop_pool();
}

static void a_holder_that_proved_wrong_can_be_forgotten(void **state)
{
    (void)state;
    uint8_t key[DIRECTORY_SEGMENT_BYTES];

    start_pool(2, LONG_MS);
    node_announce(&nodes[1], 1, 2, 8);
    node_lookup(nodes, 2, &nodes[1], 1, 1);
    segment_key(key, 1, 1);
    directory_forget(nodes[0].d, 2, key);
    node_lookup(nodes, 2, &nodes[0], 1, 2);
    assert_int_equal(nodes[0].event.at, 0);
    assert_int_equal(nodes[0].event.n_holders, 1);
    stop_pool();
}

static void exactly_one_holder_of_each_segment_is_the_first(void **state)
{
    (void)state;
    int n_first[100] = {0}, n_of_node[3] = {0};

    start_pool(3, LONG_MS);
    for (int i = 0; i < 3; i++) {
        node_announce(&nodes[i], 1, 100, 8);
        node_lookup(nodes, 3, &nodes[i], 1, 1);
    }
    for (int i = 0; i < 3; i++) {
        node_count(nodes, 3, &nodes[i], 1, 101);
        assert_int_equal(nodes[i].event.counts[100].n_holders, 0);
        assert_false(nodes[i].event.counts[100].is_first);
        for (int k = 0; k < 100; k++) {
            assert_int_equal(nodes[i].event.counts[k].n_holders, 3);
            n_first[k] += nodes[i].event.counts[k].is_first;
            n_of_node[i] += nodes[i].event.counts[k].is_first;
        }
    }
    for (int k = 0; k < 100; k++)
        assert_int_equal(n_first[k], 1);
    for (int i = 0; i < 3; i++) /* a fair share each */
        assert_in_range(n_of_node[i], 15, 55);
    stop_pool();
}

/* --- what happens to Redis --- */

static void a_flush_is_noticed_and_everything_is_to_be_announced_again(void **state)
{
    (void)state;
    start_pool(2, LONG_MS);
    assert_int_equal(nodes[0].n_up, 1);
    redis_do(&redis, "FLUSHALL", "+OK");
    UNTIL(nodes, 2, nodes[0].n_up == 2 && nodes[1].n_up == 2);
    assert_int_equal(nodes[0].n_down, 0);
    UNTIL(nodes, 2, node_knows(&nodes[0], 2) && node_knows(&nodes[1], 1));
    stop_pool();
}

static void a_redis_that_stands_still_ends_lookups_and_is_found_again(void **state)
{
    (void)state;
    uint8_t key[1][DIRECTORY_SEGMENT_BYTES];
    struct directory_stats stats;

    start_pool(1, LONG_MS);
    segment_key(key[0], 1, 0);
    kill(redis.pid, SIGSTOP);
    assert_ok(directory_lookup(nodes[0].d, (const uint8_t(*)[DIRECTORY_SEGMENT_BYTES])key, 1, 1));
    nodes_step(nodes, 1);
    nodes[0].skipped += 31000000000ull; /* beyond the timeout */
    UNTIL(nodes, 1, nodes[0].n_down == 1);
    assert_int_equal(nodes[0].n_not_now, 1);
    assert_string_equal(nodes[0].why, "Redis does not answer: timeout");
    assert_false(directory_is_up(nodes[0].d));
    assert_int_equal(node_announce(&nodes[0], 1, 5, 8), 0);
    assert_int_equal(
        directory_lookup(nodes[0].d, (const uint8_t(*)[DIRECTORY_SEGMENT_BYTES])key, 1, 2),
        ERR_UNAVAILABLE);
    directory_stats(nodes[0].d, &stats);
    assert_int_equal(stats.n_timeouts, 1);
    assert_int_equal(stats.n_dropped, 5);
    kill(redis.pid, SIGCONT);
    UNTIL(nodes, 1, nodes[0].n_up == 2);
    node_lookup(nodes, 1, &nodes[0], 1, 1);
    stop_pool();
}

static void a_killed_redis_is_found_again_after_its_restart(void **state)
{
    (void)state;
    start_pool(2, LONG_MS);
    redis_kill(&redis);
    UNTIL(nodes, 2, nodes[0].n_down > 0 && nodes[1].n_down > 0);
    redis_run(&redis);
    UNTIL(nodes, 2, nodes[0].n_up == 2 && nodes[1].n_up == 2);
    node_announce(&nodes[1], 1, 1, 8);
    UNTIL(nodes, 2, node_knows(&nodes[0], 2));
    UNTIL(nodes, 2, (node_lookup(nodes, 2, &nodes[0], 1, 1), nodes[0].event.n_holders == 1));
    stop_pool();
}

/* The pool is up; `cause` takes it down with these words, and `cure` brings it up again. */
static void check_refusal(const char *cause, const char *words, const char *cure, const char *cured)
{
    start_pool(1, LONG_MS);
    redis_do(&redis, cause, "+OK");
    UNTIL(nodes, 1, nodes[0].n_down > 0);
    assert_string_equal(nodes[0].why, words);
    assert_int_equal(nodes[0].n_up, 1);
    redis_do(&redis, cure, cured);
    UNTIL(nodes, 1, nodes[0].n_up == 2);
    stop_pool();
}

static void a_redis_that_refuses_is_down_with_words_until_it_accepts(void **state)
{
    (void)state;
    check_refusal("CONFIG SET maxmemory 1", "Redis is full (maxmemory)", "CONFIG SET maxmemory 0",
                  "+OK");
    check_refusal("REPLICAOF 127.0.0.1 1", "this Redis is a replica that cannot be written",
                  "REPLICAOF NO ONE", "+OK");
    check_refusal("ACL SETUSER default -srandmember",
                  "the user of Redis has no right to a command or key of the pool",
                  "ACL SETUSER default +@all", "+OK");
}

static void a_key_of_another_type_is_named(void **state)
{
    (void)state;
    redis_start(&redis, NULL, NULL);
    redis_do(&redis, "SET tarn:default:ids x", "+OK");
    node_open(&nodes[0], 1, redis.url, "", LONG_MS);
    UNTIL(nodes, 1, nodes[0].n_down == 1);
    assert_string_equal(nodes[0].why,
                        "a key of the pool has another type: other data uses its names");
    redis_do(&redis, "DEL tarn:default:ids", ":1");
    UNTIL(nodes, 1, nodes[0].n_up == 1);
    /* A wrong type under the key of a segment makes only that segment unusable. */
    redis_do(&redis, "SET tarn:default:s:prompt0001seg000 x", "+OK");
    assert_int_equal(node_announce(&nodes[0], 1, 1, 8), 1);
    node_lookup(nodes, 1, &nodes[0], 1, 1);
    assert_int_equal(nodes[0].event.n_holders, 0);
    assert_true(directory_is_up(nodes[0].d));
    stop_pool();
}

static void check_password(const char *user, const char *words)
{
    char url[256];

    snprintf(url, sizeof url, "unix://%s%s", user, redis.path);
    node_open(&nodes[0], 1, url, "", LONG_MS);
    UNTIL(nodes, 1, nodes[0].n_down + nodes[0].n_up > 0);
    assert_int_equal(nodes[0].n_up, !words);
    if (words)
        assert_string_equal(nodes[0].why, words);
    node_close(&nodes[0]);
}

static void a_password_is_needed_where_redis_has_one(void **state)
{
    (void)state;
    redis_start(&redis, "--requirepass", "se/cret");
    check_password("", "Redis wants a password: redis://:password@host");
    check_password(":wrong@", "Redis refuses the user or the password");
    check_password("nobody:se%2Fcret@", "Redis refuses the user or the password");
    check_password(":se%2Fcret@", NULL);
    check_password("default:se%2Fcret@", NULL);
    redis_stop(&redis);
    redis_start(&redis, NULL, NULL);
    check_password(":needless@", "the URL has a password, but Redis has none");
    node_open(&nodes[0], 1, strcat(redis.url, "?db=99"), "", LONG_MS);
    UNTIL(nodes, 1, nodes[0].n_down > 0);
    assert_string_equal(nodes[0].why, "Redis has no database of the number in the URL");
    stop_pool();
}

/* --- hosts --- */

static void a_host_is_resolved_and_reached_by_tcp(void **state)
{
    (void)state;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char url[64];

    /* A port that was free a moment ago. */
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    close(fd);
    redis_start(&redis, NULL, NULL);
    redis_kill(&redis);
    snprintf(redis.port, sizeof redis.port, "%u", ntohs(a.sin_port));
    redis_run(&redis);
    static const char *const hosts[] = {"127.0.0.1", "localhost"};
    for (int i = 0; i < 2; i++) {
        snprintf(url, sizeof url, "redis://%s:%s/1", hosts[i], redis.port);
        node_open(&nodes[0], 1, url, "", LONG_MS);
        UNTIL(nodes, 1, nodes[0].n_up == 1);
        node_close(&nodes[0]);
    }
    redis_kill(&redis);
    node_open(&nodes[0], 1, url, "", LONG_MS);
    UNTIL(nodes, 1, nodes[0].n_down == 1);
    assert_string_equal(nodes[0].why, "Connection refused");
    node_close(&nodes[0]);
    node_open(&nodes[0], 1, "redis://no..name", "", LONG_MS);
    UNTIL(nodes, 1, nodes[0].n_down == 1);
    assert_string_equal(nodes[0].why, "the name of Redis has no address");
    stop_pool();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(instances_see_each_other_as_they_describe_themselves),
        cmocka_unit_test(an_instance_that_closes_is_gone_before_its_record_expires),
        cmocka_unit_test(two_pools_in_one_redis_do_not_see_each_other),
        cmocka_unit_test(nobody_waits_for_answers_to_announcements),
        cmocka_unit_test(a_lookup_answers_the_same_amount_however_many_instances_there_are),
        cmocka_unit_test(the_deepest_segment_with_a_holder_is_found),
        cmocka_unit_test(an_instance_is_not_told_of_itself),
        cmocka_unit_test(an_instance_that_leaves_is_named_last),
        cmocka_unit_test(a_withdrawn_segment_is_not_found),
        cmocka_unit_test(a_segment_expires_unless_it_is_announced_again),
        cmocka_unit_test(a_dead_holder_is_not_returned_and_is_forgotten),
        cmocka_unit_test(a_holder_that_proved_wrong_can_be_forgotten),
        cmocka_unit_test(exactly_one_holder_of_each_segment_is_the_first),
        cmocka_unit_test(a_flush_is_noticed_and_everything_is_to_be_announced_again),
        cmocka_unit_test(a_redis_that_stands_still_ends_lookups_and_is_found_again),
        cmocka_unit_test(a_killed_redis_is_found_again_after_its_restart),
        cmocka_unit_test(a_redis_that_refuses_is_down_with_words_until_it_accepts),
        cmocka_unit_test(a_key_of_another_type_is_named),
        cmocka_unit_test(a_password_is_needed_where_redis_has_one),
        cmocka_unit_test(a_host_is_resolved_and_reached_by_tcp),
    };

    if (!redis_is_installed()) {
        puts("redis-server is not installed");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
