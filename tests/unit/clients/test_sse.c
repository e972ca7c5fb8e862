#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/c/sse.h"

/* Collect events as "name|data;", one after another. */
static enum status collect(void *arg, const char *name, const char *data, size_t len)
{
    struct buf *out = arg;

    assert_int_equal(data[len], '\0');
    return buf_printf(out, "%s|%.*s;", name, (int)len, data);
}

/* Feed a text in three pieces, cut at `a` and `b`. */
static void feed_split(const char *text, size_t len, size_t a, size_t b, struct buf *out)
{
    size_t ends[3] = {a, b, len}, at = 0;
    struct sse p;

    buf_reset(out);
    sse_init(&p, 4096);
    for (int i = 0; i < 3; i++) {
        char *exact = malloc(ends[i] - at + 1); /* exact, so that a sanitizer sees overreads */
        assert_non_null(exact);
        memcpy(exact, text + at, ends[i] - at);
        assert_ok(sse_feed(&p, exact, ends[i] - at, collect, out));
        free(exact);
        at = ends[i];
    }
    sse_fini(&p);
}

static void expect_events(const char *text, const char *wanted)
{
    size_t len = strlen(text);
    struct buf out;

    buf_init(&out, 1 << 16);
    for (size_t a = 0; a <= len; a++)
        for (size_t b = a; b <= len; b++) {
            feed_split(text, len, a, b, &out);
            if (strcmp(buf_str(&out), wanted) != 0)
                fail_msg("\"%s\" cut at %zu and %zu gave \"%s\", not \"%s\"", text, a, b,
                         buf_str(&out), wanted);
        }
    buf_fini(&out);
}

static void events_are_the_same_however_they_are_cut(void **state)
{
    (void)state;
    expect_events("data: a\n\n", "|a;");
    expect_events("data: a\r\n\r\ndata:b\r\rdata:  c\n\r\n", "|a;|b;| c;");
    expect_events("data: one\ndata: two\r\ndata\rdata:\n\n", "|one\ntwo\n\n;");
    expect_events(": comment\n\n:\n\ndata: a\n: in between\ndata: b\n\n", "|a\nb;");
    expect_events("event: error\ndata: x\n\ndata: y\n\n", "error|x;|y;");
    expect_events("error: {\"a\":1}\n\n", "error|{\"a\":1};");
    expect_events("id: 1\nretry: 5\nfoo: bar\ndatum: 1\n\ndata: a\nid\n\n", "|a;");
    expect_events("event: lonely\n\ndata: a\n\n", "|a;");
    expect_events("\xef\xbb\xbf"
                  "data: a\n\n\xef\xbb\xbf"
                  "data: b\n\n",
                  "|a;");
    expect_events("data: [DONE]\n", "");
    expect_events("data:a:b: c\n\n\n\n\r\n", "|a:b: c;");
    expect_events("data\n\n", "|;");
}

static void bytes_one_by_one_give_the_same(void **state)
{
    static const char text[] = "data: {\"x\":\"\xc3\xa4\"}\r\n\r\n: c\r\n\r\ndata: [DONE]\r\n\r\n";
    struct buf out;
    struct sse p;

    (void)state;
    buf_init(&out, 1 << 16);
    sse_init(&p, 100);
    for (size_t i = 0; i < sizeof text - 1; i++)
        assert_ok(sse_feed(&p, text + i, 1, collect, &out));
    assert_string_equal(buf_str(&out), "|{\"x\":\"\xc3\xa4\"};|[DONE];");
    assert_int_equal(p.n_events, 2);
    assert_int_equal(p.n_comments, 1);
    assert_false(sse_is_inside(&p));
    sse_fini(&p);
    buf_fini(&out);
}

static void a_zero_byte_is_a_byte_of_data(void **state)
{
    struct buf out;
    struct sse p;

    (void)state;
    buf_init(&out, 1 << 16);
    sse_init(&p, 100);
    assert_ok(sse_feed(&p, "data: a\0b\n", 10, collect, &out));
    assert_int_equal(p.data.len, 3);
    sse_fini(&p);
    buf_fini(&out);
}

static void a_stream_that_is_cut_shows(void **state)
{
    static const char *const cut[] = {"d", "data: a", "data: a\n", ":"};
    struct buf out;

    (void)state;
    buf_init(&out, 1 << 16);
    for (size_t i = 0; i < sizeof cut / sizeof cut[0]; i++) {
        struct sse p;
        sse_init(&p, 100);
        assert_ok(sse_feed(&p, cut[i], strlen(cut[i]), collect, &out));
        assert_true(sse_is_inside(&p));
        assert_int_equal(out.len, 0);
        sse_fini(&p);
    }
    buf_fini(&out);
}

static void an_event_has_a_maximum(void **state)
{
    struct buf out;
    struct sse p;
    size_t n = 0;

    (void)state;
    buf_init(&out, 1 << 16);
    sse_init(&p, 100);
    while (sse_feed(&p, "x", 1, collect, &out) == OK && n < 1000)
        n++;
    assert_int_equal(n, 100); /* one endless line */
    sse_fini(&p);
    sse_init(&p, 100);
    enum status s = OK;
    for (n = 0; s == OK && n < 1000; n++)
        s = sse_feed(&p, "data: 12345678\n", 15, collect, &out);
    assert_int_equal(s, ERR_TOO_LARGE); /* endless lines of one event */
    assert_true(n >= 9 && n <= 12);
    assert_true(p.line.cap <= 128 && p.data.cap <= 128);
    sse_fini(&p);
    sse_init(&p, 100);
    for (n = 0; n < 1000; n++) /* many events within the maximum are fine */
        assert_ok(
            sse_feed(&p, "data: 1234567890123456789012345678901234567890\n\n", 48, collect, &out));
    sse_fini(&p);
    buf_fini(&out);
}

static enum status refuse(void *arg, const char *name, const char *data, size_t len)
{
    (void)name;
    (void)data;
    (void)len;
    ++*(int *)arg;
    return ERR_CANCELLED;
}

static void an_error_of_the_callback_ends_the_parse(void **state)
{
    struct sse p;
    int n = 0;

    (void)state;
    sse_init(&p, 100);
    assert_int_equal(sse_feed(&p, "data: a\n\ndata: b\n\n", 18, refuse, &n), ERR_CANCELLED);
    assert_int_equal(n, 1);
    sse_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_the_same_however_they_are_cut),
        cmocka_unit_test(bytes_one_by_one_give_the_same),
        cmocka_unit_test(a_zero_byte_is_a_byte_of_data),
        cmocka_unit_test(a_stream_that_is_cut_shows),
        cmocka_unit_test(an_event_has_a_maximum),
        cmocka_unit_test(an_error_of_the_callback_ends_the_parse),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
