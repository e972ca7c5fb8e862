/* fuzz_trace.c - any bytes as a recorded workload: a trace of each format, and RAGPulse's files.
 *
 * The input is a line of options, a line of "=====", and the file's bytes. The first letter of the
 * options chooses the format (m, t, c, r, or a: detect it), the digit after it the size of a block
 * or the order. A RAGPulse directory has six files: the bytes are split at lines of "-----", and
 * missing files are empty.
 *
 * Checks beyond crashes: an error has a message that names the file; rows are sorted and begin at
 * 0; their parts are in the list, not empty, and add up to the length in the block formats; reading
 * twice gives the same rows; a workload of the trace generates requests within its limits. */
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "loadgen/load/workload.h"
#include "tests/fuzz/fuzz.h"

#define CUT "\n-----\n"
#define N_FILES 6
#define LENGTH_MAX 5000
#define N_REQUESTS_MAX 50

static char dir[64];

static void remove_files(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    ASSERT(system(command) == 0);
}

/* Make the directory in memory if possible, because an input is read up to four times. */
static void make_dir(void)
{
    if (dir[0])
        return;
    snprintf(dir, sizeof dir, "%s/tarn-fuzz-trace-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    ASSERT(mkdtemp(dir));
    atexit(remove_files);
}

static void write_file(const char *path, const char *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    ASSERT(fd >= 0 && (n == 0 || write(fd, bytes, n) == (ssize_t)n));
    ASSERT(close(fd) == 0);
}

static void write_ragpulse(const char *bytes, size_t n)
{
    static const char *const names[N_FILES] = {
        "0_trace.jsonl",   "1_sys_prompt.jsonl", "2_passages.jsonl",
        "3_history.jsonl", "4_user_input.jsonl", "5_web_search.jsonl",
    };
    char path[128];

    for (int i = 0; i < N_FILES; i++) {
        const char *cut = n ? memmem(bytes, n, CUT, strlen(CUT)) : NULL;
        size_t len = cut ? (size_t)(cut - bytes) : n;
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        write_file(path, bytes, len);
        size_t used = cut ? len + strlen(CUT) : n;
        bytes += used;
        n -= used;
    }
}

static void check_trace(const struct trace *t, enum trace_format format)
{
    ASSERT(t->n_rows > 0 && t->rows[0].at_s == 0);
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct trace_row *r = &t->rows[i];
        uint64_t sum = 0;
        ASSERT(isfinite(r->at_s) && (i == 0 || r->at_s >= t->rows[i - 1].at_s));
        ASSERT(r->input_len > 0 && r->output_len > 0);
        ASSERT(r->first_part <= t->n_parts && r->n_parts <= t->n_parts - r->first_part);
        for (uint32_t k = 0; k < r->n_parts; k++) {
            ASSERT(t->parts[r->first_part + k].n_tokens > 0);
            sum += t->parts[r->first_part + k].n_tokens;
        }
        if (r->n_parts > 0 && (format == TRACE_MOONCAKE || format == TRACE_TIMED))
            ASSERT(sum == r->input_len);
    }
}

static void check_equal(const struct trace *a, const struct trace *b)
{
    ASSERT(a->n_rows == b->n_rows && a->n_parts == b->n_parts && a->has_times == b->has_times);
    for (size_t i = 0; i < a->n_rows; i++) {
        const struct trace_row *x = &a->rows[i], *y = &b->rows[i];
        ASSERT(x->at_s == y->at_s && x->line == y->line && x->session == y->session);
        ASSERT(x->input_len == y->input_len && x->output_len == y->output_len);
    }
}

/* Check that the requests of the trace are cut to the limits. */
static void check_workload(const char *path, const struct trace_options *options, bool has_times)
{
    struct workload_config c = {.kind = WORKLOAD_TRACE, .seed = 1, .data = path};
    struct workload *w;
    double before_s = 0;

    c.arrival.kind = has_times ? ARRIVAL_TRACE : ARRIVAL_AT_ONCE;
    c.trace = *options;
    c.trace_speed = c.input_scale = c.output_scale = 1;
    c.input_max = c.output_max = LENGTH_MAX;
    c.n_prefixes = c.n_retrieved = 1;
    enum status s = workload_create(&w, &c, NULL);
    ASSERT(s == OK || s == ERR_INVALID);
    for (int i = 0; s == OK && i < N_REQUESTS_MAX; i++) {
        struct load_request r;
        uint64_t sum = 0;
        s = workload_next(w, &r);
        ASSERT(s == OK || s == ERR_NOT_FOUND);
        if (s != OK)
            break;
        for (uint32_t k = 0; k < r.n_parts; k++)
            sum += r.parts[k].n_tokens;
        ASSERT(r.n_parts > 0 && sum > 0 && sum <= LENGTH_MAX);
        ASSERT(r.n_output_tokens > 0 && r.n_output_tokens <= LENGTH_MAX);
        ASSERT(isfinite(r.arrival_s) && r.arrival_s >= before_s);
        before_s = r.arrival_s;
        load_request_fini(&r);
    }
    workload_destroy(w);
}

static enum trace_format format_of(char letter)
{
    switch (letter) {
    case 'm': return TRACE_MOONCAKE;
    case 't': return TRACE_TIMED;
    case 'c': return TRACE_CSV;
    case 'r': return TRACE_RAGPULSE;
    default: return TRACE_AUTO;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);
    const char *bytes = in.second ? in.second : in.first;
    size_t n = in.second ? in.second_len : in.first_len;
    struct trace_options o = {.format = format_of(in.second && in.first_len ? in.first[0] : 'a')};
    struct trace t, again;
    struct buf why;
    char path[128];

    make_dir();
    if (in.second && in.first_len > 1 && in.first[1] >= '1' && in.first[1] <= '9')
        o.block_tokens = (uint32_t)(in.first[1] - '0');
    o.order = o.block_tokens ? TRACE_ORDER_REUSE : TRACE_ORDER_GIVEN;
    snprintf(path, sizeof path, "%s%s", dir, o.format == TRACE_RAGPULSE ? "" : "/trace.jsonl");
    if (o.format == TRACE_RAGPULSE)
        write_ragpulse(bytes, n);
    else
        write_file(path, bytes, n);
    buf_init(&why, BUF_WHY_MAX);
    enum status s = trace_load(&t, path, &o, &why);
    if (s == OK) {
        check_trace(&t, o.format);
        ASSERT(trace_load(&again, path, &o, NULL) == OK);
        check_equal(&t, &again);
        check_workload(path, &o, t.has_times);
        trace_fini(&again);
    } else {
        ASSERT(s == ERR_INVALID && strstr(buf_str(&why), dir));
        ASSERT(t.rows == NULL && t.parts == NULL);
    }
    trace_fini(&t);
    buf_fini(&why);
    return 0;
}
