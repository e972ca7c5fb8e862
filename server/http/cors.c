#include "server/http/cors.h"

#include <stddef.h>
#include <string.h>

bool cors_allows(const char *list, const char *origin)
{
    if (!origin)
        return false;
    while (*list) {
        list += strspn(list, ", \t");
        size_t n = strcspn(list, ","), n_word = n;
        while (n_word > 0 && (list[n_word - 1] == ' ' || list[n_word - 1] == '\t'))
            n_word--;
        if (n_word == 1 && list[0] == '*')
            return true;
        if (n_word > 0 && strlen(origin) == n_word && memcmp(list, origin, n_word) == 0)
            return true;
        list += n;
    }
    return false;
}
