#include "tests/unit/test.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/log_line.h"
#include "tests/unit/test_clock.h"

#define N_FLOOD 200000

static char written[16u << 20];
static int saved[2] = {-1, -1};
static FILE *file;

/* Redirect `fd` to a file until take(). */
static void divert(int fd)
{
    file = tmpfile();
    assert_non_null(file);
    saved[0] = fd;
    saved[1] = dup(fd);
    dup2(fileno(file), fd);
}

static const char *take(void)
{
    dup2(saved[1], saved[0]);
    close(saved[1]);
    rewind(file);
    size_t n = fread(written, 1, sizeof written - 1, file);
    written[n] = '\0';
    fclose(file);
    return written;
}

static unsigned n_lines(const char *text)
{
    unsigned n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

/* The line that one event gives, without its time. */
#define LINE(json, ...)                                                                            \
    (log_init(LOG_DEBUG, json), divert(STDERR_FILENO), log_event(__VA_ARGS__), take())

static void a_text_line_has_its_fields(void **state)
{
    (void)state;
    const char *line =
        LINE(false, LOG_WARN, "two words",
             "a=%d b=\"%s\" c=%s d=%.2f e=%" PRIu64 " f=%zu g=%u%% h=\"%s/%s\"", -3, "x y", "bare",
             1.5, UINT64_C(18446744073709551615), (size_t)7, 50u, "dir", "file");
    assert_non_null(strstr(line, "Z warn  two words a=-3 b=\"x y\" c=bare d=1.50 "
                                 "e=18446744073709551615 f=7 g=50% h=\"dir/file\"\n"));
    line = LINE(false, LOG_INFO, "none", "%s", "");
    assert_non_null(strstr(line, "Z info  none\n"));
    line = LINE(false, LOG_INFO, "star", "a=\"%.*s\" b=%5d|%-4d| c=%x d=%hhu e=%c", 2, "xyz", 42, 7,
                255u, 257u, 'k');
    assert_non_null(strstr(line, " a=\"xy\" b=\"")); /* a blank inside needs quotes */
    line = LINE(false, LOG_INFO, "bare", "a=%s b=%s c=%s d=%d", "two words", "", "x=y", 1);
    assert_non_null(strstr(line, " a=\"two words\" b=\"\" c=\"x=y\" d=1\n"));
}

static void quotes_and_control_characters_are_escaped(void **state)
{
    const char evil[] = "a\"b\\c\nd\re\tf\x1b[31mg\x7fh\xc2\x9bi\xe2\x80\xaej\xe2\x80\xa8k"
                        "\xffl\xc3\xa9";

    (void)state;
    const char *line = LINE(false, LOG_INFO, "x", "name=\"%s\" n=1", evil);
    assert_non_null(strstr(line, "name=\"a\\\"b\\\\c\\nd\\re\\tf\\x1b[31mg\\x7fh\\u009bi\\u202ej"
                                 "\\u2028k\\xffl\xc3\xa9\" n=1\n"));
    assert_int_equal(n_lines(line), 1);
    line = LINE(false, LOG_INFO, "x", "name=%s n=1", "a\nb"); /* also where nobody wrote quotes */
    assert_non_null(strstr(line, "name=\"a\\nb\" n=1\n"));
}

static struct json *parse(const char *line)
{
    struct json *j = NULL;

    assert_int_equal(n_lines(line), 1);
    assert_ok(js_parse(&j, line, strlen(line) - 1, NULL));
    assert_true(js_is(j, JS_OBJECT));
    return j;
}

static const char *text_of(const struct json *j, const char *key)
{
    const char *text = NULL;

    assert_ok(js_get_str(j, key, &text, NULL, NULL));
    return text;
}

static void json_keeps_quotes_and_whole_reasons(void **state)
{
    const char reason[] = "messages[0]: expected \"role\", got \"x\"\nsecond line, a \\ and "
                          "\x1b[0m";
    int64_t n = 0;
    bool yes = false;

    (void)state;
    struct json *j = parse(LINE(true, LOG_ERROR, "it failed", "why=\"%s\" n=%d ok=%s key=%s x=%g",
                                reason, 12, "true", "0123", 1e-7));
    assert_string_equal(text_of(j, "event"), "it failed");
    assert_string_equal(text_of(j, "level"), "error");
    assert_string_equal(text_of(j, "why"), reason);
    assert_string_equal(text_of(j, "key"), "0123"); /* a name of digits stays a name */
    assert_ok(js_get_i64(j, "n", 0, 100, &n, NULL));
    assert_int_equal(n, 12);
    assert_ok(js_get_bool(j, "ok", &yes, NULL));
    assert_true(yes);
    js_unref(j);
    assert_null(strstr(written, "\x1b"));
    /* A line is valid JSON even with NaN and bytes that are not UTF-8. */
    j = parse(LINE(true, LOG_INFO, "x", "a=%f b=\"%s\" c=%d", (double)NAN, "\xff\xc3", 3));
    assert_string_equal(text_of(j, "a"), "nan");
    assert_string_equal(text_of(j, "b"), "\xef\xbf\xbd\xef\xbf\xbd");
    js_unref(j);
}

static void values_and_lines_are_bounded(void **state)
{
    const size_t n_long = 1 << 20;
    char *text = malloc(n_long + 1);

    (void)state;
    assert_non_null(text);
    memset(text, 'a', n_long);
    text[n_long] = '\0';
    const char *line = LINE(false, LOG_INFO, "x", "v=\"%s\" after=1", text);
    assert_in_range(strlen(line), LOG_VALUE_BYTES_MAX, LOG_VALUE_BYTES_MAX + 100);
    assert_non_null(strstr(line, "aaa...\" after=1\n"));
    /* Escapes are longer than the characters, and the line's length stays bounded. */
    memset(text, '\x01', n_long);
    for (int json = 0; json < 2; json++) {
        line = LINE(json, LOG_INFO, "x", "v=\"%s\" w=\"%s\" after=1", text, text);
        assert_true(strlen(line) <= LOG_LINE_BYTES_MAX);
        assert_true(strlen(line) >= LOG_LINE_BYTES_MAX - 64);
        assert_int_equal(n_lines(line), 1);
        assert_non_null(strstr(line, json ? "...\",\"cut\":true}\n" : "...\" cut=true\n"));
        assert_null(strstr(line, "after"));
        if (json)
            js_unref(parse(line));
    }
    /* A character is not cut in half. */
    for (size_t i = 0; i + 3 <= n_long; i += 3)
        memcpy(text + i, "\xe2\x82\xac", 3);
    for (size_t at = 0; at < 3; at++) {
        line = LINE(false, LOG_INFO, "x", "v=\"%s\"", text + 3 - at);
        assert_null(strstr(line + 60, at ? "\\x82..." : "\\xe2"));
        line = strstr(line, "...");
        assert_memory_equal(line - 3, "\xe2\x82\xac", 3);
    }
    free(text);
}

static void a_line_may_end_at_any_byte(void **state)
{
    static struct log_line l;
    char value[64];

    (void)state;
    memset(value, 'v', sizeof value);
    for (int json = 0; json < 2; json++)
        for (size_t n_last = 0; n_last < 40; n_last++) {
            log_line_begin(&l, json, "now", "info", "x");
            for (int i = 0; i < 1000; i++) {
                char key[8];
                int n = snprintf(key, sizeof key, "k%d", i);
                log_line_add(&l, key, (size_t)n, value, i ? sizeof value : n_last, i % 3);
            }
            log_line_end(&l);
            assert_true(l.cut && l.n <= sizeof l.bytes);
            struct json *j = NULL;
            if (json)
                assert_ok(js_parse(&j, l.bytes, l.n, NULL));
            js_unref(j);
        }
}

static void a_flood_of_one_event_is_counted_not_written(void **state)
{
    unsigned n_written = 0, n_suppressed = 0, n_others = 0;

    (void)state;
    log_init(LOG_DEBUG, false);
    uint64_t begin = clock_now_ns();
    divert(STDERR_FILENO);
    for (int i = 0; i < N_FLOOD; i++)
        log_event(LOG_DEBUG, "unknown field ignored", "name=\"f%d\"", i);
    log_event(LOG_INFO, "another event", "n=%d", 1); /* is not held up */
    log_flush(true);
    take();
    unsigned n_seconds = (unsigned)((clock_now_ns() - begin) / 1000000000u) + 2;
    for (char *line = strtok(written, "\n"); line; line = strtok(NULL, "\n")) {
        const char *count = strstr(line, "lines suppressed of=\"unknown field ignored\" n=");
        n_written += strstr(line, "unknown field ignored name=") != NULL;
        n_others += strstr(line, "another event n=1") != NULL;
        if (count)
            n_suppressed += (unsigned)atoi(strstr(count, " n=") + 3);
    }
    assert_int_equal(n_others, 1);
    assert_in_range(n_written, LOG_LINES_PER_S, LOG_LINES_PER_S * n_seconds);
    assert_int_equal(n_written + n_suppressed, N_FLOOD);
}

static void suppressed_lines_are_counted_after_the_second(void **state)
{
    (void)state;
    log_init(LOG_DEBUG, false);
    divert(STDERR_FILENO);
    test_clock_stop();
    for (int i = 0; i < LOG_LINES_PER_S * 3; i++)
        log_event(LOG_WARN, "a burst", "n=%d", i);
    test_clock_advance(1100000000);
    log_event(LOG_INFO, "something else", "%s", "");
    const char *text = take();
    const char *told = strstr(text, "warn  lines suppressed of=\"a burst\" n=");
    assert_non_null(told);
    assert_true(told < strstr(text, "something else"));
    divert(STDERR_FILENO);
    log_flush(true);
    test_clock_resume();
    assert_string_equal(take(), ""); /* once */
}

static void lines_of_requests_are_not_limited(void **state)
{
    (void)state;
    log_init(LOG_INFO, false);
    divert(STDERR_FILENO);
    for (int i = 0; i < LOG_LINES_PER_S * 3; i++)
        log_event_each(LOG_INFO, "http", "n=%d", i);
    assert_int_equal(n_lines(take()), LOG_LINES_PER_S * 3);
}

static void a_stopped_reader_of_the_log_blocks_no_thread(void **state)
{
    int ends[2], kept = dup(STDERR_FILENO);
    unsigned n_written = 0, n_lost = 0;
    size_t n = 0;
    ssize_t got;

    (void)state;
    log_init(LOG_INFO, false);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    /* With 200 ms for each line that finds no room these would take longer than a test may. */
    for (int i = 0; i < 5000; i++) /* 64 KiB are about 1,000 of these */
        log_event_each(LOG_INFO, "http", "n=%d path=\"%s\"", i, "0123456789012345678901234567890");
    while (n < 60000) {
        got = read(ends[0], written + n, sizeof written - 1 - n);
        assert_true(got > 0);
        n += (size_t)got;
    }
    log_event_each(LOG_INFO, "after", "%s", "");
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(ends[1]);
    while ((got = read(ends[0], written + n, sizeof written - 1 - n)) > 0)
        n += (size_t)got;
    close(ends[0]);
    written[n] = '\0';
    for (char *line = strtok(written, "\n"); line; line = strtok(NULL, "\n")) {
        n_written += strstr(line, "http n=") && line[strlen(line) - 1] == '"';
        if (strstr(line, "lines lost n="))
            n_lost = (unsigned)atoi(strstr(line, " n=") + 3);
        else if (n_lost)
            assert_non_null(strstr(line, "info  after"));
    }
    assert_true(n_written > 100 && n_lost > 100);
    assert_int_equal(n_written + n_lost, 5000);
}

static void levels_hold_but_announcements_are_always_made(void **state)
{
    const struct log_field fields[] = {
        {"a", "x \"y\"", LOG_TEXT}, {"b", "12", LOG_NUMBER}, {"c", "12", LOG_WORD}};

    (void)state;
    log_init(LOG_ERROR, true);
    divert(STDERR_FILENO);
    log_event(LOG_WARN, "x", "n=%d", 1);
    log_event_each(LOG_WARN, "x", "n=%d", 1);
    log_fields(LOG_WARN, "x", fields, 3);
    log_flush(true);
    assert_string_equal(take(), "");
    divert(STDOUT_FILENO);
    log_announce("ready", "url=\"%s\"", "http://x");
    struct json *j = parse(take());
    assert_string_equal(text_of(j, "url"), "http://x");
    js_unref(j);
    divert(STDERR_FILENO);
    log_fields(LOG_ERROR, "x", fields, 3);
    j = parse(take());
    assert_string_equal(text_of(j, "a"), "x \"y\"");
    assert_non_null(strstr(written, "\"b\":12,\"c\":\"12\""));
    js_unref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_line_has_its_fields),
        cmocka_unit_test(quotes_and_control_characters_are_escaped),
        cmocka_unit_test(json_keeps_quotes_and_whole_reasons),
        cmocka_unit_test(values_and_lines_are_bounded),
        cmocka_unit_test(a_line_may_end_at_any_byte),
        cmocka_unit_test(a_flood_of_one_event_is_counted_not_written),
        cmocka_unit_test(suppressed_lines_are_counted_after_the_second),
        cmocka_unit_test(lines_of_requests_are_not_limited),
        cmocka_unit_test(a_stopped_reader_of_the_log_blocks_no_thread),
        cmocka_unit_test(levels_hold_but_announcements_are_always_made),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
