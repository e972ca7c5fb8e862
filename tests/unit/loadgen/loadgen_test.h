/* loadgen_test.h - helpers of the load generator's tests: temporary files and a configuration with
 * the usual values. */
#ifndef TARN_TESTS_LOADGEN_TEST_H
#define TARN_TESTS_LOADGEN_TEST_H

#include "tests/unit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loadgen/load/workload.h"

#define assert_near(a, b, eps) assert_true(fabs((double)(a) - (double)(b)) <= (eps))

struct scratch {
    char dir[64];
    char path[256]; /* of the last file */
};

static inline void scratch_init(struct scratch *s)
{
    strcpy(s->dir, "/tmp/tarn-loadgen-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
}

static inline const char *scratch_write(struct scratch *s, const char *name, const char *text)
{
    snprintf(s->path, sizeof s->path, "%s/%s", s->dir, name);
    FILE *f = fopen(s->path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
    return s->path;
}

static inline void scratch_fini(struct scratch *s)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", s->dir);
    assert_int_equal(system(command), 0);
}

static inline struct dist dist_of(const char *text)
{
    struct dist d;

    assert_ok(dist_parse(&d, text, NULL));
    return d;
}

static inline struct workload_config usual_config(enum workload_kind kind)
{
    struct workload_config c = {.kind = kind, .seed = 7};

    c.arrival = (struct arrival_config){.kind = ARRIVAL_GAMMA, .rate = 10, .burstiness = 1};
    c.input = dist_of("uniform:10:50");
    c.output = dist_of("uniform:5:9");
    c.prefix_len = dist_of("constant:64");
    c.system_len = dist_of("constant:20");
    c.document_len = dist_of("uniform:50:90");
    c.turns = dist_of("uniform:2:4");
    c.input_scale = c.output_scale = c.trace_speed = 1;
    c.n_prefixes = 4;
    c.n_retrieved = 2;
    c.zipf = 1;
    return c;
}

#endif
