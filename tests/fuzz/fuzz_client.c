/* fuzz_client.c - any bytes as a server's answer: SSE, chunks, whole answers, errors.
 *
 * The input is one line of options, a line of "=====", and the answer's bytes. The first byte of
 * the options chooses chat or completion, the second the sizes of the pieces of the stream.
 *
 * Checks beyond crashes: events, chunks, error and usage do not depend on the pieces; an error has
 * a message; strings lie within their lengths; an event never exceeds its maximum. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "clients/c/answer.h"
#include "clients/c/sse.h"
#include "tests/fuzz/fuzz.h"

#define EVENT_BYTES_MAX 8192
#define SEEN_BYTES_MAX (16u << 20)

/* The result of reading a stream. */
struct reading {
    struct answer answer;
    struct sse sse;
    struct buf seen;
    enum tarn_error error;
    enum status status;
    bool done;
};

static void add(struct buf *seen, const void *bytes, size_t n)
{
    ASSERT(buf_append(seen, &n, sizeof n) == OK);
    ASSERT(buf_append(seen, bytes, n) == OK);
}

static void on_chunk(void *arg, const struct tarn_chunk *c)
{
    struct reading *r = arg;

    ASSERT(c->text && c->reasoning);
    ASSERT(c->text[c->text_len] == '\0' && c->reasoning[c->reasoning_len] == '\0');
    ASSERT(c->n_ids == 0 || c->ids);
    add(&r->seen, c->text, c->text_len);
    add(&r->seen, c->reasoning, c->reasoning_len);
    if (c->n_ids)
        add(&r->seen, c->ids, c->n_ids * sizeof *c->ids);
    add(&r->seen, &c->index, sizeof c->index);
    if (c->finish_reason)
        add(&r->seen, c->finish_reason, strlen(c->finish_reason));
}

/* Handle an event as call.c does. */
static enum status on_event(void *arg, const char *name, const char *data, size_t len)
{
    struct reading *r = arg;

    ASSERT(data[len] == '\0' && len <= EVENT_BYTES_MAX && strlen(name) < SSE_NAME_BYTES);
    add(&r->seen, name, strlen(name));
    add(&r->seen, data, len);
    if (r->done || len == 0)
        return OK;
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        r->done = true;
        return OK;
    }
    r->error = answer_take_event(&r->answer, data, len, strcmp(name, "error") == 0, 1);
    if (r->error == TARN_OK)
        return OK;
    ASSERT(r->error == TARN_ERR_PARSE || r->error == TARN_ERR_STREAM);
    ASSERT(r->answer.words.len > 0 || r->error == TARN_ERR_STREAM);
    return ERR_CANCELLED;
}

static void read_stream(struct reading *r, enum tarn_kind kind, const char *bytes, size_t n,
                        size_t step)
{
    *r = (struct reading){.status = OK};
    buf_init(&r->seen, SEEN_BYTES_MAX);
    answer_init(&r->answer, kind, on_chunk, r);
    sse_init(&r->sse, EVENT_BYTES_MAX);
    for (size_t at = 0; r->status == OK && at < n; at += step) {
        size_t len = n - at < step ? n - at : step;
        char *exact = malloc(len); /* the exact length, so that a sanitizer sees overreads */
        ASSERT(exact);
        memcpy(exact, bytes + at, len);
        r->status = sse_feed(&r->sse, exact, len, on_event, r);
        free(exact);
        ASSERT(r->sse.line.len + r->sse.data.len <= EVENT_BYTES_MAX + 1);
    }
}

static void end_reading(struct reading *r)
{
    answer_fini(&r->answer);
    sse_fini(&r->sse);
    buf_fini(&r->seen);
}

static void check_equal(const struct reading *a, const struct reading *b)
{
    ASSERT(a->status == b->status && a->error == b->error && a->done == b->done);
    ASSERT(a->seen.len == b->seen.len);
    ASSERT(a->seen.len == 0 || memcmp(a->seen.data, b->seen.data, a->seen.len) == 0);
    ASSERT(memcmp(&a->answer.usage, &b->answer.usage, sizeof a->answer.usage) == 0);
    ASSERT(strcmp(buf_str(&a->answer.words), buf_str(&b->answer.words)) == 0);
    ASSERT(strcmp(a->answer.code, b->answer.code) == 0);
    ASSERT(sse_is_inside(&a->sse) == sse_is_inside(&b->sse) || a->status != OK);
}

static void read_whole(enum tarn_kind kind, const char *bytes, size_t n)
{
    struct reading r = {.status = OK};

    buf_init(&r.seen, SEEN_BYTES_MAX);
    answer_init(&r.answer, kind, on_chunk, &r);
    enum tarn_error e = answer_take_whole(&r.answer, bytes, n, 1);
    ASSERT(e == TARN_OK || r.answer.words.len > 0);
    answer_fini(&r.answer);
    answer_init(&r.answer, kind, on_chunk, &r);
    answer_take_refusal(&r.answer, 400, bytes, n);
    ASSERT(r.answer.words.len > 0);
    answer_fini(&r.answer);
    buf_fini(&r.seen);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);
    const char *bytes = in.second ? in.second : in.first;
    size_t n = in.second ? in.second_len : in.first_len;
    enum tarn_kind kind =
        in.second && in.first_len > 0 && in.first[0] == 'c' ? TARN_COMPLETION : TARN_CHAT;
    size_t step = in.second && in.first_len > 1 ? (unsigned char)in.first[1] % 16 + 1 : 3;
    struct reading whole, cut;

    read_stream(&whole, kind, bytes, n, n ? n : 1);
    read_stream(&cut, kind, bytes, n, step);
    check_equal(&whole, &cut);
    end_reading(&cut);
    end_reading(&whole);
    read_whole(kind, bytes, n);
    return 0;
}
