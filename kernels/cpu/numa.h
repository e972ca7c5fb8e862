/* numa.h - the memory nodes of a machine: which CPUs are near which memory, and on which node pages
 * lie.
 *
 * Threads are spread over the nodes in proportion to their CPUs, so thread i works on the same node
 * as its neighbours i - 1 and i + 1, save at a node's end.
 *
 * Owns    nothing.
 * Thread  any; struct numa is constant after numa_read().
 * Errors  none: what cannot be read is one node, and pages that the system does not place lie where
 *         they are touched first.
 * Units   bytes. */
#ifndef TARN_KERNELS_CPU_NUMA_H
#define TARN_KERNELS_CPU_NUMA_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NUMA_NODES_MAX 64u
/* The folder in which Linux describes them. */
#define NUMA_DIR "/sys/devices/system/node"

struct numa {
    uint32_t n_nodes; /* with CPUs that this process may use; 1: memory is the same everywhere */
    uint32_t n_cpus;  /* of all nodes */
    struct numa_node {
        uint32_t id; /* the system's number */
        cpu_set_t cpus;
    } nodes[NUMA_NODES_MAX];
};

/* Read the nodes from a folder that is laid out as NUMA_DIR. */
void numa_read(struct numa *n, const char *dir);
/* The CPUs that this process may use, as one node. */
void numa_read_one(struct numa *n);

/* The node of a thread of n_threads, as an index of nodes. */
uint32_t numa_node_of(const struct numa *n, uint32_t thread, uint32_t n_threads);
/* The CPUs of a thread: one of its own if there are as many threads as CPUs, else its node's. */
void numa_cpus_of(const struct numa *n, uint32_t thread, uint32_t n_threads, cpu_set_t *out);

/* Put the whole pages of [p, p + n_bytes) on a node: those that are touched later, and those there
 * are. Returns false where the system refuses. */
bool numa_place(const struct numa *n, void *p, size_t n_bytes, uint32_t node);
/* Put them on all nodes in turns. */
bool numa_interleave(const struct numa *n, void *p, size_t n_bytes);
/* Put the i-th part of n_threads equal ones on the node of thread i. Parts end at huge pages. */
bool numa_split(const struct numa *n, void *p, size_t n_bytes, uint32_t n_threads);

#endif
