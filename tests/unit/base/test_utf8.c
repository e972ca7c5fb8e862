/* Every character of Unicode, and every kind of bytes that are none. */
#include "tests/unit/test.h"

#include <stdbool.h>
#include <string.h>

#include "base/utf8.h"

/* As RFC 3629 defines it. */
static size_t encode(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[n] | c);
    return n;
}

static void every_character_is_decoded_and_no_prefix_of_it(void **state)
{
    char bytes[4];
    uint32_t got;

    (void)state;
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        bool is_surrogate = c >= 0xD800 && c < 0xE000;
        size_t n = encode(c, bytes);
        assert_int_equal(utf8_decode(bytes, n, &got), is_surrogate ? 0 : n);
        if (!is_surrogate)
            assert_int_equal(got, c);
        for (size_t k = 1; k < n; k++)
            assert_int_equal(utf8_decode(bytes, k, &got), 0);
    }
}

static void bytes_that_are_no_character_are_refused(void **state)
{
    static const char *const wrong[] = {"\x80",
                                        "\xBF",
                                        "\xC0\x80",
                                        "\xC1\xBF",
                                        "\xE0\x80\x80",
                                        "\xE0\x9F\xBF",
                                        "\xED\xA0\x80",
                                        "\xF0\x80\x80\x80",
                                        "\xF0\x8F\xBF\xBF",
                                        "\xF4\x90\x80\x80",
                                        "\xF5\x80\x80\x80",
                                        "\xFE",
                                        "\xFF",
                                        "\xC3x",
                                        "\xE2\x82x",
                                        "\xF0\x9F\x98x",
                                        "\xE2x\x80"};
    uint32_t c;

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(utf8_decode(wrong[i], strlen(wrong[i]), &c), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_character_is_decoded_and_no_prefix_of_it),
        cmocka_unit_test(bytes_that_are_no_character_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
