/* test_hub_open.c - which hub is asked and with which token, from the environment. No connection is
 * made. */
#include "tests/unit/test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/model/hub_get.h"

#define TOKEN "hf_secret"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/tarn-test-hub-open-XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static int clear(void **state)
{
    static const char *const names[] = {"HF_ENDPOINT", "HF_TOKEN", "HF_TOKEN_PATH",
                                        "HF_HUB_OFFLINE"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    return setenv("HF_HOME", folder, 1);
}

static void opens(const char *endpoint, const char *token)
{
    struct hub h;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (hub_open(&h, NULL, &why) != OK)
        fail_msg("%s", buf_str(&why));
    assert_string_equal(h.endpoint, endpoint);
    assert_string_equal(h.token, token);
    hub_close(&h);
    assert_string_equal(h.token, "");
    buf_fini(&why);
}

static void refuses(enum status want, const char *words)
{
    struct hub h;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(hub_open(&h, NULL, &why), want);
    assert_non_null(strstr(buf_str(&why), words));
    assert_null(strstr(buf_str(&why), TOKEN));
    buf_fini(&why);
}

static void the_hub_is_hugging_face_or_that_of_the_environment(void **state)
{
    (void)state;
    opens("https://huggingface.co", "");
    setenv("HF_ENDPOINT", "https://mirror.example/hf/", 1);
    opens("https://mirror.example/hf", "");
    setenv("HF_ENDPOINT", "ftp://mirror.example", 1);
    refuses(ERR_INVALID, "HF_ENDPOINT");
    setenv("HF_ENDPOINT", "https://user@mirror.example", 1);
    refuses(ERR_INVALID, "HF_ENDPOINT");
    setenv("HF_ENDPOINT", "https://mirror.example?x", 1);
    refuses(ERR_INVALID, "HF_ENDPOINT");
    unsetenv("HF_ENDPOINT");
    setenv("HF_HUB_OFFLINE", "1", 1);
    refuses(ERR_UNSUPPORTED, "HF_HUB_OFFLINE");
    setenv("HF_HUB_OFFLINE", "0", 1);
    opens("https://huggingface.co", "");
}

static void the_token_is_that_of_the_environment_or_of_a_file(void **state)
{
    char path[128];

    (void)state;
    snprintf(path, sizeof path, "%s/token", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("\n " TOKEN "_file\r\n", f);
    fclose(f);
    opens("https://huggingface.co", TOKEN "_file");
    setenv("HF_TOKEN", " " TOKEN "\n", 1);
    opens("https://huggingface.co", TOKEN);
    setenv("HF_TOKEN", TOKEN " two", 1);
    refuses(ERR_INVALID, "HF_TOKEN");
    setenv("HF_TOKEN", TOKEN "\r\nX-Header: y", 1);
    refuses(ERR_INVALID, "HF_TOKEN");
    unsetenv("HF_TOKEN");
    assert_int_equal(unlink(path), 0);
    opens("https://huggingface.co", "");
}

static void a_token_never_goes_over_the_network_unencrypted(void **state)
{
    static const char *const far[] = {"http://mirror.example", "http://10.0.0.1:80",
                                      "http://localhost.example", "http://127.0.0.1.example"};
    static const char *const here[] = {"http://localhost", "http://127.0.0.1:8080",
                                       "http://[::1]:8080", "https://mirror.example"};

    (void)state;
    setenv("HF_TOKEN", TOKEN, 1);
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        setenv("HF_ENDPOINT", far[i], 1);
        opens(far[i], "");
        setenv("HF_ENDPOINT", here[i], 1);
        opens(here[i], TOKEN);
    }
}

static void a_path_in_a_url_is_escaped(void **state)
{
    struct buf url;

    (void)state;
    buf_init(&url, 256);
    assert_int_equal(hub_write_url(&url, "a b/c?d#e%f", true), OK);
    assert_int_equal(hub_write_url(&url, "/x-._~", false), OK);
    assert_string_equal(buf_str(&url), "a%20b/c%3Fd%23e%25f%2Fx-._~");
    buf_fini(&url);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_hub_is_hugging_face_or_that_of_the_environment, clear),
        cmocka_unit_test_setup(the_token_is_that_of_the_environment_or_of_a_file, clear),
        cmocka_unit_test_setup(a_token_never_goes_over_the_network_unencrypted, clear),
        cmocka_unit_test_setup(a_path_in_a_url_is_escaped, clear),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
