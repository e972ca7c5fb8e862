/* Conversations over four caches in a pool, each turn on a drawn one: what is found, compared with
 * one shared cache of the same size. Prints the shares. */
#include "tests/unit/test.h"

#include <stdio.h>

#include "tests/unit/cache/pool/joined_caches.h"

#define N_CACHES 4
#define N_OPEN 24
#define N_REQUESTS 300
#define TURN_BLOCKS 6
#define TURNS_MIN 2
#define TURNS_MAX 6
#define TEXT_MAX 40 /* letters: blocks */

struct conversation {
    char text[TEXT_MAX + 1];
    uint32_t n, n_turns_left;
};

static uint64_t state;
static uint32_t n_begun;

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
    *c = (struct conversation){.n_turns_left = TURNS_MIN + draw(TURNS_MAX - TURNS_MIN + 1)};
    say(c, 'S');
    say(c, (char)('A' + n_begun % 26));
    say(c, (char)('A' + n_begun / 26));
    n_begun++;
}

/* --- one shared cache: prefixes, least recently used first --- */

static char shared[2000][TEXT_MAX + 1];
static uint32_t n_shared;

static void use_shared(const char *prefix, uint32_t n)
{
    uint32_t at = 0;

    while (at < n_shared && (strlen(shared[at]) != n || strncmp(shared[at], prefix, n) != 0))
        at++;
    if (at < n_shared)
        memmove(shared[at], shared[at + 1], (--n_shared - at) * sizeof *shared);
    memcpy(shared[n_shared], prefix, n);
    shared[n_shared++][n] = 0;
}

static uint32_t ask_shared(const char *text, uint32_t n_blocks)
{
    uint32_t n = (uint32_t)strlen(text), found = 0, before;

    for (uint32_t k = 1; k <= n; k++)
        for (uint32_t i = 0; i < n_shared && found < k; i++)
            if (strlen(shared[i]) == k && strncmp(shared[i], text, k) == 0 && found == k - 1)
                found = k;
    for (uint32_t k = n; k > 0; k--) /* the beginning is used last: it leaves last */
        use_shared(text, k);
    before = n_shared > n_blocks ? n_shared - n_blocks : 0;
    memmove(shared[0], shared[before], (n_shared - before) * sizeof *shared);
    n_shared -= before;
    return found * KV_BLOCK_TOKENS;
}

/* --- the pool --- */

/* Only the instance with the longest part answers, as the directory would have it. */
static void choose_lender(const char *text, uint32_t asker)
{
    uint32_t best = N_CACHES, longest = 0;

    for (uint32_t i = 0; i < N_CACHES; i++) {
        uint32_t n = i == asker ? 0 : match(caches[i], text);
        if (n > longest) {
            longest = n;
            best = i;
        }
    }
    for (uint32_t i = 0; i < N_CACHES; i++)
        fakes[i].is_away = i != asker && i != best;
}

/* The share of the prompts' tokens that the pool finds; *of_shared: that one cache would find. */
static double share_found(uint32_t n_blocks, const char *policy, double *of_shared)
{
    struct cache_config config = pool_config_of(n_blocks, 0, false);
    static struct conversation open[N_OPEN];
    uint64_t n_tokens = 0, n_found = 0, n_found_shared = 0;

    config.policy = policy;
    state = n_begun = n_shared = 0;
    for (uint32_t i = 0; i < N_CACHES; i++)
        (void)join_with(&config);
    for (uint32_t i = 0; i < N_OPEN; i++)
        begin(&open[i]);
    for (uint32_t r = 0; r < N_REQUESTS; r++) {
        struct conversation *c = &open[draw(N_OPEN)];
        uint32_t asker = draw(N_CACHES);

        for (uint32_t k = 0; k < TURN_BLOCKS; k++)
            say(c, (char)('A' + draw(26)));
        choose_lender(c->text, asker);
        n_found += ask(caches[asker], c->text);
        n_found_shared += ask_shared(c->text, N_CACHES * n_blocks);
        n_tokens += c->n * KV_BLOCK_TOKENS;
        for (uint32_t i = 0; i < N_CACHES; i++)
            fakes[i].is_away = false;
        pass_ms(2);
        if (--c->n_turns_left == 0)
            begin(c);
    }
    *of_shared = (double)n_found_shared / (double)n_tokens;
    return (double)n_found / (double)n_tokens;
}

static double check_share(uint32_t n_blocks, const char *policy, double at_least)
{
    double of_shared, found = share_found(n_blocks, policy, &of_shared);

    printf("%s, 4 caches of %u blocks: %.1f %% found, one shared cache %.1f %%\n", policy, n_blocks,
           100 * found, 100 * of_shared);
    assert_true(found >= at_least * of_shared);
    assert_true(found <= of_shared + 0.02);
    return found;
}

static void a_pool_with_room_finds_what_one_shared_cache_finds(void **st)
{
    (void)st;
    (void)check_share(400, "lru", 0.98);
}

static void a_crowded_pool_finds_most_of_what_one_shared_cache_finds(void **st)
{
    (void)st;
    (void)check_share(160, "lru", 0.85);
}

/* The default policy learns by uses, of which each cache sees a quarter. */
static void the_default_policy_finds_as_much_as_recency_in_a_crowded_pool(void **st)
{
    double recency = check_share(160, "lru", 0.85);

    (void)leave_world(st);
    assert_true(check_share(160, "contest", 0.85) >= recency);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_pool_with_room_finds_what_one_shared_cache_finds, leave_world),
        cmocka_unit_test_teardown(a_crowded_pool_finds_most_of_what_one_shared_cache_finds,
                                  leave_world),
        cmocka_unit_test_teardown(the_default_policy_finds_as_much_as_recency_in_a_crowded_pool,
                                  leave_world),
    };

    if (!open_device())
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return failed;
}
