#include "loadgen/sim/cost.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/json.h"
#include "base/mapfile.h"

#define FLOOR_S 27e-3
#define TOKEN_S 0.17e-3
#define KV_TOKEN_S 0.0006e-3

/* The formula is linear in each number: a few points give exact values between and above them. */
enum status sim_cost_builtin(struct cost_model *m, struct buf *why)
{
    static const uint32_t cached[] = {0, 2048}, fresh[] = {1, 2048}, batch[] = {1, 64};
    double seconds[2][2], decode[2][2];

    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) {
            seconds[i][k] = FLOOR_S + TOKEN_S * fresh[k] + KV_TOKEN_S * cached[i];
            decode[i][k] = FLOOR_S + KV_TOKEN_S * cached[i] * batch[k];
        }
    return cost_model_init(m,
                           &(struct cost_points){.cached = cached,
                                                 .new_tokens = fresh,
                                                 .batch = batch,
                                                 .n_cached = 2,
                                                 .n_new = 2,
                                                 .n_batch = 2,
                                                 .seconds = seconds[0],
                                                 .decode = decode[0]},
                           why);
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* cost_model_read() wants the fingerprint and device that the file itself names. */
static bool read_subject(struct cost_model_subject *subject, const struct json *j)
{
    const struct json *print = js_get(j, "fingerprint"), *device = js_get(j, "device");
    size_t n_print, n_device;

    *subject = (struct cost_model_subject){{0}, ""};
    if (!js_is(print, JS_STRING) || !js_is(device, JS_STRING))
        return false;
    const char *hex = js_string(print, &n_print), *words = js_string(device, &n_device);
    if (n_print != 2 * sizeof subject->fingerprint || n_device >= sizeof subject->device)
        return false;
    for (size_t i = 0; i < sizeof subject->fingerprint; i++) {
        int high = digit_of(hex[2 * i]), low = digit_of(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        subject->fingerprint[i] = (uint8_t)(16 * high + low);
    }
    memcpy(subject->device, words, n_device);
    return true;
}

static enum status load_text(struct cost_model *m, const char *text, size_t len, struct buf *why)
{
    struct cost_model_subject subject;
    struct json *j = NULL;
    enum status s = js_parse(&j, text, len, why);

    if (s == OK && !read_subject(&subject, j))
        s = buf_why(why, ERR_INVALID,
                    "fingerprint, device: expected 64 hex digits, and words: is "
                    "this a cost profile that tarn-server saved?");
    js_unref(j);
    return s == OK ? cost_model_read(m, text, len, &subject, why) : s;
}

enum status sim_cost_load(struct cost_model *m, const char *path, struct buf *why)
{
    struct mapfile file;
    struct buf words;
    enum status s = mapfile_open(&file, path, why);

    if (s != OK)
        return s;
    buf_init(&words, BUF_WHY_MAX);
    s = load_text(m, file.data ? (const char *)file.data : "", file.n_bytes, &words);
    mapfile_close(&file);
    if (s != OK)
        buf_why(why, s, "--cost-model %s: %s", path, buf_str(&words));
    buf_fini(&words);
    return s;
}
