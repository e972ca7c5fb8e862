/* test_instances.c - the table that tarnctl prints of a server's /v1/instances, valid or not. */
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#include "clients/tarnctl/instances.h"

/* The printed text; the caller frees it. */
static char *printed(const char *json, enum status want)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    assert_non_null(f);
    enum status s = instances_print(f, json, strlen(json));
    fclose(f);
    if (s != want)
        fail_msg("%s: %s", json, status_name(s));
    return text;
}

static void every_instance_is_a_line(void **state)
{
    (void)state;
    char *text = printed(
        "{\"object\":\"list\",\"pool\":\"default\",\"data\":["
        "{\"id\":\"01\",\"name\":\"a\",\"self\":true,\"state\":\"ready\",\"address\":\"tcp://h:1\","
        "\"http\":\"http://h:8000\",\"kv_blocks\":{\"total\":100,\"free\":40},\"running\":3,"
        "\"waiting\":2,\"load\":7000,\"version\":\"0.1.0\"},"
        "{\"name\":\"b\\u001b[31m\",\"self\":false,\"state\":7,\"http\":null}]}",
        OK);
    assert_string_equal(
        text,
        "name    state    address           http  KV blocks  free  running  waiting  load  "
        "version\n"
        "a *     ready  tcp://h:1  http://h:8000        100    40        3        2  7000  0.1.0\n"
        "b?[31m      -          -              -          -     -        -        -     -  -\n");
    free(text);
}

static void catalogs_that_agree_or_differ_are_told(void **state)
{
    (void)state;
    char *agree = printed("{\"object\":\"list\",\"pool\":\"p\",\"data\":["
                          "{\"documents\":\"01\"},{\"documents\":\"\"},{\"documents\":\"01\"}]}",
                          OK);
    char *differ = printed("{\"object\":\"list\",\"pool\":\"p\",\"data\":["
                           "{\"documents\":\"01\"},{\"documents\":\"02\"}]}",
                           OK);

    assert_non_null(strstr(agree, "\ndocuments: the catalogs of 2 instances agree\n"));
    assert_non_null(strstr(differ, "\ndocuments: the catalogs of 2 instances differ "));
    free(agree);
    free(differ);
}

static void a_directory_that_is_down_is_told(void **state)
{
    (void)state;
    char *down = printed("{\"object\":\"list\",\"pool\":\"p\",\"directory_up\":false,\"data\":["
                         "{\"name\":\"a\"}]}",
                         OK);
    char *up = printed("{\"object\":\"list\",\"pool\":\"p\",\"directory_up\":true,\"data\":["
                       "{\"name\":\"a\"}]}",
                       OK);

    assert_non_null(strstr(down, "\nthe pool's directory (Redis) does not answer this server: "));
    assert_null(strstr(up, "directory"));
    free(down);
    free(up);
}

static void a_server_without_a_pool_is_said_to_have_none(void **state)
{
    (void)state;
    char *text = printed("{\"object\":\"list\",\"pool\":null,\"data\":[]}", OK);

    assert_string_equal(text, "the server belongs to no pool (--pool)\n");
    free(text);
}

static void other_answers_are_refused(void **state)
{
    (void)state;
    static const char *const others[] = {"",
                                         "{}",
                                         "[]",
                                         "null",
                                         "{\"object\":\"list\",\"data\":[]}",
                                         "{\"object\":\"cache\",\"pool\":null,\"data\":[]}",
                                         "{\"object\":\"list\",\"pool\":null,\"data\":{}}"};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char *text = printed(others[i], ERR_INVALID);
        assert_string_equal(text, "");
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instance_is_a_line),
        cmocka_unit_test(catalogs_that_agree_or_differ_are_told),
        cmocka_unit_test(a_directory_that_is_down_is_told),
        cmocka_unit_test(a_server_without_a_pool_is_said_to_have_none),
        cmocka_unit_test(other_answers_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
