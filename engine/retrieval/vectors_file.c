/* vectors_file.c - the file of an index.
 *
 *   0    struct file_header, 256 bytes, in host order
 *   256  ids    [n_slots] int64
 *        marks  [n_slots] uint64
 *        dead   [n_slots] uint8
 *        the index as faiss_index_write() writes it, to the end
 *
 * The checksums are CRC32C. They find torn and damaged files; contents that contradict each other
 * are refused beyond that (faiss_index_read()), so that a file cannot crash the server. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mapfile.h"
#include "base/save_file.h"
#include "engine/retrieval/vectors_inner.h"

#define MAGIC "TARNVECS"
#define FILE_VERSION 1

struct file_header {
    char magic[8];
    uint32_t version, dim;
    uint64_t generation;
    uint64_t n_slots, n_built;
    uint64_t payload_bytes;                  /* behind the header */
    char wanted[VECTORS_FACTORY_BYTES_MAX];  /* of the configuration */
    char factory[VECTORS_FACTORY_BYTES_MAX]; /* of the index */
    uint8_t unused[72];
    uint32_t payload_crc;
    uint32_t header_crc; /* of all bytes before */
};
_Static_assert(sizeof(struct file_header) == 256, "part of the file format");

struct output {
    struct vectors *v;
    FILE *f;
    uint64_t n_bytes;
    uint32_t crc;
};

static bool write_bytes(void *arg, const void *bytes, size_t n)
{
    struct output *o = arg;

    o->crc = hash_crc32c(o->crc, bytes, n);
    o->n_bytes += n;
    return n == 0 || fwrite(bytes, 1, n, o->f) == n;
}

static void fill_header(struct file_header *h, const struct output *o)
{
    const struct body *b = o->v->now;

    memcpy(h->magic, MAGIC, sizeof h->magic);
    h->version = FILE_VERSION;
    h->dim = o->v->dim;
    h->generation = o->v->generation;
    h->n_slots = b->n_slots;
    h->n_built = b->n_built;
    h->payload_bytes = o->n_bytes;
    memcpy(h->wanted, o->v->factory, strlen(o->v->factory));
    memcpy(h->factory, b->factory, strlen(b->factory));
    h->payload_crc = o->crc;
    h->header_crc = hash_crc32c(0, h, offsetof(struct file_header, header_crc));
}

static bool write_file(void *arg, FILE *f)
{
    struct output *o = arg;
    const struct body *b = o->v->now;
    struct file_header header = {0};

    o->f = f;
    if (fchmod(fileno(f), 0600) != 0 || fwrite(&header, sizeof header, 1, f) != 1 ||
        !write_bytes(o, b->ids, b->n_slots * sizeof *b->ids) ||
        !write_bytes(o, b->marks, b->n_slots * sizeof *b->marks) ||
        !write_bytes(o, b->is_dead, b->n_slots))
        return false;
    if (faiss_index_write(b->ix, write_bytes, o, NULL) != OK)
        return false;
    fill_header(&header, o);
    return fseek(f, 0, SEEK_SET) == 0 && fwrite(&header, sizeof header, 1, f) == 1;
}

enum status vectors_save(struct vectors *v, struct buf *why)
{
    struct output o = {.v = v};
    enum status s;

    if (!v->file)
        return OK;
    pthread_mutex_lock(&v->saving);
    pthread_rwlock_rdlock(&v->lock);
    if (v->n_changes == v->n_changes_saved && v->serial == v->serial_saved)
        s = OK;
    else
        s = save_file_by(v->file, write_file, &o, why);
    if (s == OK) {
        v->n_changes_saved = v->n_changes;
        v->serial_saved = v->serial;
    }
    pthread_rwlock_unlock(&v->lock);
    pthread_mutex_unlock(&v->saving);
    return s;
}

static bool is_header_good(const struct file_header *h, const struct vectors *v, size_t n_bytes)
{
    return memcmp(h->magic, MAGIC, sizeof h->magic) == 0 && h->version == FILE_VERSION &&
           h->header_crc == hash_crc32c(0, h, offsetof(struct file_header, header_crc)) &&
           h->dim == v->dim && h->generation == v->generation &&
           memchr(h->factory, 0, sizeof h->factory) &&
           strncmp(h->wanted, v->factory, sizeof h->wanted) == 0 && h->n_slots <= INT32_MAX &&
           h->n_built <= INT32_MAX && h->payload_bytes == n_bytes - sizeof *h &&
           h->payload_bytes / 17 >= h->n_slots;
}

/* Fill the tables of b from `in`; false: the file contradicts itself. */
static enum status read_tables(struct body *b, const struct file_header *h, const unsigned char *in)
{
    uint32_t n = (uint32_t)h->n_slots;
    enum status s = body_reserve(b, n, NULL);

    if (s != OK)
        return s;
    if (n == 0)
        return OK;
    memcpy(b->ids, in, n * sizeof *b->ids);
    memcpy(b->marks, in + n * sizeof *b->ids, n * sizeof *b->marks);
    memcpy(b->is_dead, in + n * (sizeof *b->ids + sizeof *b->marks), n);
    b->n_slots = n;
    b->n_built = (uint32_t)h->n_built;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t other;

        if (b->ids[i] < 0 || b->is_dead[i] > 1 ||
            (!b->is_dead[i] && map_get(&b->slot_of, (uint64_t)b->ids[i], &other)))
            return ERR_CORRUPT;
        b->n_dead += b->is_dead[i];
        if (!b->is_dead[i])
            map_put(&b->slot_of, (uint64_t)b->ids[i], i);
    }
    return OK;
}

static enum status read_body(struct body **out, const struct vectors *v, const unsigned char *data,
                             size_t n_bytes)
{
    const unsigned char *payload = data + sizeof(struct file_header);
    struct file_header h;
    struct body *b;
    enum status s;

    if (n_bytes < sizeof h)
        return ERR_CORRUPT;
    memcpy(&h, data, sizeof h);
    if (!is_header_good(&h, v, n_bytes) ||
        h.payload_crc != hash_crc32c(0, payload, h.payload_bytes))
        return ERR_CORRUPT;
    s = body_create(&b, v->dim, "Flat", v->seed, NULL);
    if (s != OK)
        return s;
    faiss_index_destroy(b->ix);
    b->ix = NULL;
    memcpy(b->factory, h.factory, sizeof b->factory);
    s = read_tables(b, &h, payload);
    if (s == OK)
        s = faiss_index_read(&b->ix, v->dim, b->factory, payload + h.n_slots * 17,
                             h.payload_bytes - h.n_slots * 17, NULL);
    if (s == OK && faiss_index_n_total(b->ix) != h.n_slots)
        s = ERR_CORRUPT;
    if (s != OK) {
        body_destroy(b);
        return s;
    }
    *out = b;
    return OK;
}

enum status vectors_load(struct vectors *v)
{
    struct mapfile file;
    struct body *b;
    enum status s = mapfile_open(&file, v->file, NULL);

    if (s != OK)
        return s;
    s = read_body(&b, v, file.data, file.n_bytes);
    mapfile_close(&file);
    if (s != OK) {
        log_event(LOG_WARN, "vector index file ignored", "file=\"%s\" why=\"%s\"", v->file,
                  s == ERR_CORRUPT ? "it is damaged, or of another version or configuration"
                                   : status_words(s));
        return s;
    }
    body_destroy(v->now);
    v->now = b;
    return OK;
}
