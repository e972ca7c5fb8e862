/* workload_inner.h - what the files of the workload module share.
 *
 * Owns    as workload.h.
 * Thread  as workload.h.
 * Errors  as workload.h.
 * Units   as workload.h. */
#ifndef TARN_LOADGEN_LOAD_WORKLOAD_INNER_H
#define TARN_LOADGEN_LOAD_WORKLOAD_INNER_H

#include "base/json.h"
#include "loadgen/load/corpus.h"
#include "loadgen/load/weighted.h"
#include "loadgen/load/workload.h"

/* Kinds of parts: the name of a document never equals that of a prefix. */
enum id_space { ID_OWN = 1, ID_PREFIX, ID_SYSTEM, ID_DOCUMENT, ID_QUESTION, ID_TURN, ID_LINE };

struct file_row {
    struct json *o; /* the line; of ShareGPT's format the conversation */
    char *extra;    /* JSON object, or NULL */
    double at_s;
    uint32_t n_output;
    uint32_t tenant;
    uint64_t line;
};

struct workload {
    struct workload_config config;
    struct arrival arrival;
    struct weighted shares; /* of tenants */
    uint64_t n_made;
    bool failed;

    struct trace trace;         /* lengths, trace */
    struct weighted popularity; /* of prefixes, documents or questions */
    struct corpus corpus;
    uint32_t *order; /* [n_order] questions or rows in the order they are asked */
    uint32_t n_order;
    struct file_row *rows; /* [n_rows] */
    size_t n_rows, cap_rows;

    /* multiturn: the current conversation */
    uint64_t n_sessions;
    uint32_t turn, n_turns;
    uint32_t session_tenant;
    double session_arrival_s;
};

/* Name a part that only this seed has. */
uint64_t workload_id(const struct workload *w, enum id_space space, uint64_t number);
/* Lengths with tenant, scale and limits applied. */
uint32_t workload_draw_input(const struct workload *w, const struct load_request *r,
                             struct draw *d);
uint32_t workload_draw_output(const struct workload *w, const struct load_request *r,
                              struct draw *d);
NODISCARD enum status workload_add(struct load_request *r, enum part_role role, uint64_t id,
                                   uint32_t n_tokens);

NODISCARD enum status workload_rag_open(struct workload *w, struct buf *why);
NODISCARD enum status workload_rag_fill(struct workload *w, struct load_request *r);
NODISCARD enum status workload_file_open(struct workload *w, struct buf *why);
NODISCARD enum status workload_file_fill(struct workload *w, struct load_request *r);
void workload_file_close(struct workload *w);
/* Take over row->o and row->extra on OK. */
NODISCARD enum status workload_file_add(struct workload *w, const struct file_row *row);
/* Read the rows of ShareGPT's format. */
NODISCARD enum status workload_sharegpt_read(struct workload *w, struct buf *why);
/* The text that a conversation begins with: a string. */
const struct json *workload_sharegpt_prompt(const struct json *conversation);

#endif
