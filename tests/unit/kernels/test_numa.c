/* test_numa.c - nodes are read from any folder, threads are spread over them, and pages lie where
 * they were put. */
#include "kernels/cpu/numa.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/pool.h"
#include "tests/unit/kernels/kernel_test.h"

#define PIECE ((size_t)2 << 20)

static char dir[32];

static void write_file(const char *name, const char *text)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void write_node(int id, const char *cpus)
{
    char name[96];

    snprintf(name, sizeof name, "%s/node%d", dir, id);
    mkdir(name, 0700);
    snprintf(name, sizeof name, "node%d/cpulist", id);
    write_file(name, cpus);
}

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/tarn-numa-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", dir);
    return system(command);
}

/* Nodes of these many CPUs each, numbered in turns. */
static void make_nodes(struct numa *n, const uint32_t *n_cpus, uint32_t n_nodes)
{
    *n = (struct numa){.n_nodes = n_nodes};
    for (uint32_t i = 0; i < n_nodes; i++) {
        n->nodes[i].id = i;
        for (uint32_t k = 0; k < n_cpus[i]; k++)
            CPU_SET(n->n_cpus++, &n->nodes[i].cpus);
    }
}

static void a_folder_that_does_not_describe_the_machine_is_one_node(void **state)
{
    static const char *const online[] = {"", "0-", "0-1", "x", "1-0", "0,99999999", "0-1\n"};
    struct numa n, one;

    (void)state;
    numa_read_one(&one);
    assert_int_equal(one.n_nodes, 1);
    for (size_t i = 0; i < sizeof online / sizeof *online; i++) {
        write_file("online", online[i]); /* without nodes, then with ones that leave CPUs out */
        numa_read(&n, dir);
        assert_int_equal(n.n_nodes, 1);
        assert_int_equal(n.n_cpus, one.n_cpus);
        assert_true(CPU_EQUAL(&n.nodes->cpus, &one.nodes->cpus));
    }
    write_node(0, "900\n");
    write_node(1, "901\n");
    numa_read(&n, dir);
    assert_int_equal(n.n_nodes, 1);
    numa_read(&n, "/nonexistent");
    assert_int_equal(n.n_nodes, 1);
}

static void every_usable_cpu_is_on_one_node(void **state)
{
    struct numa n, one;
    char rest[64];

    (void)state;
    numa_read_one(&one);
    if (one.n_cpus < 2)
        skip();
    int first = 0;
    while (!CPU_ISSET(first, &one.nodes->cpus))
        first++;
    write_file("online", "0-2,7\n");
    snprintf(rest, sizeof rest, "%d\n", first);
    write_node(0, rest);
    write_node(1, "\n"); /* memory without CPUs */
    write_node(2, "0-1023\n");
    write_node(7, "0-1023\n"); /* has nothing left */
    numa_read(&n, dir);
    assert_int_equal(n.n_nodes, 2);
    assert_int_equal(n.n_cpus, one.n_cpus);
    assert_int_equal(n.nodes[1].id, 2);
    assert_int_equal(CPU_COUNT(&n.nodes[0].cpus), 1);
    assert_int_equal(CPU_COUNT(&n.nodes[1].cpus), one.n_cpus - 1);
    assert_false(CPU_ISSET(first, &n.nodes[1].cpus));
}

static void threads_are_spread_as_cpus_are_and_neighbours_are_near(void **state)
{
    static const uint32_t even[] = {8, 8}, uneven[] = {2, 6, 4};
    struct numa n;

    (void)state;
    make_nodes(&n, even, 2);
    for (uint32_t n_threads = 2; n_threads <= 40; n_threads += 2)
        for (uint32_t i = 0; i < n_threads; i++)
            assert_int_equal(numa_node_of(&n, i, n_threads), i >= n_threads / 2);
    make_nodes(&n, uneven, 3);
    for (uint32_t n_threads = 1; n_threads <= 40; n_threads++)
        for (uint32_t i = 1; i < n_threads; i++)
            assert_true(numa_node_of(&n, i, n_threads) >= numa_node_of(&n, i - 1, n_threads));
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(numa_node_of(&n, i, 12), i < 2 ? 0 : i < 8 ? 1 : 2);
}

static void as_many_threads_as_cpus_have_a_cpu_each(void **state)
{
    static const uint32_t n_cpus[] = {3, 2};
    struct numa n;
    cpu_set_t cpus, all;

    (void)state;
    make_nodes(&n, n_cpus, 2);
    CPU_ZERO(&all);
    for (uint32_t i = 0; i < 5; i++) {
        numa_cpus_of(&n, i, 5, &cpus);
        assert_int_equal(CPU_COUNT(&cpus), 1);
        CPU_OR(&all, &all, &cpus);
    }
    assert_int_equal(CPU_COUNT(&all), 5);
    numa_cpus_of(&n, 3, 4, &cpus);
    assert_true(CPU_EQUAL(&cpus, &n.nodes[1].cpus));
}

/* The system's node of the policy of a page; -1: none. */
static int node_of_page(void *p)
{
    cpu_set_t ids;
    int mode;

    CPU_ZERO(&ids);
    if (syscall(SYS_get_mempolicy, &mode, &ids, CPU_SETSIZE, p, 2ul /* of an address */) != 0)
        return -2;
    for (int i = 0; mode != 0 && i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &ids))
            return i;
    return -1;
}

static void pages_lie_on_the_node_of_the_thread_that_reads_them(void **state)
{
    static const uint32_t n_cpus[] = {2, 2};
    struct numa n;
    char *map = mmap(NULL, 9 * PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *p = (char *)(((uintptr_t)map + PIECE - 1) & ~(PIECE - 1));

    (void)state;
    assert_ptr_not_equal(map, MAP_FAILED);
    make_nodes(&n, n_cpus, 2);
    n.nodes[1].id = 0; /* the one node that every machine has */
    if (node_of_page(p) == -2 || !numa_place(&n, p, PIECE, 0)) {
        munmap(map, 9 * PIECE);
        skip(); /* a system without memory nodes */
    }
    assert_int_equal(node_of_page(p), 0);
    assert_int_equal(node_of_page(p + PIECE), -1);
    assert_true(numa_split(&n, p + 2 * PIECE, 5 * PIECE, 4));
    assert_int_equal(node_of_page(p + 2 * PIECE), 0);
    assert_int_equal(node_of_page(p + 7 * PIECE - 1), 0);
    assert_int_equal(node_of_page(p + 7 * PIECE), -1);
    assert_true(numa_interleave(&n, p + 7 * PIECE, PIECE));
    assert_int_equal(node_of_page(p + 7 * PIECE), 0);
    assert_true(numa_place(&n, p, 3, 0)); /* no whole page */
    n.nodes[0].id = 900;
    assert_false(numa_place(&n, p, PIECE, 0));
    munmap(map, 9 * PIECE);
}

struct where {
    cpu_set_t cpus[8];
    _Atomic uint32_t n_arrived;
};

/* Each thread takes one index: all wait for all. */
static void note_cpus(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct where *w = arg;

    (void)begin;
    (void)end;
    assert_int_equal(sched_getaffinity(0, sizeof w->cpus[thread], &w->cpus[thread]), 0);
    atomic_fetch_add(&w->n_arrived, 1);
    while (atomic_load(&w->n_arrived) < 4)
        usleep(100);
}

static void workers_are_bound_to_their_nodes(void **state)
{
    struct where w = {.n_arrived = 0};
    struct numa one, n = {.n_nodes = 2};
    struct pool *p;

    (void)state;
    numa_read_one(&one);
    if (one.n_cpus < 2)
        skip();
    n.n_cpus = 2;
    for (int cpu = 0, i = 0; i < 2; cpu++)
        if (CPU_ISSET(cpu, &one.nodes->cpus))
            CPU_SET(cpu, &n.nodes[i++].cpus);
    assert_int_equal(pool_create(&p, 4, &n), OK);
    pool_run(p, 4, 1, note_cpus, &w);
    for (uint32_t i = 1; i < 4; i++) /* thread 0 is this one, which asked for nothing */
        assert_true(CPU_EQUAL(&w.cpus[i], &n.nodes[i / 2].cpus));
    pool_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_folder_that_does_not_describe_the_machine_is_one_node,
                                        make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(every_usable_cpu_is_on_one_node, make_dir, remove_dir),
        cmocka_unit_test(threads_are_spread_as_cpus_are_and_neighbours_are_near),
        cmocka_unit_test(as_many_threads_as_cpus_have_a_cpu_each),
        cmocka_unit_test(pages_lie_on_the_node_of_the_thread_that_reads_them),
        cmocka_unit_test(workers_are_bound_to_their_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
