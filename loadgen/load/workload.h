/* workload.h - generates requests, endlessly or to the end of the data.
 *
 * The requests follow from the configuration and its seed alone: two runs generate equal requests,
 * and so do the simulator and a live run.
 *
 * Owns    its data (traces, documents) and a copy of the configuration, whose strings are borrowed
 *         until workload_destroy().
 * Thread  one at a time.
 * Errors  ERR_INVALID (also for files, with file:line), ERR_NOT_FOUND, ERR_NOMEM. workload_next()
 *         answers ERR_NOT_FOUND at the end of the data.
 * Units   tokens, seconds. */
#ifndef TARN_LOADGEN_LOAD_WORKLOAD_H
#define TARN_LOADGEN_LOAD_WORKLOAD_H

#include "loadgen/load/arrival.h"
#include "loadgen/load/dist.h"
#include "loadgen/load/request.h"
#include "loadgen/load/trace.h"

enum workload_kind {
    WORKLOAD_RANDOM,    /* nothing shared (but prefix_len tokens, if that is set) */
    WORKLOAD_LENGTHS,   /* as random, lengths in pairs from a file */
    WORKLOAD_PREFIX,    /* one of n_prefixes, then tokens of its own */
    WORKLOAD_MULTITURN, /* conversations */
    WORKLOAD_RAG,       /* documents, then a question */
    WORKLOAD_MIX,       /* tenants with lengths, priorities and SLOs of their own */
    WORKLOAD_TRACE,
    WORKLOAD_FILE, /* JSON lines of prompts or messages, or ShareGPT's conversations */
    N_WORKLOADS
};

enum popularity { POPULARITY_MEASURED, POPULARITY_ZIPF };

#define N_TENANTS_MAX 64

struct tenant {
    char name[64];
    char api_key[256]; /* empty: the run's */
    double share;      /* of requests, relative to the others */
    int32_t priority;
    bool has_priority, has_input, has_output;
    struct dist input, output;
    struct slo slo;
};

enum file_format { FILE_LINES, FILE_SHAREGPT };

/* Options of a workload of kind file. */
struct file_options {
    enum file_format format;
    bool shuffle; /* in an order that the seed draws */
    bool repeats; /* endless: behind the last row, rows are drawn again */
};

struct workload_config {
    enum workload_kind kind;
    uint64_t seed;
    struct arrival_config arrival;
    struct dist input, output;
    bool output_given;              /* the user's --output-len wins over the data's */
    uint32_t input_max, output_max; /* longer is cut; 0: no limit */
    double input_scale, output_scale;
    const char *data; /* file or directory; NULL: none */

    uint32_t n_prefixes;
    struct dist prefix_len; /* prefix; random with has_prefix */
    bool has_prefix;

    struct dist turns;
    double think_s;  /* mean pause; 0: none */
    double think_cv; /* of log-normal pauses; 0: pauses are exponential */
    struct dist system_len;
    bool has_system;

    uint32_t n_documents;     /* 0: all of the data, or 1000 made ones */
    uint32_t n_retrieved;     /* documents of one request */
    struct dist document_len; /* of made documents */
    enum popularity popularity;
    double zipf;            /* exponent, also of prefixes; 0: all equal */
    bool draw_documents;    /* one by one, instead of taking the data's lists */
    bool shuffle_documents; /* else in the order of retrieval */
    bool keeps_order;       /* questions are asked in the data's order, not in a shuffled one */

    struct file_options file;
    struct trace_options trace;
    double trace_speed; /* 2: twice as fast; not used where ARRIVAL_TRACE has a rate */

    struct tenant tenants[N_TENANTS_MAX]; /* [n_tenants]; none: one without a name */
    uint32_t n_tenants;
    struct slo slo; /* of all, where the tenant has none */

    double disconnect_share, slow_share, verify_share; /* of requests */
};

struct workload;

NODISCARD enum status workload_create(struct workload **out, const struct workload_config *config,
                                      struct buf *why);
void workload_destroy(struct workload *w); /* NULL is fine */
/* load_request_fini() on OK. Turns of one conversation come one right after another. */
NODISCARD enum status workload_next(struct workload *w, struct load_request *out);
/* Requests in the data; 0: endless. */
uint64_t workload_size(const struct workload *w);
uint32_t workload_n_tenants(const struct workload *w); /* at least 1 */
const char *workload_tenant_name(const struct workload *w, uint32_t tenant);
const char *workload_kind_name(enum workload_kind kind);

/* "name=NAME,share=0.7,priority=0,input=DIST,output=DIST,ttft=500,tpot=50,key=..." */
NODISCARD enum status tenant_parse(struct tenant *t, const char *text, struct buf *why);

#endif
