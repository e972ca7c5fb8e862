#include "server/api/caller.h"

#include <string.h>

#include "server/auth/auth.h"
#include "server/http/http.h"
#include "server/server.h"

struct account *caller_account(const struct http_exchange *x)
{
    return http_kept(x);
}

/* Whether only processes of this machine can connect. */
static bool is_local(const struct config *c)
{
    const char *host = c->host;

    return (c->uds && c->uds[0]) || !host || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

enum status caller_check_admin(const struct server *srv, const struct account *a, struct buf *why)
{
    if (a->admin || (!auth_needs_key(srv->auth) && is_local(srv->config)))
        return OK;
    if (!auth_needs_key(srv->auth))
        return buf_why(why, ERR_FORBIDDEN,
                       "this needs an admin key (--admin-api-key) on a server "
                       "that listens to other machines");
    if (!auth_has_admin_key(srv->auth))
        return buf_why(why, ERR_FORBIDDEN,
                       "this needs an admin key, and the server has none: "
                       "start it with --admin-api-key");
    return buf_why(why, ERR_FORBIDDEN, "this needs an admin key (--admin-api-key)");
}
