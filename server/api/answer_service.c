#include "server/api/answer_service.h"

#include <string.h>

#include "server/server.h"

/* Of all requests of the call. */
struct times {
    uint64_t submit, first_step, first_token, finish; /* the earliest ones, and the latest finish */
    uint64_t n_prompt, n_cached, n_out;
};

static void least(uint64_t *to, uint64_t ns)
{
    if (ns && (!*to || ns < *to))
        *to = ns;
}

static struct times times_of(const struct call *call)
{
    struct times t = {0};

    for (uint32_t i = 0; i < call->n_choices; i++) {
        const struct request *r = call->choices[i].request;
        uint64_t finish = atomic_load(&r->t_finish);

        least(&t.submit, atomic_load(&r->t_submit));
        least(&t.first_step, atomic_load(&r->t_first_step));
        least(&t.first_token, atomic_load(&r->t_first_token));
        t.finish = finish > t.finish ? finish : t.finish;
        t.n_out += call->choices[i].n_taken;
        if (i % call->params.best_of == 0) {
            t.n_prompt += r->prompt.n_ids;
            t.n_cached += atomic_load(&r->n_cached);
        }
    }
    return t;
}

static double ms_between(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns && to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-6 : 0;
}

static void write_ms(struct writer *w, const char *name, double ms)
{
    write_format(w, ",\"%s\":", name);
    write_number(w, ms);
}

static void write_rate(struct writer *w, const char *name, uint64_t n, double ms)
{
    write_format(w, ",\"%s\":", name);
    if (ms > 0)
        write_number(w, (double)n * 1e3 / ms);
    else
        write_puts(w, "null");
}

/* llama.cpp's names; queue_ms is ours. */
static void write_timings(struct writer *w, const struct call *call)
{
    struct times t = times_of(call);
    double prompt_ms = ms_between(t.first_step, t.first_token);
    double out_ms = ms_between(t.first_token, t.finish);
    uint64_t n_computed = t.n_prompt - t.n_cached;

    write_format(w, ",\"timings\":{\"cache_n\":%llu,\"prompt_n\":%llu,\"predicted_n\":%llu",
                 (unsigned long long)t.n_cached, (unsigned long long)n_computed,
                 (unsigned long long)t.n_out);
    write_ms(w, "queue_ms", ms_between(t.submit, t.first_step));
    write_ms(w, "prompt_ms", prompt_ms);
    write_rate(w, "prompt_per_second", n_computed, prompt_ms);
    write_ms(w, "predicted_ms", out_ms);
    write_rate(w, "predicted_per_second", t.n_out, out_ms);
    write_puts(w, "}");
}

/* The parameters that a router gives to the instance that goes on. The block ids and ports that
 * vLLM names there have no meaning in a pool, which finds KV by the prompt's tokens. */
static void write_transfer(struct writer *w, const struct call *call)
{
    const char *name = call->srv->config->instance_name;

    write_puts(w, ",\"kv_transfer_params\":{\"do_remote_prefill\":true,\"do_remote_decode\":false,"
                  "\"remote_engine_id\":");
    write_json(w, name, strlen(name));
    write_puts(w, ",\"remote_request_id\":");
    write_json(w, call->id, strlen(call->id));
    write_puts(w, "}");
}

bool answer_has_service(const struct call *call)
{
    return call->params.return_timings || call->params.hands_over;
}

void answer_write_service(struct writer *w, const struct call *call)
{
    if (call->params.return_timings)
        write_timings(w, call);
    if (call->params.hands_over)
        write_transfer(w, call);
}
