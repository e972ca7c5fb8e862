#include "clients/tarnctl/import.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/utf8.h"
#include "clients/tarnctl/table.h"

#define BATCH_BYTES ((size_t)1 << 20)
#define BATCH_N_MAX 256
#define LINES_BYTES_MAX ((size_t)128 << 20) /* of a batch: one document of any size fits */
#define TITLE_BYTES 256
#define SHOWN_BYTES 300
#define N_TRIES 5       /* of a batch that the server is too busy for */
#define WAIT_S_MAX 30.0 /* between two of them */

struct import {
    const struct ctl_options *o;
    const struct tarn_client *client;
    struct buf lines;         /* of the batch */
    char *names[BATCH_N_MAX]; /* owned: file, or "line N" */
    size_t n_batch;
    uint64_t n_done, n_created, n_updated, n_unchanged, n_failed;
    uint64_t began_ns;
    bool shows_progress; /* standard error is a terminal */
    bool has_ended;      /* the server or the network failed, or memory is short */
};

/* --- messages --- */

static void show_progress(const struct import *m)
{
    double s = (double)(clock_now_ns() - m->began_ns) * 1e-9;

    if (!m->shows_progress)
        return;
    fprintf(stderr, "\r%llu documents, %llu failed, %.0f a second\033[K",
            (unsigned long long)m->n_done, (unsigned long long)m->n_failed,
            s > 0 ? (double)m->n_done / s : 0.0);
    fflush(stderr);
}

static void clear_progress(const struct import *m)
{
    if (m->shows_progress)
        fputs("\r\033[K", stderr);
}

/* Report a document that was not registered. */
static void refuse(struct import *m, const char *name, const char *words)
{
    char shown[SHOWN_BYTES];

    m->n_failed++;
    clear_progress(m);
    snprintf(shown, sizeof shown, "%s", name);
    table_clean(shown);
    fprintf(stderr, "tarnctl: %s: ", shown);
    snprintf(shown, sizeof shown, "%s", words);
    table_clean(shown);
    fprintf(stderr, "%s\n", shown);
}

static void end_import(struct import *m, const char *words)
{
    clear_progress(m);
    if (words)
        fprintf(stderr, "tarnctl: %s\n", words);
    m->has_ended = true;
}

/* --- batches --- */

static void take_error(struct import *m, const struct json *line)
{
    long long at = table_count_of(line, "line");
    bool is_known = at >= 1 && (size_t)at <= m->n_batch;

    refuse(m, is_known ? m->names[at - 1] : table_text_of(line, "id"),
           table_text_of(js_get(line, "error"), "message"));
}

/* Read the server's lines. False: the one with the sums is missing. */
static bool take_answer(struct import *m, const char *text)
{
    bool has_sums = false;

    for (const char *end; *text; text = *end ? end + 1 : end) {
        struct json *line = NULL;

        end = text + strcspn(text, "\n");
        if (end == text || js_parse(&line, text, (size_t)(end - text), NULL) != OK)
            continue;
        const char *object = table_text_of(line, "object");
        if (strcmp(object, "documents.error") == 0) {
            take_error(m, line);
        } else if (strcmp(object, "documents.bulk") == 0) {
            has_sums = true;
            m->n_done += (uint64_t)table_count_of(line, "done");
            m->n_created += (uint64_t)table_count_of(line, "created");
            m->n_updated += (uint64_t)table_count_of(line, "updated");
            m->n_unchanged += (uint64_t)table_count_of(line, "unchanged");
        }
        js_unref(line);
    }
    return has_sums;
}

static void wait_s(double s)
{
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};

    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

/* Send the batch, again after a pause where the server is busy. */
static void send_batch(struct import *m)
{
    struct tarn_answer a;

    if (m->n_batch == 0 || m->has_ended)
        return;
    for (int i = 1;; i++) {
        tarn_documents_import(&a, m->client, m->lines.data, m->lines.len);
        if (a.error != TARN_ERR_BUSY || i == N_TRIES)
            break;
        double s = a.retry_after_s >= 0 ? a.retry_after_s : 1;
        tarn_answer_fini(&a);
        wait_s(s < WAIT_S_MAX ? s : WAIT_S_MAX);
    }
    if (a.error != TARN_OK) {
        end_import(m, NULL);
        ctl_fail(m->o, &a);
    } else if (!take_answer(m, a.text)) {
        end_import(m, "the server ended the import early; repeat it to go on");
    }
    tarn_answer_fini(&a);
    for (size_t i = 0; i < m->n_batch; i++)
        free(m->names[i]);
    m->n_batch = 0;
    buf_reset(&m->lines);
    if (!m->has_ended)
        show_progress(m);
}

/* --- documents --- */

static enum status set_absent(struct json *d, const char *key, struct json *value)
{
    if (js_get(d, key)) {
        js_unref(value);
        return OK;
    }
    return js_set(d, key, value);
}

/* Give a document the fields of the command line that it does not have. */
static enum status set_fields(struct json *d, const struct tarn_document_fields *f)
{
    enum status s = OK;

    if (f->is_public != TARN_UNSET)
        s = set_absent(d, "public", js_new_bool(f->is_public != 0));
    if (s == OK && f->is_pinned != TARN_UNSET)
        s = set_absent(d, "pin", js_new_bool(f->is_pinned != 0));
    if (s == OK && f->ttl != TARN_UNSET)
        s = set_absent(d, "ttl", js_new_int(f->ttl));
    if (s == OK && f->prefill)
        s = set_absent(d, "prefill", js_new_string(f->prefill, strlen(f->prefill)));
    return s;
}

/* Add a document to the batch; sends the batch when it is full. */
static void add(struct import *m, const char *name, struct json *d)
{
    enum status s = set_fields(d, &m->o->fields);
    size_t before = m->lines.len;

    if (s == OK)
        s = js_write(&m->lines, d);
    if (s == OK)
        s = buf_putc(&m->lines, '\n');
    if (s == OK && !(m->names[m->n_batch] = strdup(name)))
        s = ERR_NOMEM;
    if (s != OK) {
        m->lines.len = before;
        end_import(m, s == ERR_NOMEM ? "out of memory" : "a document is too large");
        return;
    }
    m->n_batch++;
    if (m->n_batch == BATCH_N_MAX || m->lines.len >= BATCH_BYTES)
        send_batch(m);
}

/* --- JSON lines --- */

static void add_line(struct import *m, const char *name, const char *line, size_t len)
{
    struct json *d = NULL;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (js_parse(&d, line, len, &why) != OK)
        refuse(m, name, buf_str(&why));
    else if (!js_is(d, JS_OBJECT))
        refuse(m, name, "expected a JSON object");
    else
        add(m, name, d);
    js_unref(d);
    buf_fini(&why);
}

static void import_lines(struct import *m, FILE *f)
{
    char *line = NULL, name[32];
    size_t cap = 0;
    ssize_t n;

    for (unsigned long long at = 1; !m->has_ended && (n = getline(&line, &cap, f)) >= 0; at++) {
        snprintf(name, sizeof name, "line %llu", at);
        if (strspn(line, " \t\r\n") < (size_t)n)
            add_line(m, name, line, (size_t)n);
    }
    if (!m->has_ended && ferror(f))
        end_import(m, "the lines cannot be read");
    free(line);
}

/* --- files --- */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);

    return n >= n_end && strcasecmp(text + n - n_end, end) == 0;
}

static bool is_text_file(const char *path)
{
    return ends_with(path, ".txt") || ends_with(path, ".md");
}

static bool is_utf8(const char *text, size_t len)
{
    uint32_t c;

    for (size_t i = 0, n; i < len; i += n)
        if ((n = utf8_decode(text + i, len - i, &c)) == 0)
            return false;
    return true;
}

const char *import_title(const char *path, const char *text)
{
    static char title[TITLE_BYTES];
    const char *slash = strrchr(path, '/');

    text += strspn(text, "\r\n");
    if (ends_with(path, ".md") && strncmp(text, "# ", 2) == 0) {
        size_t n = strcspn(text + 2, "\r\n");
        if (n > 0 && n < sizeof title) {
            memcpy(title, text + 2, n);
            title[n] = '\0';
            return title;
        }
    }
    snprintf(title, sizeof title, "%s", slash ? slash + 1 : path);
    char *dot = strrchr(title, '.');
    if (dot && dot > title)
        *dot = '\0';
    return title;
}

static enum status set_string(struct json *d, const char *key, const char *s, size_t len)
{
    return js_set(d, key, js_new_string(s, len));
}

/* Add a file; id: its path below the folder. */
static void add_file(struct import *m, const char *path, const char *id)
{
    struct buf text, why;

    buf_init(&text, CTL_INPUT_BYTES_MAX);
    buf_init(&why, BUF_WHY_MAX);
    if (ctl_read(path, &text, &why) != OK) {
        refuse(m, id, buf_str(&why));
    } else if (!is_utf8(buf_str(&text), text.len)) {
        refuse(m, id, "is not UTF-8 text");
    } else {
        const char *title = import_title(path, buf_str(&text));
        struct json *d = js_new_object();
        if (!d || set_string(d, "id", id, strlen(id)) != OK ||
            set_string(d, "title", title, strlen(title)) != OK ||
            set_string(d, "text", buf_str(&text), text.len) != OK)
            refuse(m, id, "its name is not UTF-8, or memory is short");
        else
            add(m, id, d);
        js_unref(d);
    }
    buf_fini(&text);
    buf_fini(&why);
}

static int is_not_hidden(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* Add the files of a folder and of those in it, in the order of their names. Links are not
 * followed, so that the walk ends. path [PATH_MAX] is extended and restored; root_len: of the
 * imported folder with its slash. */
static void add_folder(struct import *m, char *path, size_t root_len)
{
    struct dirent **list;
    size_t len = strlen(path);
    int n = scandir(path, &list, is_not_hidden, alphasort);

    if (n < 0) {
        refuse(m, path, strerror(errno));
        return;
    }
    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name;
        struct stat st;

        if (!m->has_ended && len + 1 + strlen(name) < PATH_MAX) {
            sprintf(path + len, "%s%s", path[len - 1] == '/' ? "" : "/", name);
            if (lstat(path, &st) != 0)
                refuse(m, path + root_len, strerror(errno));
            else if (S_ISDIR(st.st_mode))
                add_folder(m, path, root_len);
            else if (S_ISREG(st.st_mode) && is_text_file(name))
                add_file(m, path, path + root_len);
            path[len] = '\0';
        }
        free(list[i]);
    }
    free(list);
}

/* --- the command --- */

/* The exit code, after a line with the sums on a terminal, or as JSON. */
static int end_with_sums(const struct import *m)
{
    double s = (double)(clock_now_ns() - m->began_ns) * 1e-9;

    clear_progress(m);
    if (m->o->json)
        printf("{\"done\":%llu,\"created\":%llu,\"updated\":%llu,\"unchanged\":%llu,"
               "\"failed\":%llu,\"seconds\":%.3f}\n",
               (unsigned long long)m->n_done, (unsigned long long)m->n_created,
               (unsigned long long)m->n_updated, (unsigned long long)m->n_unchanged,
               (unsigned long long)m->n_failed, s);
    else if (m->shows_progress)
        fprintf(stderr,
                "%llu documents in %.1f s: %llu new, %llu changed, %llu unchanged; "
                "%llu failed\n",
                (unsigned long long)m->n_done, s, (unsigned long long)m->n_created,
                (unsigned long long)m->n_updated, (unsigned long long)m->n_unchanged,
                (unsigned long long)m->n_failed);
    return m->has_ended || m->n_failed > 0 ? 1 : 0;
}

static void import_path(struct import *m, const char *given)
{
    char path[PATH_MAX];
    const char *slash = strrchr(given, '/');
    struct stat st;
    FILE *f;

    if (strcmp(given, "-") == 0) {
        import_lines(m, stdin);
    } else if (stat(given, &st) != 0 || strlen(given) >= sizeof path - 1) {
        ctl_die("cannot open %s: %s", given, strerror(errno ? errno : ENAMETOOLONG));
    } else if (S_ISDIR(st.st_mode)) {
        snprintf(path, sizeof path, "%s", given);
        add_folder(m, path, strlen(path) + (path[strlen(path) - 1] != '/'));
    } else if (is_text_file(given)) {
        add_file(m, given, slash ? slash + 1 : given);
    } else if ((f = fopen(given, "rb")) != NULL) {
        import_lines(m, f);
        fclose(f);
    } else {
        ctl_die("cannot open %s: %s", given, strerror(errno));
    }
}

int docs_import(const struct ctl_options *o, const struct tarn_client *client)
{
    struct import m = {.o = o,
                       .client = client,
                       .began_ns = clock_now_ns(),
                       .shows_progress = isatty(STDERR_FILENO) == 1};

    buf_init(&m.lines, LINES_BYTES_MAX);
    import_path(&m, o->words[2]);
    send_batch(&m);
    for (size_t i = 0; i < m.n_batch; i++)
        free(m.names[i]);
    buf_fini(&m.lines);
    return end_with_sums(&m);
}
