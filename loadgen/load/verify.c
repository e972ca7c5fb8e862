#include "loadgen/load/verify.h"

#include <string.h>

#include "loadgen/load/probe.h"

#define TEXT_BYTES_MAX (16u << 20)

struct answer {
    struct buf text;
    enum tarn_error error;
    enum status status;
};

static void on_chunk(void *arg, struct tarn_call *call, const struct tarn_chunk *c)
{
    struct answer *a = arg;

    (void)call;
    if (c->has_delta && c->index == 0 && a->status == OK)
        a->status = buf_append(&a->text, c->text, c->text_len);
}

static void on_end(void *arg, struct tarn_call *call, const struct tarn_result *r)
{
    struct answer *a = arg;

    (void)call;
    a->error = r->error;
}

static enum status ask(struct answer *a, struct http_loop *loop, const struct tarn_client *client,
                       const struct tarn_body *body)
{
    static const struct tarn_handlers handlers = {NULL, on_chunk, on_end};

    buf_reset(&a->text);
    a->status = OK;
    a->error = tarn_call_start(NULL, loop, client, body, &handlers, a);
    if (a->error != TARN_OK)
        return OK;
    enum status s = http_loop_run(loop);
    return s != OK ? s : a->status;
}

/* The first byte in which two texts differ; SIZE_MAX: they are equal. */
static size_t difference(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t i = 0;

    while (i < n_a && i < n_b && a[i] == b[i])
        i++;
    return i == n_a && i == n_b ? SIZE_MAX : i;
}

static void note(struct verify_result *v, uint64_t *count, size_t at, uint64_t index)
{
    if (at == SIZE_MAX)
        return;
    if (!verify_differs(v)) {
        v->first_index = index;
        v->first_byte = at;
    }
    (*count)++;
}

static enum status check_one(struct verify_result *v, const struct outcome *o,
                             struct http_loop *loop, const struct tarn_client *client,
                             struct answer *cold, struct answer *warm)
{
    v->cold = probe_reset_cache(client) && (v->cold || v->n_checked == 0);
    enum status s = ask(cold, loop, client, &o->body);
    if (s == OK)
        s = ask(warm, loop, client, &o->body);
    v->n_checked++;
    if (s != OK)
        return s;
    if (cold->error != TARN_OK || warm->error != TARN_OK) {
        v->n_failed++;
        return OK;
    }
    const char *loaded = o->text ? o->text : "";
    note(v, &v->n_load_differs,
         difference(loaded, o->text_len, buf_str(&cold->text), cold->text.len), o->index);
    note(v, &v->n_warm_differs,
         difference(buf_str(&cold->text), cold->text.len, buf_str(&warm->text), warm->text.len),
         o->index);
    return OK;
}

enum status verify_run(struct verify_result *v, const struct outcome_list *outcomes,
                       struct http_loop *loop, struct tarn_client *const *clients,
                       uint32_t n_clients)
{
    struct answer cold = {.status = OK}, warm = {.status = OK};
    enum status s = OK;

    memset(v, 0, sizeof *v);
    buf_init(&cold.text, TEXT_BYTES_MAX);
    buf_init(&warm.text, TEXT_BYTES_MAX);
    for (size_t i = 0; s == OK && i < outcomes->n; i++) {
        const struct outcome *o = &outcomes->v[i];
        if (!o->verify)
            continue;
        if (o->end != OUTCOME_OK) {
            v->n_skipped++;
            continue;
        }
        uint32_t client = o->tenant < n_clients ? o->tenant : 0;
        s = check_one(v, o, loop, clients[client], &cold, &warm);
    }
    buf_fini(&cold.text);
    buf_fini(&warm.text);
    return s;
}

bool verify_differs(const struct verify_result *v)
{
    return v->n_load_differs + v->n_warm_differs > 0;
}
