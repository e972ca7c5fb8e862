#include "clients/tarnctl/models.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/model/hub_download.h"

#define SERVER "tarn-server"
#define SHOW_NS UINT64_C(200000000)
#define STOPPED 130 /* as shells say it */

int models_inspect(const struct ctl_options *o)
{
    char path[PATH_MAX + sizeof SERVER];
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    const char *argv[] = {SERVER, "--model", o->words[2], "--inspect", o->json ? "json" : "text",
                          NULL};

    if (n > 0) {
        path[n] = '\0';
        char *slash = strrchr(path, '/');
        strcpy(slash ? slash + 1 : path, SERVER);
        execv(path, (char *const *)argv);
    }
    execvp(SERVER, (char *const *)argv);
    fprintf(stderr,
            "tarnctl: " SERVER " is neither beside this program nor in PATH (%s): it reads models, "
            "and `models inspect` runs it\n",
            strerror(errno));
    return 1;
}

/* --- download --- */

static atomic_bool stop;

static void stop_on_signal(int number)
{
    (void)number;
    atomic_store(&stop, true);
}

struct show {
    bool is_terminal;
    uint64_t shown_ns, begin_ns, n_begin; /* of the file at work */
    const char *path;
};

static void show_line(struct show *s, const struct hub_progress *p, uint64_t now_ns)
{
    double seconds = (double)(now_ns - s->begin_ns) * 1e-9;
    double speed = seconds > 0 ? (double)(p->n_here - s->n_begin) * 1e-6 / seconds : 0;

    fprintf(stderr, "\r\033[K[%u/%u] %.60s  %.1f of %.1f MB", p->file, p->n_files, p->path,
            (double)p->n_here * 1e-6, (double)p->n_bytes * 1e-6);
    if (p->is_waiting)
        fputs("  (another process downloads it)", stderr);
    else if (speed > 0)
        fprintf(stderr, "  %.1f MB/s, %.0f s left", speed,
                (double)(p->n_all_bytes - p->n_all_here - p->n_here) * 1e-6 / speed);
}

static void show_progress(void *arg, const struct hub_progress *p)
{
    struct show *s = arg;
    uint64_t now_ns = clock_now_ns();

    if (p->was_here)
        return;
    if (s->path != p->path) {
        s->path = p->path;
        s->begin_ns = now_ns;
        s->n_begin = p->n_here;
    }
    if (p->is_done) {
        fprintf(stderr, "%s[%u/%u] %s  %.1f MB\n", s->is_terminal ? "\r\033[K" : "", p->file,
                p->n_files, p->path, (double)p->n_bytes * 1e-6);
    } else if (s->is_terminal && now_ns - s->shown_ns > SHOW_NS) {
        s->shown_ns = now_ns;
        show_line(s, p, now_ns);
    }
}

int models_download(const struct ctl_options *o)
{
    struct show show = {.is_terminal = isatty(STDERR_FILENO)};
    struct hub_download d = {.name = o->words[2],
                             .globs = o->globs,
                             .n_globs = o->n_globs,
                             .stop = &stop,
                             .progress = show_progress,
                             .arg = &show};
    struct sigaction action = {.sa_handler = stop_on_signal};
    struct buf path, why;

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    buf_init(&path, 2 * PATH_MAX);
    buf_init(&why, BUF_WHY_MAX);
    enum status s = hub_download(&d, &path, &why);
    if (s == OK)
        puts(buf_str(&path));
    else if (s == ERR_CANCELLED)
        fprintf(stderr, "%starnctl: stopped; the same command continues the download\n",
                show.is_terminal ? "\n" : "");
    else
        fprintf(stderr, "%starnctl: %s\n", show.is_terminal && show.shown_ns ? "\n" : "",
                buf_str(&why));
    buf_fini(&path);
    buf_fini(&why);
    return s == OK ? 0 : s == ERR_CANCELLED ? STOPPED : 1;
}
