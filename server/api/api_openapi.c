/* api_openapi.c - GET /openapi.json: the description of all endpoints, which the build embeds. */
#include "server/api/api.h"
#include "server/api/openapi_text.h"
#include "server/server.h"

void api_openapi(struct server *srv, struct http_exchange *x)
{
    struct buf body;
    struct writer w = {&body, OK};

    (void)srv;
    buf_init(&body, openapi_text_len);
    write_bytes(&w, openapi_text, openapi_text_len);
    api_reply(x, &w);
}
