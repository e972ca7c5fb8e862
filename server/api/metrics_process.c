/* metrics_process.c - metrics of the process, from /proc, and of HTTP. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "server/api/exposition.h"
#include "server/api/metrics.h"
#include "server/server.h"
#include "server/api/tally.h"

#define STAT_BYTES 1024

/* --- the process --- */

/* The fields of /proc/self/stat that become metrics. */
struct proc_stat {
    uint64_t n_threads, start_ticks, virtual_bytes, resident_pages;
};

static bool read_stat(struct proc_stat *out)
{
    char text[STAT_BYTES];
    FILE *f = fopen("/proc/self/stat", "r");

    if (!f)
        return false;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    /* The program's name may contain any character, so it ends at the last parenthesis. */
    const char *rest = strrchr(text, ')');
    return rest && sscanf(rest + 1,
                          " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d "
                          "%*d %*d %" SCNu64 " %*d %" SCNu64 " %" SCNu64 " %" SCNu64,
                          &out->n_threads, &out->start_ticks, &out->virtual_bytes,
                          &out->resident_pages) == 4;
}

/* Unix time of the machine's start; 0 when /proc does not have it. */
static double boot_time_s(void)
{
    char line[256];
    uint64_t s = 0;
    FILE *f = fopen("/proc/stat", "r");

    while (f && s == 0 && fgets(line, sizeof line, f))
        if (sscanf(line, "btime %" SCNu64, &s) != 1)
            s = 0;
    if (f)
        fclose(f);
    return (double)s;
}

/* Count of open descriptors; -1 when /proc does not have it. */
static double n_open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = -1; /* opendir() itself holds one descriptor */

    if (!dir)
        return -1;
    for (struct dirent *e; (e = readdir(dir));)
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void bare(struct page *p, const char *name, const char *type, const char *help, double value)
{
    page_head(p, name, type, help);
    page_bare_sample(p, name, "", value);
}

static double limit_of(int resource)
{
    struct rlimit limit;

    if (getrlimit(resource, &limit) != 0)
        return -1;
    return limit.rlim_cur == RLIM_INFINITY ? (double)UINT64_MAX : (double)limit.rlim_cur;
}

static void write_memory(struct page *p, const struct proc_stat *stat)
{
    bare(p, "process_resident_memory_bytes", "gauge", "Resident memory of the process.",
         (double)stat->resident_pages * (double)sysconf(_SC_PAGESIZE));
    /* The metric's old name, kept for dashboards. */
    page_gauge(p, "tarn:process_resident_bytes", "The same as process_resident_memory_bytes.",
               (double)stat->resident_pages * (double)sysconf(_SC_PAGESIZE));
    bare(p, "process_virtual_memory_bytes", "gauge", "Virtual memory of the process.",
         (double)stat->virtual_bytes);
    bare(p, "process_threads", "gauge", "Threads of the process.", (double)stat->n_threads);
}

static void write_build(struct page *p, const struct server *srv)
{
    char labels[256] = "";

    label_add(labels, sizeof labels, "version", TARN_VERSION);
    label_add(labels, sizeof labels, "kernels", srv->info->ops_name);
    label_add(labels, sizeof labels, "weights", srv->info->weights_name);
    label_add(labels, sizeof labels, "compiler", __VERSION__);
    page_head(p, "tarn:build_info", "gauge", "What runs, in labels.");
    page_sample(p, "tarn:build_info", labels, 1);
}

void metrics_write_process(struct page *p, const struct server *srv)
{
    struct timespec cpu;
    struct proc_stat stat;
    double n_files = n_open_files(), boot_s = boot_time_s();

    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0)
        bare(p, "process_cpu_seconds_total", "counter", "User and system time of the process.",
             (double)cpu.tv_sec + (double)cpu.tv_nsec * 1e-9);
    if (n_files >= 0)
        bare(p, "process_open_fds", "gauge", "Open file descriptors.", n_files);
    bare(p, "process_max_fds", "gauge", "Limit of open file descriptors.", limit_of(RLIMIT_NOFILE));
    bare(p, "process_virtual_memory_max_bytes", "gauge", "Limit of virtual memory.",
         limit_of(RLIMIT_AS));
    if (read_stat(&stat)) {
        write_memory(p, &stat);
        if (boot_s > 0)
            bare(p, "process_start_time_seconds", "gauge",
                 "Start of the process in seconds since 1970 UTC.",
                 boot_s + (double)stat.start_ticks / (double)sysconf(_SC_CLK_TCK));
    }
    write_build(p, srv);
}

/* --- HTTP --- */

struct status_writer {
    struct page *p;
    const char *route;
};

static void write_status(void *arg, int status, uint64_t n)
{
    const struct status_writer *w = arg;
    char labels[160] = "", code[16];

    snprintf(code, sizeof code, "%d", status);
    label_add(labels, sizeof labels, "route", w->route);
    label_add(labels, sizeof labels, "status", code);
    page_bare_sample(w->p, "http_requests_total", labels, (double)n);
}

void metrics_write_http(struct page *p, const struct server *srv)
{
    static const char seconds_name[] = "http_request_duration_seconds";
    uint32_t n_routes = tally_n_routes(srv->tally);
    const char *route;
    struct hist seconds;

    page_head(p, "http_requests_total", "counter",
              "Requests by route and status code; 499: the client left before an answer.");
    for (uint32_t i = 0; i < n_routes; i++) {
        if (!(route = tally_route_name(srv->tally, i)))
            continue;
        int usual = i + 1 == n_routes ? 404 : 200; /* the last route is all unknown paths */
        tally_each_status(srv->tally, i, usual, write_status, &(struct status_writer){p, route});
    }
    page_head(p, seconds_name, "histogram",
              "From a request's header to the last byte of its answer.");
    for (uint32_t i = 0; i < n_routes; i++) {
        char labels[160] = "";
        if (!(route = tally_route_name(srv->tally, i)))
            continue;
        label_add(labels, sizeof labels, "route", route);
        tally_seconds(srv->tally, i, &seconds);
        page_bare_hist(p, seconds_name, labels, &seconds);
    }
}

void metrics_write_searches(struct page *p, const struct server *srv)
{
    struct hist seconds;
    uint64_t n_failed;

    tally_searches(srv->tally, &seconds, &n_failed);
    page_counter(p, "tarn:retrievals_total", "Searches for documents that ended with a list.",
                 seconds.n);
    page_counter(p, "tarn:retrieval_failures_total", "Searches that ended with an error.",
                 n_failed);
    page_histogram(p, "tarn:retrieval_seconds",
                   "Time of a search, the embedding of its query included.", &seconds);
}

void metrics_write_embeddings(struct page *p, const struct server *srv)
{
    page_counter(p, "tarn:embedding_inputs_total",
                 "Inputs of /v1/embeddings, /rerank, /score and /classify that were computed.",
                 tally_count(srv->tally, TALLY_EMBEDDED_INPUTS));
    page_counter(p, "tarn:embedding_tokens_total", "Tokens of these inputs.",
                 tally_count(srv->tally, TALLY_EMBEDDED_TOKENS));
}
