/* Memory of JSON documents: exhausted, freed, and still in use after the root was freed. */
#include "tests/unit/test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/json.h"

#define MIB ((size_t)1 << 20)

/* `n` times `item`, with commas, between `open` and `close`. */
static char *repeat(const char *open, const char *item, size_t n, const char *close, size_t *len)
{
    size_t n_item = strlen(item), n_open = strlen(open);
    char *text = malloc(n_open + n * (n_item + 1) + strlen(close) + 1), *p = text;

    assert_non_null(text);
    p += sprintf(p, "%s", open);
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            *p++ = ',';
        memcpy(p, item, n_item);
        p += n_item;
    }
    p += sprintf(p, "%s", close);
    *len = (size_t)(p - text);
    return text;
}

/* One string of n bytes. */
static char *long_string(size_t n, size_t *len)
{
    char *text = malloc(n + 3);

    assert_non_null(text);
    memset(text, 'a', n + 2);
    text[0] = text[n + 1] = '"';
    text[n + 2] = '\0';
    *len = n + 2;
    return text;
}

static enum status parse_within(const char *text, size_t len, size_t n_bytes_max, struct json **out)
{
    struct js_limits limits = {.n_values_max = SIZE_MAX, .n_bytes_max = n_bytes_max};

    return js_parse_limited(out, text, len, &limits, NULL);
}

/* Pages of this process's address space. */
static size_t mapped_bytes(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu", &pages), 1);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* --- bounds --- */

static void check_every_bound(const char *text, size_t len)
{
    struct json *j = NULL;
    size_t bound = 0;
    enum status s;
    int n_refused = 0;

    while ((s = parse_within(text, len, bound, &j)) != OK) {
        assert_int_equal(s, ERR_TOO_LARGE);
        assert_null(j);
        n_refused++;
        bound += MIB / 16;
        assert_true(bound < 200 * MIB);
    }
    assert_true(n_refused > 1);
    js_unref(j);
}

static void a_parse_may_run_out_of_memory_at_any_point(void **state)
{
    static const char *const items[][3] = {
        {"[", "{}", "]"},
        {"[", "[[],[1,2,3]]", "]"},
        {"[", "{\"a\":{\"bc\":[1,-2.5,true,null]},\"def\":\"some text, and more of it\"}", "]"},
        {"{\"x\":[", "\"\\u00e9\\n\"", "]}"},
    };
    size_t len;

    (void)state;
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        char *text = repeat(items[i][0], items[i][1], 2000, items[i][2], &len);
        check_every_bound(text, len);
        free(text);
    }
    char *text = long_string(MIB, &len);
    check_every_bound(text, len);
    free(text);
}

static void a_refusal_names_the_limit(void **state)
{
    struct js_limits few = {.n_values_max = 5, .n_bytes_max = MIB};
    struct js_limits small = {.n_values_max = 1u << 20, .n_bytes_max = MIB};
    struct json *j = (struct json *)1;
    struct buf why;
    size_t len;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    /* the array, the object, its name, its value, and 7 */
    assert_ok(js_parse_limited(&j, "[{\"a,[\\\"\":1},7]", 15, &few, &why));
    js_unref(j);
    assert_int_equal(js_parse_limited(&j, "[{\"a\": true}, 7,8]", 18, &few, &why), ERR_TOO_LARGE);
    assert_null(j);
    assert_string_equal(buf_str(&why), "JSON has 6 values and member names; the limit is 5");
    char *text = repeat("[", "{}", 100000, "]", &len);
    assert_int_equal(js_parse_limited(&j, text, len, &small, &why), ERR_TOO_LARGE);
    assert_non_null(strstr(buf_str(&why), "more than 1048576 bytes of memory"));
    free(text);
    buf_fini(&why);
}

/* js_parse() promises that no text needs more than its bound. */
static void documents_that_take_most_memory_parse(void **state)
{
    static const char *const items[] = {"{}", "[]", "1", "\"\"", "{\"\":{}}", "[[]]", "[[[[]]]]"};
    struct json *j;
    size_t len;

    (void)state;
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        for (size_t n = 1000; n <= 100000; n *= 100) {
            char *text = repeat("[", items[i], n, "]", &len);
            assert_ok(js_parse(&j, text, len, NULL));
            assert_int_equal(js_len(j), n);
            js_unref(j);
            free(text);
        }
    }
}

/* --- the system's memory --- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER 1 /* it maps terabytes of its own */
#else
#define HAS_SANITIZER 0
#endif

static void a_parse_that_the_system_gives_no_memory_says_so(void **state)
{
    struct rlimit before, limit;
    struct json *j;
    struct buf why;
    size_t len;
    int n_refused = 0;

    (void)state;
    if (HAS_SANITIZER)
        skip();
    char *text = long_string(5 * MIB, &len);
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    limit = before;
    for (size_t more = 0; more < 32 * MIB; more += 2 * MIB) {
        limit.rlim_cur = mapped_bytes() + more;
        assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
        enum status s = js_parse(&j, text, len, &why);
        assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
        if (s == OK) {
            js_unref(j);
            continue;
        }
        assert_int_equal(s, ERR_NOMEM);
        assert_null(j);
        assert_string_equal(buf_str(&why), "out of memory while parsing 5242882 bytes of JSON");
        n_refused++;
    }
    assert_in_range(n_refused, 4, 15);
    buf_fini(&why);
    free(text);
}

static void memory_goes_back_with_the_last_reference(void **state)
{
    struct json *j;
    size_t len, n;

    (void)state;
    if (HAS_SANITIZER)
        skip();
    char *text = repeat("[", "{\"name\":\"value\"}", 200000, "]", &len);
    assert_ok(js_parse(&j, "1", 1, NULL)); /* memory kept for the next documents */
    js_unref(j);
    size_t before = mapped_bytes();
    assert_ok(js_parse(&j, text, len, NULL));
    assert_true(mapped_bytes() > before + 30 * MIB);
    struct json *kept = js_ref(js_at(j, 199999));
    js_unref(j);
    assert_true(mapped_bytes() > before + 30 * MIB); /* of which `kept` is a part */
    assert_string_equal(js_string(js_get(kept, "name"), &n), "value");
    js_unref(kept);
    assert_true(mapped_bytes() < before + MIB);
    assert_int_equal(parse_within(text, len, 8 * MIB, &j), ERR_TOO_LARGE);
    assert_true(mapped_bytes() < before + MIB);
    text[len - 1] = ' '; /* malformed at its end */
    assert_int_equal(js_parse(&j, text, len, NULL), ERR_INVALID);
    assert_true(mapped_bytes() < before + MIB);
    free(text);
}

/* --- parsed and built values together --- */

static void parsed_and_built_values_mix(void **state)
{
    struct json *built = js_new_object(), *parsed;
    struct buf out;
    char name[16];

    (void)state;
    buf_init(&out, MIB);
    assert_ok(js_parse(&parsed, "{\"a\":{\"b\":[1,2]},\"c\":3}", 23, NULL));
    /* Parsed tables grow on the heap, and shrink. */
    for (int i = 0; i < 500; i++) {
        snprintf(name, sizeof name, "n%d", i);
        assert_ok(js_set(parsed, name, js_new_int(i)));
        assert_ok(js_push(js_get(js_get(parsed, "a"), "b"), js_new_string(name, strlen(name))));
    }
    assert_ok(js_remove(parsed, "c"));
    assert_ok(js_set(built, "part", js_ref(js_get(parsed, "a"))));
    assert_ok(js_set(parsed, "a", js_copy_deep(js_get(parsed, "a"))));
    js_unref(parsed);
    assert_int_equal(js_len(js_get(js_get(built, "part"), "b")), 502);
    assert_ok(js_write(&out, built));
    assert_memory_equal(out.data, "{\"part\":{\"b\":[1,2,\"n0\",\"n1\"", 27);
    js_unref(built);
    buf_fini(&out);
}

static void *parse_often(void *arg)
{
    size_t len;
    char *text = repeat("{\"x\":[", "[\"text\",{\"k\":1.5}]", 400, "]}", &len);

    (void)arg;
    for (int i = 0; i < 10; i++) {
        struct json *list[20];
        for (int k = 0; k < 20; k++) { /* together more than the spare granules */
            bool is_cut = (i + k) % 3 == 0;
            enum status s = js_parse(&list[k], text, is_cut ? len / 2 : len, NULL);
            if (s != (is_cut ? ERR_INVALID : OK))
                abort();
        }
        for (int k = 0; k < 20; k++)
            js_unref(list[k]);
    }
    free(text);
    return NULL;
}

static void threads_parse_at_the_same_time(void **state)
{
    pthread_t threads[4];

    (void)state;
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, parse_often, NULL), 0);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}

/* --- one document, freed by several threads --- */

enum { N_SHARED = 2000, N_SHARED_LARGE = 16, SHARED_LARGE_BYTES = 300000 };

struct half {
    struct json **values; /* [N_SHARED]: every second one is its own */
    pthread_barrier_t *begin;
};

static void *free_half(void *arg)
{
    struct half *h = arg;

    pthread_barrier_wait(h->begin);
    for (int i = 0; i < N_SHARED; i += 2)
        js_unref(h->values[i]);
    return NULL;
}

static void parse_and_free_by_two(const struct buf *text)
{
    struct json *values[N_SHARED], *j;
    pthread_barrier_t begin;
    pthread_t threads[2];

    assert_ok(js_parse(&j, text->data, text->len, NULL));
    for (int i = 0; i < N_SHARED; i++)
        values[i] = js_ref(js_at(j, (size_t)i));
    js_unref(j);
    assert_int_equal(pthread_barrier_init(&begin, NULL, 2), 0);
    struct half halves[2] = {{values, &begin}, {values + 1, &begin}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, free_half, &halves[i]), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    pthread_barrier_destroy(&begin);
}

static void threads_free_parts_of_one_document_at_the_same_time(void **state)
{
    struct buf text;
    size_t first = 0;

    (void)state;
    buf_init(&text, 16 * MIB);
    for (int i = 0; i < N_SHARED; i++) {
        assert_ok(buf_puts(&text, i ? ",\"" : "[\""));
        for (int k = 0; i < N_SHARED_LARGE && k < SHARED_LARGE_BYTES; k += 10)
            assert_ok(buf_puts(&text, "0123456789"));
        assert_ok(buf_puts(&text, "\""));
    }
    assert_ok(buf_puts(&text, "]"));
    for (int round = 0; round < 30; round++) {
        parse_and_free_by_two(&text);
        first = round == 0 ? mapped_bytes() : first; /* with the stacks that libc keeps */
    }
    if (!HAS_SANITIZER)
        assert_true(mapped_bytes() < first + MIB);
    buf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_parse_may_run_out_of_memory_at_any_point),
        cmocka_unit_test(a_refusal_names_the_limit),
        cmocka_unit_test(documents_that_take_most_memory_parse),
        cmocka_unit_test(a_parse_that_the_system_gives_no_memory_says_so),
        cmocka_unit_test(memory_goes_back_with_the_last_reference),
        cmocka_unit_test(parsed_and_built_values_mix),
        cmocka_unit_test(threads_parse_at_the_same_time),
        cmocka_unit_test(threads_free_parts_of_one_document_at_the_same_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
