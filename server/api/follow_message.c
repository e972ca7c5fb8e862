#include "server/api/follow_message.h"

#include <string.h>

#include "base/little_endian.h"

#define VERSION 1
#define HEAD_BYTES 4
#define STAMP_BYTES 32
#define DELETION_BIT (UINT64_C(1) << 63)

static uint32_t item_bytes(enum follow_type type)
{
    switch (type) {
    case FOLLOW_DIGEST:
    case FOLLOW_DIGESTS: return 8;
    case FOLLOW_STAMPS: return STAMP_BYTES;
    case FOLLOW_WANT: return CATALOG_NAME_BYTES;
    case FOLLOW_ERASE: return DOCUMENT_KEY_BYTES;
    case FOLLOW_RECORDS: break;
    }
    return 1;
}

enum status follow_begin(struct buf *out, enum follow_type type)
{
    uint8_t head[2 * HEAD_BYTES] = {VERSION, (uint8_t)type};

    buf_reset(out);
    return buf_append(out, head, type == FOLLOW_RECORDS ? sizeof head : HEAD_BYTES);
}

enum status follow_add_digest(struct buf *out, uint64_t digest)
{
    uint8_t bytes[8];

    put_u64(bytes, digest);
    return buf_append(out, bytes, sizeof bytes);
}

enum status follow_add_stamp(struct buf *out, const struct catalog_entry *e)
{
    uint8_t bytes[STAMP_BYTES];

    memcpy(bytes, e->name, CATALOG_NAME_BYTES);
    put_u64(bytes + 16, e->stamp.counter | (e->stamp.is_deletion ? DELETION_BIT : 0));
    put_u64(bytes + 24, e->stamp.writer);
    return buf_append(out, bytes, sizeof bytes);
}

void follow_set_answered(struct buf *out, uint32_t n_answered)
{
    put_u32((uint8_t *)out->data + HEAD_BYTES, n_answered);
}

static bool are_stamps(const struct follow_message *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        struct catalog_entry e;
        follow_stamp(m, i, &e);
        if (e.stamp.counter == 0 || e.stamp.counter >= CATALOG_COUNTER_MAX)
            return false;
    }
    return true;
}

/* Whether the number of items is one of the type's. */
static bool is_number(const struct follow_message *m)
{
    switch (m->type) {
    case FOLLOW_DIGEST: return m->n == 1;
    case FOLLOW_DIGESTS: return m->n == CATALOG_N_BUCKETS;
    case FOLLOW_STAMPS: return m->n >= 1 && m->n <= FOLLOW_N_STAMPS_MAX && are_stamps(m);
    case FOLLOW_WANT: return m->n >= 1 && m->n <= FOLLOW_N_WANTED_MAX;
    case FOLLOW_RECORDS: return m->n_answered >= 1 && m->n_answered <= FOLLOW_N_WANTED_MAX;
    case FOLLOW_ERASE: return m->n >= 1 && m->n <= FOLLOW_N_ERASED_MAX;
    }
    return false;
}

enum status follow_read(struct follow_message *m, const void *bytes, size_t n)
{
    const uint8_t *head = bytes;

    *m = (struct follow_message){0};
    if (n < HEAD_BYTES || n > UINT32_MAX || head[0] != VERSION || head[1] < FOLLOW_DIGEST ||
        head[1] > FOLLOW_ERASE || head[2] || head[3])
        return ERR_INVALID;
    m->type = (enum follow_type)head[1];
    m->items = head + HEAD_BYTES;
    n -= HEAD_BYTES;
    if (m->type == FOLLOW_RECORDS) {
        if (n < HEAD_BYTES)
            return ERR_INVALID;
        m->n_answered = get_u32(m->items);
        m->items += HEAD_BYTES;
        n -= HEAD_BYTES;
    }
    m->n = (uint32_t)(n / item_bytes(m->type));
    return n % item_bytes(m->type) == 0 && is_number(m) ? OK : ERR_INVALID;
}

uint64_t follow_digest(const struct follow_message *m, uint32_t i)
{
    return get_u64(m->items + (size_t)i * 8);
}

void follow_stamp(const struct follow_message *m, uint32_t i, struct catalog_entry *out)
{
    const uint8_t *at = m->items + (size_t)i * STAMP_BYTES;
    uint64_t counter = get_u64(at + 16);

    memcpy(out->name, at, CATALOG_NAME_BYTES);
    out->stamp = (struct catalog_stamp){.counter = counter & ~DELETION_BIT,
                                        .writer = get_u64(at + 24),
                                        .is_deletion = (counter & DELETION_BIT) != 0};
}

const uint8_t *follow_item(const struct follow_message *m, uint32_t i)
{
    return m->items + (size_t)i * item_bytes(m->type);
}
