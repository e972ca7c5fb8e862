/* api_media.c - what others' servers have and this one has not: sound and pictures of OpenAI's API,
 * a sleep without memory of vLLM's and SGLang's. 501. */
#include "server/api/api.h"
#include "server/http/error.h"
#include "server/server.h"

void api_media(struct server *srv, struct http_exchange *x)
{
    (void)srv;
    error_reply_as(x, 501, ERR_UNSUPPORTED, "not_implemented",
                   "this server generates text from text: sound and pictures are not supported");
}

void api_sleep(struct server *srv, struct http_exchange *x)
{
    (void)srv;
    error_reply_as(x, 501, ERR_UNSUPPORTED, "not_implemented",
                   "the memory of weights and KV cannot be released while the server runs; "
                   "POST /pause stops its steps");
}
