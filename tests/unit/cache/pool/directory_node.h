/* directory_node.h - instances of a pool as far as the directory sees them, run by one loop.
 *
 * Time: the clock, plus what a test skips. No test depends on the machine's speed: tests wait for a
 * state, with a limit far beyond what any machine needs.
 *
 * Owns    the directories of its nodes.
 * Thread  one.
 * Errors  any failure fails the test.
 * Units   nanoseconds. */
#ifndef TARN_TESTS_DIRECTORY_NODE_H
#define TARN_TESTS_DIRECTORY_NODE_H

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cache/pool/directory.h"
#include "tests/unit/test.h"

#define WAIT_NS 60000000000ull
#define BEAT_NS 100000000ull

struct node {
    struct directory *d; /* NULL: closed */
    struct directory_instance self;
    bool is_frozen; /* it does nothing, as if its process were stopped */
    uint64_t beat_at, skipped;
    uint32_t n_up, n_down, n_lists, n_not_now, n_found, n_counted;
    const char *why;
    struct directory_event event; /* the newest of a lookup or count */
};

static inline void node_open(struct node *n, uint64_t id, const char *url, const char *pool,
                             uint32_t instance_ttl_ms)
{
    struct directory_config config = {
        .url = url, .pool = pool, .id = id, .instance_ttl_ms = instance_ttl_ms};
    struct buf why;

    memset(n, 0, sizeof *n);
    n->self.id = id;
    snprintf(n->self.name, sizeof n->self.name, "node-%llu", (unsigned long long)id);
    snprintf(n->self.address, sizeof n->self.address, "tcp://127.0.0.1:%llu",
             (unsigned long long)id);
    strcpy(n->self.version, "1");
    /* Far longer than a healthy Redis needs on any machine; tests of silence skip it. */
    config.timeout_ms = 30000;
    buf_init(&why, BUF_WHY_MAX);
    if (directory_open(&n->d, &config, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
}

static inline void node_close(struct node *n)
{
    directory_close(n->d);
    n->d = NULL;
}

static inline void node_step(struct node *n)
{
    uint64_t now = clock_now_ns() + n->skipped;
    struct directory_event e;

    if (!n->d || n->is_frozen)
        return;
    directory_progress(n->d, now);
    if (now >= n->beat_at) {
        directory_heartbeat(n->d, &n->self);
        n->beat_at = now + BEAT_NS;
    }
    while (directory_next(n->d, &e)) {
        n->n_up += e.kind == DIRECTORY_UP;
        n->n_down += e.kind == DIRECTORY_DOWN;
        n->n_lists += e.kind == DIRECTORY_INSTANCES;
        n->n_not_now += e.kind == DIRECTORY_NOT_NOW;
        n->n_found += e.kind == DIRECTORY_FOUND;
        n->n_counted += e.kind == DIRECTORY_COUNTED;
        if (e.kind == DIRECTORY_DOWN)
            n->why = e.why;
        if (e.kind >= DIRECTORY_FOUND)
            n->event = e;
    }
}

static inline void nodes_step(struct node *nodes, int n)
{
    struct pollfd p = {.events = POLLIN};

    for (int i = 0; i < n; i++)
        node_step(&nodes[i]);
    if (nodes[0].d)
        p.fd = directory_fd(nodes[0].d);
    poll(&p, nodes[0].d ? 1 : 0, 2);
}

/* Run the nodes until the condition holds. */
#define UNTIL(nodes, n, condition)                                                                 \
    do {                                                                                           \
        uint64_t limit_ = clock_now_ns() + WAIT_NS;                                                \
        while (!(condition)) {                                                                     \
            nodes_step(nodes, n);                                                                  \
            if (clock_now_ns() > limit_)                                                           \
                fail_msg("not reached: %s", #condition);                                           \
        }                                                                                          \
    } while (0)

static inline bool node_knows(const struct node *n, uint64_t id)
{
    uint32_t count;
    const struct directory_instance *all = directory_instances(n->d, &count);

    for (uint32_t i = 0; i < count; i++)
        if (all[i].id == id)
            return true;
    return false;
}

/* Segment keys of printable bytes, so that lines to Redis can name them. */
static inline void segment_key(uint8_t out[DIRECTORY_SEGMENT_BYTES], int prompt, int segment)
{
    char text[64];

    snprintf(text, sizeof text, "prompt%04dseg%03d", prompt % 10000, segment % 1000);
    memcpy(out, text, DIRECTORY_SEGMENT_BYTES);
}

/* Announce segments [0, n) of a prompt; n_blocks 0 withdraws. */
static inline uint32_t node_announce(struct node *node, int prompt, int n, uint8_t n_blocks)
{
    struct directory_segment all[DIRECTORY_PATH_MAX];

    for (int i = 0; i < n; i++) {
        all[i] = (struct directory_segment){.tier = 1, .n_blocks = n_blocks};
        segment_key(all[i].key, prompt, i);
    }
    return directory_announce(node->d, all, (uint32_t)n);
}

/* Look up segments [0, n) of a prompt and wait for the answer in node->event. */
static inline void node_lookup(struct node *nodes, int n_nodes, struct node *node, int prompt,
                               int n)
{
    uint8_t keys[DIRECTORY_PATH_MAX][DIRECTORY_SEGMENT_BYTES];
    uint32_t before = node->n_found;

    for (int i = 0; i < n; i++)
        segment_key(keys[i], prompt, i);
    assert_ok(directory_lookup(node->d, (const uint8_t(*)[DIRECTORY_SEGMENT_BYTES])keys,
                               (uint32_t)n, (uint64_t)prompt));
    UNTIL(nodes, n_nodes, node->n_found > before);
    assert_int_equal(node->event.kind, DIRECTORY_FOUND);
    assert_int_equal(node->event.tag, prompt);
}

static inline void node_count(struct node *nodes, int n_nodes, struct node *node, int prompt, int n)
{
    uint8_t keys[DIRECTORY_PATH_MAX][DIRECTORY_SEGMENT_BYTES];
    uint32_t before = node->n_counted;

    for (int i = 0; i < n; i++)
        segment_key(keys[i], prompt, i);
    assert_ok(directory_count(node->d, (const uint8_t(*)[DIRECTORY_SEGMENT_BYTES])keys, (uint32_t)n,
                              (uint64_t)prompt));
    UNTIL(nodes, n_nodes, node->n_counted > before);
    assert_int_equal(node->event.n_counts, n);
}

#endif
