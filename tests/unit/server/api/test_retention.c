/* test_retention.c - the fields of several APIs that ask to keep a prompt's KV. */
#include "tests/unit/server/server_test.h"

#include "server/api/retention.h"

static void keeps(const char *json, uint32_t ttl_s, uint32_t break_ttl_s)
{
    struct json *body = json_of(json);
    struct retention r;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (retention_parse(&r, body, &why) != OK)
        fail_msg("%s: %s", json, buf_str(&why));
    if (r.ttl_s != ttl_s || r.break_ttl_s != break_ttl_s)
        fail_msg("%s: %u s, breakpoints %u s", json, r.ttl_s, r.break_ttl_s);
    js_unref(body);
    buf_fini(&why);
}

static void refuses(const char *json, const char *words)
{
    struct json *body = json_of(json);
    struct retention r;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(retention_parse(&r, body, &why), ERR_INVALID);
    if (strncmp(buf_str(&why), words, strlen(words)) != 0)
        fail_msg("%s: %s", json, buf_str(&why));
    js_unref(body);
    buf_fini(&why);
}

static void each_field_becomes_a_time(void **state)
{
    (void)state;
    keeps("{}", 0, 1800);
    keeps("{'cache_ttl':7}", 7, 1800);
    keeps("{'cache_ttl':0}", 0, 1800);
    keeps("{'prompt_cache_retention':'24h'}", 86400, 1800);
    keeps("{'prompt_cache_retention':'in_memory'}", 0, 1800);
    keeps("{'prompt_cache_options':{}}", 1800, 1800);
    keeps("{'prompt_cache_options':{'mode':'implicit','ttl':'30m'}}", 1800, 1800);
    keeps("{'prompt_cache_options':{'mode':'explicit','ttl':'1h'}}", 0, 3600);
    keeps("{'cache_control':{'type':'ephemeral'}}", 300, 1800);
    keeps("{'cache_control':{'type':'ephemeral','ttl':'1h'}}", 3600, 1800);
    keeps("{'cache_control':null,'prompt_cache_options':null,'prompt_cache_retention':null,"
          "'cache_ttl':null}",
          0, 1800);
}

static void of_several_times_the_longest_counts(void **state)
{
    (void)state;
    keeps("{'cache_ttl':7,'cache_control':{'type':'ephemeral','ttl':'5m'}}", 300, 1800);
    keeps("{'cache_ttl':700,'cache_control':{'type':'ephemeral','ttl':'5m'}}", 700, 1800);
    keeps("{'prompt_cache_retention':'24h','prompt_cache_options':{'ttl':'5m'}}", 86400, 300);
}

static void a_value_that_is_not_known_names_its_field(void **state)
{
    (void)state;
    refuses("{'cache_ttl':-1}", "cache_ttl: ");
    refuses("{'cache_ttl':86401}", "cache_ttl: ");
    refuses("{'prompt_cache_retention':'7d'}",
            "prompt_cache_retention: \"7d\" is none of in_memory, 24h");
    refuses("{'prompt_cache_options':[]}", "prompt_cache_options: expected an object");
    refuses("{'prompt_cache_options':{'mode':'none'}}",
            "prompt_cache_options.mode: \"none\" is none of implicit, explicit");
    refuses("{'prompt_cache_options':{'ttl':'31m'}}",
            "prompt_cache_options.ttl: \"31m\" is none of 5m, 30m, 1h, 24h");
    refuses("{'prompt_cache_options':{'ttl':30}}", "prompt_cache_options.ttl: expected a string");
    refuses("{'cache_control':'ephemeral'}", "cache_control: expected an object");
    refuses("{'cache_control':{'ttl':'5m'}}", "cache_control.type: expected \"ephemeral\"");
    refuses("{'cache_control':{'type':'ephemeral','ttl':'5min'}}", "cache_control.ttl: \"5min\"");
}

static void the_last_four_breakpoints_count(void **state)
{
    struct json *body = json_of(
        "{'prompt_cache_options':{'mode':'explicit','ttl':'24h'},'messages':["
        "{'role':'system','content':'abc','cache_control':{'type':'ephemeral'}},"
        "{'role':'user','content':[{'type':'text','text':'12','prompt_cache_breakpoint':"
        "{'mode':'explicit'}},{'type':'text','text':'345'},{'type':'text','text':'6',"
        "'prompt_cache_breakpoint':{'mode':'explicit'},'cache_control':{'type':'ephemeral',"
        "'ttl':'1h'}}]},"
        "{'role':'assistant','content':[{'type':'refusal','refusal':'no','cache_control':"
        "{'type':'ephemeral'}}]},"
        "{'role':'user','content':[{'type':'text','text':'x','cache_control':{'type':'ephemeral',"
        "'ttl':'30m'}}]}]}");
    static const struct breakpoint want[] = {
        {1, 2, 86400}, {1, 8, 86400}, {2, 2, 300}, {3, 1, 1800}};
    struct breakpoints b;

    (void)state;
    assert_ok(breakpoints_read(&b, body, NULL));
    assert_int_equal(b.n, 4);
    for (uint32_t i = 0; i < b.n; i++) {
        assert_int_equal(b.v[i].message, want[i].message);
        assert_int_equal(b.v[i].n_bytes, want[i].n_bytes);
        assert_int_equal(b.v[i].ttl_s, want[i].ttl_s);
    }
    js_unref(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_field_becomes_a_time),
        cmocka_unit_test(of_several_times_the_longest_counts),
        cmocka_unit_test(a_value_that_is_not_known_names_its_field),
        cmocka_unit_test(the_last_four_breakpoints_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
