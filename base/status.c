#include "base/status.h"

struct status_row {
    const char *name;
    const char *words;
    int http;
    const char *type;
};

static const struct status_row table[STATUS_COUNT] = {
    [OK] = {"ok", "ok", 200, "none"},
    [ERR_INVALID] = {"invalid", "invalid input", 400, "invalid_request_error"},
    [ERR_UNAUTHORIZED] = {"unauthorized", "no valid key", 401, "authentication_error"},
    [ERR_FORBIDDEN] = {"forbidden", "not allowed", 403, "permission_error"},
    [ERR_NOT_FOUND] = {"not_found", "not found", 404, "not_found_error"},
    [ERR_TOO_LARGE] = {"too_large", "over a limit", 413, "invalid_request_error"},
    [ERR_UNSUPPORTED] = {"unsupported", "not supported", 400, "invalid_request_error"},
    [ERR_BUSY] = {"busy", "too busy, try again later", 429, "rate_limit_error"},
    [ERR_UNAVAILABLE] = {"unavailable", "not available now", 503, "unavailable_error"},
    [ERR_CANCELLED] = {"cancelled", "cancelled", 499, "cancelled_error"},
    [ERR_TIMEOUT] = {"timeout", "a deadline passed", 408, "timeout_error"},
    [ERR_NO_BLOCKS] = {"no_blocks", "no free KV block", 503, "unavailable_error"},
    [ERR_NOMEM] = {"nomem", "out of memory", 503, "unavailable_error"},
    [ERR_FULL] = {"full", "no room on disk", 507, "insufficient_storage_error"},
    [ERR_IO] = {"io", "an input or output error", 500, "internal_error"},
    [ERR_CORRUPT] = {"corrupt", "stored bytes are damaged", 500, "internal_error"},
    [ERR_INTERNAL] = {"internal", "an internal error", 500, "internal_error"},
};

static const struct status_row *row(enum status s)
{
    if ((unsigned)s >= STATUS_COUNT)
        s = ERR_INTERNAL;
    return &table[s];
}

const char *status_name(enum status s)
{
    return row(s)->name;
}

const char *status_words(enum status s)
{
    return row(s)->words;
}

int status_http(enum status s)
{
    return row(s)->http;
}

const char *status_error_type(enum status s)
{
    return row(s)->type;
}
