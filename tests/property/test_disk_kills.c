/* The disk tier survives SIGKILL at any moment: no wrong KV is read, and no complete record is
 * lost.
 *
 * A child process answers prompts and writes their KV to disk until the parent kills it. The next
 * child must find all blocks that the statistics of its predecessors reported as written, and all
 * prompts that they reported as complete. The child's answers must have the same bits as without a
 * cache.
 *
 * test_disk_kills [N]   N: number of kills */
#include "tests/unit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "cache/disk/disk_verify.h"
#include "tests/many_prompts.h"
#include "tests/temp_dir.h"

/* So few that the engine does not learn the disk's rate. With a known rate it would compute a
 * prompt that is computed faster than it is read, and the test would take that for a lost
 * record. */
#define N_PROMPTS 64
#define N_WINDOW 8
/* One token, whose KV is not computed. So the closed blocks of the prompts are all blocks. */
#define N_OUT 1
#define N_KEYS_MAX (N_PROMPTS * 20)
#define N_LOOPS_OF_A_DIRECTORY 7 /* then a new directory, or soon all blocks would be written */
#define BLOCK_BYTES (2 * 2 * 2 * 12 * 32 * 2) /* layers, K and V, heads, head_dim, tokens, bf16 */
#define N_DEVICE 2000                         /* enough blocks that none is evicted */
#define N_DISK_BYTES (UINT64_C(32) << 20)
#define WAIT_MAX_MS 120000
#define WAIT_MAX_NS (WAIT_MAX_MS * UINT64_C(1000000))

#ifndef N_LOOPS /* sanitizer builds take fewer: see CMakeLists.txt */
#define N_LOOPS 200
#endif

static unsigned n_loops = N_LOOPS;
static struct many_prompt prompts[N_PROMPTS];
static struct answer_digest cold[N_PROMPTS];
static char model[ENGINE_TEST_DIR_BYTES];

/* The parent's knowledge of the current directory. A child inherits it and reports additions. */
static struct {
    struct temp_dir dir;
    bool was_asked[N_PROMPTS];   /* some of the prompt's blocks may be on disk */
    bool is_complete[N_PROMPTS]; /* all blocks of the prompt are on disk */
    uint32_t n_blocks;           /* the highest count reported as written */
} known;

static struct {
    uint32_t n_torn, n_orphaned, n_doubled, n_complete, n_early, n_writing;
    uint64_t n_blocks, n_untold;
} total;

/* --- messages from the child --- */

enum message_kind {
    TOLD_OPEN,
    TOLD_VERIFIED,
    TOLD_ASKING,
    TOLD_ANSWERED,
    TOLD_COMPLETE,
    TOLD_ALL_DONE
};

struct message {
    enum message_kind kind;
    uint32_t prompt;    /* of TOLD_ASKING, TOLD_COMPLETE */
    uint32_t n_blocks;  /* complete records on disk; 0: not reported */
    uint32_t n_writing; /* of TOLD_ANSWERED: blocks being written */
    uint32_t n_torn, n_orphaned, n_doubled;
};

static int pipe_fd;

static void tell(const struct message *m)
{
    if (write(pipe_fd, m, sizeof *m) != sizeof *m) /* atomic, as it is less than PIPE_BUF */
        _exit(2);
}

static _Noreturn void wrong(const char *what, uint32_t a, uint32_t b)
{
    fprintf(stderr, "test_disk_kills: %s (%u, %u)\n", what, a, b);
    _exit(3);
}

/* --- the child --- */

static void config(struct engine_config *c, unsigned loop)
{
    engine_config_init(c);
    c->n_threads = 2;
    c->max_num_seqs = 8;
    c->max_batched_tokens = 200;
    c->max_model_len = MANY_PROMPTS_IDS_MAX + N_OUT;
    c->kv_bytes = (uint64_t)N_DEVICE * BLOCK_BYTES;
    c->kv_disk_path = known.dir.path;
    c->kv_disk_bytes = N_DISK_BYTES;
    c->kv_disk_min_uses = 1;
    c->kv_disk_timeout_ms = WAIT_MAX_MS;
    c->kv_disk_threads_only = loop % 3 == 2;
}

static uint32_t n_complete_blocks(struct engine_test *t)
{
    struct engine_stats st;

    engine_stats(t->engine, &st);
    return st.cache.tier[CACHE_DISK].n_cached + st.cache.tier[CACHE_DISK].n_in_use;
}

/* The different keys of all prompts that this process has sent. A process first sends all prompts
 * of its predecessors, so the disk holds no other key. */
static struct kv_key keys[N_KEYS_MAX];
static uint32_t n_keys;

static void add_keys(const struct request *r)
{
    for (uint32_t k = 0; k < r->prompt.n_keys; k++) {
        uint32_t i = 0;

        while (i < n_keys && memcmp(&keys[i], &r->prompt.keys[k], sizeof keys[i]) != 0)
            i++;
        ASSERT(i < N_KEYS_MAX);
        keys[i] = r->prompt.keys[k];
        n_keys += i == n_keys;
    }
}

/* Tokens of a prompt that are found when all its closed blocks are on disk. The last token is
 * always computed, so a block that ends with it counts without it. */
static uint32_t n_tokens_closed(const struct many_prompt *p)
{
    uint32_t end = p->n_ends ? p->ends[p->n_ends - 1] : 0;

    return end + (p->n_ids - 1 - end) / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;
}

static void ask(struct engine_test *t, const uint32_t *which, uint32_t n)
{
    struct request *r[N_WINDOW];

    for (uint32_t i = 0; i < n; i++) {
        tell(&(struct message){.kind = TOLD_ASKING, .prompt = which[i]});
        r[i] = many_prompts_submit(t, &prompts[which[i]], which[i], N_OUT);
        add_keys(r[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct many_prompt *p = &prompts[which[i]];
        bool must_hit = known.is_complete[which[i]];

        engine_test_wait(r[i]);
        if (must_hit && atomic_load(&r[i]->n_cached) < n_tokens_closed(p))
            wrong("of a complete prompt tokens were lost: found, should be",
                  atomic_load(&r[i]->n_cached), n_tokens_closed(p));
        struct answer_digest d = many_prompts_digest(r[i], N_OUT);
        if (memcmp(&d, &cold[which[i]], sizeof d))
            wrong("a prompt has other bits than cold: number, was complete", which[i], must_hit);
    }
}

static void tell_open(struct engine_test *t)
{
    struct engine_stats st;
    const struct cache_disk_stats *d = &st.cache.disk;

    engine_stats(t->engine, &st);
    if (!d->is_on)
        wrong("there is no disk tier", 0, 0);
    if (d->n_foreign || d->n_impossible || d->n_misnamed)
        wrong("a record is foreign, impossible or misnamed", d->n_foreign,
              d->n_impossible + d->n_misnamed);
    if (d->n_found < known.n_blocks)
        wrong("blocks were lost: found, had been reported", d->n_found, known.n_blocks);
    tell(&(struct message){.kind = TOLD_OPEN,
                           .n_blocks = d->n_found,
                           .n_torn = d->n_torn,
                           .n_orphaned = d->n_orphaned,
                           .n_doubled = d->n_doubled});
}

/* Check that each complete prompt is found, and that all answers are right. */
static void verify(struct engine_test *t)
{
    uint32_t which[N_WINDOW], n = 0;

    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        if (known.was_asked[p])
            which[n++] = p;
        if (n == N_WINDOW || p + 1 == N_PROMPTS) {
            ask(t, which, n);
            n = 0;
        }
    }
    tell(&(struct message){.kind = TOLD_VERIFIED, .n_blocks = n_complete_blocks(t)});
}

/* Wait until all blocks of these prompts are on disk, then report them as complete. */
static void complete(struct engine_test *t, const uint32_t *which, uint32_t n)
{
    uint64_t t0 = clock_now_ns();

    while (n_complete_blocks(t) < n_keys) {
        if (clock_now_ns() - t0 > WAIT_MAX_NS)
            wrong("blocks are not written: there are, should be", n_complete_blocks(t), n_keys);
        clock_sleep_ns(100000);
    }
    for (uint32_t i = 0; i < n; i++)
        tell(&(struct message){
            .kind = TOLD_COMPLETE, .prompt = which[i], .n_blocks = n_complete_blocks(t)});
}

static void tell_answered(struct engine_test *t)
{
    struct engine_stats st;

    engine_stats(t->engine, &st);
    tell(&(struct message){.kind = TOLD_ANSWERED,
                           .n_blocks = st.cache.tier[CACHE_DISK].n_cached +
                                       st.cache.tier[CACHE_DISK].n_in_use,
                           .n_writing = st.cache.tier[CACHE_DISK].n_in_transfer});
}

static _Noreturn void run_until_killed(unsigned loop)
{
    uint32_t which[N_PROMPTS] = {0}, n_said = 0;
    struct engine_config c;
    struct engine_test t;

    config(&c, loop);
    engine_test_open_model(&t, model, &c);
    tell_open(&t);
    verify(&t);
    for (uint32_t i = 0; i < N_PROMPTS; i++) { /* a different order in each loop */
        uint32_t at = rng_u32(1000 + loop, i) % (i + 1);
        which[i] = which[at];
        which[at] = i;
    }
    for (uint32_t i = 0; i < N_PROMPTS; i += N_WINDOW) {
        uint32_t n = N_PROMPTS - i < N_WINDOW ? N_PROMPTS - i : N_WINDOW;

        ask(&t, which + i, n);
        tell_answered(&t);
        if (rng_u32(2000 + loop, i) % 3 == 0) {
            complete(&t, which + n_said, i + n - n_said);
            n_said = i + n;
        }
    }
    tell(&(struct message){.kind = TOLD_ALL_DONE, .n_blocks = n_complete_blocks(&t)});
    for (;;)
        pause();
}

/* --- the parent --- */

static bool was_writing; /* blocks were being written at the child's last report */

static void take(const struct message *m)
{
    if (m->kind == TOLD_OPEN && m->n_blocks > known.n_blocks)
        total.n_untold += m->n_blocks - known.n_blocks;
    if (m->kind == TOLD_ANSWERED || m->kind == TOLD_COMPLETE)
        was_writing = m->n_writing > 0;
    if (m->n_blocks > known.n_blocks)
        known.n_blocks = m->n_blocks;
    if (m->kind == TOLD_ASKING)
        known.was_asked[m->prompt] = true;
    if (m->kind == TOLD_COMPLETE && !known.is_complete[m->prompt]) {
        known.is_complete[m->prompt] = true;
        total.n_complete++;
    }
    if (m->kind == TOLD_OPEN) {
        total.n_torn += m->n_torn;
        total.n_orphaned += m->n_orphaned;
        total.n_doubled += m->n_doubled;
        total.n_blocks += m->n_blocks;
    }
}

/* Read a message. False: the pipe has ended. */
static bool hear(int fd, struct message *m)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    assert_true(poll(&p, 1, WAIT_MAX_MS) > 0);
    ssize_t n = read(fd, m, sizeof *m);
    assert_true(n == 0 || n == sizeof *m);
    if (n)
        take(m);
    return n > 0;
}

/* Wait for a moment to kill the child: at once, or after some messages that follow its
 * verification, and then up to 1 or 20 ms more, so that the kill can hit any moment. */
static void wait_for_moment(int fd, unsigned loop)
{
    bool early = rng_u32(31, loop) % 6 == 0;
    uint32_t n_messages = rng_u32(32, loop) % 60;
    struct message m = {.kind = TOLD_OPEN};

    total.n_early += early;
    while (!early && m.kind != TOLD_VERIFIED)
        if (!hear(fd, &m))
            return;
    for (uint32_t i = 0; !early && i < n_messages && m.kind != TOLD_ALL_DONE; i++)
        if (!hear(fd, &m))
            return;
    clock_sleep_ns(rng_u32(33, loop) % (loop % 2 ? 20000000 : 1000000));
}

static void one_loop(unsigned loop)
{
    struct message m;
    int fds[2], status;

    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* end with the parent */
        pipe_fd = fds[1];
        close(fds[0]);
        run_until_killed(loop);
    }
    close(fds[1]);
    wait_for_moment(fds[0], loop);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    while (hear(fds[0], &m)) /* messages sent before the kill */
        continue;
    total.n_writing += was_writing;
    was_writing = false;
    close(fds[0]);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        fail_msg("loop %u: the process ended by itself (status %x): see above", loop, status);
}

/* Check all records that the processes left in the directory, payloads included. */
static void verify_directory(void)
{
    struct disk_report report;
    struct disk_dirs dirs;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = disk_dirs_find(&dirs, known.dir.path, &why);
    if (s == ERR_NOT_FOUND && known.n_blocks == 0) { /* killed before the directory was made */
        buf_fini(&why);
        return;
    }
    if (s != OK || disk_verify(&report, dirs.paths[0], NULL, &why) != OK)
        fail_msg("%s", buf_str(&why));
    assert_int_equal(dirs.n, 1);
    for (int f = 0; f < DISK_N_FAULTS; f++)
        if (f != DISK_FAULT_TORN && !disk_fault_is_harmless((enum disk_fault)f) &&
            report.n_by_fault[f])
            fail_msg("%u records are %s", report.n_by_fault[f],
                     disk_fault_name((enum disk_fault)f));
    assert_true(report.n_good >= known.n_blocks);
    disk_dirs_fini(&dirs);
    buf_fini(&why);
}

static void nothing_is_wrong_and_nothing_complete_is_lost(void **state)
{
    (void)state;
    for (unsigned loop = 0; loop < n_loops; loop++) {
        if (loop % N_LOOPS_OF_A_DIRECTORY == 0) {
            memset(&known, 0, sizeof known);
            temp_dir_make(&known.dir);
        }
        one_loop(loop);
        if ((loop + 1) % N_LOOPS_OF_A_DIRECTORY == 0 || loop + 1 == n_loops) {
            verify_directory();
            temp_dir_remove(&known.dir);
        }
    }
    printf("%u kills, %u of them at its start, %u when it had last told of writes on their way: %u "
           "prompts told to be complete, none lost; %llu blocks found at all starts together, %llu "
           "of them more than had been told; %u torn, %u orphaned, %u twice\n",
           n_loops, total.n_early, total.n_writing, total.n_complete,
           (unsigned long long)total.n_blocks, (unsigned long long)total.n_untold, total.n_torn,
           total.n_orphaned, total.n_doubled);
    assert_true(total.n_complete > 0 && total.n_blocks > 0);
}

static int learn_cold(void **state)
{
    struct engine_config c;
    struct engine_test t;

    (void)state;
    engine_test_make_model(model, NULL);
    config(&c, 0);
    c.kv_disk_path = NULL;
    c.prefix_caching = false;
    engine_test_open_model(&t, model, &c);
    for (uint32_t p = 0; p < N_PROMPTS; p++) {
        many_prompts_make(&prompts[p], p);
        cold[p] = many_prompts_digest(many_prompts_submit(&t, &prompts[p], p, N_OUT), N_OUT);
    }
    engine_test_close(&t);
    return 0;
}

static int forget_model(void **state)
{
    (void)state;
    engine_test_remove_model(model);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_wrong_and_nothing_complete_is_lost),
    };

    if (argc > 1)
        n_loops = (unsigned)strtoul(argv[1], NULL, 10);
    if (argc > 2 || n_loops == 0) {
        fprintf(stderr, "test_disk_kills [N]: how often, at least once\n");
        return 2;
    }
    return cmocka_run_group_tests(tests, learn_cold, forget_model);
}
