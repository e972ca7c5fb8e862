/* disk_files.h - a small directory of the disk tier, written without the disk tier's code: a test
 * changes its bytes in memory and then writes the files.
 *
 * DISK_FILES_RECORDS records in paths of four blocks, the last of each with 5 tokens. The
 * extents are not in the order of the paths, and empty extents lie between them.
 *
 * Owns    table and data, until disk_files_fini(), which removes the files too.
 * Thread  one.
 * Errors  asserted.
 * Units   bytes. */
#ifndef TARN_TESTS_UNIT_CACHE_DISK_FILES_H
#define TARN_TESTS_UNIT_CACHE_DISK_FILES_H

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/rng.h"
#include "cache/disk/disk_format.h"
#include "cache/key.h"

#define DISK_FILES_EXTENTS 20u /* more than one page of headers */
#define DISK_FILES_RECORDS 16u
#define DISK_FILES_PATH 4u

struct disk_files {
    char root[64], dir[192]; /* --kv-disk-path, and the directory in it */
    struct disk_super super;
    struct disk_record records[DISK_FILES_RECORDS];
    uint8_t *table, *data;
    size_t n_table_bytes, n_data_bytes;
};

/* The extent of record k. */
static inline uint32_t disk_files_extent(uint32_t k)
{
    return (k * 7 + 3) % DISK_FILES_EXTENTS;
}

static inline uint8_t *disk_files_header(const struct disk_files *f, uint32_t extent)
{
    return f->table + DISK_PAGE_BYTES + (size_t)extent * DISK_HEADER_BYTES;
}

static inline uint8_t *disk_files_payload(const struct disk_files *f, uint32_t extent)
{
    return f->data + extent * f->super.extent_bytes;
}

/* Compute the checksum of the header's current bytes. */
static inline void disk_files_seal(uint8_t *header)
{
    uint32_t crc = hash_crc32c(0, header, DISK_HEADER_BYTES - 4);

    for (int i = 0; i < 4; i++)
        header[DISK_HEADER_BYTES - 4 + i] = (uint8_t)(crc >> 8 * i);
}

static inline void disk_files_name(struct disk_record *r, const uint8_t *fingerprint)
{
    uint8_t domain[KV_DOMAIN_BYTES];

    key_domain(domain, fingerprint, &r->scope);
    key_of_block(&r->key, domain, &r->parent, (r->flags & DISK_STARTS_SEGMENT) != 0, r->ids,
                 r->n_tokens);
}

/* Record k of its path; `before` is the record before it. */
static inline struct disk_record disk_files_record(uint32_t k, const struct disk_record *before,
                                                   const uint8_t *fingerprint)
{
    uint32_t at = k % DISK_FILES_PATH;
    struct disk_record r = {.pos0 = at * KV_BLOCK_TOKENS, .n_uses = 2 + k, .no = 100 + k};

    r.n_tokens = at + 1 == DISK_FILES_PATH ? 5 : KV_BLOCK_TOKENS;
    r.flags = at == 0 ? DISK_STARTS_SEGMENT : 0;
    if (k / DISK_FILES_PATH == 1)
        r.flags |= DISK_REGISTERED;
    if (k / DISK_FILES_PATH == 2)
        memset(r.scope.bytes, 0xA5, KV_SCOPE_BYTES);
    if (at > 0)
        r.parent = before->key;
    for (uint32_t i = 0; i < r.n_tokens; i++)
        r.ids[i] = rng_u32(7, k * KV_BLOCK_TOKENS + i) & KV_ID_MAX;
    disk_files_name(&r, fingerprint);
    return r;
}

static inline void disk_files_put(struct disk_files *f, const struct disk_record *r,
                                  uint32_t extent)
{
    disk_header_encode(disk_files_header(f, extent), r, f->super.fingerprint, extent);
}

/* fingerprint_byte: the value of all its bytes. */
static inline void disk_files_init(struct disk_files *f, uint64_t block_bytes,
                                   uint8_t fingerprint_byte)
{
    char hex[2 * KV_FINGERPRINT_BYTES + 1];

    *f = (struct disk_files){.super = {.block_bytes = block_bytes,
                                       .extent_bytes = disk_extent_bytes(block_bytes),
                                       .n_extents = DISK_FILES_EXTENTS,
                                       .segment_tokens = KV_SEGMENT_TOKENS_MAX}};
    memset(f->super.fingerprint, fingerprint_byte, KV_FINGERPRINT_BYTES);
    f->n_table_bytes = disk_table_bytes(DISK_FILES_EXTENTS);
    f->n_data_bytes = DISK_FILES_EXTENTS * f->super.extent_bytes;
    f->table = calloc(1, f->n_table_bytes);
    f->data = calloc(1, f->n_data_bytes);
    ASSERT(f->table && f->data);
    disk_super_encode(f->table, &f->super);
    for (uint32_t k = 0; k < DISK_FILES_RECORDS; k++) {
        uint32_t extent = disk_files_extent(k);
        uint8_t *payload = disk_files_payload(f, extent);
        f->records[k] = disk_files_record(k, k ? &f->records[k - 1] : NULL, f->super.fingerprint);
        for (uint64_t i = 0; i < block_bytes; i++)
            payload[i] = (uint8_t)(k * 31 + i * 7 + (i >> 8));
        f->records[k].payload_crc = hash_crc32c(0, payload, block_bytes);
        disk_files_put(f, &f->records[k], extent);
    }
    snprintf(f->root, sizeof f->root, "%s/tarn-disk-files-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    ASSERT(mkdtemp(f->root));
    hash_hex(hex, f->super.fingerprint, KV_FINGERPRINT_BYTES);
    snprintf(f->dir, sizeof f->dir, "%s/%s-v%d", f->root, hex, DISK_FORMAT_VERSION);
    ASSERT(mkdir(f->dir, 0700) == 0);
}

static inline void disk_files_write_one(const char *dir, const char *name, const uint8_t *bytes,
                                        size_t n)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ASSERT(fd >= 0);
    ASSERT(n == 0 || write(fd, bytes, n) == (ssize_t)n);
    ASSERT(close(fd) == 0);
}

/* Write as many bytes as the sizes say. */
static inline void disk_files_write(const struct disk_files *f)
{
    disk_files_write_one(f->dir, "table", f->table, f->n_table_bytes);
    disk_files_write_one(f->dir, "data", f->data, f->n_data_bytes);
    disk_files_write_one(f->dir, "lock", NULL, 0);
}

/* Remove a directory of files, or of directories of files. */
static inline void disk_files_remove(const char *dir, int depth)
{
    char path[512];
    DIR *d = opendir(dir);

    ASSERT(d);
    for (const struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        ASSERT(snprintf(path, sizeof path, "%s/%s", dir, e->d_name) < (int)sizeof path);
        if (unlink(path) != 0 && depth > 0)
            disk_files_remove(path, depth - 1);
    }
    closedir(d);
    ASSERT(rmdir(dir) == 0);
}

static inline void disk_files_fini(struct disk_files *f)
{
    disk_files_remove(f->root, 1);
    free(f->table);
    free(f->data);
    *f = (struct disk_files){.table = NULL};
}

#endif
