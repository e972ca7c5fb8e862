/* Notes between pools: they arrive whole and in order, with both transports, also without the
 * directory; what has no room is dropped, and wrong bytes end the connection. */
#include "tests/unit/cache/pool/pool_world.h"

#include <stdatomic.h>

#include "base/log.h"

#define MEMBER_ID 900u

static const char *kind = "tcp";
static atomic_uint n_wakes;

static void count_wake(void *arg)
{
    (void)arg;
    atomic_fetch_add(&n_wakes, 1);
}

static struct pool_notes *notes_of(uint32_t side)
{
    return pool_notes(world.sides[side].pool);
}

static void open_sides(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct pool_config c = side_config();
        c.transport = kind;
        side_open_with(i, c);
        pool_notes_listen(notes_of(i), count_wake, NULL);
    }
    WAIT_FOR(all_know(n));
}

static bool sees_peers(uint32_t side, uint32_t n)
{
    uint64_t ids[N_SIDES];

    return pool_note_peers(notes_of(side), ids, N_SIDES) == n;
}

static int set_up(void **state)
{
    (void)state;
    world_begin();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    world_end();
    return 0;
}

/* Bytes that depend on the number of the note. */
static uint8_t *fill(uint8_t *bytes, uint32_t n, uint32_t number)
{
    for (uint32_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(i * 31 + number);
    return bytes;
}

static struct pool_note *wait_note(uint32_t side)
{
    struct pool_note *note;

    WAIT_FOR((note = pool_note_next(notes_of(side))) != NULL);
    return note;
}

static void notes_arrive_whole_and_in_order(void **state)
{
    static const uint32_t sizes[] = {1, 77, 5000, POOL_NOTE_BYTES_MAX, 2, 3 << 20, 9};
    static uint8_t bytes[POOL_NOTE_BYTES_MAX];
    uint32_t n = sizeof sizes / sizeof *sizes;

    (void)state;
    open_sides(2);
    for (uint32_t from = 0; from < 2; from++) {
        for (uint32_t i = 0; i < n; i++)
            assert_ok(pool_note_send(notes_of(from), world.sides[1 - from].id,
                                     fill(bytes, sizes[i], i), sizes[i]));
        for (uint32_t i = 0; i < n; i++) {
            struct pool_note *note = wait_note(1 - from);
            assert_int_equal(note->n, sizes[i]);
            assert_int_equal(note->peer, world.sides[from].id);
            assert_memory_equal(note->bytes, fill(bytes, sizes[i], i), sizes[i]);
            pool_note_free(notes_of(1 - from), note);
        }
    }
    assert_true(atomic_load(&n_wakes) >= 2);
}

static void the_directory_is_needed_once(void **state)
{
    (void)state;
    open_sides(3);
    WAIT_FOR(sees_peers(0, 2) && sees_peers(2, 2));
    fake_directory_set(true, false);
    for (uint32_t to = 1; to < 3; to++) {
        assert_ok(pool_note_send(notes_of(0), world.sides[to].id, "abc", 3));
        struct pool_note *note = wait_note(to);
        assert_memory_equal(note->bytes, "abc", 3);
        pool_note_free(notes_of(to), note);
    }
    fake_directory_set(false, false);
}

static bool says_documents(uint32_t side, const char *text)
{
    struct directory_instance all[N_SIDES + 1];
    uint32_t n = pool_instances(world.sides[side].pool, all, N_SIDES + 1), n_say = 0;

    for (uint32_t i = 0; i < n; i++)
        n_say += strcmp(all[i].documents, text) == 0;
    return n_say == 1;
}

static void the_digest_is_in_the_directory(void **state)
{
    (void)state;
    open_sides(2);
    pool_notes_set_digest(notes_of(0), UINT64_C(0x123456789abcdef0));
    WAIT_FOR(says_documents(1, "123456789abcdef0") && says_documents(0, "123456789abcdef0"));
}

static uint64_t n_dropped(uint32_t side)
{
    struct pool_stats s;

    pool_stats(world.sides[side].pool, &s);
    return s.n_notes_dropped;
}

static void what_nobody_wants_is_dropped(void **state)
{
    struct pool_note *note;

    (void)state;
    open_sides(2);
    pool_notes_listen(notes_of(1), NULL, NULL);
    assert_ok(pool_note_send(notes_of(0), world.sides[1].id, "x", 1));
    WAIT_FOR(n_dropped(1) == 1);
    pool_notes_listen(notes_of(1), count_wake, NULL);
    assert_ok(pool_note_send(notes_of(0), world.sides[1].id, "y", 1));
    note = wait_note(1);
    assert_int_equal(note->bytes[0], 'y');
    pool_note_free(notes_of(1), note);
}

static void a_sender_has_bounds(void **state)
{
    static uint8_t bytes[POOL_NOTE_BYTES_MAX];
    enum status s = OK;
    uint32_t n = 0;

    (void)state;
    open_sides(2);
    fill(bytes, sizeof bytes, 1);
    while (n < 10 && s == OK) { /* to an instance that does not exist */
        s = pool_note_send(notes_of(0), 4711, bytes, sizeof bytes);
        n += s == OK;
    }
    assert_int_equal(s, ERR_BUSY);
    assert_int_equal(n, 6);      /* 32 MiB */
    WAIT_FOR(n_dropped(0) == n); /* after 5 s; then there is room again */
    assert_ok(pool_note_send(notes_of(0), world.sides[1].id, "z", 1));
    pool_note_free(notes_of(1), wait_note(1));
}

/* Pools are closed with notes in every place; the sanitizers find what is lost. */
static void closing_frees_all_notes(void **state)
{
    static uint8_t bytes[1 << 20];

    (void)state;
    open_sides(3);
    for (uint32_t i = 0; i < 20; i++) {
        assert_ok(pool_note_send(notes_of(0), world.sides[1].id, bytes, sizeof bytes));
        assert_ok(pool_note_send(notes_of(1), world.sides[i % 2 ? 0 : 2].id, bytes, 100));
    }
    pool_note_free(notes_of(1), wait_note(1));
    side_close(&world.sides[1]);
    clock_sleep_ns(1000000);
}

/* --- a member that breaks the rules --- */

static struct member {
    struct transport *transport;
    struct handshake_self self;
    struct handshake shake;
    uint32_t conn;
    bool is_member, is_closed;
    uint32_t n_sent;
} member;

static void member_turn(void)
{
    struct transport_event e;
    uint8_t out[HANDSHAKE_MESSAGE_MAX];
    const char *why;
    uint32_t n = 0;

    transport_progress(member.transport, clock_now_ns());
    while (transport_next(member.transport, &e)) {
        if (e.kind == TRANSPORT_CONNECTED) {
            handshake_init(&member.shake, &member.self, true);
            n = handshake_begin(&member.shake, out);
            assert_ok(transport_send(member.transport, member.conn, out, n, NULL, 0, 0));
        } else if (e.kind == TRANSPORT_MESSAGE && !member.is_member) {
            assert_ok(handshake_take(&member.shake, e.head, e.n_head, out, &n, &why));
            if (n > 0)
                assert_ok(transport_send(member.transport, member.conn, out, n, NULL, 0, 0));
            member.is_member = member.shake.is_done;
        }
        member.n_sent += e.kind == TRANSPORT_SENT;
        member.is_closed |= e.kind == TRANSPORT_CLOSED;
    }
}

static void member_join(uint32_t side)
{
    struct pool_config c = side_config();
    struct transport_config t = {.kind = "tcp", .listen = "127.0.0.1:0", .payload_max = 1u << 30};
    struct directory_instance all[1];

    memset(&member, 0, sizeof member);
    member.self.id = MEMBER_ID;
    member.self.block_bytes = BLOCK_BYTES;
    memcpy(member.self.secret, c.secret, sizeof c.secret);
    memcpy(member.self.fingerprint, c.fingerprint, sizeof c.fingerprint);
    assert_ok(transport_open(&member.transport, &t, NULL));
    world.more = member_turn;
    assert_int_equal(pool_instances(world.sides[side].pool, all, 1), 1);
    assert_ok(transport_connect(member.transport, all[0].address, &member.conn));
    WAIT_FOR(member.is_member);
}

static void member_note(const void *bytes, uint32_t n, uint32_t crc)
{
    struct wire_message m = {.kind = WIRE_NOTE, .n_bytes = n, .crc = {crc}};
    struct iovec piece = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    uint8_t head[WIRE_HEAD_MAX];

    assert_ok(
        transport_send(member.transport, member.conn, head, wire_encode(&m, head), &piece, 1, 1));
}

static void member_leave(void)
{
    world.more = NULL;
    transport_close(member.transport);
}

static void wrong_bytes_end_the_connection(void **state)
{
    (void)state;
    open_sides(1);
    member_join(0);
    member_note("right", 5, hash_crc32c(0, "right", 5));
    pool_note_free(notes_of(0), wait_note(0));
    member_note("wrong", 5, hash_crc32c(0, "right", 5));
    WAIT_FOR(member.is_closed);
    assert_null(pool_note_next(notes_of(0)));
    member_leave();
}

static void a_flood_is_dropped(void **state)
{
    enum { N = 100, N_KEPT = 16 };
    struct pool_note *note;
    uint32_t n = 0;

    (void)state;
    open_sides(1);
    member_join(0);
    for (uint32_t i = 0; i < N; i++)
        member_note("flood", 5, hash_crc32c(0, "flood", 5));
    WAIT_FOR(n_dropped(0) == N - N_KEPT);
    while ((note = pool_note_next(notes_of(0)))) {
        pool_note_free(notes_of(0), note);
        n++;
    }
    assert_int_equal(n, N_KEPT);
    assert_false(member.is_closed);
    member_note("after", 5, hash_crc32c(0, "after", 5));
    pool_note_free(notes_of(0), wait_note(0));
    member_leave();
}

static int run_kind(const char *which)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(notes_arrive_whole_and_in_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_directory_is_needed_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(closing_frees_all_notes, set_up, tear_down),
    };
    struct transport_config config = {.kind = which, .listen = "127.0.0.1:0", .payload_max = 1};
    struct transport *t;

    if (transport_open(&t, &config, NULL) != OK) {
        print_message("no %s here\n", which);
        return 0;
    }
    transport_close(t);
    kind = which;
    return cmocka_run_group_tests_name(which, tests, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_digest_is_in_the_directory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_nobody_wants_is_dropped, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_sender_has_bounds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wrong_bytes_end_the_connection, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_flood_is_dropped, set_up, tear_down),
    };

    log_init(LOG_ERROR, false);
    int n_failed = run_kind("tcp") + run_kind("ucx");
    kind = "tcp";
    return n_failed + cmocka_run_group_tests(tests, NULL, NULL);
}
