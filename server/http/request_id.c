#include "server/http/request_id.h"

#include <string.h>

#include "server/http/http.h"

bool request_id_is_sane(const char *id)
{
    size_t n = id ? strlen(id) : 0;

    if (n == 0 || n >= HTTP_ID_BYTES)
        return false;
    return strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}
