#include "server/api/response_output.h"

#include <inttypes.h>
#include <stdio.h>

#define TEXT_BYTES_MAX (256u << 20)
#define NAME_BYTES_MAX 1024

void response_output_init(struct response_output *o)
{
    *o = (struct response_output){.open = RESPONSE_NONE};
    buf_init(&o->items, TEXT_BYTES_MAX);
    buf_init(&o->text, TEXT_BYTES_MAX);
    buf_init(&o->logprobs, TEXT_BYTES_MAX);
    buf_init(&o->annotations, TEXT_BYTES_MAX);
    buf_init(&o->fields, TEXT_BYTES_MAX);
    buf_init(&o->call_id, NAME_BYTES_MAX);
    buf_init(&o->name, NAME_BYTES_MAX);
}

void response_output_fini(struct response_output *o)
{
    buf_fini(&o->items);
    buf_fini(&o->text);
    buf_fini(&o->logprobs);
    buf_fini(&o->annotations);
    buf_fini(&o->fields);
    buf_fini(&o->call_id);
    buf_fini(&o->name);
}

/* --- events --- */

void response_event_begin(struct response_output *o, struct writer *w, const char *name)
{
    write_format(w, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%" PRIu64, name, name,
                 o->n_events++);
}

void response_event_end(struct writer *w)
{
    write_puts(w, "}\n\n");
}

/* Begin an event about the open item. */
static void begin(struct response_output *o, struct writer *w, const char *name)
{
    response_event_begin(o, w, name);
    write_format(w, ",\"output_index\":%u,\"item_id\":", o->n_items);
    write_json(w, o->item_id, strlen(o->item_id));
}

static bool is_summary(const struct response_output *o)
{
    return o->open == RESPONSE_REASONING && o->in_summary;
}

static void write_index(const struct response_output *o, struct writer *w)
{
    if (o->open != RESPONSE_CALL)
        write_format(w, ",\"%s\":0", is_summary(o) ? "summary_index" : "content_index");
}

/* --- items --- */

/* The content part of the open message or reasoning. */
static void write_part(const struct response_output *o, struct writer *w)
{
    static const char *const types[] = {
        [RESPONSE_REASONING] = "reasoning_text", [RESPONSE_MESSAGE] = "output_text"};

    write_format(w, "{\"type\":\"%s\",\"text\":", is_summary(o) ? "summary_text" : types[o->open]);
    write_json(w, buf_str(&o->text), o->text.len);
    if (o->open == RESPONSE_MESSAGE) {
        write_puts(w, ",\"annotations\":[");
        write_buf(w, &o->annotations);
        write_puts(w, "],\"logprobs\":[");
        write_buf(w, &o->logprobs);
        write_puts(w, "]");
    }
    write_puts(w, "}");
}

/* The open item; is_new: as it is added, without its content. */
static void write_item(const struct response_output *o, struct writer *w, const char *status,
                       bool is_new)
{
    static const char *const types[] = {[RESPONSE_SEARCH] = "file_search_call",
                                        [RESPONSE_REASONING] = "reasoning",
                                        [RESPONSE_MESSAGE] = "message",
                                        [RESPONSE_CALL] = "function_call"};

    write_puts(w, "{\"id\":");
    write_json(w, o->item_id, strlen(o->item_id));
    write_format(w, ",\"type\":\"%s\"", types[o->open]);
    if (o->open != RESPONSE_REASONING)
        write_format(w, ",\"status\":\"%s\"", status);
    if (o->open == RESPONSE_SEARCH) {
        if (is_new)
            write_puts(w, ",\"queries\":[],\"results\":null");
        else
            write_buf(w, &o->fields);
    } else if (o->open == RESPONSE_CALL) {
        write_puts(w, ",\"arguments\":");
        write_json(w, buf_str(&o->text), is_new ? 0 : o->text.len);
        write_puts(w, ",\"call_id\":");
        write_json(w, buf_str(&o->call_id), o->call_id.len);
        write_puts(w, ",\"name\":");
        write_json(w, buf_str(&o->name), o->name.len);
    } else {
        bool is_message = o->open == RESPONSE_MESSAGE;
        write_puts(w, is_message      ? ",\"role\":\"assistant\",\"content\":["
                      : o->in_summary ? ",\"summary\":["
                                      : ",\"summary\":[],\"content\":[");
        if (!is_new)
            write_part(o, w);
        write_puts(w, "]");
    }
    write_puts(w, "}");
}

static void write_item_event(struct response_output *o, struct writer *w, const char *name,
                             const char *status, bool is_new)
{
    response_event_begin(o, w, name);
    write_format(w, ",\"output_index\":%u,\"item\":", o->n_items);
    write_item(o, w, status, is_new);
    response_event_end(w);
}

static void write_part_event(struct response_output *o, struct writer *w, bool is_done)
{
    begin(o, w,
          is_summary(o) ? (is_done ? "response.reasoning_summary_part.done"
                                   : "response.reasoning_summary_part.added")
                        : (is_done ? "response.content_part.done" : "response.content_part.added"));
    write_index(o, w);
    write_puts(w, ",\"part\":");
    write_part(o, w);
    response_event_end(w);
}

void response_output_open(struct response_output *o, struct writer *w, enum response_item kind)
{
    static const char *const kinds[] = {[RESPONSE_SEARCH] = "fs",
                                        [RESPONSE_REASONING] = "rs",
                                        [RESPONSE_MESSAGE] = "msg",
                                        [RESPONSE_CALL] = "fc"};

    if (o->open != RESPONSE_NONE)
        response_output_end(o, w, "completed");
    o->open = kind;
    if (kind == RESPONSE_NONE)
        return;
    response_item_id(o->item_id, kinds[kind], o->id, 'o', o->n_items);
    if (!o->streams)
        return;
    write_item_event(o, w, "response.output_item.added", "in_progress", true);
    if (kind == RESPONSE_MESSAGE || kind == RESPONSE_REASONING)
        write_part_event(o, w, false);
    if (kind == RESPONSE_SEARCH) {
        begin(o, w, "response.file_search_call.in_progress");
        response_event_end(w);
        begin(o, w, "response.file_search_call.searching");
        response_event_end(w);
    }
}

/* "delta" or "done" of the open item's text. */
static const char *text_event(const struct response_output *o, bool is_done)
{
    switch (o->open) {
    case RESPONSE_CALL:
        return is_done ? "response.function_call_arguments.done"
                       : "response.function_call_arguments.delta";
    case RESPONSE_REASONING:
        if (o->in_summary)
            return is_done ? "response.reasoning_summary_text.done"
                           : "response.reasoning_summary_text.delta";
        return is_done ? "response.reasoning_text.done" : "response.reasoning_text.delta";
    default: return is_done ? "response.output_text.done" : "response.output_text.delta";
    }
}

/* Write the events of an item's parts that end before the item. */
static void write_ends(struct response_output *o, struct writer *w)
{
    if (o->open == RESPONSE_SEARCH) {
        begin(o, w, "response.file_search_call.completed");
        response_event_end(w);
        return;
    }
    begin(o, w, text_event(o, true));
    write_index(o, w);
    if (o->open == RESPONSE_CALL) {
        write_puts(w, ",\"name\":");
        write_json(w, buf_str(&o->name), o->name.len);
    }
    write_format(w, ",\"%s\":", o->open == RESPONSE_CALL ? "arguments" : "text");
    write_json(w, buf_str(&o->text), o->text.len);
    if (o->open == RESPONSE_MESSAGE) {
        write_puts(w, ",\"logprobs\":[");
        write_buf(w, &o->logprobs);
        write_puts(w, "]");
    }
    response_event_end(w);
    if (o->open != RESPONSE_CALL)
        write_part_event(o, w, true);
}

void response_output_end(struct response_output *o, struct writer *w, const char *status)
{
    struct writer items = {&o->items, w->status};

    if (o->open == RESPONSE_NONE)
        return;
    if (o->streams) {
        write_ends(o, w);
        write_item_event(o, w, "response.output_item.done", status, false);
    }
    write_puts(&items, o->items.len ? "," : "");
    write_item(o, &items, status, false);
    if (w->status == OK)
        w->status = items.status;
    o->n_items++;
    o->open = RESPONSE_NONE;
    buf_reset(&o->text);
    buf_reset(&o->logprobs);
    buf_reset(&o->annotations);
    buf_reset(&o->fields);
    buf_reset(&o->call_id);
    buf_reset(&o->name);
    o->n_annotations = 0;
}

static void append(struct writer *w, struct buf *to, const char *bytes, size_t len)
{
    if (w->status == OK)
        w->status = buf_append(to, bytes, len);
}

void response_output_text(struct response_output *o, struct writer *w, const char *text, size_t len,
                          const struct buf *logprobs)
{
    bool is_message = o->open == RESPONSE_MESSAGE;

    append(w, &o->text, text, len);
    if (is_message && logprobs->len > 0) {
        append(w, &o->logprobs, ",", o->logprobs.len > 0);
        append(w, &o->logprobs, logprobs->data, logprobs->len);
    }
    if (!o->streams)
        return;
    begin(o, w, text_event(o, false));
    write_index(o, w);
    write_puts(w, ",\"delta\":");
    write_json(w, text, len);
    if (is_message) {
        write_puts(w, ",\"logprobs\":[");
        write_buf(w, logprobs);
        write_puts(w, "]");
    }
    response_event_end(w);
}

void response_output_annotate(struct response_output *o, struct writer *w,
                              const struct buf *annotation)
{
    if (o->streams) {
        begin(o, w, "response.output_text.annotation.added");
        write_format(
            w, ",\"content_index\":0,\"annotation_index\":%u,\"annotation\":", o->n_annotations);
        write_buf(w, annotation);
        response_event_end(w);
    }
    append(w, &o->annotations, ",", o->annotations.len > 0);
    append(w, &o->annotations, buf_str(annotation), annotation->len);
    o->n_annotations++;
}
