/* api_media.c - what others' servers have and this one has not: sound and pictures of OpenAI's API,
 * adapters (LoRA) of vLLM's and SGLang's. 501. */
#include "server/api/api.h"
#include "server/http/error.h"
#include "server/server.h"

void api_media(struct server *srv, struct http_exchange *x)
{
    (void)srv;
    error_reply_as(x, 501, ERR_UNSUPPORTED, "not_implemented",
                   "this server generates text from text: sound and pictures are not supported");
}

void api_adapters(struct server *srv, struct http_exchange *x)
{
    (void)srv;
    error_reply_as(x, 501, ERR_UNSUPPORTED, "not_implemented",
                   "adapters (LoRA) are not supported; serve a model into which they are merged");
}
