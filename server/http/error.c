#include "server/http/error.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "server/http/http.h"

#define ERROR_BYTES_MAX 16384

/* The default code of a status: OpenAI's where OpenAI has one. */
static const char *code_of(enum status s)
{
    switch (s) {
    case ERR_INVALID: return "invalid_value";
    case ERR_UNAUTHORIZED: return "invalid_api_key";
    case ERR_FORBIDDEN: return "forbidden";
    case ERR_NOT_FOUND: return "not_found";
    case ERR_TOO_LARGE: return "too_large";
    case ERR_UNSUPPORTED: return "unsupported_parameter";
    case ERR_BUSY: return "rate_limit_exceeded";
    case ERR_UNAVAILABLE:
    case ERR_NO_BLOCKS:
    case ERR_NOMEM: return "unavailable";
    case ERR_CANCELLED: return "cancelled";
    case ERR_TIMEOUT: return "timeout";
    default: return "internal_error";
    }
}

/* Length of a leading "name[2].key" before a colon and a space; 0 if there is none. */
static size_t param_len(const char *words)
{
    size_t n = strspn(words, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.[]");

    return n > 0 && words[n] == ':' && words[n + 1] == ' ' ? n : 0;
}

enum status error_write(struct buf *out, enum status s, const char *code, const char *words)
{
    size_t n_param = param_len(words);
    enum status st = buf_puts(out, "{\"error\":{\"message\":");

    if (st == OK)
        st = js_write_string(out, words, strlen(words));
    if (st == OK)
        st = buf_printf(out, ",\"type\":\"%s\",\"param\":", status_error_type(s));
    if (st == OK)
        st = n_param ? js_write_string(out, words, n_param) : buf_puts(out, "null");
    if (st == OK)
        st = buf_printf(out, ",\"code\":\"%s\"}}", code ? code : code_of(s));
    return st;
}

/* Anthropic's type of an HTTP status. */
static const char *type_of(int http)
{
    switch (http) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 408: return "timeout_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return http < 500 ? "invalid_request_error" : "api_error";
    }
}

enum status error_write_anthropic(struct buf *out, int http, enum status s, const char *code,
                                  const char *words, const char *request_id)
{
    enum status st = buf_printf(
        out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type_of(http));

    if (st == OK)
        st = js_write_string(out, words, strlen(words));
    if (st == OK)
        st = buf_printf(
            out, ",\"details\":{\"error_code\":\"%s\"}},\"request_id\":", code ? code : code_of(s));
    if (st == OK)
        st = js_write_string(out, request_id, strlen(request_id));
    return st == OK ? buf_puts(out, "}") : st;
}

enum status error_write_for(const struct http_exchange *x, struct buf *out, int http, enum status s,
                            const char *code, const char *words)
{
    return http_error_form(x) == HTTP_ERRORS_ANTHROPIC
               ? error_write_anthropic(out, http, s, code, words, http_id(x))
               : error_write(out, s, code, words);
}

/* Default Retry-After of an HTTP status; 0: none. */
static uint32_t retry_s_of(int http)
{
    return http == 429 ? 1 : http == 503 ? 5 : 0;
}

/* The value of x-llm-d-request-dropped-reason: the reason of a refusal in the words of llm-d's
 * router, which passes it on to the client. */
static const char *dropped_reason(int http, const char *code)
{
    if (code && strcmp(code, "draining") == 0)
        return "rejected-shutting-down";
    if (code && strcmp(code, "slo_unattainable") == 0)
        return "rejected-slo-unattainable";
    return http == 429 ? "rejected-saturated" : "rejected-unavailable";
}

static void reply(struct http_exchange *x, int http, enum status s, const char *code,
                  const char *words, uint32_t retry_s)
{
    char retry[16];
    struct buf body;

    buf_init(&body, ERROR_BYTES_MAX);
    enum status st =
        error_write_for(x, &body, http, s, code, words && words[0] ? words : status_words(s));
    http_set_error(x, code ? code : code_of(s));
    if (!http_replied(x)) {
        snprintf(retry, sizeof retry, "%u", retry_s);
        if (retry_s_of(http)) {
            http_add_header(x, "Retry-After", retry);
            http_add_header(x, "x-llm-d-request-dropped-reason", dropped_reason(http, code));
        } else if (http == 401) {
            http_add_header(x, "WWW-Authenticate", "Bearer");
        }
    }
    http_reply(x, http, "application/json", st == OK ? &body : NULL);
    buf_fini(&body);
}

void error_reply_as(struct http_exchange *x, int http, enum status s, const char *code,
                    const char *words)
{
    reply(x, http, s, code, words, retry_s_of(http));
}

void error_reply_later(struct http_exchange *x, enum status s, const char *code, const char *words,
                       uint32_t retry_s)
{
    reply(x, status_http(s), s, code, words, retry_s);
}

void error_reply(struct http_exchange *x, enum status s, const char *code, const char *words)
{
    error_reply_as(x, status_http(s), s, code, words);
}

void error_reply_too_long(struct http_exchange *x, const char *words)
{
    error_reply_as(x, 400, ERR_INVALID, "context_length_exceeded", words);
}
