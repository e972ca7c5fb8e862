#include "engine/cost_model.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/json.h"

#define FORMAT 1
#define FILE_BYTES_MAX 65536
#define CORRECTION_MAX 4.0

const uint32_t cost_model_default_cached[7] = {0, 256, 512, 1024, 2048, 4096, 8192};
const uint32_t cost_model_default_new[9] = {32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};

static enum status check_axis(const char *name, const uint32_t *axis, uint32_t n, uint32_t first,
                              struct buf *why)
{
    if (n < 2 || n > COST_MODEL_N_POINTS_MAX)
        return buf_why(why, ERR_INVALID, "%s: expected 2 to %d points", name,
                       COST_MODEL_N_POINTS_MAX);
    if (axis[0] < first)
        return buf_why(why, ERR_INVALID, "%s: the first point is at least %u", name, first);
    for (uint32_t i = 1; i < n; i++)
        if (axis[i] <= axis[i - 1])
            return buf_why(why, ERR_INVALID, "%s: the points have to ascend", name);
    return OK;
}

enum status cost_model_init(struct cost_model *m, const uint32_t *cached, uint32_t n_cached,
                            const uint32_t *new_tokens, uint32_t n_new, const double *seconds,
                            struct buf *why)
{
    struct cost_model fresh = {.n_cached = n_cached, .n_new = n_new};
    enum status s = check_axis("cached", cached, n_cached, 0, why);

    if (s == OK)
        s = check_axis("new", new_tokens, n_new, 1, why);
    if (s != OK)
        return s;
    memcpy(fresh.cached, cached, n_cached * sizeof *cached);
    memcpy(fresh.new_tokens, new_tokens, n_new * sizeof *new_tokens);
    for (uint32_t i = 0; i < n_cached; i++)
        for (uint32_t j = 0; j < n_new; j++) {
            double v = seconds[i * n_new + j];

            if (!isfinite(v) || v <= 0)
                return buf_why(why, ERR_INVALID, "seconds[%u][%u]: expected a number above 0", i,
                               j);
            fresh.seconds[i][j] = v;
        }
    *m = fresh;
    return OK;
}

/* Where x lies between two neighbours: points[low], points[low + 1], and how far along; more than 1
 * above the axis, 0 below it. */
static double locate(const uint32_t *points, uint32_t n, uint32_t x, uint32_t *low)
{
    uint32_t i = 0;

    while (i + 2 < n && x >= points[i + 1])
        i++;
    *low = i;
    if (x <= points[i])
        return 0;
    return ((double)x - points[i]) / ((double)points[i + 1] - points[i]);
}

struct cell {
    uint32_t a, b; /* its lower corner */
    double t, u;
};

static struct cell cell_of(const struct cost_model *m, uint32_t n_cached, uint32_t n_new)
{
    struct cell c;

    c.t = locate(m->cached, m->n_cached, n_cached, &c.a);
    c.u = locate(m->new_tokens, m->n_new, n_new, &c.b);
    return c;
}

static double bilinear(const struct cost_model *m, const struct cell *c, double t, double u)
{
    const double *low = &m->seconds[c->a][c->b], *high = &m->seconds[c->a + 1][c->b];

    return (1 - t) * (1 - u) * low[0] + t * (1 - u) * high[0] + (1 - t) * u * low[1] +
           t * u * high[1];
}

void cost_model_estimate(struct cost_model *m, const struct cost_estimate *e)
{
    *m = (struct cost_model){.n_cached = ARRAY_SIZE(cost_model_default_cached),
                             .n_new = ARRAY_SIZE(cost_model_default_new)};
    memcpy(m->cached, cost_model_default_cached, sizeof cost_model_default_cached);
    memcpy(m->new_tokens, cost_model_default_new, sizeof cost_model_default_new);
    for (uint32_t i = 0; i < m->n_cached; i++)
        for (uint32_t j = 0; j < m->n_new; j++) {
            double n = m->new_tokens[j], n_pairs = n * (m->cached[i] + n / 2);

            m->seconds[i][j] = fmax(e->weight_bytes / e->bytes_per_s,
                                    n * e->flops_per_token / e->flops_per_s) +
                               n_pairs * e->flops_per_pair / e->flops_per_s;
        }
}

void cost_model_scale(struct cost_model *m, uint32_t n_cached, uint32_t n_new, double seconds)
{
    double factor = seconds / cost_model_seconds(m, n_cached, n_new);

    if (n_new == 0 || !isfinite(factor) || factor <= 0)
        return;
    for (uint32_t i = 0; i < m->n_cached; i++)
        for (uint32_t j = 0; j < m->n_new; j++)
            m->seconds[i][j] *= factor;
}

double cost_model_seconds(const struct cost_model *m, uint32_t n_cached, uint32_t n_new)
{
    struct cell c = cell_of(m, n_cached, n_new);
    double edge;

    if (n_new == 0)
        return 0;
    edge = bilinear(m, &c, fmin(c.t, 1), fmin(c.u, 1));
    if (c.t <= 1 && c.u <= 1)
        return edge;
    return fmax(bilinear(m, &c, c.t, c.u), edge);
}

void cost_model_correct(struct cost_model *m, uint32_t n_cached, uint32_t n_new, double seconds)
{
    struct cell c = cell_of(m, n_cached, n_new);
    double expected = cost_model_seconds(m, n_cached, n_new);
    double t = fmin(c.t, 1), u = fmin(c.u, 1);
    double w[2][2] = {{(1 - t) * (1 - u), (1 - t) * u}, {t * (1 - u), t * u}};
    double ratio, sum = 0, sum_squares = 0;

    if (n_new == 0 || !isfinite(seconds) || seconds <= 0)
        return;
    ratio = fmin(fmax(seconds / expected, 1 / CORRECTION_MAX), CORRECTION_MAX);
    /* Corner i is scaled by 1 + step w_i. The answer then changes by the factor
     * 1 + step * sum(w_i^2 T_i) / sum(w_i T_i), which is to be 1 + rate (ratio - 1). */
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            double v = m->seconds[c.a + i][c.b + j];

            sum += w[i][j] * v;
            sum_squares += w[i][j] * w[i][j] * v;
        }
    double step = COST_MODEL_RATE * (ratio - 1) * sum / sum_squares;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            m->seconds[c.a + i][c.b + j] *= fmax(1 + step * w[i][j], 1 / CORRECTION_MAX);
}

/* --- JSON --- */

static enum status write_axis(struct buf *out, const char *name, const uint32_t *axis, uint32_t n)
{
    enum status s = buf_printf(out, " \"%s\": [", name);

    for (uint32_t i = 0; s == OK && i < n; i++)
        s = buf_printf(out, "%s%u", i ? ", " : "", axis[i]);
    return s == OK ? buf_puts(out, "],\n") : s;
}

static enum status write_row(struct buf *out, const struct cost_model *m, uint32_t i)
{
    enum status s = buf_puts(out, i ? ",\n  [" : "\n  [");

    for (uint32_t j = 0; s == OK && j < m->n_new; j++) {
        s = j ? buf_puts(out, ", ") : OK;
        if (s == OK)
            s = js_write_number(out, m->seconds[i][j]);
    }
    return s == OK ? buf_putc(out, ']') : s;
}

enum status cost_model_write(struct buf *out, const struct cost_model *m,
                             const struct cost_model_subject *subject)
{
    char hex[2 * COST_MODEL_FINGERPRINT_BYTES + 1];
    enum status s;

    hash_hex(hex, subject->fingerprint, COST_MODEL_FINGERPRINT_BYTES);
    s = buf_printf(out, "{\"format\": %d, \"fingerprint\": \"%s\", \"device\": ", FORMAT, hex);
    if (s == OK)
        s = js_write_string(out, subject->device, strlen(subject->device));
    if (s == OK)
        s = buf_puts(out, ",\n");
    if (s == OK)
        s = write_axis(out, "cached", m->cached, m->n_cached);
    if (s == OK)
        s = write_axis(out, "new", m->new_tokens, m->n_new);
    if (s == OK)
        s = buf_puts(out, " \"seconds\": [");
    for (uint32_t i = 0; s == OK && i < m->n_cached; i++)
        s = write_row(out, m, i);
    return s == OK ? buf_puts(out, "]}\n") : s;
}

static enum status read_axis(const struct json *root, const char *name, uint32_t *axis,
                             uint32_t *n, struct buf *why)
{
    const struct json *list = js_get(root, name);

    *n = (uint32_t)js_len(list);
    if (!js_is(list, JS_ARRAY) || js_len(list) > COST_MODEL_N_POINTS_MAX)
        return buf_why(why, ERR_INVALID, "%s: expected an array of at most %d", name,
                       COST_MODEL_N_POINTS_MAX);
    for (uint32_t i = 0; i < *n; i++) {
        const struct json *v = js_at(list, i);

        if (!js_is(v, JS_INT) || js_int(v) < 0 || js_int(v) > UINT32_MAX)
            return buf_why(why, ERR_INVALID, "%s[%u]: expected a number of tokens", name, i);
        axis[i] = (uint32_t)js_int(v);
    }
    return OK;
}

static enum status read_grid(struct cost_model *m, const struct json *root, struct buf *why)
{
    const struct json *rows = js_get(root, "seconds");
    uint32_t cached[COST_MODEL_N_POINTS_MAX], new_tokens[COST_MODEL_N_POINTS_MAX];
    uint32_t n_cached, n_new;
    double seconds[COST_MODEL_N_POINTS_MAX * COST_MODEL_N_POINTS_MAX];
    enum status s = read_axis(root, "cached", cached, &n_cached, why);

    if (s == OK)
        s = read_axis(root, "new", new_tokens, &n_new, why);
    if (s != OK)
        return s;
    if (!js_is(rows, JS_ARRAY) || js_len(rows) != n_cached)
        return buf_why(why, ERR_INVALID, "seconds: expected a row for each point of cached");
    for (uint32_t i = 0; i < n_cached; i++) {
        const struct json *row = js_at(rows, i);

        if (!js_is(row, JS_ARRAY) || js_len(row) != n_new)
            return buf_why(why, ERR_INVALID, "seconds[%u]: expected a number for each point of new",
                           i);
        for (uint32_t j = 0; j < n_new; j++) {
            const struct json *v = js_at(row, j);

            if (!js_is(v, JS_REAL) && !js_is(v, JS_INT))
                return buf_why(why, ERR_INVALID, "seconds[%u][%u]: expected a number", i, j);
            seconds[i * n_new + j] = js_number(v);
        }
    }
    return cost_model_init(m, cached, n_cached, new_tokens, n_new, seconds, why);
}

static enum status check_subject(const struct json *root, const struct cost_model_subject *subject,
                                 struct buf *why)
{
    char hex[2 * COST_MODEL_FINGERPRINT_BYTES + 1];
    const char *fingerprint = "", *device = "";
    int64_t format = 0;
    enum status s = js_get_i64(root, "format", 0, INT64_MAX, &format, why);

    if (s == OK)
        s = js_get_str(root, "fingerprint", &fingerprint, NULL, why);
    if (s == OK)
        s = js_get_str(root, "device", &device, NULL, why);
    if (s != OK)
        return s;
    hash_hex(hex, subject->fingerprint, COST_MODEL_FINGERPRINT_BYTES);
    if (format != FORMAT)
        return buf_why(why, ERR_NOT_FOUND, "format: expected %d", FORMAT);
    if (strcmp(fingerprint, hex) != 0 || strcmp(device, subject->device) != 0)
        return buf_why(why, ERR_NOT_FOUND, "profiled for another model or device");
    return OK;
}

/* Lets go of root. */
static enum status read_root(struct cost_model *m, struct json *root,
                             const struct cost_model_subject *subject, struct buf *why)
{
    enum status s = js_is(root, JS_OBJECT) ? check_subject(root, subject, why)
                                           : buf_why(why, ERR_INVALID, "expected an object");

    if (s == OK)
        s = read_grid(m, root, why);
    js_unref(root);
    return s;
}

enum status cost_model_read(struct cost_model *m, const char *text, size_t len,
                            const struct cost_model_subject *subject, struct buf *why)
{
    struct json *root;
    enum status s = js_parse(&root, text, len, why);

    return s == OK ? read_root(m, root, subject, why) : s;
}

/* --- files --- */

static enum status file_name(char path[PATH_MAX], const char *dir, const char *ending,
                             const struct cost_model_subject *subject, struct buf *why)
{
    struct hash_state h;
    uint8_t digest[16];
    char hex[2 * sizeof digest + 1];

    hash_begin(&h, sizeof digest, NULL, 0);
    hash_add(&h, subject->fingerprint, sizeof subject->fingerprint);
    hash_add(&h, subject->device, strlen(subject->device));
    hash_end(&h, digest, sizeof digest);
    hash_hex(hex, digest, sizeof digest);
    if (snprintf(path, PATH_MAX, "%s/cost-%.16s.json%s", dir, hex, ending) >= PATH_MAX)
        return buf_why(why, ERR_INVALID, "%s: the path is too long", dir);
    return OK;
}

static enum status write_file(const char *path, const struct buf *text, struct buf *why)
{
    FILE *f = fopen(path, "w");
    bool good;

    if (!f)
        return buf_why(why, ERR_IO, "%s: %s", path, strerror(errno));
    good = fwrite(text->data, 1, text->len, f) == text->len && fflush(f) == 0 &&
           fsync(fileno(f)) == 0;
    good &= fclose(f) == 0;
    return good ? OK : buf_why(why, ERR_IO, "%s: %s", path, strerror(errno));
}

enum status cost_model_save(const struct cost_model *m, const char *dir,
                            const struct cost_model_subject *subject, struct buf *why)
{
    char path[PATH_MAX], unfinished[PATH_MAX];
    struct buf text;
    enum status s = file_name(path, dir, "", subject, why);

    if (s == OK)
        s = file_name(unfinished, dir, ".new", subject, why);
    if (s != OK)
        return s;
    buf_init(&text, FILE_BYTES_MAX);
    s = cost_model_write(&text, m, subject);
    if (s == OK)
        s = write_file(unfinished, &text, why);
    if (s == OK && rename(unfinished, path) != 0)
        s = buf_why(why, ERR_IO, "%s: %s", path, strerror(errno));
    if (s != OK)
        unlink(unfinished);
    buf_fini(&text);
    return s;
}

enum status cost_model_load(struct cost_model *m, const char *dir,
                            const struct cost_model_subject *subject, struct buf *why)
{
    char path[PATH_MAX];
    struct json *root;
    enum status s = file_name(path, dir, "", subject, why);

    if (s == OK)
        s = js_parse_file(&root, path, FILE_BYTES_MAX, why);
    return s == OK ? read_root(m, root, subject, why) : s;
}
