/* api_media.c - what others' servers have and this one has not: sound and pictures of OpenAI's API.
 * 501. */
#include "server/api/api.h"
#include "server/http/error.h"
#include "server/server.h"

void api_media(struct server *srv, struct http_exchange *x)
{
    (void)srv;
    error_reply_as(x, 501, ERR_UNSUPPORTED, "not_implemented",
                   "this server generates text from text: sound and pictures are not supported");
}
