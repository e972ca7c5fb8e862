/* test_packed.c - packed weights in files: what is read back has the bits of what was made, and
 * anything wrong with a file or another checkpoint means that the weights are made again. */
#include "tests/unit/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "engine/model/decoder.h"
#include "engine/model/family.h"
#include "engine/model/packed.h"
#include "engine/model/weights.h"
#include "kernels/pack.h"
#include "tests/unit/engine/model/checkpoint.h"

#define LIMIT ((uint64_t)1 << 30)

static const struct quantization int8 = {DTYPE_I8, 128}, int4 = {DTYPE_I4, 32};
static struct device *device;
static char dir[64], kept_dir[80];

static struct model_config small_model(void)
{
    return (struct model_config){.family = &family_llama,
                                 .n_layers = 2,
                                 .dim = 40,
                                 .n_heads = 10,
                                 .n_kv_heads = 1,
                                 .head_dim = 14,
                                 .ffn_dim = 150,
                                 .n_vocab = 77,
                                 .tied = true,
                                 .stored_dtype = DTYPE_F32};
}

static struct weights load_within(struct quantization q, uint64_t limit)
{
    struct model_config m = small_model();
    struct weights_config c = {.device = device,
                               .dir = dir,
                               .model = &m,
                               .dtype = DTYPE_F32,
                               .quantization = q,
                               .packed_dir = kept_dir,
                               .packed_bytes = limit};
    struct weights w;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (weights_load(&w, &c, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
    packed_keep_wait(w.keeper);
    return w;
}

static struct weights load(struct quantization q)
{
    return load_within(q, LIMIT);
}

/* Files of a kind in the folder; *path gets the last one's. */
static int n_files(const char *suffix, char path[256])
{
    DIR *d = opendir(kept_dir);
    int n = 0;

    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        size_t len = strlen(e->d_name), m = strlen(suffix);

        if (len < m || strcmp(e->d_name + len - m, suffix) != 0)
            continue;
        n++;
        if (path)
            snprintf(path, 256, "%s/%.128s", kept_dir, e->d_name);
    }
    closedir(d);
    return n;
}

static void remove_files(void)
{
    char path[256];

    while (n_files(PACKED_SUFFIX, path) > 0)
        unlink(path);
}

static void settle(void)
{
    const struct timespec t = {.tv_nsec = (long)PACKED_SETTLED_NS + 20000000};

    nanosleep(&t, NULL);
}

/* A checkpoint whose files are old enough, and an empty folder. */
static int setup(void **state)
{
    struct model_config m = small_model();

    (void)state;
    checkpoint_write(dir, &m);
    remove_files();
    settle();
    return 0;
}

static bool was_read(const struct weights *w)
{
    return w->keeper == NULL;
}

static void check_equal(const struct weights *a, const struct weights *b)
{
    assert_int_equal(a->n_owned, b->n_owned);
    assert_memory_equal(a->content_hash, b->content_hash, sizeof a->content_hash);
    for (uint32_t i = 0; i < a->n_owned; i++) {
        assert_int_equal(a->owned[i].n_bytes, b->owned[i].n_bytes);
        assert_memory_equal(a->owned[i].data, b->owned[i].data, a->owned[i].n_bytes);
    }
}

static void weights_that_were_kept_have_the_bits_of_those_made(void **state)
{
    const struct quantization kinds[] = {int8, int4, {DTYPE_I8, 32}, {DTYPE_I4, 128}};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct weights made = load(kinds[i]), read = load(kinds[i]);

        assert_false(was_read(&made));
        assert_true(was_read(&read));
        check_equal(&made, &read);
        weights_free(&made);
        weights_free(&read);
        assert_int_equal(n_files(PACKED_SUFFIX, NULL), (int)i + 1);
        assert_int_equal(n_files(".new", NULL), 0);
    }
}

static void weights_of_floats_and_a_limit_of_zero_keep_nothing(void **state)
{
    struct weights w = load((struct quantization){0});

    (void)state;
    weights_free(&w);
    w = load_within(int8, 0);
    weights_free(&w);
    assert_int_equal(n_files(PACKED_SUFFIX, NULL), 0);
}

static void change_byte(const char *path, off_t at)
{
    int fd = open(path, O_RDWR);
    unsigned char byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x20;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* Load with a file that is wrong: it is noticed, and the next load reads a good one. */
static void check_repaired(const struct weights *made)
{
    struct weights w = load(int8);

    assert_false(was_read(&w));
    check_equal(made, &w);
    weights_free(&w);
    w = load(int8);
    assert_true(was_read(&w));
    check_equal(made, &w);
    weights_free(&w);
}

static void a_damaged_file_is_made_again_and_never_used(void **state)
{
    struct weights made = load(int8);
    char path[256];
    struct stat st;

    (void)state;
    assert_int_equal(n_files(PACKED_SUFFIX, path), 1);
    assert_int_equal(stat(path, &st), 0);
    /* The gaps between the parts are in no checksum and in no weight. */
    const off_t places[] = {
        0, 9, 13, 30, 60, 90, PACKED_ALIGN, PACKED_ALIGN + 100, st.st_size - PACKED_ALIGN + 50};
    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        change_byte(path, places[i]);
        check_repaired(&made);
    }
    assert_int_equal(truncate(path, st.st_size - 1), 0);
    check_repaired(&made);
    assert_int_equal(truncate(path, 10), 0);
    check_repaired(&made);
    weights_free(&made);
}

static void a_folder_or_a_link_with_the_name_of_a_file_is_not_read(void **state)
{
    char path[256], other[256];
    struct weights made = load(int8), w;

    (void)state;
    n_files(PACKED_SUFFIX, path);
    snprintf(other, sizeof other, "%s/other", kept_dir);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(symlink("other", path), 0);
    w = load(int8);
    assert_false(was_read(&w));
    check_equal(&made, &w);
    weights_free(&w);
    unlink(other);
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    w = load(int8);
    assert_false(was_read(&w));
    check_equal(&made, &w);
    weights_free(&w);
    rmdir(path);
    weights_free(&made);
}

/* One float of the checkpoint becomes another one; size and mtime stay. */
static void a_checkpoint_that_changed_is_packed_anew(void **state)
{
    struct weights made = load(int8), w;
    char path[256];
    struct stat st;

    (void)state;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(stat(path, &st), 0);
    change_byte(path, st.st_size - 40 * 4 - 2);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    w = load(int8); /* changed just now: neither read nor kept */
    assert_int_equal(n_files(PACKED_SUFFIX, NULL), 1);
    assert_memory_not_equal(made.content_hash, w.content_hash, sizeof w.content_hash);
    settle();
    weights_free(&w);
    w = load(int8);
    assert_false(was_read(&w));
    assert_int_equal(n_files(PACKED_SUFFIX, NULL), 2);
    weights_free(&w);
    weights_free(&made);
}

static void checkpoints_with_nan_are_not_kept(void **state)
{
    const uint32_t nan = 0x7fc00000u;
    char path[256];
    struct stat st;

    (void)state;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    int fd = open(path, O_RDWR);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(pwrite(fd, &nan, sizeof nan, st.st_size - (off_t)sizeof nan), sizeof nan);
    close(fd);
    settle();
    struct weights w = load(int8);
    assert_null(w.keeper);
    assert_int_equal(n_files(PACKED_SUFFIX, NULL), 0);
    weights_free(&w);
}

static uint64_t make_file(const char *name, size_t n_bytes, time_t used)
{
    const struct timespec times[2] = {{.tv_sec = used}, {.tv_sec = used}};
    char path[256];

    snprintf(path, sizeof path, "%s/%s", kept_dir, name);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)n_bytes), 0);
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
    return n_bytes;
}

static bool is_there(const char *name)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", kept_dir, name);
    return access(path, F_OK) == 0;
}

static void the_files_used_least_recently_go_first(void **state)
{
    (void)state;
    make_file("a" PACKED_SUFFIX, 1000, 300);
    make_file("b" PACKED_SUFFIX, 1000, 100);
    make_file("c" PACKED_SUFFIX, 1000, 200);
    make_file("d" PACKED_SUFFIX ".new", 1000, 400);
    make_file("e.other", 1000, 50);
    assert_true(packed_evict(kept_dir, 2500, 400));
    assert_true(is_there("a" PACKED_SUFFIX) && is_there("c" PACKED_SUFFIX));
    assert_false(is_there("b" PACKED_SUFFIX) || is_there("d" PACKED_SUFFIX ".new"));
    assert_true(packed_evict(kept_dir, 2500, 1500));
    assert_true(is_there("a" PACKED_SUFFIX) && is_there("e.other"));
    assert_false(is_there("c" PACKED_SUFFIX));
    assert_false(packed_evict(kept_dir, 2500, 2501));
    assert_true(is_there("a" PACKED_SUFFIX)); /* what cannot fit removes nothing */
}

static void all_files_together_stay_within_the_limit(void **state)
{
    char path[256];
    struct stat st;
    struct weights w = load(int8);

    (void)state;
    n_files(PACKED_SUFFIX, path);
    assert_int_equal(stat(path, &st), 0);
    weights_free(&w);
    w = load_within(int4, (uint64_t)st.st_size + 100);
    weights_free(&w);
    assert_int_equal(n_files(PACKED_SUFFIX, NULL), 1);
    assert_false(access(path, F_OK) == 0);
    remove_files();
    w = load_within(int8, (uint64_t)st.st_size - 1);
    weights_free(&w);
    assert_int_equal(n_files(PACKED_SUFFIX, NULL), 0);
}

static void one_process_writes_at_a_time(void **state)
{
    int lock = packed_lock(kept_dir);

    (void)state;
    assert_true(lock >= 0);
    assert_int_equal(packed_lock(kept_dir), -1);
    struct weights w = load(int8);
    assert_int_equal(n_files(PACKED_SUFFIX, NULL), 0);
    weights_free(&w);
    close(lock);
    w = load(int8);
    assert_int_equal(n_files(PACKED_SUFFIX, NULL), 1);
    weights_free(&w);
}

/* A failure here after a change of the quantizer or of a layout: files that were kept before have
 * other bytes. Raise PACKED_VERSION and enter the new sum. */
static void packed_version_counts_the_bytes_of_quantizer_and_layout(void **state)
{
    static const struct {
        enum dtype dtype;
        uint32_t group, crc;
    } kinds[] = {
        {DTYPE_I8, 32, 0xd625946d},  {DTYPE_I8, 128, 0x9e8fee49}, {DTYPE_I4, 32, 0x7ad7c4be},
        {DTYPE_I4, 128, 0x78f701e2}, {DTYPE_A8, 32, 0xc255d933},  {DTYPE_A4, 32, 0x4f0b3abe},
    };
    float rows[40][150], scales[40 * 5], offsets[40 * 5];
    uint8_t codes[40 * 150];

    (void)state;
    assert_int_equal(PACKED_VERSION, 2);
    for (int n = 0; n < 40; n++)
        for (int k = 0; k < 150; k++)
            rows[n][k] = (float)((n * 7919 + k * 104729 + n * k * 31) % 2003 - 1001) * 0x1p-12f;
    for (int i = 0; i < 40 * 5; i++) {
        scales[i] = (float)(i * 7919 % 2003) * 0x1p-12f;
        offsets[i] = -8 * scales[i];
    }
    for (int i = 0; i < 40 * 150; i++)
        codes[i] = (uint8_t)(i * 104729 % 2003 % 16);
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        struct weight w = {.dtype = kinds[i].dtype,
                           .layout = WEIGHT_PANELS,
                           .n = 40,
                           .k = 150,
                           .group = kinds[i].group};
        size_t n_bytes = pack_weight_bytes(&w);

        w.data = aligned_alloc(64, (n_bytes + 63) / 64 * 64);
        memset((void *)(uintptr_t)w.data, 0, n_bytes);
        if (dtype_is_affine(w.dtype))
            pack_coded_rows(&w, 0, codes, scales, offsets, 32, 40);
        else
            pack_quantize_rows(&w, 0, DTYPE_F32, rows, 40);
        assert_int_equal(hash_crc32c(0, w.data, n_bytes), kinds[i].crc);
        free((void *)(uintptr_t)w.data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(weights_that_were_kept_have_the_bits_of_those_made, setup),
        cmocka_unit_test_setup(weights_of_floats_and_a_limit_of_zero_keep_nothing, setup),
        cmocka_unit_test_setup(a_damaged_file_is_made_again_and_never_used, setup),
        cmocka_unit_test_setup(a_folder_or_a_link_with_the_name_of_a_file_is_not_read, setup),
        cmocka_unit_test_setup(a_checkpoint_that_changed_is_packed_anew, setup),
        cmocka_unit_test_setup(checkpoints_with_nan_are_not_kept, setup),
        cmocka_unit_test_setup(the_files_used_least_recently_go_first, setup),
        cmocka_unit_test_setup(all_files_together_stay_within_the_limit, setup),
        cmocka_unit_test_setup(one_process_writes_at_a_time, setup),
        cmocka_unit_test(packed_version_counts_the_bytes_of_quantizer_and_layout),
    };

    struct device_config c = {.kind = DEVICE_CPU,
                              .n_threads = 2,
                              .max_rows = 1,
                              .max_k = 150,
                              .max_heads = 10,
                              .max_head_dim = 14};
    char path[256];

    strcpy(dir, "/tmp/tarn-packed-XXXXXX");
    if (hash_init() != OK || !mkdtemp(dir) || device_open(&device, &c, NULL) != OK)
        return 1;
    snprintf(kept_dir, sizeof kept_dir, "%s/kept", dir);
    if (mkdir(kept_dir, 0700) != 0)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    remove_files();
    snprintf(path, sizeof path, "%s/lock", kept_dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/e.other", kept_dir);
    unlink(path);
    rmdir(kept_dir);
    checkpoint_remove(dir);
    rmdir(dir);
    return rc;
}
