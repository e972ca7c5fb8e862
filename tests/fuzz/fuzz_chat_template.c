/* fuzz_chat_template.c - any bytes as a chat template, and any JSON as its context.
 *
 * Checks beyond crashes: a refusal has a message, a failed rendering leaves the output unchanged,
 * and rendering twice gives the same text. */
#include "base/check.h"
#include "engine/text/chat_traits.h"
#include "tests/fuzz/fuzz.h"

#define OUT_BYTES_MAX ((size_t)1 << 20)
#define NOW_S 1735787045

static const char usual_context[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"H\\u00e9 <b>\"}]},"
    "{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
    "\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1.5,\"b\":[true,null]}}}]},"
    "{\"role\":\"tool\",\"content\":\"4\"}],\"tools\":[{\"type\":\"function\",\"function\":"
    "{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}],"
    "\"documents\":[{\"title\":\"t\",\"text\":\"d\"}],\"add_generation_prompt\":true,"
    "\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}";

static void check_render(const struct chat_template *t, const char *json, size_t len)
{
    struct json *context = NULL;
    struct buf out, again, why;

    buf_init(&out, OUT_BYTES_MAX);
    buf_init(&again, OUT_BYTES_MAX);
    buf_init(&why, BUF_WHY_MAX);
    if (js_parse(&context, json, len, NULL) == OK) {
        enum status s = chat_template_render(t, context, NOW_S, &out, &why);
        ASSERT(s == OK || (out.len == 0 && why.len > 0));
        ASSERT(chat_template_render(t, context, NOW_S, &again, NULL) == s);
        ASSERT(out.len == again.len && memcmp(buf_str(&out), buf_str(&again), out.len) == 0);
    }
    js_unref(context);
    buf_fini(&out);
    buf_fini(&again);
    buf_fini(&why);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);
    struct chat_template *t = NULL;
    struct chat_traits traits;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = chat_template_create(&t, in.first, in.first_len, &why);
    ASSERT(s == OK ? t != NULL : t == NULL && why.len > 0);
    if (s == OK) {
        (void)chat_template_uses(t, "documents");
        chat_traits_find(&traits, t);
        check_render(t, usual_context, sizeof usual_context - 1);
        if (in.second)
            check_render(t, in.second, in.second_len);
    }
    chat_template_destroy(t);
    buf_fini(&why);
    return 0;
}
