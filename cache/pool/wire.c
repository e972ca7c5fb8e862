/* wire.c - messages to bytes and back. The encoder and the decoder walk over the fields by the same
 * function, so that they cannot disagree. */
#include "cache/pool/wire.h"

#include <string.h>

#include "base/check.h"
#include "base/little_endian.h"

/* A place in the bytes of a message. */
struct walk {
    uint8_t *out;      /* encoding; NULL: decoding */
    const uint8_t *in; /* decoding */
    uint32_t at, n;
    bool is_bad;
};

static bool has_room(struct walk *w, uint32_t n)
{
    if (w->is_bad || w->n - w->at < n)
        w->is_bad = true;
    return !w->is_bad;
}

/* A number of n_bytes, which must be in [min, max]. */
static void number(struct walk *w, uint32_t n_bytes, uint64_t *v, uint64_t min, uint64_t max)
{
    if (!has_room(w, n_bytes))
        return;
    if (w->out) {
        for (uint32_t i = 0; i < n_bytes; i++)
            w->out[w->at + i] = (uint8_t)(*v >> 8 * i);
    } else {
        *v = 0;
        for (uint32_t i = 0; i < n_bytes; i++)
            *v |= (uint64_t)w->in[w->at + i] << 8 * i;
    }
    w->at += n_bytes;
    if (*v < min || *v > max)
        w->is_bad = true;
}

static void number32(struct walk *w, uint32_t n_bytes, uint32_t *v, uint32_t min, uint32_t max)
{
    uint64_t wide = *v;

    number(w, n_bytes, &wide, min, max);
    if (!w->is_bad)
        *v = (uint32_t)wide;
}

static void walk_bytes(struct walk *w, uint8_t *bytes, uint32_t n)
{
    if (!has_room(w, n))
        return;
    if (w->out)
        memcpy(w->out + w->at, bytes, n);
    else
        memcpy(bytes, w->in + w->at, n);
    w->at += n;
}

/* Flags of LENT. */
enum { LENT_ATTENDS = 1, LENT_KEEPS = 2, LENT_AWAITED = 4, LENT_FLAGS_MAX = 7 };

static void walk_lent(struct walk *w, struct wire_message *m)
{
    uint32_t reason = (uint32_t)m->reason;
    uint32_t flags = (m->attends ? LENT_ATTENDS : 0u) | (m->keeps ? LENT_KEEPS : 0u) |
                     (m->was_awaited ? LENT_AWAITED : 0u);

    number32(w, 4, &m->n, 0, WIRE_PATH_MAX);
    number32(w, 4, &m->n_there, 0, WIRE_PATH_MAX);
    number32(w, 4, &m->ms, 0, WIRE_MS_MAX);
    number32(w, 1, &reason, WIRE_FINE, WIRE_N_REASONS - 1);
    number32(w, 1, &flags, 0, m->n > 0 ? LENT_FLAGS_MAX : 0);
    if (w->is_bad)
        return;
    m->reason = (enum wire_reason)reason;
    m->attends = (flags & LENT_ATTENDS) != 0;
    m->keeps = (flags & LENT_KEEPS) != 0;
    m->was_awaited = (flags & LENT_AWAITED) != 0;
    if ((m->n > 0) != (m->reason == WIRE_FINE) || (m->n > 0 && m->n <= m->n_there)) {
        w->is_bad = true;
        return;
    }
    uint32_t n = m->n > 0 ? m->n - m->n_there : 0;
    if (!has_room(w, n))
        return;
    if (w->out && n > 0)
        memcpy(w->out + w->at, m->n_tokens, n);
    else if (!w->out)
        m->n_tokens = w->in + w->at;
    w->at += n;
    for (uint32_t i = 0; i < n; i++)
        if ((m->n_tokens[i] & ~WIRE_ON_DEVICE) < 1 ||
            (m->n_tokens[i] & ~WIRE_ON_DEVICE) > KV_BLOCK_TOKENS)
            w->is_bad = true;
}

static void walk_blocks(struct walk *w, struct wire_message *m)
{
    number(w, 8, &m->read, 0, UINT64_MAX);
    number32(w, 1, &m->n, 1, WIRE_READ_MAX);
    for (uint32_t i = 0; i < m->n && !w->is_bad; i++) {
        number32(w, 4, &m->at[i], 0, WIRE_PATH_MAX - 1);
        if (m->kind == WIRE_READ)
            continue;
        number32(w, 4, &m->crc[i], 0, UINT32_MAX);
        walk_bytes(w, m->key[i], WIRE_KEY_BYTES);
        if (m->kind == WIRE_PLACES)
            number32(w, 4, &m->place[i], 0, UINT32_MAX);
    }
}

/* A payload of floats. */
static void walk_floats(struct walk *w, struct wire_message *m)
{
    number32(w, 4, &m->n_bytes, 4, WIRE_FLOATS_BYTES_MAX);
    number32(w, 4, &m->floats_crc, 0, UINT32_MAX);
    if (m->n_bytes % 4 != 0)
        w->is_bad = true;
}

static bool are_segments(const uint8_t *bytes, uint32_t n)
{
    uint32_t end = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct wire_segment s = wire_get_segment(bytes + (size_t)i * WIRE_SEGMENT_BYTES);
        if (s.at < end || s.at >= WIRE_PATH_MAX || s.n_blocks < 1 ||
            s.n_blocks > WIRE_PATH_MAX - s.at || s.n_tokens > s.n_blocks * KV_BLOCK_TOKENS ||
            s.n_tokens <= (s.n_blocks - 1u) * KV_BLOCK_TOKENS)
            return false;
        end = s.at + s.n_blocks;
    }
    return true;
}

static void walk_query(struct walk *w, struct wire_message *m)
{
    number(w, 8, &m->query, 0, UINT64_MAX);
    number32(w, 4, &m->layer, 0, WIRE_LAYERS_MAX - 1);
    number32(w, 1, &m->n_rows, 1, WIRE_ROWS_MAX);
    number32(w, 4, &m->ms, 1, WIRE_MS_MAX);
    walk_floats(w, m);
    number32(w, 2, &m->n, 1, WIRE_SEGMENTS_MAX);
    if (w->is_bad || !has_room(w, m->n * WIRE_SEGMENT_BYTES))
        return;
    if (w->out)
        memcpy(w->out + w->at, m->segments, m->n * WIRE_SEGMENT_BYTES);
    else
        m->segments = w->in + w->at;
    w->at += m->n * WIRE_SEGMENT_BYTES;
    if (!are_segments(m->segments, m->n))
        w->is_bad = true;
}

static void walk_refused(struct walk *w, struct wire_message *m)
{
    uint32_t reason = (uint32_t)m->reason;

    number(w, 8, &m->query, 0, UINT64_MAX);
    number32(w, 1, &reason, WIRE_STALE, WIRE_BUSY);
    m->reason = (enum wire_reason)reason;
}

static void walk_handle(struct walk *w, struct wire_message *m)
{
    uint8_t any = 0;

    number(w, 8, &m->n_memory, 0, UINT64_MAX);
    walk_bytes(w, m->handle, WIRE_HANDLE_BYTES);
    for (uint32_t i = 0; i < WIRE_HANDLE_BYTES; i++)
        any |= m->handle[i];
    if (m->n_memory == 0 && any)
        w->is_bad = true;
}

/* Whether the message begins with `id`. */
static bool has_id(enum wire_kind kind)
{
    return kind != WIRE_DATA && kind != WIRE_GONE && kind != WIRE_TILES && kind != WIRE_REFUSED &&
           kind < WIRE_NOTE;
}

static void walk_fields(struct walk *w, struct wire_message *m)
{
    uint32_t taken = m->is_taken, mapped = m->is_mapped;

    if (has_id(m->kind))
        number(w, 8, &m->id, 0, UINT64_MAX);
    switch (m->kind) {
    case WIRE_ASK:
        number32(w, 4, &m->n, 1, WIRE_PATH_MAX);
        number32(w, 4, &m->n_there, 0, WIRE_PATH_MAX - 1);
        number32(w, 4, &m->ms, 1, WIRE_MS_MAX);
        number32(w, 4, &m->disk_ms, 0, m->ms);
        if (m->n_there >= m->n)
            w->is_bad = true;
        break;
    case WIRE_LENT: walk_lent(w, m); break;
    case WIRE_READ:
    case WIRE_DATA:
    case WIRE_PLACES: walk_blocks(w, m); break;
    case WIRE_MAP: walk_bytes(w, m->machine, WIRE_MACHINE_BYTES); break;
    case WIRE_HANDLE: walk_handle(w, m); break;
    case WIRE_MAPPED:
        number32(w, 1, &mapped, 0, 1);
        m->is_mapped = mapped == 1;
        break;
    case WIRE_GONE: number(w, 8, &m->read, 0, UINT64_MAX); break;
    case WIRE_CLOSE: break;
    case WIRE_OFFER: number32(w, 4, &m->n, 1, WIRE_PATH_MAX); break;
    case WIRE_DONE:
        number32(w, 1, &taken, 0, 1);
        m->is_taken = taken == 1;
        break;
    case WIRE_NOTE:
        number32(w, 4, &m->n_bytes, 1, WIRE_NOTE_MAX);
        number32(w, 4, &m->crc[0], 0, UINT32_MAX);
        break;
    case WIRE_QUERY: walk_query(w, m); break;
    case WIRE_TILES:
        number(w, 8, &m->query, 0, UINT64_MAX);
        walk_floats(w, m);
        break;
    case WIRE_REFUSED: walk_refused(w, m); break;
    }
}

/* Version, kind, and two bytes that are 0 until a later version uses them. */
static void walk_message(struct walk *w, struct wire_message *m)
{
    uint32_t version = WIRE_VERSION, kind = (uint32_t)m->kind, zero = 0;

    number32(w, 1, &version, WIRE_VERSION, WIRE_VERSION);
    number32(w, 1, &kind, WIRE_ASK, WIRE_PLACES);
    number32(w, 2, &zero, 0, 0);
    if (w->is_bad)
        return;
    m->kind = (enum wire_kind)kind;
    walk_fields(w, m);
}

uint32_t wire_encode(const struct wire_message *m, uint8_t out[WIRE_HEAD_MAX])
{
    struct wire_message copy = *m;
    struct walk w = {.out = out, .n = WIRE_HEAD_MAX};

    walk_message(&w, &copy);
    ASSERT(!w.is_bad);
    return w.at;
}

enum status wire_decode(struct wire_message *m, const void *bytes, uint32_t n)
{
    struct walk w = {.in = bytes, .n = n};

    memset(m, 0, sizeof *m);
    walk_message(&w, m);
    return w.is_bad || w.at != n ? ERR_INVALID : OK;
}

bool wire_is_answer(enum wire_kind kind)
{
    switch (kind) {
    case WIRE_LENT:
    case WIRE_DATA:
    case WIRE_PLACES:
    case WIRE_GONE:
    case WIRE_DONE:
    case WIRE_HANDLE:
    case WIRE_TILES:
    case WIRE_REFUSED: return true;
    default: return false;
    }
}

uint64_t wire_payload_bytes(const struct wire_message *m, uint64_t block_bytes)
{
    switch (m->kind) {
    case WIRE_ASK: return (uint64_t)m->n * KV_KEY_BYTES;
    case WIRE_OFFER: return (uint64_t)m->n * (KV_KEY_BYTES + WIRE_META_BYTES);
    case WIRE_DATA: return m->n * block_bytes;
    case WIRE_NOTE:
    case WIRE_QUERY:
    case WIRE_TILES: return m->n_bytes;
    default: return 0;
    }
}

/* --- segments --- */

void wire_put_segment(const struct wire_segment *s, uint8_t out[WIRE_SEGMENT_BYTES])
{
    put_u32(out, s->at);
    put_u16(out + 4, s->n_blocks);
    put_u16(out + 6, s->n_tokens);
}

struct wire_segment wire_get_segment(const uint8_t bytes[WIRE_SEGMENT_BYTES])
{
    return (struct wire_segment){
        .at = get_u32(bytes), .n_blocks = get_u16(bytes + 4), .n_tokens = get_u16(bytes + 6)};
}

/* --- meta --- */

enum { META_STARTS_SEGMENT = 1, META_PUBLIC = 2, META_REGISTERED = 4 };

void wire_put_meta(const struct wire_meta *meta, uint8_t out[WIRE_META_BYTES])
{
    memset(out, 0, WIRE_META_BYTES);
    out[0] = meta->n_tokens;
    out[1] = (uint8_t)((meta->starts_segment ? META_STARTS_SEGMENT : 0) |
                       (meta->is_public ? META_PUBLIC : 0) |
                       (meta->is_registered ? META_REGISTERED : 0));
    for (int i = 0; i < 4; i++)
        out[4 + i] = (uint8_t)(meta->depth >> 8 * i);
}

enum status wire_get_meta(struct wire_meta *meta, const uint8_t bytes[WIRE_META_BYTES])
{
    uint8_t flags = bytes[1];

    if (bytes[0] < 1 || bytes[0] > KV_BLOCK_TOKENS || bytes[2] != 0 || bytes[3] != 0 ||
        (flags & ~(META_STARTS_SEGMENT | META_PUBLIC | META_REGISTERED)) != 0)
        return ERR_INVALID;
    *meta = (struct wire_meta){.n_tokens = bytes[0],
                               .starts_segment = (flags & META_STARTS_SEGMENT) != 0,
                               .is_public = (flags & META_PUBLIC) != 0,
                               .is_registered = (flags & META_REGISTERED) != 0};
    for (int i = 0; i < 4; i++)
        meta->depth |= (uint32_t)bytes[4 + i] << 8 * i;
    return OK;
}
