#include "loadgen/load/probe.h"

#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "loadgen/load/words.h"

#define TEXT_BYTES_MAX (1u << 20)
#define N_SAMPLES 3

enum status probe_model(const struct tarn_client *client, char *model, size_t size, struct buf *why)
{
    struct tarn_answer a;
    enum status s = OK;

    if (tarn_models(&a, client) != TARN_OK)
        s = buf_why(why, ERR_UNAVAILABLE, "/v1/models: %s %s", tarn_error_name(a.error), a.message);
    size_t n = s == OK ? strcspn(a.text, "\n") : 0;
    if (s == OK && (n == 0 || n >= size))
        s = buf_why(why, ERR_INVALID, "/v1/models names no model: give --model");
    if (s == OK) {
        memcpy(model, a.text, n);
        model[n] = '\0';
    }
    tarn_answer_fini(&a);
    return s;
}

enum status probe_ready(const struct tarn_client *client, double timeout_s, struct buf *why)
{
    uint64_t until_ns = clock_now_ns() + (uint64_t)(timeout_s * 1e9);

    for (;;) {
        struct tarn_answer a;
        enum tarn_error e = tarn_models(&a, client);
        enum status s = e == TARN_OK || e == TARN_ERR_HTTP_4XX
                            ? OK
                            : buf_why(why, ERR_UNAVAILABLE,
                                      "the server does not answer: %s "
                                      "%s",
                                      tarn_error_name(e), a.message);
        tarn_answer_fini(&a);
        if (s == OK || clock_now_ns() >= until_ns)
            return s;
        clock_sleep_ns(UINT64_C(200000000));
    }
}

/* Tokens of a prompt of n_words words, by /tokenize; -1: the server has no such route, or answers
 * in another form. */
static double count_by_tokenize(const struct tarn_client *client, const struct prompt_style *style,
                                uint64_t id, uint32_t n_words)
{
    struct buf text, body;
    struct tarn_answer a;
    struct json *j = NULL;
    int64_t n = -1;

    buf_init(&text, TEXT_BYTES_MAX);
    buf_init(&body, TEXT_BYTES_MAX);
    bool chat = style->kind == TARN_CHAT;
    enum status s = words_write(&text, id, n_words);
    if (s == OK)
        s = buf_puts(&body,
                     chat ? "{\"messages\":[{\"role\":\"user\",\"content\":" : "{\"prompt\":");
    if (s == OK)
        s = js_write_string(&body, text.data, text.len);
    if (s == OK)
        s = buf_puts(&body, chat ? "}]" : "");
    if (s == OK && style->model) {
        s = buf_puts(&body, ",\"model\":");
        if (s == OK)
            s = js_write_string(&body, style->model, strlen(style->model));
    }
    if (s == OK)
        s = buf_putc(&body, '}');
    if (s == OK) {
        if (tarn_fetch(&a, client, "/tokenize", body.data, body.len) == TARN_OK &&
            js_parse(&j, a.text, a.text_len, NULL) == OK &&
            js_get_i64(j, "count", 1, INT32_MAX, &n, NULL) != OK)
            n = -1;
        js_unref(j);
        tarn_answer_fini(&a);
    }
    buf_fini(&text);
    buf_fini(&body);
    return (double)n;
}

/* The same from the usage of a request for one token; -1: the answer has no usage. */
static double count_by_request(const struct tarn_client *client, const struct prompt_style *style,
                               uint64_t id, uint32_t n_words)
{
    struct prompt_style plain = *style;
    struct load_request r;
    struct tarn_body body = {0};
    struct tarn_answer a;
    double n = -1;

    load_request_init(&r, 0);
    plain.tokens_per_word = 1;
    plain.overhead_tokens = 0;
    plain.stream = false;
    r.n_output_tokens = 1;
    struct part *p = load_request_add(&r, PART_USER, id, n_words);
    if (p && prompt_build(&body, &plain, &r, NULL, NULL) == OK) {
        const char *path = style->kind == TARN_CHAT ? "/v1/chat/completions" : "/v1/completions";
        if (tarn_fetch(&a, client, path, body.data, body.len) == TARN_OK) {
            struct json *j = NULL;
            int64_t tokens = -1;
            if (js_parse(&j, a.text, a.text_len, NULL) == OK &&
                js_get_i64(js_get(j, "usage"), "prompt_tokens", 1, INT32_MAX, &tokens, NULL) == OK)
                n = (double)tokens;
            js_unref(j);
        }
        tarn_answer_fini(&a);
    }
    tarn_body_fini(&body);
    load_request_fini(&r);
    return n;
}

/* Tokens of a prompt of n_words words, or -1. */
typedef double counter(const struct tarn_client *, const struct prompt_style *, uint64_t id,
                       uint32_t n_words);

/* The line through the counts of short and long texts. */
static bool calibrate_by(counter *count, const struct tarn_client *client,
                         struct prompt_style *style, uint32_t n_short, uint32_t n_long,
                         int n_samples)
{
    double of_short = 0, of_long = 0;

    for (int i = 0; i < n_samples; i++) {
        double a = count(client, style, 1000u + (unsigned)i, n_short);
        double b = a > 0 ? count(client, style, 2000u + (unsigned)i, n_long) : -1;
        if (b <= a)
            return false;
        of_short += a / n_samples;
        of_long += b / n_samples;
    }
    double slope = (of_long - of_short) / (n_long - n_short);
    double overhead = of_short - slope * n_short;
    style->tokens_per_word = slope;
    style->overhead_tokens = overhead > 0 ? overhead : 0;
    return true;
}

enum calibration probe_calibrate(const struct tarn_client *client, struct prompt_style *style)
{
    if (calibrate_by(count_by_tokenize, client, style, 64, 256, N_SAMPLES))
        return CALIBRATION_TOKENIZE;
    /* Short prompts: the model computes them, and its context may be small. */
    if (calibrate_by(count_by_request, client, style, 8, 40, 1))
        return CALIBRATION_REQUESTS;
    return CALIBRATION_NONE;
}

const char *calibration_name(enum calibration c)
{
    static const char *const names[] = {"none", "tokenize", "requests"};

    return names[c];
}

bool probe_reset_cache(const struct tarn_client *client)
{
    struct tarn_answer a;
    bool done = tarn_cache_reset(&a, client) == TARN_OK;

    tarn_answer_fini(&a);
    return done;
}
