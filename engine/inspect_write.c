/* inspect_write.c - the report of engine/inspect.h as text and as JSON. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "engine/inspect.h"
#include "engine/model/family.h"

/* Text that fails once and then does nothing. */
struct writer {
    struct buf *out;
    enum status s;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *w, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    if (w->s == OK)
        w->s = buf_vprintf(w->out, format, ap);
    va_end(ap);
}

/* --- for people --- */

#define SIZE_BYTES 24

static const char *size_text(uint64_t n_bytes, char text[SIZE_BYTES])
{
    double mb = (double)n_bytes * 1e-6;

    if (mb >= 99950)
        snprintf(text, SIZE_BYTES, "%.0f GB", mb * 1e-3);
    else if (mb >= 1000)
        snprintf(text, SIZE_BYTES, "%.1f GB", mb * 1e-3);
    else
        snprintf(text, SIZE_BYTES, mb >= 10 ? "%.0f MB" : "%.1f MB", mb);
    return text;
}

static const char *count_text(double n, char text[SIZE_BYTES])
{
    if (n >= 1e9)
        snprintf(text, SIZE_BYTES, "%.2f billion", n * 1e-9);
    else
        snprintf(text, SIZE_BYTES, n >= 1e8 ? "%.0f million" : "%.1f million", n * 1e-6);
    return text;
}

static bool is_mixture(const struct inspection *i)
{
    return i->weights.n_active > 0 && i->weights.n_active < 0.99 * (double)i->weights.n_params;
}

static void put_shape(struct writer *w, const struct inspection *i)
{
    const struct model_config *m = &i->model;

    put(w, "  layers         %u, width %u, feed-forward %u\n", m->n_layers, m->dim,
        m->n_experts ? m->expert_dim : m->ffn_dim);
    if (m->n_experts)
        put(w, "  experts        %u, of which %u compute a token\n", m->n_experts, m->n_chosen);
    put(w, "  attention      %u heads, %u KV heads, head size %u", m->n_heads, m->n_kv_heads,
        m->head_dim);
    if (m->window)
        put(w, ", window %u", m->window);
    put(w, "\n  vocabulary     %u\n  context        %u tokens\n", m->n_vocab, m->max_pos);
}

static void put_weights(struct writer *w, const struct inspection *i)
{
    char a[SIZE_BYTES], b[SIZE_BYTES];

    if (i->is_measured && i->weights.n_faults == 0) {
        put(w, "  parameters     %s", count_text((double)i->weights.n_params, a));
        if (is_mixture(i))
            put(w, ", %s for each token", count_text(i->weights.n_active, b));
        put(w, "\n");
    }
    if (i->is_measured)
        for (uint32_t k = 0; k < i->weights.n_codes; k++)
            put(w, "  %-14s %s: %u tensors, %s\n", k ? "" : "stored as", i->weights.codes[k].name,
                i->weights.codes[k].n_tensors, size_text(i->weights.codes[k].n_bytes, a));
    if (i->stored_as[0])
        put(w, "  quantized by   %s\n", i->stored_as);
    put(w, "  files          %u %s, %s\n", i->n_files, i->is_gguf ? "GGUF" : "safetensors",
        size_text(i->n_file_bytes, a));
}

static void put_text(struct writer *w, const struct inspection *i)
{
    if (!i->has_tokenizer)
        return;
    put(w, "  tokenizer      %s, %u tokens\n", i->tokenizer, i->n_tokens);
    if (!i->is_embedding)
        put(w, "  chat template  %s\n",
            i->has_chat_template ? "yes" : "none: for chats, give the server a file with one");
}

/* An embedding model keeps no KV, and a server does not quantize it. */
static void put_embedding_memory(struct writer *w, const struct inspection *i)
{
    char text[SIZE_BYTES];

    put(w, "\n  weights take   %s\n", size_text(i->memories[0].weight_bytes, text));
    put(w, "  free now in %s: %s", i->device, size_text(i->n_free_bytes, text));
    put(w, " of %s\n", size_text(i->n_total_bytes, text));
}

static void put_memories(struct writer *w, const struct inspection *i)
{
    char text[SIZE_BYTES];

    if (i->is_embedding) {
        put_embedding_memory(w, i);
        return;
    }
    put(w, "\n  memory of a server, with the KV of so many tokens\n  %-26s%10s%10s", "", "weights",
        "buffers");
    for (uint32_t k = 0; k < i->n_contexts; k++)
        put(w, "%10u", i->contexts[k]);
    put(w, "%14s\n", "tokens fit");
    for (uint32_t k = 0; k < INSPECT_N_MEMORIES; k++) {
        const struct inspect_memory *m = &i->memories[k];
        char name[32];
        snprintf(name, sizeof name, k ? "%s" : "%s (%s)", m->quantization, m->type);
        if (k == 1 && strcmp(m->type, i->memories[0].type) == 0)
            continue; /* bf16 as stored */
        put(w, "  %-26s%10s", name, size_text(m->weight_bytes, text));
        put(w, "%10s", size_text(m->buffer_bytes, text));
        for (uint32_t c = 0; c < i->n_contexts; c++) {
            size_text(m->total_bytes[c], text);
            put(w, "%9s%s", text, m->fits[c] ? " " : "!");
        }
        if (m->n_tokens_fit)
            put(w, "%14" PRIu64 "\n", m->n_tokens_fit);
        else
            put(w, "%14s\n", "none");
    }
    put(w, "  bytes of a token's KV: %u (%s)", i->kv[0].token_bytes, i->kv[0].type);
    for (uint32_t k = 1; k < i->n_kv; k++)
        if (i->kv[k].token_bytes < i->kv[0].token_bytes)
            put(w, ", %u (%s)", i->kv[k].token_bytes, i->kv[k].type);
    put(w, "\n  free now in %s: ", i->device);
    put(w, "%s", size_text(i->n_free_bytes, text));
    put(w, " of %s (!: does not fit)\n", size_text(i->n_total_bytes, text));
}

enum status inspect_write(const struct inspection *i, struct buf *out)
{
    struct writer w = {out, OK};

    put(&w, "%s\n", i->name);
    if (strcmp(i->name, i->path) != 0)
        put(&w, "  path           %s\n", i->path);
    if (i->is_readable)
        put(&w, "  family         %s (%s)\n", i->model.family->name, i->architecture);
    else if (i->architecture[0])
        put(&w, "  architecture   %s\n", i->architecture);
    if (i->is_readable)
        put_shape(&w, i);
    put_weights(&w, i);
    put_text(&w, i);
    if (i->is_measured)
        put_memories(&w, i);
    put(&w, "\n  %s\n",
        i->n_reasons ? "A server refuses this model:"
        : i->model.n_labels
            ? "A server can load this model as its rerank model only: it gives texts "
              "labels."
        : i->is_embedding ? "A server can load this model as its embedding model only: it has no "
                            "output layer."
                          : "A server can load this model.");
    for (uint32_t k = 0; k < i->n_reasons; k++)
        put(&w, "  - %s\n", i->reasons[k]);
    if (i->n_more)
        put(&w, "  - and %u more of that kind\n", i->n_more);
    return w.s;
}

/* --- JSON --- */

static void put_string(struct writer *w, const char *name, const char *text)
{
    put(w, "\"%s\":", name);
    if (w->s == OK)
        w->s = text && text[0] ? js_write_string(w->out, text, strlen(text))
                               : buf_puts(w->out, "null");
}

static void put_json_model(struct writer *w, const struct inspection *i)
{
    const struct model_config *m = &i->model;

    put(w, ",");
    put_string(w, "family", m->family->name);
    put(w,
        ",\"context\":%u,\"layers\":%u,\"width\":%u,\"feed_forward\":%u,\"heads\":%u,"
        "\"kv_heads\":%u,\"head_size\":%u,\"vocabulary\":%u",
        m->max_pos, m->n_layers, m->dim, m->ffn_dim, m->n_heads, m->n_kv_heads, m->head_dim,
        m->n_vocab);
    if (m->window)
        put(w, ",\"window\":%u", m->window);
    if (m->n_experts)
        put(w, ",\"experts\":%u,\"chosen_experts\":%u", m->n_experts, m->n_chosen);
}

static void put_json_memory(struct writer *w, const struct inspection *i,
                            const struct inspect_memory *m)
{
    put(w, "{");
    put_string(w, "quantization", m->quantization);
    put(w, ",");
    put_string(w, "type", m->type);
    put(w,
        ",\"weight_bytes\":%" PRIu64 ",\"buffer_bytes\":%" PRIu64
        ",\"kv_bytes_per_token\":%u,\"tokens_that_fit\":%" PRIu64 ",\"contexts\":[",
        m->weight_bytes, m->buffer_bytes, m->kv_token_bytes, m->n_tokens_fit);
    for (uint32_t k = 0; k < i->n_contexts; k++)
        put(w, "%s{\"tokens\":%u,\"bytes\":%" PRIu64 ",\"fits\":%s}", k ? "," : "", i->contexts[k],
            m->total_bytes[k], m->fits[k] ? "true" : "false");
    put(w, "]}");
}

static void put_json_measured(struct writer *w, const struct inspection *i)
{
    put(w, ",\"use\":\"%s\"",
        i->model.n_labels ? "classification"
        : i->is_embedding ? "embeddings"
                          : "text");
    if (i->model.n_labels)
        put(w, ",\"labels\":%u", i->model.n_labels);
    put(w, ",\"parameters\":%" PRIu64 ",\"active_parameters\":%.0f,\"stored\":[",
        i->weights.n_params, is_mixture(i) ? i->weights.n_active : (double)i->weights.n_params);
    for (uint32_t k = 0; k < i->weights.n_codes; k++) {
        put(w, "%s{", k ? "," : "");
        put_string(w, "type", i->weights.codes[k].name);
        put(w, ",\"tensors\":%u,\"bytes\":%" PRIu64 "}", i->weights.codes[k].n_tensors,
            i->weights.codes[k].n_bytes);
    }
    put(w, "],\"memory\":[");
    for (uint32_t k = 0; k < INSPECT_N_MEMORIES; k++) {
        put(w, "%s", k ? "," : "");
        put_json_memory(w, i, &i->memories[k]);
    }
    put(w, "],\"kv_cache\":[");
    for (uint32_t k = 0; k < i->n_kv; k++)
        put(w, "%s{\"type\":\"%s\",\"bytes_per_token\":%u}", k ? "," : "", i->kv[k].type,
            i->kv[k].token_bytes);
    put(w, "],\"free_bytes\":%" PRIu64 ",\"total_bytes\":%" PRIu64, i->n_free_bytes,
        i->n_total_bytes);
}

enum status inspect_write_json(const struct inspection *i, struct buf *out)
{
    struct writer w = {out, OK};

    put(&w, "{\"object\":\"model.inspection\",");
    put_string(&w, "name", i->name);
    put(&w, ",");
    put_string(&w, "path", i->path);
    put(&w, ",");
    put_string(&w, "architecture", i->architecture);
    put(&w, ",");
    put_string(&w, "format", i->is_gguf ? "gguf" : "safetensors");
    put(&w, ",");
    put_string(&w, "quantized_by", i->stored_as);
    put(&w, ",\"files\":%u,\"file_bytes\":%" PRIu64, i->n_files, i->n_file_bytes);
    if (i->is_readable)
        put_json_model(&w, i);
    if (i->is_measured)
        put_json_measured(&w, i);
    put(&w, ",");
    put_string(&w, "tokenizer", i->tokenizer);
    put(&w, ",\"tokens\":%u,\"chat_template\":%s,\"loads\":%s,\"reasons\":[", i->n_tokens,
        i->has_chat_template ? "true" : "false", i->n_reasons ? "false" : "true");
    for (uint32_t k = 0; k < i->n_reasons && w.s == OK; k++) {
        put(&w, "%s", k ? "," : "");
        if (w.s == OK)
            w.s = js_write_string(out, i->reasons[k], strlen(i->reasons[k]));
    }
    put(&w, "],\"more_reasons\":%u}\n", i->n_more);
    return w.s;
}
