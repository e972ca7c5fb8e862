/* kv_store_surplus.c - which of two copies is evicted first, after an instance has pulled a path.
 *
 * A pull leaves two copies, and a pool of small memories fills with them. One copy is the surplus
 * one: its nodes are demoted, so they are evicted before all others until a request uses them.
 *
 * The lender's copy, as a rule. The peer that has pulled a path goes on with it: the next turn of
 * the conversation begins where its copy ends, so its copy cannot leave before what is behind it.
 *
 * The peer's copy where the whole prompt of the peer was lent and the path goes on here: a later
 * turn, which came to this instance before, hangs on the copy here. The lender says so in its
 * answer (struct pool_found, `keeps`), and demotes nothing. The peer marks what it reads as
 * borrowed, and demotes it when the first request has used it and nothing was computed behind it.
 *
 * Tails are demoted with the nodes before them: no peer pulls them, and a node cannot leave before
 * what is behind it. */
#include "cache/pool/pool.h"
#include "cache/store/kv_store_slow.h"

/* Demote a node with the tails behind it. */
static void demote(struct store *st, uint32_t node)
{
    (void)replace_demote(st->policy, st->info[node].entry);
    for (uint32_t c = st->info[node].n_tails > 0 ? ktree_first_child(st->tree, node) : KTREE_NONE;
         c != KTREE_NONE; c = ktree_next_sibling(st->tree, c))
        if (st->info[c].tail_of == node)
            (void)replace_demote(st->policy, st->info[c].entry);
}

/* Children of the node that are no tails; counting ends at two. */
static uint32_t n_continuations(const struct store *st, uint32_t node)
{
    uint32_t n = 0;

    for (uint32_t c = ktree_first_child(st->tree, node); c != KTREE_NONE && n < 2;
         c = ktree_next_sibling(st->tree, c))
        n += st->info[c].tail_of == KTREE_NONE;
    return n;
}

bool has_branches(const struct store *st, uint32_t node)
{
    return n_continuations(st, node) > 1;
}

/* --- the lender --- */

/* A node in memory behind this one that is not demoted and no tail. */
static bool goes_on(const struct store *st, uint32_t node)
{
    for (uint32_t c = ktree_first_child(st->tree, node); c != KTREE_NONE;
         c = ktree_next_sibling(st->tree, c)) {
        struct ktree_node look = ktree_look(st->tree, c);

        if (st->info[c].tail_of == KTREE_NONE && !lies_slow_only(&look) &&
            !replace_is_demoted(st->policy, st->info[c].entry))
            return true;
    }
    return false;
}

bool keeps_copy(const struct store *st, const struct loan *l, uint32_t n)
{
    struct ktree_node look = ktree_look(st->tree, l->node);

    return l->node != KTREE_ROOT && n == l->ask.n && !l->ask.is_offered && !st->remote->leaves &&
           (look.n_before + look.n_blocks > n || goes_on(st, l->node));
}

/* The nodes of the path that the peer had before the loan are demoted as well, back to the node
 * behind which another prompt goes on in this instance. */
void demote_pulled(struct store *st, const struct loan *l)
{
    struct ktree_node look;

    for (uint32_t x = l->node; x != KTREE_ROOT; x = look.parent) {
        look = ktree_look(st->tree, x);
        if (look.n_before < l->n_there && has_branches(st, x))
            return;
        if (look.n_before + look.n_blocks <= l->n_blocks && !st->info[x].is_orphan &&
            st->info[x].n_lent == 1)
            demote(st, x);
    }
}

/* --- the peer --- */

/* The lender has all of the path, so the part that lay here before is surplus, too, up to where
 * another prompt goes on here. */
void return_borrowed(struct store *st, uint32_t node)
{
    if (!st->info[node].is_borrowed || n_continuations(st, node) > 0)
        return;
    for (uint32_t x = node; x != KTREE_ROOT; x = ktree_look(st->tree, x).parent) {
        if (ktree_is_active(st->tree, x) || has_branches(st, x))
            return;
        demote(st, x);
        st->info[x].is_borrowed = false; /* a second request makes it a copy like others */
    }
}
