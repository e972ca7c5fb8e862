#include "base/status.h"

struct status_row {
    const char *name;
    int http;
    const char *type;
};

static const struct status_row table[STATUS_COUNT] = {
    [OK] = {"ok", 200, "none"},
    [ERR_INVALID] = {"invalid", 400, "invalid_request_error"},
    [ERR_UNAUTHORIZED] = {"unauthorized", 401, "authentication_error"},
    [ERR_FORBIDDEN] = {"forbidden", 403, "permission_error"},
    [ERR_NOT_FOUND] = {"not_found", 404, "not_found_error"},
    [ERR_TOO_LARGE] = {"too_large", 413, "invalid_request_error"},
    [ERR_UNSUPPORTED] = {"unsupported", 400, "invalid_request_error"},
    [ERR_BUSY] = {"busy", 429, "rate_limit_error"},
    [ERR_UNAVAILABLE] = {"unavailable", 503, "unavailable_error"},
    [ERR_CANCELLED] = {"cancelled", 499, "cancelled_error"},
    [ERR_TIMEOUT] = {"timeout", 408, "timeout_error"},
    [ERR_NO_BLOCKS] = {"no_blocks", 503, "unavailable_error"},
    [ERR_NOMEM] = {"nomem", 503, "unavailable_error"},
    [ERR_IO] = {"io", 500, "internal_error"},
    [ERR_CORRUPT] = {"corrupt", 500, "internal_error"},
    [ERR_INTERNAL] = {"internal", 500, "internal_error"},
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

int status_http(enum status s)
{
    return row(s)->http;
}

const char *status_error_type(enum status s)
{
    return row(s)->type;
}
