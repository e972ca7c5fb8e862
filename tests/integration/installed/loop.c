/* loop.c - three chats at once on one loop of the installed library, as clients/c/README.md says
 * under "Thousands at once". Print how many ended well; status 0 when all did. */
#include <stdio.h>

#include <tarn_client.h>

#include "base/http.h"

#define N_CALLS 3

static void count(void *arg, struct tarn_call *call, const struct tarn_result *result)
{
    int *n_ok = arg;

    (void)call;
    if (result->error == TARN_OK)
        (*n_ok)++;
    else
        fprintf(stderr, "%s: %s\n", tarn_error_name(result->error), result->message);
}

int main(int argc, char **argv)
{
    struct tarn_client_config config = {.url = argc > 1 ? argv[1] : "http://127.0.0.1:8000"};
    struct tarn_message message = {"user", {"Hello", 0}};
    struct tarn_handlers handlers = {.on_end = count};
    struct tarn_request request;
    struct tarn_client *client;
    struct http_loop *loop;
    struct tarn_body body;
    char why[128] = "";
    int n_ok = 0;

    tarn_request_init(&request, TARN_CHAT);
    request.messages = &message;
    request.n_messages = 1;
    request.max_tokens = 4;
    if (tarn_client_create(&client, &config, why, sizeof why) != TARN_OK ||
        tarn_body_build(&body, &request, why, sizeof why) != TARN_OK ||
        http_loop_create(&loop, NULL) != OK)
        return fprintf(stderr, "set-up: %s\n", why), 2;
    for (int i = 0; i < N_CALLS; i++)
        if (tarn_call_start(NULL, loop, client, &body, &handlers, &n_ok) != TARN_OK)
            return 2;
    enum status s = http_loop_run(loop);
    printf("%d of %d: %s\n", n_ok, N_CALLS, status_name(s));
    http_loop_destroy(loop);
    tarn_body_fini(&body);
    tarn_client_destroy(client);
    return n_ok == N_CALLS ? 0 : 1;
}
