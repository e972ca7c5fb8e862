// plus_plus.cpp - the installed headers in C++: the models on standard output.
#include <cstdio>

#include <tarn_client.h>

#include "base/http.h"

int main(int argc, char **argv)
{
    tarn_client_config config{};
    tarn_client *client = nullptr;
    tarn_answer answer{};
    hist none{};

    config.url = argc > 1 ? argv[1] : "http://127.0.0.1:8000";
    if (tarn_client_create(&client, &config, nullptr, 0) != TARN_OK)
        return 2;
    tarn_error e = tarn_models(&answer, client);
    std::printf("%s\n", answer.text);
    tarn_answer_fini(&answer);
    tarn_client_destroy(client);
    return e == TARN_OK && hist_quantile(&none, 0.5) == 0 ? 0 : 1;
}
