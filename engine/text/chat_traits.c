#include "engine/text/chat_traits.h"

#include <stdio.h>
#include <string.h>

#define PROBE_BYTES_MAX (1u << 20)

/* Words that occur in no template. */
#define WORD_SYSTEM "QxSystem"
#define WORD_NAME "QxName"
#define WORD_VALUE "QxValue"
#define WORD_RESULT "QxResult"

#define USER "{\"role\":\"user\",\"content\":\"QxUser\"}"
#define TOOL(id) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" WORD_RESULT "\"}"
#define CALL(content, id, arguments)                                                               \
    "{\"role\":\"assistant\",\"content\":" content ",\"tool_calls\":[{\"id\":\"" id                \
    "\",\"type\":\"function\",\"function\":{\"name\":\"" WORD_NAME "\",\"arguments\":" arguments   \
    "}}]}"
#define AS_OBJECT "{\"QxKey\":\"" WORD_VALUE "\"}"
#define AS_STRING "\"{\\\"QxKey\\\": \\\"" WORD_VALUE "\\\"}\""
#define LONG_ID "call_Qx3456789012345678901234" /* the form of OpenAI's ids */
#define SHORT_ID "Qx3456789"
#define TOOL_CHAT(content, id, arguments) USER "," CALL(content, id, arguments) "," TOOL(id)

struct tool_probe {
    const char *messages;
    struct chat_traits traits;
};

/* In the order of preference: "" is better than null, which several templates print as a word. */
static const struct tool_probe tool_probes[] = {
    {TOOL_CHAT("\"\"", LONG_ID, AS_OBJECT), {.tool_calls = TOOL_CALLS_AS_OBJECTS}},
    {TOOL_CHAT("\"\"", LONG_ID, AS_STRING), {.tool_calls = TOOL_CALLS_AS_STRINGS}},
    {TOOL_CHAT("null", LONG_ID, AS_OBJECT),
     {.tool_calls = TOOL_CALLS_AS_OBJECTS, .null_content = true}},
    {TOOL_CHAT("null", LONG_ID, AS_STRING),
     {.tool_calls = TOOL_CALLS_AS_STRINGS, .null_content = true}},
    {TOOL_CHAT("\"\"", SHORT_ID, AS_OBJECT),
     {.tool_calls = TOOL_CALLS_AS_OBJECTS, .short_call_ids = true}},
    {TOOL_CHAT("\"\"", SHORT_ID, AS_STRING),
     {.tool_calls = TOOL_CALLS_AS_STRINGS, .short_call_ids = true}},
};

/* False: the template refuses the chat. */
static bool render(const struct chat_template *t, const char *messages, struct buf *out)
{
    struct json *context = NULL;
    struct buf text;

    buf_reset(out);
    buf_init(&text, PROBE_BYTES_MAX);
    enum status s = buf_printf(&text,
                               "{\"messages\":[%s],\"add_generation_prompt\":true,"
                               "\"documents\":null,\"tools\":null,\"bos_token\":\"\","
                               "\"eos_token\":\"\"}",
                               messages);
    if (s == OK)
        s = js_parse(&context, buf_str(&text), text.len, NULL);
    if (s == OK)
        s = chat_template_render(t, context, 0, out, NULL);
    js_unref(context);
    buf_fini(&text);
    return s == OK;
}

/* Whether the last rendering has a call with arguments as JSON or in the template's own notation.
 * Excluded: escaped quotes, which are JSON inside a JSON string, and 'QxKey', which is Python's
 * notation. */
static bool shows_call(const struct buf *out)
{
    const char *text = buf_str(out);

    return strstr(text, WORD_NAME) && strstr(text, WORD_VALUE) && !strstr(text, "\\\"QxKey") &&
           !strstr(text, "'QxKey'");
}

static void find_tool_calls(struct chat_traits *out, const struct chat_template *t,
                            struct buf *text)
{
    for (size_t i = 0; i < sizeof tool_probes / sizeof *tool_probes; i++) {
        if (!render(t, tool_probes[i].messages, text) || !shows_call(text))
            continue;
        *out = tool_probes[i].traits;
        out->tool_role = strstr(buf_str(text), WORD_RESULT) != NULL;
        return;
    }
    out->tool_role =
        render(t, USER ",{\"role\":\"assistant\",\"content\":\"QxCall\"}," TOOL(LONG_ID), text) &&
        strstr(buf_str(text), WORD_RESULT);
}

/* Whether a message of this role is rendered, as the first of the chat or as the second. */
static bool shows_role(const struct chat_template *t, const char *role, bool first,
                       struct buf *text)
{
    char messages[256];

    snprintf(messages, sizeof messages, "%s{\"role\":\"%s\",\"content\":\"" WORD_SYSTEM "\"}," USER,
             first ? "" : "{\"role\":\"system\",\"content\":\"QxFirst\"},", role);
    return render(t, messages, text) && strstr(buf_str(text), WORD_SYSTEM);
}

/* Whether the template supports role "developer": it names the role, and renders each message of
 * this role that it would render as "system". Templates that print the name of any role do not name
 * this one, and their models never saw it. */
static bool knows_developer(const struct chat_template *t, struct buf *text)
{
    if (!chat_template_mentions(t, "developer"))
        return false;
    for (int first = 0; first <= 1; first++)
        if (!shows_role(t, "developer", first, text) && shows_role(t, "system", first, text))
            return false;
    return shows_role(t, "developer", true, text);
}

void chat_traits_find(struct chat_traits *out, const struct chat_template *template)
{
    struct buf text;

    *out = (struct chat_traits){0};
    if (!template)
        return;
    buf_init(&text, PROBE_BYTES_MAX);
    find_tool_calls(out, template, &text);
    out->developer = knows_developer(template, &text);
    buf_fini(&text);
}
