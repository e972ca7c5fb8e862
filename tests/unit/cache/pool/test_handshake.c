#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "cache/pool/handshake.h"

#define AT_VERSION 4
#define AT_FINGERPRINT 16
#define AT_BLOCK_BYTES 48

struct side {
    struct handshake_self self;
    struct handshake h;
};

struct message {
    uint8_t bytes[HANDSHAKE_MESSAGE_MAX];
    uint32_t n;
};

static struct side a, b;

static void begin(void)
{
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    memset(a.self.secret, 7, sizeof a.self.secret);
    memset(a.self.fingerprint, 9, sizeof a.self.fingerprint);
    a.self.block_bytes = 4 << 20;
    b.self = a.self;
    a.self.id = 11;
    b.self.id = 22;
}

static struct message start(void)
{
    struct message m;

    handshake_init(&a.h, &a.self, true);
    handshake_init(&b.h, &b.self, false);
    m.n = handshake_begin(&a.h, m.bytes);
    return m;
}

/* The answer of `to`, which must accept m. */
static struct message give(struct side *to, const struct message *m)
{
    struct message answer;
    const char *why;
    /* The exact length, so that a sanitizer sees overreads. */
    uint8_t *exact = malloc(m->n);

    memcpy(exact, m->bytes, m->n);
    assert_ok(handshake_take(&to->h, exact, m->n, answer.bytes, &answer.n, &why));
    free(exact);
    return answer;
}

static void assert_refused(struct side *to, const struct message *m, enum status expected)
{
    struct message answer = {.n = 77};
    const char *why = NULL;
    uint8_t *exact = malloc(m->n ? m->n : 1);

    memcpy(exact, m->bytes, m->n);
    assert_int_equal(handshake_take(&to->h, exact, m->n, answer.bytes, &answer.n, &why), expected);
    free(exact);
    assert_int_equal(answer.n, 0);
    assert_non_null(why);
    assert_false(to->h.is_done);
}

static void members_of_a_pool_learn_each_others_id(void **state)
{
    (void)state;
    begin();
    struct message hello_a = start(), hello_b = give(&b, &hello_a), proof_a = give(&a, &hello_b);
    assert_false(a.h.is_done || b.h.is_done);
    struct message proof_b = give(&b, &proof_a);
    assert_true(b.h.is_done);
    assert_false(a.h.is_done);
    assert_int_equal(give(&a, &proof_b).n, 0);
    assert_true(a.h.is_done);
    assert_int_equal(a.h.peer_id, 22);
    assert_int_equal(b.h.peer_id, 11);
}

static void another_secret_is_refused_by_both_sides(void **state)
{
    (void)state;
    begin();
    b.self.secret[31] ^= 1;
    struct message hello_a = start(), hello_b = give(&b, &hello_a), proof_a = give(&a, &hello_b);
    assert_refused(&b, &proof_a, ERR_FORBIDDEN);
    /* B answers all the same, as a stranger without the secret would. */
    proof_a.bytes[20] ^= 1;
    assert_refused(&a, &proof_a, ERR_FORBIDDEN);
}

static void every_bit_of_a_proof_counts(void **state)
{
    (void)state;
    begin();
    struct message hello_a = start(), hello_b = give(&b, &hello_a), proof_a = give(&a, &hello_b);
    for (uint32_t bit = 0; bit < 8 * proof_a.n; bit++) {
        struct message wrong = proof_a;
        wrong.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_refused(&b, &wrong, bit / 8 < 8 ? ERR_INVALID : ERR_FORBIDDEN);
    }
    give(&b, &proof_a);
    assert_true(b.h.is_done);
}

static void a_reflected_proof_is_refused(void **state)
{
    (void)state;
    begin();
    struct message hello_a = start(), hello_b = give(&b, &hello_a), proof_a = give(&a, &hello_b);
    assert_refused(&a, &proof_a, ERR_FORBIDDEN);
    struct message hello_again = start();
    assert_refused(&a, &hello_again, ERR_INVALID); /* its own HELLO */
}

/* The stranger connects to A, which is an acceptor here, and lets A's answer to another connection
 * be computed by B. */
static void a_proof_of_another_connection_is_refused(void **state)
{
    struct side c;

    (void)state;
    begin();
    struct message hello_a = start(), hello_b = give(&b, &hello_a), proof_a = give(&a, &hello_b);
    c = b;
    handshake_init(&c.h, &c.self, false); /* B's second connection: another nonce */
    give(&c, &hello_a);
    assert_refused(&c, &proof_a, ERR_FORBIDDEN);
}

static void a_replayed_handshake_is_refused(void **state)
{
    (void)state;
    begin();
    struct message hello_a = start(), hello_b = give(&b, &hello_a), proof_a = give(&a, &hello_b);
    give(&b, &proof_a);
    assert_true(b.h.is_done);
    handshake_init(&b.h, &b.self, false);
    give(&b, &hello_a);
    assert_refused(&b, &proof_a, ERR_FORBIDDEN);
}

static void another_fingerprint_is_refused_in_words(void **state)
{
    (void)state;
    begin();
    b.self.fingerprint[0] ^= 1;
    struct message hello_a = start();
    assert_refused(&b, &hello_a, ERR_UNSUPPORTED);
    hello_a.bytes[AT_FINGERPRINT] ^= 1;
    struct message hello_b = give(&b, &hello_a);
    assert_refused(&a, &hello_b, ERR_UNSUPPORTED);
}

static void another_version_or_block_size_is_refused(void **state)
{
    (void)state;
    begin();
    struct message hello = start(), wrong = hello;
    wrong.bytes[AT_VERSION]++;
    assert_refused(&b, &wrong, ERR_UNSUPPORTED);
    wrong.n += 8; /* a later version may have a longer HELLO */
    assert_refused(&b, &wrong, ERR_UNSUPPORTED);
    wrong = hello;
    wrong.bytes[AT_BLOCK_BYTES] ^= 1;
    assert_refused(&b, &wrong, ERR_UNSUPPORTED);
}

/* A member whose HELLO was changed on the way computes another proof. */
static void a_changed_hello_makes_the_proof_wrong(void **state)
{
    (void)state;
    begin();
    struct message hello_a = start();
    hello_a.bytes[8] ^= 1; /* the id */
    struct message hello_b = give(&b, &hello_a), proof_a = give(&a, &hello_b);
    assert_refused(&b, &proof_a, ERR_FORBIDDEN);
}

static void truncated_and_foreign_messages_are_refused(void **state)
{
    (void)state;
    begin();
    struct message hello = start(), m;
    for (m = hello; m.n > 0;) {
        m.n--;
        assert_refused(&b, &m, ERR_INVALID);
    }
    m = hello;
    m.n++;
    assert_refused(&b, &m, ERR_INVALID);
    for (uint32_t seed = 0; seed < 1000; seed++) {
        hash_random(m.bytes, sizeof m.bytes);
        m.n = seed % (HANDSHAKE_MESSAGE_MAX + 1);
        assert_refused(&b, &m, ERR_INVALID);
    }
    struct message hello_b = give(&b, &hello), proof = give(&a, &hello_b);
    assert_refused(&b, &hello, ERR_INVALID); /* twice */
    for (m = proof; m.n > 0;) {
        m.n--;
        assert_refused(&b, &m, ERR_INVALID);
    }
    give(&b, &proof);
    assert_true(b.h.is_done);
}

static void nothing_is_taken_after_the_end(void **state)
{
    const char *why;
    uint8_t out[HANDSHAKE_MESSAGE_MAX];
    uint32_t n;

    (void)state;
    begin();
    struct message hello_a = start(), hello_b = give(&b, &hello_a), proof_a = give(&a, &hello_b);
    give(&b, &proof_a);
    assert_int_equal(handshake_take(&b.h, proof_a.bytes, proof_a.n, out, &n, &why), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_of_a_pool_learn_each_others_id),
        cmocka_unit_test(another_secret_is_refused_by_both_sides),
        cmocka_unit_test(every_bit_of_a_proof_counts),
        cmocka_unit_test(a_reflected_proof_is_refused),
        cmocka_unit_test(a_proof_of_another_connection_is_refused),
        cmocka_unit_test(a_replayed_handshake_is_refused),
        cmocka_unit_test(another_fingerprint_is_refused_in_words),
        cmocka_unit_test(another_version_or_block_size_is_refused),
        cmocka_unit_test(a_changed_hello_makes_the_proof_wrong),
        cmocka_unit_test(truncated_and_foreign_messages_are_refused),
        cmocka_unit_test(nothing_is_taken_after_the_end),
    };

    return hash_init() == OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
