#include "kernels/cpu/numa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"

#define LIST_BYTES_MAX 16384
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
/* mbind(2), whose header comes with libnuma. */
#define MODE_PREFERRED 1
#define MODE_INTERLEAVE 3
#define MOVE_PAGES 2u

/* --- reading --- */

/* Read a list like "0-3,8" into the set; false where it is none, or has a number of CPU_SETSIZE or
 * more. */
static bool read_list(const char *dir, const char *name, cpu_set_t *out)
{
    char path[4096], text[LIST_BYTES_MAX];
    size_t len = 0;

    CPU_ZERO(out);
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path)
        return false;
    FILE *f = fopen(path, "re");
    if (f) {
        len = fread(text, 1, sizeof text - 1, f);
        fclose(f);
    }
    text[len] = '\0';
    for (char *at = text, *end; *at != '\0' && *at != '\n'; at = *end == ',' ? end + 1 : end) {
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (end == at)
            return false;
        if (*end == '-')
            last = strtoul(at = end + 1, &end, 10);
        if (end == at || last < first || last >= CPU_SETSIZE || !strchr(",\n", *end))
            return false;
        for (unsigned long i = first; i <= last; i++)
            CPU_SET(i, out);
    }
    return CPU_COUNT(out) > 0;
}

static void read_node(struct numa *n, const char *dir, uint32_t id, const cpu_set_t *allowed)
{
    struct numa_node *node = &n->nodes[n->n_nodes];
    char name[64];

    snprintf(name, sizeof name, "node%u/cpulist", id);
    node->id = id;
    if (!read_list(dir, name, &node->cpus))
        return;
    CPU_AND(&node->cpus, &node->cpus, allowed);
    for (uint32_t i = 0; i < n->n_nodes; i++) /* a CPU counts once */
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &n->nodes[i].cpus))
                CPU_CLR(cpu, &node->cpus);
    if (CPU_COUNT(&node->cpus) == 0)
        return;
    n->n_cpus += (uint32_t)CPU_COUNT(&node->cpus);
    n->n_nodes++;
}

void numa_read_one(struct numa *n)
{
    memset(n, 0, sizeof *n);
    n->n_nodes = 1;
    if (sched_getaffinity(0, sizeof n->nodes->cpus, &n->nodes->cpus) != 0)
        CPU_ZERO(&n->nodes->cpus);
    n->n_cpus = (uint32_t)CPU_COUNT(&n->nodes->cpus);
}

void numa_read(struct numa *n, const char *dir)
{
    struct numa one;
    cpu_set_t allowed, online;

    numa_read_one(&one);
    allowed = one.nodes->cpus;
    memset(n, 0, sizeof *n);
    if (read_list(dir, "online", &online))
        for (uint32_t id = 0; id < CPU_SETSIZE && n->n_nodes < NUMA_NODES_MAX; id++)
            if (CPU_ISSET(id, &online))
                read_node(n, dir, id, &allowed);
    if (n->n_nodes <= 1 || n->n_cpus != one.n_cpus) /* CPUs left out: not this machine's folder */
        *n = one;
}

/* --- threads --- */

/* Find the CPU of a thread, counted over all nodes: *node is the CPU's, the result its number
 * there. */
static uint32_t find_cpu(const struct numa *n, uint32_t thread, uint32_t n_threads, uint32_t *node)
{
    uint32_t i = (uint32_t)((uint64_t)thread * n->n_cpus / n_threads);

    ASSERT(thread < n_threads);
    for (*node = 0; *node + 1 < n->n_nodes; ++*node) {
        uint32_t here = (uint32_t)CPU_COUNT(&n->nodes[*node].cpus);
        if (i < here)
            break;
        i -= here;
    }
    return i;
}

uint32_t numa_node_of(const struct numa *n, uint32_t thread, uint32_t n_threads)
{
    uint32_t node;

    find_cpu(n, thread, n_threads, &node);
    return node;
}

void numa_cpus_of(const struct numa *n, uint32_t thread, uint32_t n_threads, cpu_set_t *out)
{
    uint32_t node, i = find_cpu(n, thread, n_threads, &node);

    *out = n->nodes[node].cpus;
    if (n_threads != n->n_cpus)
        return;
    CPU_ZERO(out);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &n->nodes[node].cpus) && i-- == 0) {
            CPU_SET(cpu, out);
            return;
        }
}

/* --- pages --- */

/* Give the whole pages within [p, p + n_bytes) a policy over a set of the system's nodes. */
static bool bind_pages(void *p, size_t n_bytes, int mode, const cpu_set_t *ids)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)p + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)p + n_bytes) & ~(page - 1);

    return begin >= end ||
           syscall(SYS_mbind, begin, end - begin, mode, ids, CPU_SETSIZE, MOVE_PAGES) == 0;
}

bool numa_place(const struct numa *n, void *p, size_t n_bytes, uint32_t node)
{
    cpu_set_t ids;

    CPU_ZERO(&ids);
    CPU_SET(n->nodes[node].id, &ids);
    return bind_pages(p, n_bytes, MODE_PREFERRED, &ids);
}

bool numa_interleave(const struct numa *n, void *p, size_t n_bytes)
{
    cpu_set_t ids;

    CPU_ZERO(&ids);
    for (uint32_t i = 0; i < n->n_nodes; i++)
        CPU_SET(n->nodes[i].id, &ids);
    return bind_pages(p, n_bytes, MODE_INTERLEAVE, &ids);
}

bool numa_split(const struct numa *n, void *p, size_t n_bytes, uint32_t n_threads)
{
    uintptr_t base = (uintptr_t)p, from = base;
    bool placed = true;

    for (uint32_t i = 0; i < n_threads; i++) {
        uint32_t node = numa_node_of(n, i, n_threads);
        if (i + 1 < n_threads && numa_node_of(n, i + 1, n_threads) == node)
            continue;
        uintptr_t to = base + (uintptr_t)((double)n_bytes * (i + 1) / n_threads);
        to = i + 1 < n_threads ? (to + HUGE_PAGE_BYTES / 2) & ~(HUGE_PAGE_BYTES - 1)
                               : base + n_bytes;
        if (to <= from)
            continue;
        placed &= numa_place(n, (void *)from, to - from, node);
        from = to;
    }
    return placed;
}
