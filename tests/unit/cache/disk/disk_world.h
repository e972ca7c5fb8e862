/* disk_world.h - a directory of the disk tier in a temporary folder, records with correct keys,
 * payloads that identify their record, and a clock that the test sets.
 *
 * Include it once, and link with -Wl,--wrap=clock_now_ns. */
#ifndef TARN_TESTS_UNIT_CACHE_DISK_WORLD_H
#define TARN_TESTS_UNIT_CACHE_DISK_WORLD_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/rng.h"
#include "cache/disk/disk.h"
#include "cache/key.h"

#define SECOND_NS UINT64_C(1000000000)
#define BLOCK_BYTES 10000u /* not a multiple of the page size */
#define EXTENT_BYTES 12288u
#define N_SLOTS 32u

/* --- time --- */

static uint64_t fake_now; /* 0: the real clock */

uint64_t __real_clock_now_ns(void);
uint64_t __wrap_clock_now_ns(void);

uint64_t __wrap_clock_now_ns(void)
{
    return fake_now ? fake_now : __real_clock_now_ns();
}

/* --- the folder --- */

/* Where folders are made. A test that is not about the file system uses a file system in memory if
 * possible. */
static const char *world_home = "/tmp";

static inline void world_in_memory(void)
{
    if (access("/dev/shm", W_OK | X_OK) == 0)
        world_home = "/dev/shm";
}

struct world {
    char path[64];
    uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    uint8_t *staging; /* [N_SLOTS][EXTENT_BYTES] */
    struct disk_config config;
    struct disk *d;
};

/* Bytes of a directory with n extents, including the page of its lock file. */
static inline uint64_t bytes_for(uint32_t n_extents)
{
    return disk_table_bytes(n_extents) + (uint64_t)n_extents * EXTENT_BYTES + DISK_PAGE_BYTES;
}

static inline void world_init(struct world *w, enum aio_backend backend, uint32_t n_extents)
{
    memset(w, 0, sizeof *w);
    snprintf(w->path, sizeof w->path, "%s/test_disk.XXXXXX", world_home);
    assert_non_null(mkdtemp(w->path));
    for (int i = 0; i < KV_FINGERPRINT_BYTES; i++)
        w->fingerprint[i] = (uint8_t)(i * 7 + 1);
    w->staging = aligned_alloc(DISK_PAGE_BYTES, (size_t)N_SLOTS * EXTENT_BYTES);
    assert_non_null(w->staging);
    memset(w->staging, 0xAA, (size_t)N_SLOTS * EXTENT_BYTES);
    w->config = (struct disk_config){.dir = {.path = w->path,
                                             .n_bytes_max = bytes_for(n_extents),
                                             .fingerprint = w->fingerprint,
                                             .block_bytes = BLOCK_BYTES,
                                             .segment_tokens = 256},
                                     .staging = w->staging,
                                     .n_slots = N_SLOTS,
                                     .timeout_ns = 60 * SECOND_NS,
                                     .backend = backend};
}

/* False if this kernel has no io_uring. */
static inline bool world_open(struct world *w)
{
    struct buf why;
    enum status s;

    buf_init(&why, BUF_WHY_MAX);
    s = disk_open(&w->d, &w->config, &why);
    if (s != OK && !(s == ERR_UNSUPPORTED && w->config.backend == AIO_URING))
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
    return s == OK;
}

static inline void world_close(struct world *w)
{
    assert_ok(disk_close(w->d, clock_now_ns() + 60 * SECOND_NS));
    w->d = NULL;
}

static inline void world_fini(struct world *w)
{
    char command[96];

    snprintf(command, sizeof command, "rm -rf %s", w->path);
    assert_int_equal(system(command), 0);
    free(w->staging);
}

static inline void file_path(char *out, size_t n, const struct world *w, const char *name)
{
    char hex[2 * KV_FINGERPRINT_BYTES + 1];

    hash_hex(hex, w->fingerprint, KV_FINGERPRINT_BYTES);
    snprintf(out, n, "%s/%s-v%d/%s", w->path, hex, DISK_FORMAT_VERSION, name);
}

static inline void read_file(const struct world *w, const char *name, uint64_t offset, void *out,
                             size_t n)
{
    char path[256];

    file_path(path, sizeof path, w, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, out, n, (off_t)offset), n);
    close(fd);
}

/* Read an extent's header from the disk, not from memory. */
static inline enum disk_verdict look_on_disk(const struct world *w, uint32_t extent,
                                             struct disk_record *out)
{
    uint8_t header[DISK_HEADER_BYTES];
    struct disk_reader reader;

    read_file(w, "table", DISK_PAGE_BYTES + (uint64_t)extent * DISK_HEADER_BYTES, header,
              sizeof header);
    disk_reader_init(&reader, w->fingerprint);
    return disk_header_decode(&reader, out, header, extent);
}

/* --- records and payloads --- */

/* The first block of a sequence whose ids are derived from `no`. */
static inline struct disk_record record_of(const struct world *w, uint32_t no)
{
    struct disk_record r = {
        .flags = DISK_STARTS_SEGMENT, .n_tokens = 1 + no % KV_BLOCK_TOKENS, .n_uses = 2};
    uint8_t domain[KV_DOMAIN_BYTES];

    for (uint32_t i = 0; i < r.n_tokens; i++)
        r.ids[i] = i == 0 ? no : i;
    key_domain(domain, w->fingerprint, &r.scope);
    key_of_block(&r.key, domain, &r.parent, true, r.ids, r.n_tokens);
    return r;
}

static inline void fill_payload(uint8_t *out, uint32_t no)
{
    uint32_t words[BLOCK_BYTES / 4];

    for (uint32_t i = 0; i < BLOCK_BYTES / 4; i++)
        words[i] = (no + 1) * 2654435761u + i * 40503u;
    memcpy(out, words, BLOCK_BYTES);
}

static inline bool is_payload(const uint8_t *p, uint32_t no)
{
    uint8_t want[BLOCK_BYTES];

    fill_payload(want, no);
    return memcmp(p, want, BLOCK_BYTES) == 0;
}

static inline uint8_t *slot_at(const struct world *w, uint32_t slot)
{
    return w->staging + (size_t)slot * EXTENT_BYTES;
}

/* Write records first_no, first_no + 1, ... to these extents. */
static inline enum status begin_write(struct world *w, uint32_t first_no, const uint32_t *extents,
                                      uint32_t n, uint64_t tag)
{
    struct disk_record records[DISK_UNIT_BLOCKS_MAX];
    uint32_t slots[DISK_UNIT_BLOCKS_MAX];

    assert_true(disk_take_slots(w->d, slots, n));
    for (uint32_t i = 0; i < n; i++) {
        records[i] = record_of(w, first_no + i);
        fill_payload(slot_at(w, slots[i]), first_no + i);
    }
    enum status s = disk_write(w->d, records, extents, slots, n, tag);
    if (s != OK)
        disk_give_slots(w->d, slots, n);
    return s;
}

static inline enum status begin_read(struct world *w, const uint32_t *extents, uint32_t n,
                                     uint64_t tag)
{
    uint32_t slots[DISK_UNIT_BLOCKS_MAX];

    assert_true(disk_take_slots(w->d, slots, n));
    enum status s = disk_read(w->d, extents, slots, n, tag);
    if (s != OK)
        disk_give_slots(w->d, slots, n);
    return s;
}

/* Wait for the next event without a time limit. */
static inline struct disk_done next_event(struct world *w)
{
    struct disk_done done;

    while (disk_poll(w->d, clock_now_ns(), &done, 1) == 0) {
        assert_true(disk_is_busy(w->d));
        usleep(20);
    }
    return done;
}

/* Wait until no request is in progress; no events may come. */
static inline void settle(struct world *w)
{
    struct disk_done done;

    while (disk_is_busy(w->d)) {
        assert_int_equal(disk_poll(w->d, clock_now_ns(), &done, 1), 0);
        usleep(20);
    }
}

static inline void write_now(struct world *w, uint32_t first_no, const uint32_t *extents,
                             uint32_t n)
{
    assert_ok(begin_write(w, first_no, extents, n, first_no));
    struct disk_done done = next_event(w);
    assert_int_equal(done.event, DISK_WRITE_DONE);
    assert_int_equal(done.status, OK);
    assert_int_equal(done.tag, first_no);
    assert_int_equal(done.n, n);
}

/* Check that extents [n] hold records first_no, ... in memory and on the disk. */
static inline void check_records(struct world *w, uint32_t first_no, const uint32_t *extents,
                                 uint32_t n)
{
    struct disk_record r;

    assert_ok(begin_read(w, extents, n, 77));
    struct disk_done done = next_event(w);
    assert_int_equal(done.event, DISK_READ_DONE);
    assert_int_equal(done.status, OK);
    assert_int_equal(done.tag, 77);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(done.extents[i], extents[i]);
        assert_true(is_payload(slot_at(w, done.slots[i]), first_no + i));
        assert_int_equal(disk_look(w->d, extents[i], &r), DISK_VALID);
        assert_int_equal(r.ids[0], first_no + i);
    }
    disk_give_slots(w->d, done.slots, n);
}

/* The extents are returned one by one. */
static inline void clear_now(struct world *w, const uint32_t *extents, uint32_t n, bool erase)
{
    uint64_t seen = 0;

    disk_clear(w->d, extents, n, erase);
    for (uint32_t i = 0; i < n; i++) {
        struct disk_done done = next_event(w);
        assert_int_equal(done.event, DISK_CLEARED);
        for (uint32_t k = 0; k < n; k++)
            if (extents[k] == done.extents[0])
                seen |= UINT64_C(1) << k;
    }
    assert_int_equal(seen, (UINT64_C(1) << n) - 1);
}

#endif
