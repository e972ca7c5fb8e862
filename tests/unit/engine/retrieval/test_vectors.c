/* test_vectors.c - the index of vectors: exact results, removal, rebuilds, stages, the file. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rng.h"
#include "engine/retrieval/vectors.h"
#include "tests/temp_dir.h"
#include "tests/unit/test.h"

#define DIM 24
#define K 10
#define N_CLUSTERS 20
#ifndef N_FORGED /* sanitizer builds take fewer: see CMakeLists.txt */
#define N_FORGED 400
#endif

static struct temp_dir dir;
static char file[128];

/* Vector `n` of a set: a cluster's centre and noise. */
static void make_vector(float *x, uint64_t seed, uint64_t n)
{
    uint64_t cluster = rng_u32(seed, n) % N_CLUSTERS;

    for (uint32_t i = 0; i < DIM; i++)
        x[i] = rng_uniform(99, cluster * DIM + i) - 0.5f +
               0.4f * (rng_uniform(seed + 1, n * DIM + i) - 0.5f);
}

static struct vectors *open_with(const char *factory, const char *path, bool *is_loaded)
{
    struct vectors_config config = {.dim = DIM, .factory = factory, .file = path, .generation = 7};
    struct vectors *v;
    bool loaded;

    assert_ok(vectors_open(&v, &config, is_loaded ? is_loaded : &loaded, NULL));
    return v;
}

static void put(struct vectors *v, int64_t id, uint64_t seed)
{
    float x[DIM];

    make_vector(x, seed, (uint64_t)id);
    assert_ok(vectors_put(v, id, x, NULL));
}

static void put_range(struct vectors *v, int64_t from, int64_t to)
{
    float *x = malloc((size_t)(to - from) * DIM * sizeof *x);
    int64_t *ids = malloc((size_t)(to - from) * sizeof *ids);

    for (int64_t i = from; i < to; i++) {
        ids[i - from] = i;
        make_vector(x + (i - from) * DIM, 1, (uint64_t)i);
    }
    assert_ok(vectors_put_many(v, ids, x, (uint32_t)(to - from), NULL));
    free(x);
    free(ids);
}

static uint32_t search(struct vectors *v, const float *q, uint32_t k, struct vector_hit *hits)
{
    uint32_t n;

    assert_ok(vectors_search(v, q, k, NULL, NULL, hits, &n, NULL));
    for (uint32_t i = 1; i < n; i++)
        assert_true(hits[i - 1].score >= hits[i].score);
    return n;
}

static bool finds(struct vectors *v, int64_t id, uint64_t seed)
{
    struct vector_hit hits[K];
    float x[DIM];
    uint32_t n;

    make_vector(x, seed, (uint64_t)id);
    n = search(v, x, K, hits);
    for (uint32_t i = 0; i < n; i++)
        if (hits[i].id == id)
            return fabsf(hits[i].score - 1) < 1e-5f;
    return false;
}

static struct vectors_stats stats_of(struct vectors *v)
{
    struct vectors_stats s;

    vectors_stats(v, &s);
    return s;
}

static double cosine(const float *a, const float *b)
{
    double ab = 0, aa = 0, bb = 0;

    for (uint32_t i = 0; i < DIM; i++) {
        ab += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    return ab / sqrt(aa * bb);
}

/* Over 30 queries: the hits, divided by the live ids below n that are at least as near as the worst
 * hit. 1: nothing nearer was missed. */
static double recall(struct vectors *v, int64_t n, bool (*lives)(int64_t id))
{
    uint32_t n_found = 0, n_all = 0;

    for (uint64_t query = 0; query < 30; query++) {
        struct vector_hit hits[K];
        float q[DIM], x[DIM];
        uint32_t n_hits;
        double worst;

        make_vector(q, 5, query);
        n_hits = search(v, q, K, hits);
        assert_int_equal(n_hits, K);
        worst = (double)hits[K - 1].score;
        for (uint32_t i = 0; i < K; i++) {
            assert_true(lives(hits[i].id) && hits[i].id < n);
            make_vector(x, 1, (uint64_t)hits[i].id);
            assert_true(fabs(cosine(q, x) - (double)hits[i].score) < 1e-5);
            n_found++;
        }
        for (int64_t id = 0; id < n; id++) {
            make_vector(x, 1, (uint64_t)id);
            n_all += lives(id) && cosine(q, x) > worst + 1e-6;
        }
        n_all += 1; /* the worst hit; the others are above it */
    }
    return (double)n_found / (n_all > n_found ? n_all : n_found);
}

static bool all_live(int64_t id)
{
    (void)id;
    return true;
}

static bool odd_live(int64_t id)
{
    return id % 2 == 1;
}

static void flat_results_equal_brute_force(void **state)
{
    struct vectors *v = open_with("Flat", NULL, NULL);

    (void)state;
    put_range(v, 0, 1000);
    assert_true(recall(v, 1000, all_live) == 1);
    for (int64_t id = 0; id < 1000; id += 2)
        vectors_remove(v, id);
    assert_true(recall(v, 1000, odd_live) == 1);
    vectors_wait(v);
    assert_true(recall(v, 1000, odd_live) == 1);
    vectors_close(v);
}

static void a_search_answers_at_most_what_there_is(void **state)
{
    struct vectors *v = open_with(NULL, NULL, NULL);
    struct vector_hit hits[K];
    float q[DIM];

    (void)state;
    make_vector(q, 1, 0);
    assert_int_equal(search(v, q, K, hits), 0);
    put(v, 5, 1);
    put(v, 6, 1);
    assert_int_equal(search(v, q, K, hits), 2);
    assert_int_equal(search(v, q, 1, hits), 1);
    assert_int_equal(search(v, q, 0, hits), 0);
    vectors_remove(v, 5);
    vectors_remove(v, 5);
    vectors_remove(v, 12345);
    assert_int_equal(search(v, q, K, hits), 1);
    assert_int_equal(hits[0].id, 6);
    vectors_close(v);
}

static void a_replaced_vector_is_found_only_at_its_new_place(void **state)
{
    static const char *const factories[] = {"Flat", "IVF8,Flat", "HNSW8"};

    (void)state;
    for (size_t f = 0; f < ARRAY_SIZE(factories); f++) {
        struct vectors *v = open_with(factories[f], NULL, NULL);

        put_range(v, 0, 300);
        vectors_wait(v);
        put(v, 7, 2);
        assert_true(finds(v, 7, 2));
        assert_false(finds(v, 7, 1));
        assert_int_equal(stats_of(v).n_live, 300);
        assert_int_equal(stats_of(v).n_tombstones, 1);
        put(v, 7, 2); /* the same again changes nothing */
        assert_int_equal(stats_of(v).n_tombstones, 1);
        vectors_close(v);
    }
}

static void the_last_of_equal_ids_in_one_call_counts(void **state)
{
    struct vectors *v = open_with(NULL, NULL, NULL);
    int64_t ids[3] = {1, 1, 1};
    float x[3 * DIM];

    (void)state;
    make_vector(x, 1, 1);
    make_vector(x + DIM, 2, 1);
    memcpy(x + 2 * DIM, x, DIM * sizeof *x);
    assert_ok(vectors_put_many(v, ids, x, 3, NULL));
    assert_int_equal(stats_of(v).n_live, 1);
    assert_true(finds(v, 1, 1));
    ids[0] = 2;
    assert_ok(vectors_put_many(v, ids, x, 2, NULL));
    assert_true(finds(v, 1, 2));
    assert_ok(vectors_put_many(v, ids + 1, x + DIM, 2, NULL));
    assert_true(finds(v, 1, 1) && !finds(v, 1, 2));
    vectors_close(v);
}

static void a_removed_id_never_comes_out(void **state)
{
    static const char *const factories[] = {"Flat", "IVF8,Flat", "HNSW8"};

    (void)state;
    for (size_t f = 0; f < ARRAY_SIZE(factories); f++) {
        struct vectors *v = open_with(factories[f], NULL, NULL);

        put_range(v, 0, 600);
        vectors_wait(v);
        for (int64_t id = 0; id < 600; id += 2) {
            vectors_remove(v, id);
            assert_false(finds(v, id, 1));
        }
        vectors_wait(v);
        assert_true(stats_of(v).n_rebuilds >= 1);
        assert_true(stats_of(v).n_tombstones * 5 <= 300 + stats_of(v).n_tombstones);
        assert_int_equal(stats_of(v).n_live, 300);
        for (int64_t id = 0; id < 600; id++)
            assert_true(finds(v, id, 1) == odd_live(id));
        vectors_close(v);
    }
}

static void a_rebuild_above_a_fifth_of_tombstones_keeps_every_live_vector(void **state)
{
    struct vectors *v = open_with("Flat", NULL, NULL);

    (void)state;
    put_range(v, 0, 1000);
    for (int64_t id = 0; id < 200; id++)
        vectors_remove(v, id);
    vectors_wait(v);
    assert_int_equal(stats_of(v).n_rebuilds, 0);
    vectors_remove(v, 200);
    vectors_wait(v);
    assert_int_equal(stats_of(v).n_rebuilds, 1);
    assert_int_equal(stats_of(v).n_tombstones, 0);
    assert_int_equal(stats_of(v).n_live, 799);
    for (int64_t id = 0; id < 1000; id++)
        assert_true(finds(v, id, 1) == (id > 200));
    vectors_close(v);
}

static void an_inverted_file_is_built_once_there_are_vectors_enough(void **state)
{
    struct vectors *v = open_with("IVF16,Flat", NULL, NULL);

    (void)state;
    put_range(v, 0, 100);
    vectors_wait(v);
    assert_string_equal(stats_of(v).factory, "Flat");
    put_range(v, 100, 2000);
    vectors_wait(v);
    assert_string_equal(stats_of(v).factory, "IVF16,Flat");
    assert_int_equal(stats_of(v).n_live, 2000);
    assert_true(recall(v, 2000, all_live) > 0.99);
    vectors_close(v);
}

static void auto_builds_an_inverted_file_when_vectors_are_many(void **state)
{
    struct vectors *v = open_with("auto", NULL, NULL);

    (void)state;
    put_range(v, 0, VECTORS_AUTO_FLAT - 1);
    vectors_wait(v);
    assert_string_equal(stats_of(v).factory, "Flat");
    put(v, VECTORS_AUTO_FLAT, 1);
    vectors_wait(v);
    assert_string_equal(stats_of(v).factory, "IVF282,Flat");
    assert_int_equal(stats_of(v).n_live, VECTORS_AUTO_FLAT);
    assert_true(finds(v, 17, 1) && finds(v, VECTORS_AUTO_FLAT, 1));
    vectors_close(v);
}

static void the_last_stage_equals_the_plain_search(void **state)
{
    static const char *const factories[] = {"Flat", "IVF32,Flat", "HNSW8", "IVF32_HNSW8,Flat"};

    (void)state;
    for (size_t f = 0; f < ARRAY_SIZE(factories); f++) {
        struct vectors *v = open_with(factories[f], NULL, NULL);
        struct vector_hit plain[K], staged[K];

        put_range(v, 0, 1500);
        vectors_wait(v);
        assert_string_equal(stats_of(v).factory, factories[f]);
        for (uint64_t query = 0; query < 20; query++)
            for (uint32_t n_stages = 1; n_stages < 40; n_stages += 6) {
                struct vectors_scan *scan;
                uint32_t n_plain, n = 0, n_run = 0;
                bool is_last = false;
                float q[DIM];

                make_vector(q, 5, query);
                n_plain = search(v, q, K, plain);
                assert_ok(vectors_scan_begin(&scan, v, q, K, n_stages, NULL, NULL, NULL));
                while (!is_last) {
                    assert_ok(vectors_scan_next(scan, staged, &n, &is_last, NULL));
                    assert_true(++n_run <= n_stages);
                }
                vectors_scan_end(scan);
                assert_true(n_run > 1 || n_stages == 1 || strncmp(factories[f], "IVF", 3) != 0);
                assert_int_equal(n, n_plain);
                for (uint32_t i = 0; i < n; i++)
                    assert_true(staged[i].id == plain[i].id && staged[i].score == plain[i].score);
            }
        vectors_close(v);
    }
}

static void a_scan_leaves_out_what_is_removed_between_its_stages(void **state)
{
    struct vectors *v = open_with("IVF32,Flat", NULL, NULL);
    struct vector_hit hits[K];
    struct vectors_scan *scan;
    bool is_last = false;
    int64_t removed;
    float q[DIM];
    uint32_t n;

    (void)state;
    put_range(v, 0, 1500);
    vectors_wait(v);
    make_vector(q, 1, 3);
    assert_ok(vectors_scan_begin(&scan, v, q, K, 4, NULL, NULL, NULL));
    assert_ok(vectors_scan_next(scan, hits, &n, &is_last, NULL));
    removed = hits[0].id;
    assert_int_equal(removed, 3);
    vectors_remove(v, removed);
    for (int64_t id = 1000; id < 1500; id++) /* a rebuild while the scan is open */
        vectors_remove(v, id);
    vectors_wait(v);
    assert_true(stats_of(v).n_rebuilds >= 2);
    while (!is_last) {
        assert_ok(vectors_scan_next(scan, hits, &n, &is_last, NULL));
        for (uint32_t i = 0; i < n; i++)
            assert_true(hits[i].id != removed && hits[i].id < 1000);
    }
    assert_int_equal(n, K);
    vectors_scan_end(scan);
    vectors_close(v);
}

static bool fits_even(void *arg, int64_t id)
{
    ++*(uint32_t *)arg;
    return id % 2 == 0;
}

static void a_filter_still_fills_the_list(void **state)
{
    static const char *const factories[] = {"Flat", "IVF8,Flat", "HNSW8"};

    (void)state;
    for (size_t f = 0; f < ARRAY_SIZE(factories); f++) {
        struct vectors *v = open_with(factories[f], NULL, NULL);
        struct vector_hit hits[K];
        uint32_t n, n_calls = 0;
        float q[DIM];

        put_range(v, 0, 600);
        vectors_wait(v);
        make_vector(q, 5, 1);
        assert_ok(vectors_search(v, q, K, fits_even, &n_calls, hits, &n, NULL));
        assert_int_equal(n, K);
        assert_true(n_calls > 0);
        for (uint32_t i = 0; i < n; i++)
            assert_true(hits[i].id % 2 == 0);
        vectors_close(v);
    }
}

static void a_vector_that_is_not_finite_or_zero_is_refused(void **state)
{
    struct vectors *v = open_with(NULL, NULL, NULL);
    float x[2 * DIM] = {0};
    int64_t ids[2] = {1, 2};
    struct vector_hit hits[K];
    struct buf why;
    uint32_t n;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(vectors_put(v, 1, x, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "zero"));
    make_vector(x, 1, 1);
    make_vector(x + DIM, 1, 2);
    x[DIM + 3] = NAN;
    assert_int_equal(vectors_put_many(v, ids, x, 2, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "finite"));
    assert_int_equal(stats_of(v).n_live, 0);
    assert_int_equal(vectors_search(v, x + DIM, K, NULL, NULL, hits, &n, &why), ERR_INVALID);
    x[DIM + 3] = INFINITY;
    assert_int_equal(vectors_put(v, 2, x + DIM, &why), ERR_INVALID);
    x[DIM + 3] = 1;
    assert_int_equal(vectors_put(v, -1, x, &why), ERR_INVALID);
    for (uint32_t i = 0; i < DIM; i++)
        x[i] = 1e30f;
    assert_ok(vectors_put(v, 3, x, &why));
    buf_fini(&why);
    vectors_close(v);
}

static void a_wrong_configuration_is_refused(void **state)
{
    static const char *const factories[] = {
        "nonsense", "PQ8",       "IVF16,PQ4", "OPQ8,IVF16,Flat", "IVF99999999999,Flat",
        "",         "IVF0,Flat", "LSH",       "HNSW0x",          "IVF16,Flat,RFlat"};
    bool is_loaded;

    (void)state;
    for (size_t f = 0; f < ARRAY_SIZE(factories); f++) {
        struct vectors_config config = {.dim = DIM, .factory = factories[f]};
        struct vectors *v;
        struct buf why;

        buf_init(&why, BUF_WHY_MAX);
        if (vectors_open(&v, &config, &is_loaded, &why) != ERR_INVALID)
            fail_msg("\"%s\" was not refused", factories[f]);
        assert_null(v);
        assert_non_null(strstr(buf_str(&why), factories[f]));
        buf_fini(&why);
    }
    for (uint32_t dim = 0; dim <= VECTORS_DIM_MAX + 1; dim += VECTORS_DIM_MAX + 1) {
        struct vectors_config config = {.dim = dim};
        struct vectors *v;

        assert_int_equal(vectors_open(&v, &config, &is_loaded, NULL), ERR_INVALID);
    }
}

/* --- the file --- */

static void save(const char *factory, uint32_t n)
{
    struct vectors *v = open_with(factory, file, NULL);

    vectors_retain(v, NULL, 0);
    put_range(v, 0, n);
    vectors_wait(v);
    vectors_remove(v, 3);
    assert_ok(vectors_save(v, NULL));
    vectors_close(v);
}

static void a_saved_index_is_the_same_after_loading(void **state)
{
    static const char *const factories[] = {"Flat", "IVF16,Flat", "HNSW8", "IVF32_HNSW8,Flat"};

    (void)state;
    for (size_t f = 0; f < ARRAY_SIZE(factories); f++) {
        struct vectors *v;
        bool is_loaded;

        unlink(file);
        save(factories[f], 500);
        v = open_with(factories[f], file, &is_loaded);
        assert_true(is_loaded);
        assert_string_equal(stats_of(v).factory, factories[f]);
        assert_int_equal(stats_of(v).n_live, 499);
        for (int64_t id = 0; id < 500; id++)
            assert_true(finds(v, id, 1) == (id != 3));
        put_range(v, 0, 500); /* all known but 3 */
        assert_int_equal(stats_of(v).n_live + stats_of(v).n_tombstones, 501);
        assert_true(finds(v, 3, 1));
        vectors_close(v);
    }
}

static void retain_removes_every_other_id(void **state)
{
    struct vectors *v = open_with(NULL, NULL, NULL);
    int64_t ids[] = {1, 4, 40, 90, 5000};

    (void)state;
    put_range(v, 0, 100);
    vectors_retain(v, ids, ARRAY_SIZE(ids));
    vectors_wait(v);
    assert_int_equal(stats_of(v).n_live, 4);
    assert_true(finds(v, 1, 1) && finds(v, 90, 1) && !finds(v, 2, 1));
    vectors_retain(v, NULL, 0);
    assert_int_equal(stats_of(v).n_live, 0);
    vectors_close(v);
}

static void expect_not_loaded(uint32_t dim, const char *factory, uint64_t generation)
{
    struct vectors_config config = {
        .dim = dim, .factory = factory, .file = file, .generation = generation};
    struct vectors *v;
    bool is_loaded;

    assert_ok(vectors_open(&v, &config, &is_loaded, NULL));
    assert_false(is_loaded);
    assert_int_equal(stats_of(v).n_live, 0);
    vectors_close(v);
}

static void a_file_of_another_index_is_ignored(void **state)
{
    (void)state;
    save("Flat", 100);
    expect_not_loaded(DIM + 1, "Flat", 7);
    expect_not_loaded(DIM, "HNSW8", 7);
    expect_not_loaded(DIM, "Flat", 8);
    unlink(file);
    expect_not_loaded(DIM, "Flat", 7);
}

static size_t read_whole(char *bytes, size_t max)
{
    FILE *f = fopen(file, "r");
    size_t n = fread(bytes, 1, max, f);

    fclose(f);
    return n;
}

static void write_whole(const char *bytes, size_t n)
{
    FILE *f = fopen(file, "w");

    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void a_torn_or_damaged_file_is_ignored(void **state)
{
    static const char *const factories[] = {"Flat", "IVF8,Flat", "HNSW8"};
    static char bytes[1 << 20];

    (void)state;
    for (size_t f = 0; f < ARRAY_SIZE(factories); f++) {
        size_t n, step;

        unlink(file);
        save(factories[f], 120);
        n = read_whole(bytes, sizeof bytes);
        assert_in_range(n, 1000, sizeof bytes - 1);
        step = n / 40;
        for (size_t at = 0; at < n; at += at < 300 ? 13 : step) {
            write_whole(bytes, at);
            expect_not_loaded(DIM, factories[f], 7);
            bytes[at] ^= 0x40;
            write_whole(bytes, n);
            expect_not_loaded(DIM, factories[f], 7);
            bytes[at] ^= 0x40;
        }
        write_whole(bytes, n + 1);
        expect_not_loaded(DIM, factories[f], 7);
    }
}

static void set_checksums(char *bytes, size_t n)
{
    uint32_t crc = hash_crc32c(0, bytes + 256, n - 256);

    memcpy(bytes + 248, &crc, sizeof crc);
    crc = hash_crc32c(0, bytes, 252);
    memcpy(bytes + 252, &crc, sizeof crc);
}

/* Damage that the checksums do not show: whatever is loaded can be searched. */
static void a_forged_file_does_not_crash(void **state)
{
    static const char *const factories[] = {"Flat", "IVF8,Flat", "HNSW8"};
    static char bytes[1 << 20], forged[1 << 20];

    (void)state;
    for (size_t f = 0; f < ARRAY_SIZE(factories); f++) {
        size_t n, n_faiss = 256 + 120 * 17;

        unlink(file);
        save(factories[f], 120);
        n = read_whole(bytes, sizeof bytes);
        for (uint64_t round = 0; round < N_FORGED; round++) {
            struct vectors *v;
            bool is_loaded;
            size_t at = round % 2 ? n_faiss + round / 2 : 256 + rng_u32(8, round) % (n - 256);

            memcpy(forged, bytes, n);
            forged[at] ^= (char)(1u << rng_u32(9, round) % 8);
            set_checksums(forged, n);
            write_whole(forged, n);
            v = open_with(factories[f], file, &is_loaded);
            if (is_loaded) {
                struct vector_hit hits[K];
                float q[DIM];
                uint32_t n_hits;

                make_vector(q, 5, round);
                assert_ok(vectors_search(v, q, K, NULL, NULL, hits, &n_hits, NULL));
                put(v, 1000, 1);
            }
            vectors_close(v);
        }
    }
}

/* --- threads --- */

struct crowd {
    struct vectors *v;
    atomic_bool stop;
    int64_t first; /* of the ids of a thread that puts */
};

static void *put_and_remove(void *arg)
{
    struct crowd *c = arg;

    for (int64_t id = c->first; id < c->first + 1500; id++) {
        put(c->v, id, 1);
        if (id % 3 == 0)
            vectors_remove(c->v, id - 1);
    }
    return NULL;
}

static void *search_all_the_time(void *arg)
{
    struct crowd *c = arg;
    struct vector_hit hits[K];

    for (uint64_t i = 0; !atomic_load(&c->stop); i++) {
        struct vectors_scan *scan;
        bool is_last = false;
        float q[DIM];
        uint32_t n;

        make_vector(q, 5, i);
        assert_ok(vectors_scan_begin(&scan, c->v, q, K, 3, NULL, NULL, NULL));
        while (!is_last) {
            assert_ok(vectors_scan_next(scan, hits, &n, &is_last, NULL));
            for (uint32_t j = 0; j < n; j++)
                assert_true(hits[j].score > -1.001f && hits[j].score < 1.001f);
        }
        vectors_scan_end(scan);
    }
    return NULL;
}

static void changes_during_searches_and_rebuilds_are_not_lost(void **state)
{
    struct crowd crowd = {.v = open_with("IVF16,Flat", NULL, NULL)};
    struct crowd writers[2] = {{.v = crowd.v, .first = 0}, {.v = crowd.v, .first = 3000}};
    pthread_t threads[4];

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, put_and_remove, &writers[i]), 0);
        assert_int_equal(pthread_create(&threads[2 + i], NULL, search_all_the_time, &crowd), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&crowd.stop, true);
    for (int i = 2; i < 4; i++)
        pthread_join(threads[i], NULL);
    vectors_wait(crowd.v);
    assert_true(stats_of(crowd.v).n_rebuilds >= 1);
    for (int64_t id = 0; id < 4500; id++) {
        bool was_put = id % 3000 < 1500, was_removed = (id + 1) % 3 == 0 && id % 3000 != 1499;

        assert_true(finds(crowd.v, id, 1) == (was_put && !was_removed));
    }
    vectors_close(crowd.v);
}

static void closing_stops_a_rebuild(void **state)
{
    struct vectors *v = open_with("auto", NULL, NULL);

    (void)state;
    put_range(v, 0, VECTORS_AUTO_FLAT + 1);
    assert_true(stats_of(v).is_rebuilding);
    vectors_close(v);
}

static int set_up(void **state)
{
    (void)state;
    log_init(LOG_ERROR, false);
    temp_dir_make(&dir);
    snprintf(file, sizeof file, "%s/index", dir.path);
    return hash_init() == OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    temp_dir_remove(&dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flat_results_equal_brute_force),
        cmocka_unit_test(a_search_answers_at_most_what_there_is),
        cmocka_unit_test(a_replaced_vector_is_found_only_at_its_new_place),
        cmocka_unit_test(the_last_of_equal_ids_in_one_call_counts),
        cmocka_unit_test(a_removed_id_never_comes_out),
        cmocka_unit_test(a_rebuild_above_a_fifth_of_tombstones_keeps_every_live_vector),
        cmocka_unit_test(an_inverted_file_is_built_once_there_are_vectors_enough),
        cmocka_unit_test(auto_builds_an_inverted_file_when_vectors_are_many),
        cmocka_unit_test(the_last_stage_equals_the_plain_search),
        cmocka_unit_test(a_scan_leaves_out_what_is_removed_between_its_stages),
        cmocka_unit_test(a_filter_still_fills_the_list),
        cmocka_unit_test(a_vector_that_is_not_finite_or_zero_is_refused),
        cmocka_unit_test(a_wrong_configuration_is_refused),
        cmocka_unit_test(a_saved_index_is_the_same_after_loading),
        cmocka_unit_test(retain_removes_every_other_id),
        cmocka_unit_test(a_file_of_another_index_is_ignored),
        cmocka_unit_test(a_torn_or_damaged_file_is_ignored),
        cmocka_unit_test(a_forged_file_does_not_crash),
        cmocka_unit_test(changes_during_searches_and_rebuilds_are_not_lost),
        cmocka_unit_test(closing_stops_a_rebuild),
    };

    if (!vectors_are_supported()) {
        struct vectors_config config = {.dim = DIM};
        struct vectors *v;
        bool is_loaded;

        return vectors_open(&v, &config, &is_loaded, NULL) == ERR_UNSUPPORTED ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
