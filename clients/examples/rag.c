/* rag.c - register documents and ask about them, over libtarn-client: rag [URL] */
#include <stdio.h>

#include <tarn_client.h>

static const char *const documents[][2] = {
    {"Kumnordim", "Kumnordim is a ship. The captain of Kumnordim is Stamos."},
    {"Mirandol", "Mirandol is a ship. The captain of Mirandol is Tavish."},
};

static int fail(struct tarn_answer *a)
{
    fprintf(stderr, "%s: %s\n", tarn_error_name(a->error), a->message);
    tarn_answer_fini(a);
    return 1;
}

static int put_documents(const struct tarn_client *client)
{
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++) {
        struct tarn_document_fields fields;
        struct tarn_answer a;

        tarn_document_fields_init(&fields);
        fields.title.data = documents[i][0];
        fields.text.data = documents[i][1];
        fields.prefill = "now";
        if (tarn_document_put(&a, client, documents[i][0], &fields) != TARN_OK)
            return fail(&a);
        tarn_answer_fini(&a);
    }
    return 0;
}

static int ask(const struct tarn_client *client, const char *question)
{
    struct tarn_message message = {"user", {question, 0}};
    struct tarn_retrieval retrieval = {.top_k = 2};
    struct tarn_request request;
    struct tarn_answer a;

    tarn_request_init(&request, TARN_CHAT);
    request.messages = &message;
    request.n_messages = 1;
    request.retrieval = &retrieval;
    request.max_tokens = 32;
    request.temperature = 0;
    if (tarn_generate(&a, client, &request, NULL, NULL) != TARN_OK)
        return fail(&a);
    printf("%s\n", a.text);
    for (size_t i = 0; i < a.n_sources; i++)
        printf("  %s: score %.3f, %lld of %lld tokens cached\n", a.sources[i].title,
               a.sources[i].score, (long long)a.sources[i].cached_tokens,
               (long long)a.sources[i].n_tokens);
    tarn_answer_fini(&a);
    return 0;
}

int main(int argc, char **argv)
{
    struct tarn_client_config config = {.url = argc > 1 ? argv[1] : "http://127.0.0.1:8000"};
    struct tarn_client *client;
    char why[128];

    if (tarn_client_create(&client, &config, why, sizeof why) != TARN_OK)
        return fprintf(stderr, "%s\n", why), 2;
    int code = put_documents(client);
    if (code == 0)
        code = ask(client, "Who is the captain of Mirandol?");
    tarn_client_destroy(client);
    return code;
}
