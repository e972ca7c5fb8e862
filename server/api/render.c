#include "server/api/render.h"

#include <inttypes.h>
#include <string.h>

#include "server/api/call.h"
#include "server/api/writer.h"
#include "server/server.h"

static void write_ids(struct writer *w, const struct prompt *p)
{
    const uint32_t *ids = prompt_ids(p);

    write_puts(w, "\"token_ids\":[");
    for (uint32_t i = 0; i < prompt_n_ids(p); i++)
        write_format(w, "%s%" PRIu32, i ? "," : "", ids[i]);
    write_puts(w, "]");
}

static void write_sampling(struct writer *w, const struct params *p)
{
    const struct sampling *s = &p->sampling;

    write_format(w, "\"sampling_params\":{\"n\":%" PRIu32 ",\"temperature\":", p->n);
    write_number(w, (double)s->temperature);
    write_puts(w, ",\"top_p\":");
    write_number(w, (double)s->top_p);
    write_format(w, ",\"top_k\":%" PRIu32 ",\"min_p\":", s->top_k);
    write_number(w, (double)s->min_p);
    write_puts(w, ",\"repetition_penalty\":");
    write_number(w, (double)s->repetition_penalty);
    write_puts(w, ",\"presence_penalty\":");
    write_number(w, (double)s->presence_penalty);
    write_puts(w, ",\"frequency_penalty\":");
    write_number(w, (double)s->frequency_penalty);
    write_format(w, ",\"max_tokens\":%" PRIu32 ",\"min_tokens\":%" PRIu32 "}",
                 p->stopping.max_tokens, p->stopping.min_tokens);
}

static void write_prompt(struct writer *w, const struct call *call, uint32_t i)
{
    const struct params *p = &call->params;

    write_puts(w, "{\"request_id\":");
    write_json(w, call->id, strlen(call->id));
    write_puts(w, ",");
    write_ids(w, &call->prompts[i]);
    write_puts(w, ",\"features\":null,");
    write_sampling(w, p);
    write_puts(w, ",\"model\":");
    write_json(w, p->model, strlen(p->model));
    write_format(w, ",\"stream\":%s,\"priority\":%" PRId32 ",\"kv_transfer_params\":null}",
                 p->stream ? "true" : "false", p->priority);
}

enum status render_write(const struct call *call, struct buf *out)
{
    bool is_list = call->shape->kind == PARAMS_COMPLETION;
    struct writer w = {out, OK};

    write_puts(&w, is_list ? "[" : "");
    for (uint32_t i = 0; i < call->n_prompts; i++) {
        write_puts(&w, i ? "," : "");
        write_prompt(&w, call, i);
    }
    write_puts(&w, is_list ? "]" : "");
    return w.status;
}
