/* report_json.h - building JSON objects without a check after each member.
 *
 * Owns    nothing; a put's object is the caller's.
 * Thread  one.
 * Errors  the first one stays in `status`; later calls do nothing.
 * Units   none. */
#ifndef TARN_LOADGEN_LOAD_REPORT_JSON_H
#define TARN_LOADGEN_LOAD_REPORT_JSON_H

#include <stdio.h>

#include "base/json.h"

struct put {
    struct json *o;
    enum status status;
};

void put(struct put *p, const char *key, struct json *value); /* takes value over */
void put_count(struct put *p, const char *key, uint64_t v);
void put_real(struct put *p, const char *key, double v);
void put_text(struct put *p, const char *key, const char *text); /* NULL: null */

/* The member "sim". */
struct sim_result;
void report_put_sim(struct put *p, const struct sim_result *r);
/* The lines of the table for it. */
void report_print_sim(FILE *f, const struct sim_result *r);

#endif
