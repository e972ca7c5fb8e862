/* Conversations, and questions about two documents, over four caches with 16 requests inside at any
 * time, or 256: what requests find when each one goes to the next cache of a pool, or of four
 * without a pool, when the beginning of its prompt chooses one of four caches without a pool, and
 * when all servers share one cache of the same size. Prints the shares, and where the rest was when
 * a request began to run.
 *
 * A server runs two requests at a time and computes a block per millisecond, in steps of up to
 * eight blocks. Between two steps it answers the pool. No time of the machine is measured. */
#include "tests/unit/test.h"

#include <stdio.h>

#include "base/map.h"
#include "tests/unit/cache/pool/joined_caches.h"

#define N_CACHES 4
#ifndef N_SEEDS
#define N_SEEDS 3
#endif
#define N_INSIDE 16
#define N_OVERLOAD 256
#define N_RUN 2
#define N_OPEN 24
#define N_TALK_REQUESTS 450
#define N_RAG_REQUESTS 300
#define TURN_BLOCKS 6
#define TURNS_MIN 2
#define TURNS_MAX 6
#define TEXT_MAX 40 /* letters: blocks; and the ends of documents */
/* Together 20 % of the distinct blocks. */
#define TALK_CACHE_BLOCKS 135
#define RAG_CACHE_BLOCKS 330
/* A question about two documents, as long as the show's. As in RAGPulse's recording, an eighth of
 * the lists begin like one of the last few, the others by popularity, and every second one goes on
 * as before. Of 300 lists, 181 begin with different documents and 253 are different; 171 and 248 in
 * the recording. */
#define N_DOCUMENTS 640
#define DOCUMENT_BLOCKS 14
#define QUESTION_BLOCKS 2
#define RECENT 3
#define N_DRAWS 3 /* of documents, of which the most popular one is taken */
#define STEP_BLOCKS 8
#define MS UINT64_C(1000000)

enum workload { TALKS, RAG };
enum routing { POOL, HASH, SHARED, ROBIN };
static const char *const routing_names[] = {"pool", "hash", "shared", "robin"};
static const char *const workload_names[] = {"conversations", "documents"};

struct conversation {
    char text[TEXT_MAX + 1];
    uint32_t n, n_turns_left, number;
};

struct request {
    bool is_used, runs;
    bool has_promised; /* to compute what it does not find elsewhere */
    char text[TEXT_MAX + 1];
    struct open_seq o;
    uint32_t server, n_left; /* tokens to compute */
    uint32_t n_step;         /* of these, in the step that runs */
    uint64_t number;
};

/* Tokens of the prompts, by what became of them. */
struct shares {
    uint64_t n_tokens, n_found, n_first, n_elsewhere, n_under_way, n_evicted;
    uint64_t ms;
};

static struct request requests[N_OVERLOAD];
static uint32_t n_inside = N_INSIDE;
static uint64_t state, busy_until_ms[N_CACHES], n_submitted, n_ended;
static uint32_t n_begun;
static enum workload workload;
static enum routing routing;
static struct conversation talks[N_OPEN];
static uint32_t recent[RECENT], second_of[N_DOCUMENTS], n_lists;
static struct map computed; /* short keys of blocks that were computed at any time */

static uint32_t draw(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

static void say(struct conversation *c, char letter)
{
    c->text[c->n++] = letter;
    c->text[c->n] = 0;
}

/* A system message that all share, then a beginning of its own. */
static void begin(struct conversation *c)
{
    *c = (struct conversation){.n_turns_left = TURNS_MIN + draw(TURNS_MAX - TURNS_MIN + 1),
                               .number = n_begun++};
    say(c, 'S');
    say(c, (char)('A' + c->number % 26));
    say(c, (char)('A' + c->number / 26));
}

static uint64_t short_of(const struct kv_key *key)
{
    uint64_t k;

    memcpy(&k, key->bytes, sizeof k);
    return k;
}

/* Leading blocks that both requests have. */
static uint32_t n_alike(const struct request *a, const struct request *b)
{
    const struct prompt *x = &a->o.q, *y = &b->o.q;
    uint32_t n = 0;

    while (n < x->p.n_keys && n < y->p.n_keys &&
           memcmp(&x->keys[n], &y->keys[n], sizeof *x->keys) == 0)
        n++;
    return n;
}

static struct cache *cache_of(uint32_t server)
{
    return caches[routing == SHARED ? 0 : server];
}

/* Whether requests of the two servers wait for each other's blocks in the same cache. */
static bool is_here(const struct request *a, const struct request *b)
{
    return cache_of(a->server) == cache_of(b->server);
}

/* --- the directory --- */

static const struct request *request_of(const struct fake_ticket *t)
{
    for (uint32_t i = 0; i < n_inside; i++)
        if (requests[i].is_used && t->n <= requests[i].o.q.p.n_keys &&
            memcmp(&requests[i].o.q.keys[t->n - 1], &t->keys[t->n - 1], sizeof *t->keys) == 0)
            return &requests[i];
    return NULL;
}

/* Leading blocks of the request that the server's cache has, or has promised to compute. */
static uint32_t n_announced(uint32_t server, const struct request *of)
{
    uint32_t most = match(caches[server], of->text) / KV_BLOCK_TOKENS;

    for (uint32_t i = 0; i < n_inside; i++) {
        const struct request *r = &requests[i];
        uint32_t n =
            r->is_used && r->server == server && (r->runs || r->has_promised) ? n_alike(r, of) : 0;
        most = n > most ? n : most;
    }
    return most;
}

/* Of documents, the preamble. */
static uint32_t first_segment_blocks(void)
{
    return workload == TALKS ? KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS : 1;
}

/* Return the instance that the lookup asks. A repeated lookup passes over holders of the first
 * segment alone, because many other prompts begin with that segment. */
static uint32_t holder(const struct pool *p, const struct fake_ticket *t)
{
    const struct request *r = request_of(t);
    uint32_t best = FAKE_N_POOLS, most = t->n_local;

    if (t->is_again && most > 0 && most < first_segment_blocks())
        most = first_segment_blocks();

    for (uint32_t i = 0; r && i < N_CACHES; i++) {
        uint32_t n = i == fake_number(p) ? 0 : n_announced(i, r);
        if (n > most) {
            most = n;
            best = i;
        }
    }
    return best;
}

/* --- servers --- */

static uint32_t n_running(uint32_t server)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_inside; i++)
        n += requests[i].is_used && requests[i].runs && requests[i].server == server;
    return n;
}

/* The next of the server's requests behind `number`, in the order in which they came. */
static struct request *next_of(uint32_t server, bool runs, uint64_t number)
{
    struct request *next = NULL;

    for (uint32_t i = 0; i < n_inside; i++) {
        struct request *r = &requests[i];
        if (r->is_used && r->server == server && r->runs == runs && r->number > number &&
            (!next || r->number < next->number))
            next = r;
    }
    return next;
}

/* Whether another request computes block k of the text: one of this server, or of the others. */
static bool is_under_way(const struct request *r, uint32_t k, bool here)
{
    for (uint32_t i = 0; i < n_inside; i++) {
        const struct request *x = &requests[i];
        if (x->is_used && x != r && x->runs && is_here(x, r) == here && n_alike(x, r) > k)
            return true;
    }
    return false;
}

static bool lies_elsewhere(const struct request *r, uint32_t k)
{
    for (uint32_t i = 0; i < N_CACHES; i++)
        if (i != r->server && match(caches[i], r->text) > k * KV_BLOCK_TOKENS)
            return true;
    return false;
}

static void count_causes(const struct request *r, uint32_t hit, struct shares *out)
{
    uint32_t n_blocks = r->o.q.p.n_keys, unused;

    out->n_tokens += r->o.q.p.n_ids;
    out->n_found += hit;
    for (uint32_t k = hit / KV_BLOCK_TOKENS; k < n_blocks; k++) {
        uint64_t *cause = &out->n_evicted;

        if (!map_get(&computed, short_of(&r->o.q.keys[k]), &unused))
            cause = &out->n_first;
        else if (is_under_way(r, k, true) || is_under_way(r, k, false))
            cause = &out->n_under_way;
        else if (fake_directory && lies_elsewhere(r, k))
            cause = &out->n_elsewhere;
        *cause += KV_BLOCK_TOKENS;
        map_put(&computed, short_of(&r->o.q.keys[k]), 1);
    }
}

/* Whether a running request computes what this one needs first: the scheduler then waits. */
static bool waits_for_other(const struct request *r)
{
    return is_under_way(r, cache_match(r->o.s) / KV_BLOCK_TOKENS, true);
}

static void load(uint32_t server)
{
    struct request *r = NULL;
    uint32_t n = cache_n_load_ahead(cache_of(server), n_running(server));
    bool is_first = true;

    while (n-- > 0 && (r = next_of(server, false, r ? r->number : 0))) {
        bool goes_on = cache_seq_load(r->o.s, is_first);

        r->has_promised |= !cache_seq_is_loading(r->o.s);
        if (!goes_on)
            return;
        is_first = is_first && !cache_seq_is_loading(r->o.s);
    }
}

/* Whether the plan passes the request over, as in engine/lineup.c. */
static bool is_loading(const struct request *r)
{
    if (!cache_seq_is_loading(r->o.s)) {
        cache_seq_look_again(r->o.s);
        if (cache_seq_is_loading(r->o.s))
            (void)cache_seq_load(r->o.s, false);
    }
    return cache_seq_is_loading(r->o.s);
}

static void admit(uint32_t server, struct shares *out)
{
    struct request *r = NULL;

    while (n_running(server) < N_RUN && (r = next_of(server, false, r ? r->number : 0))) {
        uint32_t hit;

        if (is_loading(r) || waits_for_other(r) ||
            cache_seq_need(r->o.s, r->o.q.p.n_ids - cache_match(r->o.s)) >
                cache_n_available(cache_of(server)))
            continue;
        hit = attach_kv(cache_of(server), &r->o, NULL);
        assert_true(hit != UINT32_MAX);
        count_causes(r, hit, out);
        r->n_left = r->o.q.p.n_ids - hit;
        r->runs = true;
    }
}

static void end_step(uint32_t server)
{
    struct request *r = NULL;

    while ((r = next_of(server, true, r ? r->number : 0))) {
        if (r->n_step > 0)
            cache_seq_commit(r->o.s, r->n_step);
        r->n_left -= r->n_step;
        r->n_step = 0;
        if (r->n_left > 0)
            continue;
        cache_seq_close(r->o.s);
        r->is_used = false;
        n_ended++;
    }
}

/* Returns the milliseconds that the step takes. */
static uint32_t begin_step(uint32_t server)
{
    uint32_t left = STEP_BLOCKS * KV_BLOCK_TOKENS, n_all = 0;
    struct request *r = NULL;

    while ((r = next_of(server, true, r ? r->number : 0))) {
        r->n_step = r->n_left < left ? r->n_left : left;
        left -= r->n_step;
        n_all += r->n_step;
    }
    return 1 + n_all / KV_BLOCK_TOKENS;
}

static void run_servers(uint64_t now_ms, struct shares *out)
{
    for (uint32_t i = 0; i < N_CACHES; i++) {
        if (now_ms < busy_until_ms[i])
            continue;
        end_step(i);
        (void)cache_poll(cache_of(i), fake_now);
        load(i);
        admit(i, out);
        busy_until_ms[i] = now_ms + begin_step(i);
        cache_check(cache_of(i));
    }
}

/* --- clients --- */

/* Write the next turn of a conversation. Returns what hashing goes by. */
static uint32_t write_turn(char *text)
{
    struct conversation *c = &talks[draw(N_OPEN)];
    uint32_t number = c->number;

    for (uint32_t k = 0; k < TURN_BLOCKS; k++)
        say(c, (char)('A' + draw(26)));
    memcpy(text, c->text, sizeof c->text);
    if (--c->n_turns_left == 0)
        begin(c);
    return number;
}

/* A document by popularity. */
static uint32_t draw_document(void)
{
    uint32_t least = N_DOCUMENTS;

    for (uint32_t i = 0; i < N_DRAWS; i++) {
        uint32_t d = draw(N_DOCUMENTS);
        least = d < least ? d : least;
    }
    return least;
}

static char *write_document(char *at, uint32_t number)
{
    *at++ = (char)('A' + number % 26);
    *at++ = (char)('A' + number / 26);
    for (uint32_t k = 2; k < DOCUMENT_BLOCKS; k++)
        *at++ = 'D';
    *at++ = '|';
    return at;
}

/* Write a question about two documents. Returns the first one. */
static uint32_t write_question(char *text)
{
    uint32_t first = n_lists > RECENT && draw(8) == 0 ? recent[draw(RECENT)] : draw_document();

    if (second_of[first] == 0 || draw(2) == 0)
        second_of[first] = 1 + draw_document();
    recent[n_lists++ % RECENT] = first;
    *text++ = 'S';
    *text++ = '|';
    text = write_document(text, first);
    text = write_document(text, second_of[first] - 1);
    for (uint32_t k = 0; k < QUESTION_BLOCKS; k++)
        *text++ = (char)('A' + draw(26));
    *text = 0;
    return first;
}

static void submit(void)
{
    struct request *r = requests;
    uint32_t hash;

    while (r->is_used)
        r++;
    *r = (struct request){.is_used = true, .number = ++n_submitted};
    hash = workload == TALKS ? write_turn(r->text) : write_question(r->text);
    r->server = (routing == HASH ? hash * 2654435761u >> 16 : (uint32_t)n_submitted) % N_CACHES;
    seq(cache_of(r->server), &r->o, r->text);
    cache_seq_expect(r->o.s, fake_now + 10 * MS);
}

static double seconds(const void *arg, uint32_t n_cached, uint32_t n_new)
{
    (void)arg;
    (void)n_cached;
    return 1e-3 * n_new / KV_BLOCK_TOKENS;
}

static void open_caches(const char *policy)
{
    uint32_t n_blocks = workload == TALKS ? TALK_CACHE_BLOCKS : RAG_CACHE_BLOCKS;
    struct cache_config config =
        routing == POOL ? pool_config_of(n_blocks, 0, false) : small_config(n_blocks, 0);

    if (routing == SHARED)
        config.pool.n_blocks *= N_CACHES;
    config.always_copy = false;
    config.policy = policy;
    config.seconds = seconds;
    fake_directory = routing == POOL ? holder : NULL;
    for (uint32_t i = 0; i < (routing == SHARED ? 1 : N_CACHES); i++) {
        caches[n_caches++] = make(&config);
        fakes[i].bytes_per_s = 8e6; /* a block takes 64 us */
        fakes[i].ask_ns = 500 * MS;
    }
}

static uint32_t n_requests_of(enum workload of)
{
    return of == TALKS ? N_TALK_REQUESTS : N_RAG_REQUESTS;
}

static struct shares run_all(const char *policy, uint64_t seed)
{
    struct shares out = {0};
    uint64_t now_ms = 0;
    uint32_t n_requests = n_requests_of(workload);

    state = seed;
    n_begun = 0;
    n_submitted = n_ended = 0;
    n_lists = 0;
    memset(second_of, 0, sizeof second_of);
    memset(busy_until_ms, 0, sizeof busy_until_ms);
    assert_ok(map_init(&computed, n_requests * TEXT_MAX));
    open_caches(policy);
    for (uint32_t i = 0; i < N_OPEN; i++)
        begin(&talks[i]);
    while (n_ended < n_requests) {
        while (n_submitted < n_requests && n_submitted - n_ended < n_inside)
            submit();
        now_ms++;
        fake_now += STEP_NS;
        fake_step();
        run_servers(now_ms, &out);
        if (now_ms > UINT64_C(100) * n_requests)
            fail_msg("requests wait for ever");
    }
    out.ms = now_ms;
    map_fini(&computed);
    (void)leave_world(NULL);
    return out;
}

/* --- tests --- */

static void add(struct shares *sum, const struct shares *x)
{
    sum->n_tokens += x->n_tokens;
    sum->n_found += x->n_found;
    sum->n_first += x->n_first;
    sum->n_elsewhere += x->n_elsewhere;
    sum->n_under_way += x->n_under_way;
    sum->n_evicted += x->n_evicted;
    sum->ms += x->ms;
}

static struct shares mean_of(enum workload of, const char *policy, enum routing how,
                             uint32_t n_seeds)
{
    struct shares sum = {0}, one;

    workload = of;
    routing = how;
    for (uint32_t i = 1; i <= n_seeds; i++) {
        one = run_all(policy, i);
        add(&sum, &one);
    }
    double percent = 100.0 / (double)sum.n_tokens;
    printf("%-13s %-7s %-6s: %.1f %% found; first use %.1f, evicted %.1f, under way %.1f, "
           "elsewhere %.1f; %.1f requests/s\n",
           workload_names[of], policy, routing_names[how], percent * (double)sum.n_found,
           percent * (double)sum.n_first, percent * (double)sum.n_evicted,
           percent * (double)sum.n_under_way, percent * (double)sum.n_elsewhere,
           1e3 * n_seeds * n_requests_of(of) / (double)sum.ms);
    return sum;
}

static double share_of(const struct shares *x)
{
    return (double)x->n_found / (double)x->n_tokens;
}

/* The pool may find `points` less than hashing. Nearly all that somebody has or computes is found.
 */
static void check_pool(enum workload of, const char *policy, double points)
{
    struct shares pool = mean_of(of, policy, POOL, N_SEEDS);

    assert_true(pool.n_under_way + pool.n_elsewhere <= pool.n_tokens / 50);
    if (N_SEEDS < 3) /* sanitized builds: one run differs from the next by 3 points */
        return;
    struct shares hash = mean_of(of, policy, HASH, N_SEEDS);
    struct shares shared = mean_of(of, policy, SHARED, N_SEEDS);
    assert_true(share_of(&pool) >= share_of(&hash) - points / 100);
    assert_true(share_of(&pool) <= share_of(&shared) + 0.01);
    assert_true((double)pool.ms <= 1.05 * (double)hash.ms);
}

/* Second copies cost a pool 1.5 points here, with other seeds up to 2. */
static void a_saturated_pool_answers_as_fast_as_hashing(void **st)
{
    (void)st;
    check_pool(TALKS, "lru", 2.2);
}

static void a_saturated_pool_is_as_fast_with_the_default_policy(void **st)
{
    (void)st;
    check_pool(TALKS, "contest", 1.5);
}

/* The default policy begins with the order for documents: with lru the pool finds 1 point less. */
static void a_saturated_pool_finds_documents_as_hashing_does(void **st)
{
    (void)st;
    check_pool(RAG, "contest", 0.5);
}

/* The first requests of the queue ask others and read ahead, not all of it. */
static void a_pool_with_long_queues_finds_as_much(void **st)
{
    (void)st;
    struct shares few = mean_of(TALKS, "contest", POOL, N_SEEDS);
    n_inside = N_OVERLOAD;
    struct shares many = mean_of(TALKS, "contest", POOL, N_SEEDS);
    n_inside = N_INSIDE;
    assert_true(share_of(&many) >= share_of(&few) - 0.03);
    assert_true(many.n_under_way + many.n_elsewhere <= many.n_tokens / 40);
    assert_true((double)many.ms <= 1.05 * (double)few.ms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_saturated_pool_answers_as_fast_as_hashing),
        cmocka_unit_test(a_saturated_pool_is_as_fast_with_the_default_policy),
        cmocka_unit_test(a_saturated_pool_finds_documents_as_hashing_does),
        cmocka_unit_test(a_pool_with_long_queues_finds_as_much),
    };

    if (!open_device())
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return failed;
}
