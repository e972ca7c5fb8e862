#include "server/events/batch.h"

#include <inttypes.h>
#include <msgpack.h>
#include <stdio.h>
#include <string.h>

/* Of one batch; publisher.c packs a batch long before. */
#define BATCH_BYTES_MAX (256u << 20)
/* Of one event, so that a consumer's decoder needs no huge arrays. */
#define N_BLOCKS_MAX 1024u

enum event_kind { EVENT_STORED, EVENT_REMOVED, EVENT_CLEARED };

struct event {
    enum event_kind kind;
    uint32_t tier;
    uint64_t parent; /* EVENT_STORED: of the first block */
    uint64_t salt;   /* EVENT_STORED: path_salt of all blocks */
    uint32_t n;      /* blocks */
};

void batch_init(struct batch *b, uint32_t n_tokens,
                bool (*find_salt)(void *arg, uint64_t salt, struct batch_salt *out), void *arg)
{
    *b = (struct batch){.n_tokens = n_tokens, .find_salt = find_salt, .arg = arg};
    buf_init(&b->events, BATCH_BYTES_MAX);
    buf_init(&b->hashes, BATCH_BYTES_MAX);
    buf_init(&b->ids, BATCH_BYTES_MAX);
    buf_init(&b->salts, BATCH_BYTES_MAX);
    buf_init(&b->packed, BATCH_BYTES_MAX);
}

void batch_fini(struct batch *b)
{
    buf_fini(&b->events);
    buf_fini(&b->hashes);
    buf_fini(&b->ids);
    buf_fini(&b->salts);
    buf_fini(&b->packed);
}

bool batch_is_empty(const struct batch *b)
{
    return b->events.len == 0;
}

uint32_t batch_n_blocks(const struct batch *b)
{
    return (uint32_t)(b->hashes.len / sizeof(uint64_t));
}

/* --- adding --- */

static void add(struct batch *b, struct buf *to, const void *bytes, size_t n)
{
    if (b->status == OK)
        b->status = buf_append(to, bytes, n);
}

static struct event *last_event(const struct batch *b)
{
    return b->events.len == 0
               ? NULL
               : (struct event *)(void *)(b->events.data + b->events.len - sizeof(struct event));
}

static uint64_t last_hash(const struct batch *b)
{
    uint64_t hash;

    memcpy(&hash, b->hashes.data + b->hashes.len - sizeof hash, sizeof hash);
    return hash;
}

/* Continue the last event, or begin another one. */
static void add_block(struct batch *b, const struct event *like, bool continues, uint64_t hash)
{
    struct event *last = last_event(b);
    struct event e = *like;

    e.n = 1;
    if (continues && last->n < N_BLOCKS_MAX)
        last->n++;
    else
        add(b, &b->events, &e, sizeof e);
    add(b, &b->hashes, &hash, sizeof hash);
}

void batch_stored(void *arg, uint32_t tier, const struct blocks_block *block)
{
    struct batch *b = arg;
    const struct event *last = last_event(b);
    bool continues = last && last->kind == EVENT_STORED && last->tier == tier &&
                     block->parent == last_hash(b) && last->salt == block->path_salt;

    add_block(b, &(struct event){EVENT_STORED, tier, block->parent, block->path_salt, 0}, continues,
              block->hash);
    add(b, &b->ids, block->ids, b->n_tokens * sizeof *block->ids);
    add(b, &b->salts, &block->salt, sizeof block->salt);
}

void batch_removed(void *arg, uint32_t tier, uint64_t hash)
{
    struct batch *b = arg;
    const struct event *last = last_event(b);
    bool continues = last && last->kind == EVENT_REMOVED && last->tier == tier;

    add_block(b, &(struct event){EVENT_REMOVED, tier, 0, 0, 0}, continues, hash);
}

void batch_cleared(void *arg)
{
    struct batch *b = arg;
    const struct event e = {.kind = EVENT_CLEARED};

    add(b, &b->events, &e, sizeof e);
}

/* --- packing --- */

/* Where packing stands in the arrays. */
struct cursor {
    const char *hashes, *ids, *salts;
};

static int write_bytes(void *arg, const char *bytes, size_t n)
{
    struct batch *b = arg;

    add(b, &b->packed, bytes, n);
    return b->status == OK ? 0 : -1;
}

static void pack_text(msgpack_packer *p, const char *text)
{
    size_t n = strlen(text);

    msgpack_pack_str(p, n);
    msgpack_pack_str_body(p, text, n);
}

static uint64_t take_u64(const char **at)
{
    uint64_t v;

    memcpy(&v, *at, sizeof v);
    *at += sizeof v;
    return v;
}

static void pack_hashes(msgpack_packer *p, struct cursor *c, uint32_t n)
{
    pack_text(p, "block_hashes");
    msgpack_pack_array(p, n);
    for (uint32_t i = 0; i < n; i++)
        msgpack_pack_uint64(p, take_u64(&c->hashes));
}

static void pack_medium(msgpack_packer *p, uint32_t tier)
{
    static const char *const media[] = {
        [CACHE_DEVICE] = "GPU", [CACHE_HOST] = "CPU", [CACHE_DISK] = "DISK"};

    pack_text(p, "medium");
    pack_text(p, media[tier]);
}

static void pack_group(msgpack_packer *p)
{
    pack_text(p, "group_idx");
    msgpack_pack_int(p, 0);
}

/* Find the texts of a salt. An unknown salt gets its number in hexadecimal as cache_salt. */
static void look_up(const struct batch *b, uint64_t salt, struct batch_salt *out)
{
    out->words[0] = out->adapter[0] = '\0';
    if (salt != 0 && (!b->find_salt || !b->find_salt(b->arg, salt, out)))
        snprintf(out->words, sizeof out->words, "%016" PRIx64, salt);
}

/* As vLLM: every block has the adapter's name, and the first one that is salted the salt. */
static void pack_extra_keys(msgpack_packer *p, struct cursor *c, uint32_t n,
                            const struct batch_salt *path)
{
    pack_text(p, "extra_keys");
    msgpack_pack_array(p, n);
    for (uint32_t i = 0; i < n; i++) {
        bool salted = take_u64(&c->salts) != 0 && path->words[0];
        size_t n_keys = (size_t)salted + (path->adapter[0] != '\0');

        if (n_keys == 0) {
            msgpack_pack_nil(p);
            continue;
        }
        msgpack_pack_array(p, n_keys);
        if (path->adapter[0])
            pack_text(p, path->adapter);
        if (salted)
            pack_text(p, path->words);
    }
}

static void pack_nil(msgpack_packer *p, const char *name)
{
    pack_text(p, name);
    msgpack_pack_nil(p);
}

static void pack_ids(msgpack_packer *p, struct cursor *c, uint32_t n)
{
    uint32_t id;

    pack_text(p, "token_ids");
    msgpack_pack_array(p, n);
    for (uint32_t i = 0; i < n; i++, c->ids += sizeof id) {
        memcpy(&id, c->ids, sizeof id);
        msgpack_pack_uint32(p, id);
    }
}

static void pack_stored(const struct batch *b, msgpack_packer *p, const struct event *e,
                        struct cursor *c)
{
    struct batch_salt path;

    look_up(b, e->salt, &path);
    msgpack_pack_map(p, 11);
    pack_text(p, "type");
    pack_text(p, "BlockStored");
    pack_hashes(p, c, e->n);
    pack_text(p, "parent_block_hash");
    if (e->parent)
        msgpack_pack_uint64(p, e->parent);
    else
        msgpack_pack_nil(p);
    pack_ids(p, c, e->n * b->n_tokens);
    pack_text(p, "block_size");
    msgpack_pack_uint32(p, b->n_tokens);
    pack_nil(p, "lora_id");
    pack_medium(p, e->tier);
    if (path.adapter[0]) {
        pack_text(p, "lora_name");
        pack_text(p, path.adapter);
    } else {
        pack_nil(p, "lora_name");
    }
    pack_extra_keys(p, c, e->n, &path);
    pack_group(p);
    pack_text(p, "kv_cache_spec_kind");
    pack_text(p, "full_attention");
}

static void pack_event(const struct batch *b, msgpack_packer *p, const struct event *e,
                       struct cursor *c)
{
    switch (e->kind) {
    case EVENT_STORED: pack_stored(b, p, e, c); return;
    case EVENT_REMOVED:
        msgpack_pack_map(p, 4);
        pack_text(p, "type");
        pack_text(p, "BlockRemoved");
        pack_hashes(p, c, e->n);
        pack_medium(p, e->tier);
        pack_group(p);
        return;
    case EVENT_CLEARED:
        msgpack_pack_map(p, 1);
        pack_text(p, "type");
        pack_text(p, "AllBlocksCleared");
        return;
    }
}

enum status batch_pack(struct batch *b, double seconds)
{
    struct cursor c = {buf_str(&b->hashes), buf_str(&b->ids), buf_str(&b->salts)};
    size_t n = b->events.len / sizeof(struct event);
    msgpack_packer p;

    buf_reset(&b->packed);
    msgpack_packer_init(&p, b, write_bytes);
    msgpack_pack_array(&p, 3);
    msgpack_pack_double(&p, seconds);
    msgpack_pack_array(&p, n);
    for (size_t i = 0; i < n && b->status == OK; i++)
        pack_event(b, &p, (const struct event *)(const void *)b->events.data + i, &c);
    msgpack_pack_int(&p, 0);
    enum status s = b->status;
    b->status = OK;
    buf_reset(&b->events);
    buf_reset(&b->hashes);
    buf_reset(&b->ids);
    buf_reset(&b->salts);
    return s;
}
