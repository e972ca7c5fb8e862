/* test_forward.c - the forward pass: chunks, batches, logits on demand, failing ops. */
#include "tests/unit/engine/run/forward_world.h"

#include "base/hash.h"

#define N_IDS 60

static uint32_t ids[N_IDS];

/* Ops of the reference device; the call number `fail_at` fails, and all calls are counted. */
static const struct ops *real;
static uint32_t n_calls, fail_at;

static enum status count(void)
{
    return ++n_calls == fail_at ? ERR_INTERNAL : OK;
}

#define COUNTED(op)                                                                                \
    static enum status counted_##op(struct device *d, struct stream *s,                            \
                                    const struct op##_params *p)                                   \
    {                                                                                              \
        enum status status = count();                                                              \
        return status == OK ? real->op(d, s, p) : status;                                          \
    }
COUNTED(embed)
COUNTED(rmsnorm)
COUNTED(gemm)
COUNTED(rope_kv)
COUNTED(attention)
COUNTED(silu_mul)
COUNTED(gather)

static const struct ops *counted_ops(void)
{
    static struct ops ops;
    struct device_config c = {.kind = DEVICE_REF};
    struct device *d;

    assert_ok(device_open(&d, &c, NULL));
    ops = *(real = device_ops(d));
    device_close(d);
    ops.embed = counted_embed;
    ops.rmsnorm = counted_rmsnorm;
    ops.gemm = counted_gemm;
    ops.rope_kv = counted_rope_kv;
    ops.attention = counted_attention;
    ops.silu_mul = counted_silu_mul;
    ops.gather = counted_gather;
    n_calls = fail_at = 0;
    return &ops;
}

static void open_world(struct world *w, const struct ops *ops)
{
    struct model_config m = world_llama();

    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = (i * 5 + 1) % m.n_vocab;
    world_open(w, &m, NULL, ops);
}

static float *alloc_logits(const struct world *w, uint32_t n)
{
    float *logits = calloc((size_t)n * w->model.n_vocab, sizeof *logits);

    assert_non_null(logits);
    return logits;
}

static void chunks_change_no_bit(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, NULL);
    float *want = alloc_logits(&w, N_IDS), *got = alloc_logits(&w, N_IDS);
    size_t n_bytes = (size_t)N_IDS * w.model.n_vocab * sizeof *want;
    world_prefill(&w, ids, N_IDS, N_IDS, want);
    for (uint32_t chunk = 1; chunk < N_IDS; chunk += 13) {
        world_prefill(&w, ids, N_IDS, chunk, got);
        assert_memory_equal(got, want, n_bytes);
    }
    free(want);
    free(got);
    world_close(&w);
}

static void a_batch_changes_no_bit(void **state)
{
    struct world_seq a, b;
    struct world w;
    float *logits;

    (void)state;
    open_world(&w, NULL);
    size_t n_vocab = w.model.n_vocab;
    float *want_a = alloc_logits(&w, 20), *want_b = alloc_logits(&w, 33);
    world_prefill(&w, ids, 20, 20, want_a);
    world_prefill(&w, ids + 20, 33, 33, want_b);
    world_seq_open(&w, &a, ids, 20);
    world_seq_open(&w, &b, ids + 20, 33);
    batch_reset(&w.batch);
    world_add(&w, &a, 0, 20, 1);
    world_add(&w, &b, 0, 33, 2);
    assert_ok(forward_run(w.forward, &w.batch, cache_pool(w.cache), &logits));
    assert_memory_equal(logits, want_a + 19 * n_vocab, n_vocab * sizeof *logits);
    assert_memory_equal(logits + n_vocab, want_b + 31 * n_vocab, 2 * n_vocab * sizeof *logits);
    cache_seq_close(a.seq);
    cache_seq_close(b.seq);
    free(want_a);
    free(want_b);
    world_close(&w);
}

static void logits_of_any_row_can_be_had_later(void **state)
{
    static const uint32_t rows[] = {0, 7, 19};
    struct world_seq a;
    struct world w;
    float *logits;

    (void)state;
    open_world(&w, NULL);
    size_t n_vocab = w.model.n_vocab;
    float *want = alloc_logits(&w, 20);
    world_prefill(&w, ids, 20, 20, want);
    world_seq_open(&w, &a, ids, 20);
    batch_reset(&w.batch);
    world_add(&w, &a, 0, 20, 0);
    assert_ok(forward_run(w.forward, &w.batch, cache_pool(w.cache), &logits));
    assert_ok(forward_logits(w.forward, rows, 3, &logits));
    for (uint32_t i = 0; i < 3; i++)
        assert_memory_equal(logits + i * n_vocab, want + rows[i] * n_vocab,
                            n_vocab * sizeof *logits);
    cache_seq_close(a.seq);
    free(want);
    world_close(&w);
}

/* A step of one token; *n_ops: the ops that it launched. */
static enum status one_step(struct world *w, uint32_t n_out, uint32_t *n_ops)
{
    /* One for each device of a group. */
    const struct kv_pool pools[] = {*cache_pool(w->cache), *cache_pool(w->cache)};
    struct world_seq a;
    float *logits;

    world_seq_open(w, &a, ids, 1);
    batch_reset(&w->batch);
    world_add(w, &a, 0, 1, n_out);
    n_calls = 0;
    enum status s = forward_run(w->forward, &w->batch, pools, &logits);
    *n_ops = n_calls;
    cache_seq_close(a.seq);
    return s;
}

static void a_failing_op_ends_the_step_with_its_status(void **state)
{
    struct world w;
    uint32_t n_ops, n_seen;

    (void)state;
    open_world(&w, counted_ops());
    assert_ok(one_step(&w, 1, &n_ops));
    assert_int_equal(n_ops, 1 + w.model.n_layers * 9 + 3);
    for (uint32_t i = 1; i <= n_ops; i++) {
        fail_at = i;
        assert_int_equal(one_step(&w, 1, &n_seen), ERR_INTERNAL);
        assert_int_equal(n_seen, i); /* nothing is launched behind it */
    }
    world_close(&w);
}

static void a_step_without_logits_runs_no_output_layer(void **state)
{
    struct world w;
    uint32_t n_ops;

    (void)state;
    open_world(&w, counted_ops());
    assert_ok(one_step(&w, 0, &n_ops));
    assert_int_equal(n_ops, 1 + w.model.n_layers * 9);
    world_close(&w);
}

static void hidden_states_need_no_output_layer(void **state)
{
    struct forward *whole;
    struct world w;
    uint32_t n_ops;

    (void)state;
    open_world(&w, counted_ops());
    struct forward_config c = {.group = device_group_of(w.device),
                               .model = &w.model,
                               .weights = &w.weights,
                               .n_rows_max = 1,
                               .n_out_max = 1,
                               .n_pos = WORLD_N_TOKENS,
                               .n_seqs_max = 1,
                               .n_blocks_max = WORLD_N_BLOCKS,
                               .ops = counted_ops()};
    uint64_t with_logits = forward_device_bytes(&c);
    c.hidden = true;
    assert_int_equal(forward_device_bytes(&c) + w.model.n_vocab * sizeof(float), with_logits);
    whole = w.forward;
    assert_ok(forward_create(&w.forward, &c));
    assert_ok(one_step(&w, 1, &n_ops));
    assert_int_equal(n_ops, 1 + w.model.n_layers * 9 + 2); /* gather and norm */
    forward_destroy(w.forward);
    w.forward = whole;
    world_close(&w);
}

/* --- a group of two devices, seen from one of them --- */

static uint32_t n_reduced;
static float *reduced_x;

static enum status counted_all_reduce(struct device *d, struct stream *s,
                                      const struct all_reduce_params *p)
{
    (void)d;
    (void)s;
    n_reduced++;
    reduced_x = p->x;
    assert_int_equal(p->n, world_llama().dim); /* one row */
    return count();
}

/* Make a second forward pass over the world, as rank `rank` of two. */
static enum status create_ranked(struct world *w, const struct ops *ops, uint32_t rank,
                                 struct forward **out)
{
    struct forward_config c = {.group = {.devices = {w->device, w->device}, .n = 2, .rank = rank},
                               .model = &w->model,
                               .weights = &w->weights,
                               .n_rows_max = 1,
                               .n_out_max = 1,
                               .n_pos = WORLD_N_TOKENS,
                               .n_seqs_max = 1,
                               .n_blocks_max = WORLD_N_BLOCKS,
                               .ops = ops};

    return forward_create(out, &c);
}

static void a_group_sums_the_residual_twice_a_layer(void **state)
{
    struct ops ops = *counted_ops();
    struct forward *alone;
    struct world w;
    uint32_t n_ops;

    (void)state;
    open_world(&w, NULL);
    assert_int_equal(create_ranked(&w, NULL, 0, &alone), ERR_UNSUPPORTED); /* no collective */
    ops.all_reduce = counted_all_reduce;
    alone = w.forward;
    for (uint32_t rank = 0; rank < 2; rank++) {
        n_reduced = 0;
        assert_ok(create_ranked(&w, &ops, rank, &w.forward));
        assert_ok(one_step(&w, 1, &n_ops));
        assert_int_equal(n_reduced, 2 * w.model.n_layers);
        /* The output layer is not shared here: it is the first device's. */
        assert_int_equal(n_ops, 1 + w.model.n_layers * 11 + (rank == 0 ? 3 : 0));
        assert_non_null(reduced_x);
        forward_destroy(w.forward);
    }
    w.forward = alone;
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_change_no_bit),
        cmocka_unit_test(a_batch_changes_no_bit),
        cmocka_unit_test(logits_of_any_row_can_be_had_later),
        cmocka_unit_test(a_failing_op_ends_the_step_with_its_status),
        cmocka_unit_test(a_step_without_logits_runs_no_output_layer),
        cmocka_unit_test(hidden_states_need_no_output_layer),
        cmocka_unit_test(a_group_sums_the_residual_twice_a_layer),
    };

    if (hash_init() != OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
