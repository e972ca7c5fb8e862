/* Messages between pool threads: what is written is read back, everything else is refused. */
#include "tests/unit/test.h"

#include <string.h>

#include "base/rng.h"
#include "cache/pool/wire.h"

enum { N_MESSAGES = 27 };

static uint8_t tokens[WIRE_PATH_MAX], segments[WIRE_SEGMENTS_MAX * WIRE_SEGMENT_BYTES];

/* One message of each kind, with extreme numbers. */
static uint32_t make(struct wire_message *m, uint32_t i)
{
    static const struct wire_message all[] = {
        {.kind = WIRE_ASK, .id = UINT64_MAX, .n = WIRE_PATH_MAX, .n_there = 4095, .ms = 1},
        {.kind = WIRE_ASK,
         .id = 0,
         .n = 1,
         .n_there = 0,
         .ms = WIRE_MS_MAX,
         .disk_ms = WIRE_MS_MAX},
        {.kind = WIRE_LENT, .id = 7, .n = WIRE_PATH_MAX, .ms = 2000, .was_awaited = true},
        {.kind = WIRE_LENT, .id = 8, .n = 5, .n_there = 4, .attends = true, .keeps = true},
        {.kind = WIRE_LENT, .id = 9, .n = 0, .n_there = 3, .reason = WIRE_STALE},
        {.kind = WIRE_LENT, .id = 9, .n = 0, .n_there = 0, .reason = WIRE_BUSY},
        {.kind = WIRE_READ, .id = 1, .read = 2, .n = 3, .at = {4095, 0, 9}},
        {.kind = WIRE_DATA,
         .read = 3,
         .n = 2,
         .at = {1, 2},
         .crc = {UINT32_MAX, 0},
         .key = {"1234567", "abcdefg"}},
        {.kind = WIRE_DATA, .read = 3, .n = WIRE_READ_MAX},
        {.kind = WIRE_GONE, .read = UINT64_MAX - 1},
        {.kind = WIRE_CLOSE, .id = 77},
        {.kind = WIRE_OFFER, .id = 78, .n = 4096},
        {.kind = WIRE_DONE, .id = 78, .is_taken = true},
        {.kind = WIRE_DONE, .id = 79, .is_taken = false},
        {.kind = WIRE_QUERY,
         .id = 80,
         .query = UINT64_MAX,
         .layer = WIRE_LAYERS_MAX - 1,
         .n_rows = WIRE_ROWS_MAX,
         .ms = WIRE_MS_MAX,
         .n = 1,
         .n_bytes = WIRE_FLOATS_BYTES_MAX,
         .floats_crc = UINT32_MAX},
        {.kind = WIRE_QUERY, .n = WIRE_SEGMENTS_MAX, .n_rows = 1, .ms = 1, .n_bytes = 4},
        {.kind = WIRE_TILES, .query = 81, .n_bytes = WIRE_FLOATS_BYTES_MAX, .floats_crc = 9},
        {.kind = WIRE_TILES, .query = 0, .n_bytes = 4},
        {.kind = WIRE_REFUSED, .query = 82, .reason = WIRE_STALE},
        {.kind = WIRE_REFUSED, .query = 83, .reason = WIRE_BUSY},
        {.kind = WIRE_NOTE, .n_bytes = WIRE_NOTE_MAX, .crc = {UINT32_MAX}},
        {.kind = WIRE_MAP, .machine = "the machine of the asker"},
        {.kind = WIRE_HANDLE, .n_memory = UINT64_MAX, .handle = "a handle"},
        {.kind = WIRE_HANDLE, .n_memory = 0},
        {.kind = WIRE_MAPPED, .is_mapped = true},
        {.kind = WIRE_MAPPED, .is_mapped = false},
        {.kind = WIRE_PLACES,
         .read = 4,
         .n = 2,
         .at = {1, 2},
         .crc = {UINT32_MAX, 0},
         .key = {"1234567", "abcdefg"},
         .place = {UINT32_MAX, 0}},
    };

    _Static_assert(sizeof all / sizeof all[0] == N_MESSAGES, "all are counted");
    if (i < N_MESSAGES)
        *m = all[i];
    for (uint32_t k = 0; k < WIRE_SEGMENTS_MAX; k++)
        wire_put_segment(
            &(struct wire_segment){.at = 8 * k, .n_blocks = 8, .n_tokens = 225 + k % 32},
            segments + (size_t)k * WIRE_SEGMENT_BYTES);
    m->segments = segments;
    m->n_tokens = tokens;
    memset(tokens, KV_BLOCK_TOKENS, sizeof tokens);
    tokens[0] = 1;
    tokens[2] = KV_BLOCK_TOKENS | WIRE_ON_DEVICE;
    return N_MESSAGES;
}

static void check_equal(const struct wire_message *a, const struct wire_message *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->id, b->id);
    assert_int_equal(a->read, b->read);
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->n_there, b->n_there);
    assert_int_equal(a->ms, b->ms);
    assert_int_equal(a->disk_ms, b->disk_ms);
    assert_int_equal(a->reason, b->reason);
    assert_int_equal(a->is_taken, b->is_taken);
    assert_memory_equal(a->at, b->at, sizeof a->at);
    assert_memory_equal(a->crc, b->crc, sizeof a->crc);
    assert_memory_equal(a->key, b->key, sizeof a->key);
    assert_int_equal(a->attends, b->attends);
    assert_int_equal(a->keeps, b->keeps);
    assert_int_equal(a->was_awaited, b->was_awaited);
    assert_memory_equal(a->place, b->place, sizeof a->place);
    assert_memory_equal(a->machine, b->machine, sizeof a->machine);
    assert_memory_equal(a->handle, b->handle, sizeof a->handle);
    assert_true(a->n_memory == b->n_memory && a->is_mapped == b->is_mapped);
    assert_int_equal(a->query, b->query);
    assert_int_equal(a->layer, b->layer);
    assert_int_equal(a->n_rows, b->n_rows);
    assert_int_equal(a->n_bytes, b->n_bytes);
    assert_int_equal(a->floats_crc, b->floats_crc);
    if (a->kind == WIRE_QUERY)
        assert_memory_equal(a->segments, b->segments, a->n * WIRE_SEGMENT_BYTES);
    if (a->kind == WIRE_LENT && a->n > 0)
        assert_memory_equal(a->n_tokens, b->n_tokens, a->n - a->n_there);
}

static void what_is_written_is_read_back(void **state)
{
    struct wire_message m, back;
    uint8_t bytes[WIRE_HEAD_MAX];

    (void)state;
    for (uint32_t i = 0; i < make(&m, i); i++) {
        uint32_t n = wire_encode(&m, bytes);
        assert_in_range(n, 4, WIRE_HEAD_MAX);
        assert_ok(wire_decode(&back, bytes, n));
        check_equal(&m, &back);
    }
}

static void every_truncation_and_addition_is_refused(void **state)
{
    struct wire_message m, back;
    uint8_t bytes[WIRE_HEAD_MAX + 1] = {0};

    (void)state;
    for (uint32_t i = 0; i < make(&m, i); i++) {
        uint32_t n = wire_encode(&m, bytes);
        for (uint32_t cut = 0; cut < n; cut++)
            assert_int_equal(wire_decode(&back, bytes, cut), ERR_INVALID);
        bytes[n] = 0;
        assert_int_equal(wire_decode(&back, bytes, n + 1), ERR_INVALID);
    }
}

static void another_version_is_refused(void **state)
{
    struct wire_message m = {.kind = WIRE_CLOSE, .id = 1}, back;
    uint8_t bytes[WIRE_HEAD_MAX];
    uint32_t n = wire_encode(&m, bytes);

    (void)state;
    for (uint32_t version = 0; version < 256; version++) {
        bytes[0] = (uint8_t)version;
        assert_int_equal(wire_decode(&back, bytes, n) == OK, version == WIRE_VERSION);
    }
}

static void numbers_out_of_range_are_refused(void **state)
{
    static const struct {
        uint32_t message, at;
        uint8_t byte;
    } changes[] = {
        {0, 3, 1},      /* a byte that is zero in this version */
        {1, 12, 0},     /* ASK for no block */
        {0, 13, 0x11},  /* a path that is too long */
        {1, 16, 1},     /* all blocks are there */
        {3, 25, 8},     /* an unknown flag */
        {4, 25, 1},     /* queries are answered, but nothing is lent */
        {4, 25, 2},     /* the lender keeps what it does not lend */
        {3, 26, 0},     /* a block without tokens */
        {3, 26, 33},    /* a block with too many */
        {4, 24, 0},     /* nothing is lent, for no reason */
        {4, 24, 3},     /* an unknown reason */
        {6, 20, 0},     /* a READ of nothing */
        {6, 20, 9},     /* of too much */
        {6, 22, 0x10},  /* of a block behind the longest path */
        {12, 12, 2},    /* neither taken nor refused */
        {14, 22, 1},    /* QUERY of a layer that is too deep */
        {14, 24, 0},    /* of no rows */
        {14, 24, 65},   /* of too many */
        {15, 25, 0},    /* the asker does not wait */
        {15, 29, 3},    /* less than a float */
        {15, 29, 0},    /* no floats */
        {14, 29, 4},    /* too many */
        {14, 37, 0},    /* no segments */
        {15, 38, 3},    /* too many */
        {14, 40, 0x10}, /* a segment behind the longest path */
        {14, 43, 0},    /* without blocks */
        {14, 43, 9},    /* with fewer tokens than its blocks have */
        {14, 43, 7},    /* with more */
        {15, 47, 7},    /* that begins in the segment before */
        {16, 15, 0x41}, /* TILES of too many bytes */
        {17, 12, 5},    /* of a part of a float */
        {18, 12, 0},    /* REFUSED for no reason */
        {18, 12, 3},    /* for an unknown one */
    };
    struct wire_message m, back;
    uint8_t bytes[WIRE_HEAD_MAX];

    (void)state;
    for (uint32_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        make(&m, changes[i].message);
        uint32_t n = wire_encode(&m, bytes);
        bytes[changes[i].at] = changes[i].byte;
        if (wire_decode(&back, bytes, n) == OK)
            fail_msg("change %u was not refused", i);
    }
}

/* Whatever is accepted is what the encoder writes, and lies in its bounds. */
static void random_bytes_are_refused_or_canonical(void **state)
{
    struct wire_message m, back;
    uint8_t bytes[WIRE_HEAD_MAX], again[WIRE_HEAD_MAX];
    uint32_t n_accepted = 0;

    (void)state;
    for (uint64_t i = 0; i < 200000; i++) {
        make(&m, (uint32_t)(i % N_MESSAGES));
        uint32_t n = wire_encode(&m, bytes);
        n = n > 200 ? 200 : n;
        for (uint32_t k = 0; k < 3; k++)
            bytes[rng_u32(i, k) % n] = (uint8_t)rng_u32(i, k + 100);
        if (wire_decode(&back, bytes, n) != OK)
            continue;
        n_accepted++;
        assert_in_range(back.n, 0, WIRE_PATH_MAX);
        assert_int_equal(wire_encode(&back, again), n);
        assert_memory_equal(bytes, again, n);
    }
    assert_true(n_accepted > 0);
}

static void payloads_have_one_length(void **state)
{
    (void)state;
    struct wire_message m = {.kind = WIRE_ASK, .n = 3};
    assert_int_equal(wire_payload_bytes(&m, 1000), 96);
    m.kind = WIRE_OFFER;
    assert_int_equal(wire_payload_bytes(&m, 1000), 120);
    m.kind = WIRE_DATA;
    assert_int_equal(wire_payload_bytes(&m, UINT64_C(1) << 32), UINT64_C(3) << 32);
    m = (struct wire_message){.kind = WIRE_QUERY, .n = 3, .n_bytes = 400};
    assert_int_equal(wire_payload_bytes(&m, 1000), 400);
    m.kind = WIRE_TILES;
    assert_int_equal(wire_payload_bytes(&m, 1000), 400);
    m.kind = WIRE_LENT;
    assert_int_equal(wire_payload_bytes(&m, 1000), 0);
}

static void meta_of_blocks_is_checked(void **state)
{
    struct wire_meta m = {.n_tokens = 32,
                          .starts_segment = true,
                          .is_registered = true,
                          .depth = 0x01020304},
                     back;
    uint8_t bytes[WIRE_META_BYTES];

    (void)state;
    wire_put_meta(&m, bytes);
    assert_ok(wire_get_meta(&back, bytes));
    assert_memory_equal(&m, &back, sizeof m);
    for (uint32_t at = 0; at < 4; at++) {
        uint8_t changed[WIRE_META_BYTES];
        memcpy(changed, bytes, sizeof changed);
        changed[at] = 0x80;
        assert_int_equal(wire_get_meta(&back, changed), ERR_INVALID);
    }
    bytes[0] = 0;
    assert_int_equal(wire_get_meta(&back, bytes), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(every_truncation_and_addition_is_refused),
        cmocka_unit_test(another_version_is_refused),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(random_bytes_are_refused_or_canonical),
        cmocka_unit_test(payloads_have_one_length),
        cmocka_unit_test(meta_of_blocks_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
