#include "clients/tarnctl/verify.h"

#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/json.h"
#include "cache/disk/disk_verify.h"

#define SIZE_BYTES 24
#define JSON_BYTES_MAX ((size_t)1 << 24)

static const char *size_text(char *out, uint64_t bytes)
{
    static const char *const units[] = {"", "K", "M", "G", "T", "P"};
    double v = (double)bytes;
    size_t i = 0;

    for (; v >= 1024 && i + 1 < sizeof units / sizeof *units; i++)
        v /= 1024;
    snprintf(out, SIZE_BYTES, i ? "%.1f%s" : "%.0f%s", v, units[i]);
    return out;
}

/* --- progress --- */

struct progress {
    FILE *err;
    int percent; /* printed last; -1: none yet */
};

static void show_progress(void *arg, uint64_t n_done, uint64_t n_all)
{
    struct progress *p = arg;
    int percent = n_all ? (int)((double)n_done * 100 / (double)n_all) : 100;
    char done[SIZE_BYTES], all[SIZE_BYTES];

    if (percent == p->percent)
        return;
    p->percent = percent;
    fprintf(p->err, "\r%3d %% (%s of %s read)\033[K", percent, size_text(done, n_done),
            size_text(all, n_all));
    fflush(p->err);
}

static void end_progress(struct progress *p)
{
    if (p->percent >= 0)
        fputs("\r\033[K", p->err);
    p->percent = -1;
}

/* --- text --- */

static const char *meaning(enum disk_fault f)
{
    switch (f) {
    case DISK_FAULT_UNREADABLE: return "the payload cannot be read: an I/O error, or a short file";
    case DISK_FAULT_PAYLOAD: return "the payload's checksum is wrong";
    case DISK_FAULT_TORN: return "the header's checksum is wrong";
    case DISK_FAULT_FOREIGN: return "the header belongs to another place, model or version";
    case DISK_FAULT_IMPOSSIBLE: return "the header has impossible values";
    case DISK_FAULT_MISNAMED: return "the key is not the hash of the header's content";
    case DISK_FAULT_DOUBLED: return "harmless: there is a newer record of the same block";
    case DISK_FAULT_ORPHANED: return "harmless: a block before it is missing";
    case DISK_FAULT_ERASING: return "harmless: the next start of a server completes the erasure";
    case DISK_N_FAULTS: break;
    }
    return "";
}

static void print_places(FILE *out, const struct disk_report *r)
{
    uint32_t n_faults = 0;

    for (int f = 0; f < DISK_N_FAULTS; f++)
        n_faults += r->n_by_fault[f];
    for (uint32_t i = 0; i < r->n_places; i++)
        fprintf(out, "    extent %u: %s\n", r->places[i].extent,
                disk_fault_name(r->places[i].fault));
    if (n_faults > r->n_places)
        fprintf(out, "    and %u more\n", n_faults - r->n_places);
}

static void print_report(FILE *out, const char *dir, const struct disk_report *r)
{
    char extent[SIZE_BYTES], block[SIZE_BYTES], all[SIZE_BYTES];
    uint32_t n_damaged = disk_report_n_damaged(r);

    fprintf(out, "%s\n", dir);
    fprintf(out, "  %u extents of %s (payload %s), %s on disk\n", r->super.n_extents,
            size_text(extent, r->super.extent_bytes), size_text(block, r->super.block_bytes),
            size_text(all, r->n_file_bytes));
    fprintf(out, "  %-10s  %10u  %llu tokens; %u records registered\n", "good", r->n_good,
            (unsigned long long)r->n_tokens, r->n_registered);
    fprintf(out, "  %-10s  %10u\n", "empty", r->n_empty);
    if (r->n_changed)
        fprintf(out, "  %-10s  %10u  the server changed them meanwhile\n", "changed", r->n_changed);
    for (int f = 0; f < DISK_N_FAULTS; f++)
        if (r->n_by_fault[f])
            fprintf(out, "  %-10s  %10u  %s\n", disk_fault_name(f), r->n_by_fault[f], meaning(f));
    if (r->n_stray_bytes)
        fprintf(out,
                "  %-10s  %10llu  bytes behind the last header or the end of the data; "
                "harmless: servers ignore them\n",
                "stray", (unsigned long long)r->n_stray_bytes);
    print_places(out, r);
    if (r->is_in_use)
        fputs("  a server uses this directory: faults may be false alarms; check again when it has "
              "ended\n",
              out);
    if (n_damaged)
        fprintf(out,
                "  DAMAGED: %u records. A server ignores them and computes their tokens "
                "again\n",
                n_damaged);
    else
        fputs("  fine\n", out);
}

/* --- JSON --- */

static enum status write_faults(struct buf *out, const struct disk_report *r)
{
    enum status s = buf_puts(out, ",\"faults\":{");

    for (int f = 0; s == OK && f < DISK_N_FAULTS; f++)
        s = buf_printf(out, "%s\"%s\":%u", f ? "," : "", disk_fault_name(f), r->n_by_fault[f]);
    if (s == OK)
        s = buf_puts(out, "},\"places\":[");
    for (uint32_t i = 0; s == OK && i < r->n_places; i++)
        s = buf_printf(out, "%s{\"extent\":%u,\"fault\":\"%s\"}", i ? "," : "", r->places[i].extent,
                       disk_fault_name(r->places[i].fault));
    return s == OK ? buf_puts(out, "]") : s;
}

static enum status write_report(struct buf *out, const struct disk_report *r)
{
    char hex[2 * KV_FINGERPRINT_BYTES + 1];
    enum status s;

    hash_hex(hex, r->super.fingerprint, KV_FINGERPRINT_BYTES);
    s = buf_printf(out,
                   ",\"fingerprint\":\"%s\",\"extents\":%u,\"extent_bytes\":%llu,"
                   "\"block_bytes\":%llu,\"file_bytes\":%llu,\"stray_bytes\":%llu,"
                   "\"in_use\":%s,\"damaged\":%u,\"good\":%u,\"empty\":%u,\"changed\":%u,"
                   "\"registered\":%u,\"tokens\":%llu",
                   hex, r->super.n_extents, (unsigned long long)r->super.extent_bytes,
                   (unsigned long long)r->super.block_bytes, (unsigned long long)r->n_file_bytes,
                   (unsigned long long)r->n_stray_bytes, r->is_in_use ? "true" : "false",
                   disk_report_n_damaged(r), r->n_good, r->n_empty, r->n_changed, r->n_registered,
                   (unsigned long long)r->n_tokens);
    return s == OK ? write_faults(out, r) : s;
}

static enum status write_directory(struct buf *out, const char *dir, enum status checked,
                                   const struct disk_report *r, const char *why)
{
    enum status s = buf_puts(out, "{\"path\":");

    if (s == OK)
        s = js_write_string(out, dir, strlen(dir));
    if (s == OK)
        s = buf_printf(out, ",\"status\":\"%s\"", status_name(checked));
    if (s == OK && checked == OK)
        s = write_report(out, r);
    if (s == OK && checked != OK)
        s = buf_puts(out, ",\"error\":");
    if (s == OK && checked != OK)
        s = js_write_string(out, why, strlen(why));
    return s == OK ? buf_puts(out, "}") : s;
}

/* --- all directories --- */

static int code_of(enum status s, const struct disk_report *r)
{
    if (s == OK)
        return disk_report_n_damaged(r) ? VERIFY_DAMAGED : VERIFY_FINE;
    return s == ERR_CORRUPT ? VERIFY_DAMAGED : VERIFY_UNREADABLE;
}

/* Check a directory. Append JSON to `text`, or print to `out` if `text` is NULL. */
static enum status check_one(FILE *out, FILE *err, const char *dir, struct buf *text, int *code)
{
    struct progress p = {.err = err, .percent = -1};
    struct disk_verify_watch watch = {show_progress, &p};
    struct disk_report r;
    struct buf why;
    enum status written = OK;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = disk_verify(&r, dir, isatty(fileno(err)) ? &watch : NULL, &why);
    end_progress(&p);
    if (s != OK)
        fprintf(err, "tarnctl: %s\n", buf_str(&why));
    if (text)
        written = write_directory(text, dir, s, &r, buf_str(&why));
    else if (s == OK)
        print_report(out, dir, &r);
    if (code_of(s, &r) > *code)
        *code = code_of(s, &r);
    buf_fini(&why);
    return written;
}

static int check_all(FILE *out, FILE *err, const struct disk_dirs *dirs, bool json)
{
    struct buf text;
    int code = VERIFY_FINE;

    buf_init(&text, JSON_BYTES_MAX);
    enum status s = buf_puts(&text, "{\"object\":\"cache.verify\",\"directories\":[");
    for (uint32_t i = 0; s == OK && i < dirs->n; i++) {
        if (i > 0)
            s = buf_putc(&text, ',');
        if (s == OK)
            s = check_one(out, err, dirs->paths[i], json ? &text : NULL, &code);
    }
    if (s == OK)
        s = buf_printf(&text, "],\"fine\":%s}\n", code == VERIFY_FINE ? "true" : "false");
    if (s != OK) {
        fprintf(err, "tarnctl: %s\n", s == ERR_NOMEM ? "out of memory" : "too many directories");
        code = VERIFY_UNREADABLE;
    } else if (json) {
        fputs(buf_str(&text), out);
    }
    buf_fini(&text);
    return code;
}

int verify_path(FILE *out, FILE *err, const char *path, bool json)
{
    struct disk_dirs dirs;
    struct buf why;
    int code = VERIFY_UNREADABLE;

    buf_init(&why, BUF_WHY_MAX);
    if (hash_init() != OK)
        fputs("tarnctl: libsodium does not start\n", err);
    else if (disk_dirs_find(&dirs, path, &why) != OK)
        fprintf(err, "tarnctl: %s\n", buf_str(&why));
    else {
        code = check_all(out, err, &dirs, json);
        disk_dirs_fini(&dirs);
    }
    buf_fini(&why);
    return code;
}
