/* main.c - tarn-cachebench: measures the gains and costs of the KV cache. */
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/log.h"
#include "loadgen/bench/cache/report.h"

#define REPORT_BYTES_MAX ((size_t)1 << 20)

static enum status print_report(const struct cachebench_options *o,
                                const struct cachebench_results *r, struct buf *why)
{
    struct buf text;
    enum status s;

    buf_init(&text, REPORT_BYTES_MAX);
    s = o->json ? cachebench_report_json(&text, r) : cachebench_report_text(&text, r);
    if (s == OK && (fwrite(text.data, 1, text.len, stdout) != text.len || fflush(stdout) != 0))
        s = buf_why(why, ERR_IO, "cannot write to the standard output");
    buf_fini(&text);
    return s;
}

/* Run the parts one after another: no part shares the machine or the memory with another. */
static enum status run_parts(const struct cachebench_options *o, struct buf *why)
{
    struct cachebench_results r = {0};
    struct ttft_result ttft;
    struct tree_result tree;
    struct miss_result miss;
    struct disk_ttft_result disk;
    struct writes_result writes;
    struct index_result index;
    enum status s = OK;

    if (cachebench_wants(o, "ttft")) {
        s = ttft_run(&ttft, o, why);
        r.ttft = &ttft;
    }
    if (s == OK && cachebench_wants(o, "tree")) {
        s = tree_run(&tree, o, why);
        r.tree = &tree;
    }
    if (s == OK && cachebench_wants(o, "miss")) {
        s = miss_run(&miss, o, why);
        r.miss = &miss;
    }
    if (s == OK && cachebench_wants(o, "disk")) {
        s = disk_ttft_run(&disk, o, why);
        r.disk = &disk;
    }
    if (s == OK && cachebench_wants(o, "writes")) {
        s = writes_run(&writes, o, why);
        r.writes = &writes;
    }
    if (s == OK && cachebench_wants(o, "index")) {
        s = index_run(&index, o, why);
        r.index = &index;
    }
    return s == OK ? print_report(o, &r, why) : s;
}

int main(int argc, char **argv)
{
    struct cachebench_options o;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = cachebench_options_parse(&o, argc, argv, &why);
    if (s == OK && o.want_help) {
        cachebench_options_help(stdout);
    } else if (s == OK && o.want_version) {
        puts("tarn-cachebench " TARN_VERSION);
    } else if (s == OK) {
        log_init(LOG_WARN, false);
        s = hash_init();
        if (s == OK)
            s = run_parts(&o, &why);
    }
    cachebench_options_name(&why);
    if (s != OK)
        fprintf(stderr, "tarn-cachebench: %s\n", why.len ? buf_str(&why) : status_name(s));
    cachebench_options_fini(&o);
    buf_fini(&why);
    return s == OK ? 0 : s == ERR_INVALID ? 2 : 1;
}
