/* kv_store_session.c - the KV of sessions between two requests.
 *
 * The store remembers the path of the latest request of each session. Nodes on it are the session's
 * own if no request of another session, or of none, ever used them (node_info.owner).
 *
 *   - While the session pauses, its own nodes count as expected at the end of the pause, as if a
 *     request waited for them (kv_store_expect.c). Time until then is divided by what restoring the
 *     node costs, in seconds per byte, relative to the nodes that are evicted now. So the class of
 *     the nodes (replace.h) follows from the price of keeping them.
 *   - When the next request has computed its prompt, the session's own nodes of the path before
 *     that are not on the new path are dead: no later prompt contains them. They are evicted first.
 *   - The same holds for all of its own nodes when the session is closed. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/store/kv_store_inner.h"

/* The session that was kept longest ago is dropped when either bound is reached. */
#define N_SESSIONS_MAX 1024u
#define N_KEYS_MAX (1u << 16)

struct session {
    uint64_t id;
    uint64_t kept_no;     /* of the store's counter */
    struct kv_key *keys;  /* [n] of the blocks of its latest request */
    uint32_t n, n_prompt; /* n_prompt: of the prompt */
    uint32_t n_prompt_ids;
    struct kv_key tail; /* behind them */
    bool has_tail;
    uint32_t first_own;  /* block; those before are shared */
    uint32_t n_expected; /* blocks from first_own on that are declared as expected */
    bool expects_tail;
    double due_s, declared_s; /* end of the pause; the due time that was declared */
    uint64_t until_ns;        /* the pause is over its expectation: hold no longer */
};

struct sessions {
    struct map index; /* id -> place in v */
    struct session *v;
    uint32_t n, n_keys, n_held;
    uint32_t refresh_at;
    uint64_t n_kept_ever;
};

enum status init_sessions(struct store *st)
{
    struct sessions *x = calloc(1, sizeof *x);

    st->sessions = x;
    if (!x)
        return ERR_NOMEM;
    x->v = calloc(N_SESSIONS_MAX, sizeof *x->v);
    st->memory_bytes += sizeof *x + N_SESSIONS_MAX * sizeof *x->v;
    return x->v ? map_init(&x->index, N_SESSIONS_MAX) : ERR_NOMEM;
}

static struct session *find(const struct store *st, uint64_t id)
{
    uint32_t i;

    return id && map_get(&st->sessions->index, id, &i) ? &st->sessions->v[i] : NULL;
}

/* --- holds --- */

static bool is_kept(const struct session *x)
{
    return x->n_expected > 0 || x->expects_tail;
}

static void end_keeping(struct store *st, struct session *x)
{
    if (x->expects_tail)
        store_unexpect(st, &x->tail, 1, x->declared_s);
    if (x->n_expected > 0)
        store_unexpect(st, x->keys + x->first_own, x->n_expected, x->declared_s);
    st->sessions->n_held -= x->n_expected + x->expects_tail;
    x->n_expected = 0;
    x->expects_tail = false;
}

/* The last node of the session's path, or KTREE_NONE. */
static uint32_t last_node(const struct store *st, const struct session *x)
{
    uint32_t tail = x->has_tail ? ktree_find(st->tree, &x->tail) : KTREE_NONE;

    return tail != KTREE_NONE || x->n == 0 ? tail : ktree_match(st->tree, x->keys, x->n).node;
}

/* The due time to declare now: a node that is dear to restore counts as due sooner. With a host
 * tier all nodes cost the same: a copy. */
static double due_to_declare(const struct store *st, const struct session *x)
{
    double now_s = store_now_s(st), left_s = x->due_s > now_s ? x->due_s - now_s : 0;
    uint32_t node = last_node(st, x);

    if (node != KTREE_NONE && node != KTREE_ROOT && st->n_tiers == 1)
        left_s /= replace_relative_cost(st->policy, CACHE_DEVICE, st->info[node].entry);
    return now_s + left_s;
}

static void end_those_over(struct store *st)
{
    for (uint32_t i = 0; i < st->sessions->n; i++)
        if (is_kept(&st->sessions->v[i]) && st->sessions->v[i].until_ns <= st->now_ns)
            end_keeping(st, &st->sessions->v[i]);
}

/* Declare the session's own nodes as expected, if hold_share has room for them. */
static void begin_keeping(struct store *st, struct session *x)
{
    uint32_t limit = (uint32_t)(st->config.hold_share * st->config.pool.n_blocks);
    uint32_t n_more = x->n - x->first_own + x->has_tail;

    if (x->until_ns <= st->now_ns)
        return;
    if (st->sessions->n_held + n_more > limit)
        end_those_over(st);
    if (st->sessions->n_held + n_more > limit)
        return;
    x->declared_s = due_to_declare(st, x);
    x->n_expected = store_expect(st, x->keys + x->first_own, x->n - x->first_own, x->declared_s);
    x->expects_tail = x->has_tail && store_expect(st, &x->tail, 1, x->declared_s) == 1;
    st->sessions->n_held += x->n_expected + x->expects_tail;
}

/* End the hold of a session that pauses too long, or declare its due time anew: whether keeping is
 * cheaper than restoring changes with time. */
static void refresh(struct store *st, struct session *x)
{
    double due_s;

    if (!is_kept(x))
        return;
    if (x->until_ns <= st->now_ns) {
        end_keeping(st, x);
        return;
    }
    due_s = due_to_declare(st, x);
    if (x->expects_tail)
        store_expect_at(st, &x->tail, 1, x->declared_s, due_s);
    store_expect_at(st, x->keys + x->first_own, x->n_expected, x->declared_s, due_s);
    x->declared_s = due_s;
}

void refresh_sessions(struct store *st)
{
    struct sessions *all = st->sessions;

    if (all->n_held == 0)
        return;
    all->refresh_at = all->refresh_at + 1 < all->n ? all->refresh_at + 1 : 0;
    refresh(st, &all->v[all->refresh_at]);
}

/* --- remembering --- */

static void drop(struct store *st, struct session *x)
{
    struct sessions *all = st->sessions;
    struct session *last = &all->v[all->n - 1];

    end_keeping(st, x);
    all->n_keys -= x->n;
    free(x->keys);
    ASSERT(map_remove(&all->index, x->id));
    if (x != last) {
        *x = *last;
        map_put(&all->index, x->id, (uint32_t)(x - all->v));
    }
    all->n--;
}

void drop_sessions(struct store *st)
{
    while (st->sessions->n > 0)
        drop(st, &st->sessions->v[0]);
}

void fini_sessions(struct store *st)
{
    if (!st->sessions)
        return;
    drop_sessions(st);
    map_fini(&st->sessions->index);
    free(st->sessions->v);
    free(st->sessions);
}

static void drop_oldest(struct store *st)
{
    struct sessions *all = st->sessions;
    struct session *oldest = &all->v[0];

    for (uint32_t i = 1; i < all->n; i++)
        if (all->v[i].kept_no < oldest->kept_no)
            oldest = &all->v[i];
    drop(st, oldest);
}

/* The first block of the path that only this session used. */
static uint32_t first_own(const struct store *st, const struct store_keep *k)
{
    uint32_t i = 0, first = 0, node;

    while (i < k->n && (node = ktree_find(st->tree, &k->keys[i])) != KTREE_NONE) {
        i += ktree_look(st->tree, node).n_blocks;
        if (st->info[node].owner != k->session)
            first = i < k->n ? i : k->n;
    }
    return first;
}

void store_keep(struct store *st, const struct store_keep *k)
{
    struct sessions *all = st->sessions;
    struct session *x = find(st, k->session);

    if (x)
        drop(st, x);
    if (k->n > N_KEYS_MAX)
        return;
    while (all->n == N_SESSIONS_MAX || all->n_keys + k->n > N_KEYS_MAX)
        drop_oldest(st);
    struct kv_key *keys = malloc((k->n ? k->n : 1) * sizeof *keys);
    if (!keys)
        return; /* the session is only not held */
    memcpy(keys, k->keys, k->n * sizeof *keys);
    x = &all->v[all->n];
    *x = (struct session){.id = k->session,
                          .kept_no = all->n_kept_ever++,
                          .keys = keys,
                          .n = k->n,
                          .n_prompt = k->n_prompt,
                          .n_prompt_ids = k->n_prompt_ids,
                          .first_own = first_own(st, k),
                          .has_tail = k->tail != NULL,
                          .due_s = (double)k->due_ns * 1e-9,
                          .until_ns = k->until_ns};
    if (k->tail)
        x->tail = *k->tail;
    map_put(&all->index, x->id, all->n++);
    all->n_keys += k->n;
    begin_keeping(st, x);
}

void store_session_goes_on(struct store *st, uint64_t session)
{
    struct session *x = find(st, session);

    if (x)
        end_keeping(st, x);
}

/* --- dead nodes --- */

/* Mark a node as dead if it is the session's own and not in use. Returns the blocks that were not
 * dead before. */
static uint32_t demote(struct store *st, uint64_t session, uint32_t node)
{
    if (st->info[node].owner != session || ktree_is_active(st->tree, node))
        return 0;
    return replace_demote(st->policy, st->info[node].entry) ? ktree_look(st->tree, node).n_blocks
                                                            : 0;
}

/* Demote the session's own nodes on its remembered path from block `from` on. */
static uint32_t demote_from(struct store *st, const struct session *x, uint32_t from)
{
    uint32_t n = 0, node;

    for (uint32_t i = from; i < x->n && (node = ktree_find(st->tree, &x->keys[i])) != KTREE_NONE;
         i += ktree_look(st->tree, node).n_blocks)
        n += demote(st, x->id, node);
    node = x->has_tail ? ktree_find(st->tree, &x->tail) : KTREE_NONE;
    return node == KTREE_NONE ? n : n + demote(st, x->id, node);
}

static bool is_same(const struct kv_key *a, const struct kv_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* The requests of one session can be branches of one prompt, side by side. A request continues
 * another one only if its prompt is longer. */
static bool continues(const struct session *x, const struct kv_key *keys, uint32_t n,
                      uint32_t n_prompt_ids)
{
    uint32_t n_same = x->n_prompt;

    return n_prompt_ids > x->n_prompt_ids && n >= n_same &&
           (n_same == 0 || is_same(&keys[n_same - 1], &x->keys[n_same - 1]));
}

void store_supersede(struct store *st, uint64_t session, const struct kv_key *keys, uint32_t n,
                     uint32_t n_prompt_ids)
{
    struct session *x = find(st, session);
    uint32_t i;

    if (!x || !continues(x, keys, n, n_prompt_ids))
        return;
    for (i = x->n_prompt; i < n && i < x->n && is_same(&keys[i], &x->keys[i]); i++) {
    }
    st->n_superseded += demote_from(st, x, i);
}

bool store_close_session(struct store *st, uint64_t session, uint32_t *n_blocks)
{
    struct session *x = find(st, session);

    *n_blocks = 0;
    if (!x)
        return false;
    end_keeping(st, x);
    *n_blocks = demote_from(st, x, 0);
    drop(st, x);
    return true;
}

/* --- watching --- */

bool store_session(const struct store *st, uint64_t session, struct cache_session *out)
{
    const struct session *x = find(st, session);
    uint32_t node;

    *out = (struct cache_session){0};
    if (!x)
        return false;
    out->is_held = is_kept(x);
    for (uint32_t i = 0; i <= x->n; i += ktree_look(st->tree, node).n_blocks) {
        if (i == x->n && !x->has_tail)
            break;
        node = ktree_find(st->tree, i < x->n ? &x->keys[i] : &x->tail);
        if (node == KTREE_NONE)
            break;
        struct ktree_node look = ktree_look(st->tree, node);
        out->n_tokens += st->info[node].n_tokens;
        out->n_blocks += look.n_blocks;
        out->n_own_blocks += st->info[node].owner == session ? look.n_blocks : 0;
        for (enum cache_tier t = 0; t < CACHE_N_TIERS; t++)
            out->n_blocks_in[t] += lies_in(&look, t) ? look.n_blocks : 0;
    }
    return true;
}

void check_sessions(const struct store *st)
{
    const struct sessions *all = st->sessions;
    uint32_t n_keys = 0, n_held = 0, at;

    for (uint32_t i = 0; i < all->n; i++) {
        const struct session *x = &all->v[i];

        ASSERT(map_get(&all->index, x->id, &at) && at == i);
        ASSERT(x->first_own + x->n_expected <= x->n);
        n_keys += x->n;
        n_held += x->n_expected + x->expects_tail;
    }
    ASSERT(n_keys == all->n_keys && n_held == all->n_held && all->index.n == all->n);
}

uint32_t n_session_blocks(const struct store *st)
{
    return st->sessions->n_held;
}
