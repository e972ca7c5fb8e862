/* fuzz_wire.c - any bytes as a message between two pools (cache/pool/wire.h). What is accepted lies
 * in its bounds and is exactly what the encoder writes. The second part of the input is the meta of
 * blocks. */
#include "base/check.h"
#include "cache/pool/wire.h"
#include "tests/fuzz/fuzz.h"

static void check_query(const struct wire_message *m)
{
    uint32_t end = 0;

    ASSERT(m->n >= 1 && m->n <= WIRE_SEGMENTS_MAX && m->layer < WIRE_LAYERS_MAX);
    ASSERT(m->n_rows >= 1 && m->n_rows <= WIRE_ROWS_MAX);
    for (uint32_t i = 0; i < m->n; i++) {
        struct wire_segment s = wire_get_segment(m->segments + (size_t)i * WIRE_SEGMENT_BYTES);
        ASSERT(s.at >= end && s.n_blocks >= 1 && s.at + s.n_blocks <= WIRE_PATH_MAX);
        ASSERT(s.n_tokens <= s.n_blocks * KV_BLOCK_TOKENS);
        ASSERT(s.n_tokens > (s.n_blocks - 1u) * KV_BLOCK_TOKENS);
        end = s.at + s.n_blocks;
    }
}

static void check_message(const uint8_t *bytes, size_t n)
{
    struct wire_message m;
    uint8_t again[WIRE_HEAD_MAX];

    if (n > UINT32_MAX || wire_decode(&m, bytes, (uint32_t)n) != OK)
        return;
    ASSERT(n <= WIRE_HEAD_MAX && m.n <= WIRE_PATH_MAX && m.ms <= WIRE_MS_MAX);
    ASSERT(m.kind != WIRE_ASK || (m.n_there < m.n && m.disk_ms <= m.ms));
    ASSERT(m.kind != WIRE_LENT || m.n == 0 || m.n_there < m.n);
    if (m.kind == WIRE_READ || m.kind == WIRE_DATA || m.kind == WIRE_PLACES)
        for (uint32_t i = 0; i < m.n; i++)
            ASSERT(m.n <= WIRE_READ_MAX && m.at[i] < WIRE_PATH_MAX);
    if (m.kind == WIRE_QUERY)
        check_query(&m);
    if (m.kind == WIRE_QUERY || m.kind == WIRE_TILES)
        ASSERT(wire_payload_bytes(&m, 1) <= WIRE_FLOATS_BYTES_MAX && m.n_bytes % 4 == 0);
    else if (m.kind == WIRE_NOTE)
        ASSERT(m.n_bytes >= 1 && m.n_bytes <= WIRE_NOTE_MAX);
    else
        ASSERT(wire_payload_bytes(&m, 1) <= WIRE_PATH_MAX * (KV_KEY_BYTES + WIRE_META_BYTES));
    ASSERT(wire_encode(&m, again) == n && memcmp(again, bytes, n) == 0);
}

static void check_meta(const uint8_t *bytes, size_t n)
{
    struct wire_meta meta;
    uint8_t again[WIRE_META_BYTES];

    for (; n >= WIRE_META_BYTES; bytes += WIRE_META_BYTES, n -= WIRE_META_BYTES) {
        if (wire_get_meta(&meta, bytes) != OK)
            continue;
        ASSERT(meta.n_tokens >= 1 && meta.n_tokens <= KV_BLOCK_TOKENS);
        wire_put_meta(&meta, again);
        ASSERT(memcmp(again, bytes, sizeof again) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);

    check_message((const uint8_t *)in.first, in.first_len);
    if (in.second)
        check_meta((const uint8_t *)in.second, in.second_len);
    return 0;
}
