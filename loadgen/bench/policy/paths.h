/* paths.h - a trace as paths in one tree: the contents of an infinite cache at the end.
 *
 * A node is a part (document, block of a prompt) behind one prefix. Two requests with the same node
 * can share its KV.
 *
 * Owns    all arrays: paths_fini().
 * Thread  read-only after paths_build().
 * Errors  ERR_INVALID with words, ERR_NOMEM.
 * Units   tokens, nodes, requests. */
#ifndef TARN_LOADGEN_BENCH_POLICY_PATHS_H
#define TARN_LOADGEN_BENCH_POLICY_PATHS_H

#include "loadgen/load/trace.h"

#define NO_NODE UINT32_MAX
#define NO_REQUEST UINT32_MAX

/* Parts of a row that make the path. */
enum paths_parts {
    PARTS_AUTO, /* documents if the trace has any, else all */
    PARTS_ALL,
    PARTS_DOCUMENTS, /* documents only: parts before and after them are left out */
};

struct path_node {
    uint32_t parent;   /* or NO_NODE */
    uint32_t depth;    /* nodes above it */
    uint32_t n_tokens; /* > 0 */
};

struct path {
    uint64_t first;   /* index into steps */
    uint32_t n_nodes; /* 0: nothing of this request is on a path */
};

struct path_step {
    uint32_t node;
    uint32_t next_use; /* the next request with this node, or NO_REQUEST */
};

struct paths {
    struct path_node *nodes; /* [n_nodes] */
    uint32_t n_nodes;
    struct path *requests; /* [n_requests], in order of time */
    uint32_t n_requests;
    struct path_step *steps;
    uint64_t n_steps;
    uint32_t n_nodes_longest; /* of a path */
    uint64_t n_tokens;        /* of all requests' paths */
    uint64_t n_tokens_distinct;
    uint64_t n_tokens_ideal; /* hits of an infinite cache */
    enum paths_parts parts;  /* never PARTS_AUTO */
};

/* Rows [from, to) of the trace; to past its end is its end. */
NODISCARD enum status paths_build(struct paths *p, const struct trace *t, enum paths_parts parts,
                                  uint64_t from, uint64_t to, struct buf *why);
void paths_fini(struct paths *p); /* also fine on a zeroed struct */

#endif
