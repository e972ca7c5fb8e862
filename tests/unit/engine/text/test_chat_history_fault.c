/* Every allocation of a history with tool calls fails once, in every form that templates want: the
 * answer is ERR_NOMEM or the whole history, and nothing leaks or is freed twice.
 *
 * malloc is replaced for this binary; under a sanitizer, which replaces it too, the test is
 * skipped. */
#include "tests/unit/test.h"
#include "tests/unit/fault.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    return 77;
}

#else

#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "engine/text/chat_history.h"

#define N_FAILURES_MAX 2000
#define N_FAILURES_MIN 20 /* fewer would mean that the test does not reach the code */

static const char text[] =
    "[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"assistant\",\"content\":\"\","
    "\"tool_calls\":[{\"id\":\"call_1\",\"function\":{\"name\":\"f\",\"arguments\":"
    "\"{\\\"a\\\":1}\"}},{\"id\":\"call_2\",\"function\":{\"name\":\"g\",\"arguments\":{\"b\":2}}},"
    "{\"id\":\"call_3\",\"function\":{\"name\":\"h\",\"arguments\":\"no json\"}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"call_1\",\"content\":\"r\"},"
    "{\"role\":\"tool\",\"tool_call_id\":\"call_2\",\"content\":\"s\"},"
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[]}]";

static const struct chat_traits forms[] = {
    {.tool_calls = TOOL_CALLS_AS_OBJECTS, .tool_role = true, .developer = true},
    {.tool_calls = TOOL_CALLS_AS_STRINGS, .tool_role = true, .null_content = true},
    {.tool_calls = TOOL_CALLS_AS_OBJECTS, .tool_role = true, .short_call_ids = true},
    {.tool_calls = TOOL_CALLS_AS_TEXT},
};

static struct json *given;

/* The n-th allocation fails (0: none); true while there was an n-th. *out: the history as JSON. */
static bool once(const struct chat_traits *traits, long n, struct buf *out)
{
    struct chat_history h = {0};
    struct json *copies[8], *messages = NULL;
    size_t n_messages = js_len(given);

    for (size_t i = 0; i < n_messages; i++)
        assert_non_null(copies[i] = js_copy_deep(js_at(given, i)));
    fail_in = n;
    enum status s = chat_history_init(&h, traits);
    size_t n_added = 0;
    while (s == OK && n_added < n_messages)
        s = chat_history_add(&h, copies[n_added++]);
    if (s == OK)
        s = chat_history_take(&h, &messages);
    bool failed = n > 0 && fail_in == 0;
    fail_in = 0;
    for (size_t i = n_added; i < n_messages; i++)
        js_unref(copies[i]);
    if (s == OK)
        assert_ok(js_write(out, messages));
    else if (s != ERR_NOMEM || !failed)
        fail_msg("allocation %ld: %s, failed %d", n, status_name(s), failed);
    js_unref(messages);
    chat_history_fini(&h);
    return failed;
}

static size_t n_allocated(void)
{
    struct mallinfo2 m = mallinfo2();

    return m.uordblks + m.hblkhd;
}

static void a_failed_allocation_ends_the_history_or_changes_nothing(void **state)
{
    struct buf whole, out;

    (void)state;
    buf_init(&whole, 1 << 20);
    buf_init(&out, 1 << 20);
    assert_ok(buf_reserve(&out, 1 << 16));
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        long n = 1;
        buf_reset(&whole);
        assert_false(once(&forms[i], 0, &whole));
        size_t before = n_allocated();
        while (n < N_FAILURES_MAX) {
            buf_reset(&out);
            if (!once(&forms[i], n, &out))
                break;
            if (out.len > 0)
                assert_string_equal(buf_str(&out), buf_str(&whole));
            n++;
        }
        assert_in_range(n, N_FAILURES_MIN, N_FAILURES_MAX - 1);
        assert_int_equal(n_allocated(), before);
    }
    buf_fini(&whole);
    buf_fini(&out);
}

static int parse_messages(void **state)
{
    (void)state;
    return hash_init() == OK && js_parse(&given, text, sizeof text - 1, NULL) == OK ? 0 : -1;
}

static int free_messages(void **state)
{
    (void)state;
    js_unref(given);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_allocation_ends_the_history_or_changes_nothing),
    };
    return cmocka_run_group_tests(tests, parse_messages, free_messages);
}

#endif
