/* example.c - ask a question about a document and print the answer while it arrives. */
#include <stdio.h>

#include <tarn_client.h>

static bool print(void *arg, const struct tarn_chunk *chunk)
{
    (void)arg;
    fwrite(chunk->text, 1, chunk->text_len, stdout);
    return fflush(stdout) == 0; /* false hangs up */
}

int main(int argc, char **argv)
{
    struct tarn_client_config config = {.url = argc > 1 ? argv[1] : "http://127.0.0.1:8000"};
    struct tarn_message messages[] = {{"user", {"Who is the captain of Kumnordim?", 0}}};
    struct tarn_document documents[] = {{{"Kumnordim", 0}, {"The captain is Stamos.", 0}}};
    struct tarn_client *client;
    struct tarn_request request;
    struct tarn_answer answer;
    char why[128];

    if (tarn_client_create(&client, &config, why, sizeof why) != TARN_OK)
        return fprintf(stderr, "%s\n", why), 2;
    tarn_request_init(&request, TARN_CHAT); /* all fields unset */
    request.messages = messages;
    request.n_messages = 1;
    request.documents = documents;
    request.n_documents = 1;
    request.max_tokens = 64;
    request.stream = request.include_usage = true;
    enum tarn_error e = tarn_generate(&answer, client, &request, print, NULL);
    if (e == TARN_OK)
        printf("\n%lld tokens, %lld of them cached\n", (long long)answer.usage.prompt_tokens,
               (long long)answer.usage.cached_tokens);
    else
        fprintf(stderr, "%s: %s\n", tarn_error_name(e), answer.message);
    tarn_answer_fini(&answer);
    tarn_client_destroy(client);
    return e == TARN_OK ? 0 : 1;
}
