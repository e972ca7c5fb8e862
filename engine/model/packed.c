/* packed.c - the key of packed weights, and reading their file. */
#include "engine/model/packed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mapfile.h"
#include "engine/model/family.h"
#include "engine/model/weights_load.h"

#define CONFIG_TEXT_BYTES_MAX (64u << 10) /* bytes of the configuration's canonical text */

/* --- pieces --- */

uint32_t packed_pieces(const struct weights_part *parts, uint32_t n_parts, struct packed_piece *out,
                       uint64_t *end)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_parts; i++)
        n += (uint32_t)((parts[i].n_bytes + PACKED_PIECE_BYTES - 1) / PACKED_PIECE_BYTES);
    uint64_t offset = packed_aligned(packed_head_bytes(n));
    for (uint32_t i = 0; i < n_parts; i++, offset = packed_aligned(offset))
        for (size_t at = 0; at < parts[i].n_bytes; at += PACKED_PIECE_BYTES) {
            size_t left = parts[i].n_bytes - at;
            struct packed_piece p = {.data = (unsigned char *)parts[i].data + at,
                                     .n_bytes =
                                         left < PACKED_PIECE_BYTES ? left : PACKED_PIECE_BYTES,
                                     .offset = offset};

            offset += p.n_bytes;
            if (out)
                *out++ = p;
        }
    *end = offset;
    return n;
}

/* --- the key --- */

static void add_u64(struct hash_state *h, uint64_t v)
{
    hash_add(h, &v, sizeof v);
}

static void add_text(struct hash_state *h, const char *text)
{
    hash_add(h, text, strlen(text) + 1);
}

static void add_weight(struct hash_state *h, const struct weight *w)
{
    add_u64(h, w->dtype);
    add_u64(h, w->layout);
    add_u64(h, w->n);
    add_u64(h, w->k);
    add_u64(h, w->stride);
    add_u64(h, w->group);
}

static void add_tensor(struct hash_state *h, const struct tensor *t)
{
    add_text(h, t->name);
    add_text(h, t->codec ? t->codec->name : "");
    add_text(h, t->dtype_name);
    add_u64(h, t->dtype);
    add_u64(h, t->code_bits);
    add_u64(h, t->code_group);
    add_u64(h, t->n_bytes);
    add_u64(h, t->n_dims);
    for (uint32_t i = 0; i < t->n_dims; i++)
        add_u64(h, t->shape[i]);
}

/* The allocation that holds an address, and the offset in it. Neighbouring jobs fill neighbouring
 * allocations, so the search goes round from the last one found. */
static void add_place(struct hash_state *h, const struct weights *w, const void *data,
                      uint32_t *last)
{
    for (uint32_t n = 0; n < w->n_owned; n++) {
        uint32_t i = (*last + n) % w->n_owned;
        uintptr_t begin = (uintptr_t)w->owned[i].data, at = (uintptr_t)data;

        if (at < begin || at - begin >= w->owned[i].n_bytes)
            continue;
        *last = i;
        add_u64(h, i);
        add_u64(h, at - begin);
        return;
    }
    add_u64(h, UINT64_MAX); /* not in the weights' memory: read from the mapped file */
}

static void add_jobs(struct hash_state *h, const struct loader *l)
{
    const struct weights *w = l->w;
    uint32_t last = 0;

    add_u64(h, w->n_owned);
    for (uint32_t i = 0; i < w->n_owned; i++)
        add_u64(h, w->owned[i].n_bytes);
    for (uint32_t i = 0; i < l->n_jobs; i++) {
        const struct job *job = &l->jobs[i];
        const void *to = job->w ? job->w->data : job->table ? job->table : (void *)job->vec;

        add_tensor(h, job->tensor);
        add_place(h, w, to, &last);
        if (job->w)
            add_weight(h, job->w);
        add_u64(h, job->dtype);
        add_u64(h, job->n0);
        add_u64(h, job->n_rows);
        add_u64(h, job->k);
        add_u64(h, job->row0);
        add_u64(h, job->k0);
        hash_add(h, &job->offset, sizeof job->offset);
    }
}

static uint64_t ns_of(struct timespec t)
{
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Add the configuration: as it was parsed, and the file that says how tensors are quantized, as it
 * was before that was read. A file that changes between the two gives a key that no later start
 * has. */
static bool add_config(struct hash_state *h, const struct loader *l)
{
    struct buf text;

    buf_init(&text, CONFIG_TEXT_BYTES_MAX);
    bool ok = model_config_write(l->config->model, false, &text) == OK;
    add_text(h, buf_str(&text));
    buf_fini(&text);
    add_u64(h, (uint64_t)l->config_file.st_ino);
    add_u64(h, (uint64_t)l->config_file.st_size);
    add_u64(h, ns_of(l->config_file.st_mtim));
    add_u64(h, ns_of(l->config_file.st_ctim));
    return ok;
}

void packed_stat_config(struct loader *l)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof path, "%s/config.json", l->config->dir) >= (int)sizeof path ||
        stat(path, &l->config_file) != 0)
        l->config_file = (struct stat){0};
}

/* Returns the latest ctime of all files; UINT64_MAX without memory. The device's number is left
 * out: it may change when the same folder is mounted again. */
static uint64_t make_key(uint8_t key[PACKED_KEY_BYTES], const struct loader *l)
{
    const struct weights_config *c = l->config;
    const struct mapfile *m;
    struct hash_state h;

    hash_begin(&h, PACKED_KEY_BYTES, NULL, 0);
    add_text(&h, "tarn packed weights");
    add_u64(&h, PACKED_VERSION);
    uint64_t latest = add_config(&h, l) ? ns_of(l->config_file.st_ctim) : UINT64_MAX;
    for (uint32_t i = 0; (m = checkpoint_map(l->w->file, i)) != NULL; i++) {
        add_u64(&h, m->ino);
        add_u64(&h, m->n_bytes);
        add_u64(&h, m->mtime_ns);
        add_u64(&h, m->ctime_ns);
        latest = m->ctime_ns > latest ? m->ctime_ns : latest;
    }
    add_text(&h, c->model->family->name);
    add_u64(&h, c->dtype);
    add_u64(&h, l->w->quantization.dtype);
    add_u64(&h, l->w->quantization.group);
    add_jobs(&h, l);
    hash_end(&h, key, PACKED_KEY_BYTES);
    return latest;
}

static bool has_settled(uint64_t ctime_ns)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return ns_of(now) >= ctime_ns && ns_of(now) - ctime_ns >= PACKED_SETTLED_NS;
}

void packed_plan(struct packed *p, const struct loader *l)
{
    const struct weights_config *c = l->config;
    const struct weights *w = l->w;
    char hex[2 * PACKED_KEY_BYTES + 1];
    bool quantized = w->quantization.group || quantization_is_as_stored(w->quantization);

    *p = (struct packed){.wanted = false};
    if (!c->packed_dir || !c->packed_bytes || c->dummy || !quantized || !device_is_host(c->device))
        return;
    if (!has_settled(make_key(p->head.key, l)))
        return;
    p->head.n_pieces = packed_pieces(w->owned, w->n_owned, NULL, &p->head.n_bytes);
    p->head.crcs = calloc(p->head.n_pieces + 1, sizeof *p->head.crcs);
    hash_hex(hex, p->head.key, PACKED_KEY_BYTES / 2);
    p->wanted = p->head.crcs && snprintf(p->path, sizeof p->path, "%s/%s" PACKED_SUFFIX,
                                         c->packed_dir, hex) < (int)sizeof p->path;
}

/* --- reading --- */

struct reading {
    const struct packed_piece *pieces;
    const uint32_t *crcs;
    int fd;
    atomic_uint n_bad;
};

static bool read_at(int fd, void *out, size_t n_bytes, uint64_t offset)
{
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = pread(fd, (char *)out + done, n_bytes - done, (off_t)(offset + done));

        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static void read_piece(void *arg, uint32_t i)
{
    struct reading *r = arg;
    const struct packed_piece *p = &r->pieces[i];

    if (!read_at(r->fd, p->data, p->n_bytes, p->offset) ||
        hash_crc32c(0, p->data, p->n_bytes) != r->crcs[i])
        atomic_fetch_add(&r->n_bad, 1);
}

static bool read_head(struct packed_head *h, int fd)
{
    size_t n = packed_head_bytes(h->n_pieces);
    unsigned char *data = malloc(n);
    struct stat st;
    bool good = data && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                (uint64_t)st.st_size == h->n_bytes && read_at(fd, data, n, 0) &&
                packed_head_decode(h, data);

    free(data);
    return good;
}

/* Whether all pieces were read; else the memory is zeros again. */
static bool read_pieces(const struct packed *p, const struct loader *l, int fd)
{
    const struct weights *w = l->w;
    struct packed_piece *pieces = calloc(p->head.n_pieces + 1, sizeof *pieces);
    struct reading r = {.pieces = pieces, .crcs = p->head.crcs, .fd = fd};
    uint64_t end;

    if (!pieces)
        return false;
    packed_pieces(w->owned, w->n_owned, pieces, &end);
    device_parallel(l->config->device, p->head.n_pieces, read_piece, &r);
    free(pieces);
    if (atomic_load(&r.n_bad) == 0)
        return true;
    for (uint32_t i = 0; i < w->n_owned; i++)
        memset(w->owned[i].data, 0, w->owned[i].n_bytes);
    return false;
}

bool packed_read(struct packed *p, const struct loader *l)
{
    int fd = p->wanted ? open(p->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;

    if (fd < 0)
        return false;
    bool good = read_head(&p->head, fd) && read_pieces(p, l, fd);
    if (good) {
        memcpy(l->w->content_hash, p->head.content_hash, sizeof l->w->content_hash);
        (void)!futimens(fd, NULL); /* used now; the oldest file is removed first */
    } else {
        log_event(LOG_WARN, "packed weights are damaged and are made again", "path=\"%s\"",
                  p->path);
        unlink(p->path);
    }
    close(fd);
    return good;
}
