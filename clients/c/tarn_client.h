/* tarn_client.h - libtarn-client: chat, completions, documents and the rest of a Tarn server, or of
 * any other with an OpenAI-style API.
 *
 * A request is filled in (tarn_request_init(), then what is wanted), turned into a body, and
 * started in a loop (base/http.h), which calls back for each piece of the answer; or
 * tarn_generate() does all that and waits. Only what was set is sent: strict servers are content.
 *
 * Owns    a client its copies of the configuration; a call is valid until its on_end returns.
 * Thread  a client is read-only: any thread, also several. A call belongs to its loop's thread.
 * Errors  enum tarn_error: what to count and what to do, with words for a human.
 * Units   times in ns of CLOCK_MONOTONIC, timeouts in ms, sizes in bytes; text is UTF-8.
 *
 * Plain C99 and C++; needs nothing but the C library's headers. */
#ifndef TARN_CLIENT_H
#define TARN_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct http_loop; /* base/http.h */
struct tarn_client;
struct tarn_call;

/* --- errors --- */

enum tarn_error {
    TARN_OK = 0,
    TARN_ERR_INVALID, /* what was given to us: nothing was sent */
    TARN_ERR_NOMEM,
    TARN_ERR_CONNECT, /* no such host, refused, no descriptor or port left */
    TARN_ERR_TLS,
    TARN_ERR_RESET, /* the connection broke before the answer was whole */
    TARN_ERR_TIMEOUT,
    TARN_ERR_BUSY,     /* HTTP 429: result.retry_after_s */
    TARN_ERR_HTTP_4XX, /* refused; result.http_status, code, message */
    TARN_ERR_HTTP_5XX,
    TARN_ERR_HTTP,      /* any other status that is not 200 */
    TARN_ERR_PARSE,     /* the answer is no HTTP, no JSON, or not of the shape it should have */
    TARN_ERR_STREAM,    /* {"error": ...} inside of a stream */
    TARN_ERR_TRUNCATED, /* closed in order, but without [DONE] or before its length */
    TARN_ERR_TOO_LARGE, /* over a limit of the configuration */
    TARN_ERR_CANCELLED, /* tarn_call_cancel() */
    TARN_ERR_INTERNAL,
    TARN_N_ERRORS
};

/* "ok", "connect", "http_4xx", "http_429", "stream_error", ...: for reports. Never NULL. */
const char *tarn_error_name(enum tarn_error e);

/* --- client --- */

/* Whatever is 0 or NULL has the default that is named. Strings are copied. */
struct tarn_client_config {
    const char *url;       /* http(s)://host:port, with or without /v1 */
    const char *unix_path; /* Unix socket instead of host and port */
    const char *api_key;   /* none */
    const char *admin_key; /* for /cache; api_key */
    const char *ca_file;   /* the system's authorities */
    bool tls_no_verify;
    bool fresh_connections;     /* one per call, closed after it; else they are reused */
    const char *const *headers; /* [n_headers] "Name: value" for every request */
    size_t n_headers;
    uint32_t connect_timeout_ms; /* 10000 */
    uint32_t total_timeout_ms;   /* none */
    uint32_t idle_timeout_ms;    /* none: without a byte, comments count as bytes */
    size_t body_bytes_max;       /* of an answer that is no stream; 64 MB */
    size_t event_bytes_max;      /* of one event of a stream; 4 MB */
};

/* `why` gets words when it is not TARN_OK; may be NULL. */
enum tarn_error tarn_client_create(struct tarn_client **out,
                                   const struct tarn_client_config *config, char *why,
                                   size_t why_size);
void tarn_client_destroy(struct tarn_client *c); /* after its last call has ended; NULL is fine */

/* --- requests --- */

enum tarn_kind {
    TARN_CHAT,       /* POST /v1/chat/completions */
    TARN_COMPLETION, /* POST /v1/completions */
};

/* Values that mean "do not send this". */
#define TARN_UNSET INT64_MIN     /* integers, and booleans written as 0 or 1 */
#define TARN_UNSET_REAL (-1e308) /* reals */

struct tarn_text {
    const char *data; /* NULL: not sent */
    size_t len;       /* 0 with data: strlen(data) */
};

struct tarn_message {
    const char *role; /* "system", "user", "assistant" */
    struct tarn_text content;
};

struct tarn_document {
    struct tarn_text title; /* may be unset */
    struct tarn_text text;
};

/* All pointers are borrowed while a body is built. Order here is the order in the body, so equal
 * requests are equal bytes. */
struct tarn_request {
    enum tarn_kind kind;
    const char *model; /* NULL: the server's only one */

    const struct tarn_message *messages; /* [n_messages] chat */
    size_t n_messages;
    const struct tarn_document *documents; /* [n_documents] chat; an extension of Tarn */
    size_t n_documents;
    const char *documents_placement; /* "system", "template" */
    struct tarn_text prompt;         /* completion: text, or */
    const uint32_t *prompt_ids;      /* [n_prompt_ids] token ids; not NULL wins over prompt */
    size_t n_prompt_ids;

    bool stream;
    bool include_usage; /* with stream: stream_options.include_usage */

    int64_t n, max_tokens, max_completion_tokens, seed;
    double temperature, top_p, presence_penalty, frequency_penalty;
    const char *const *stop; /* [n_stop] */
    size_t n_stop;
    int64_t logprobs;     /* completion: how many; chat: 0 or 1 */
    int64_t top_logprobs; /* chat */
    const char *user;
    /* Beyond OpenAI: Tarn, vLLM and others. */
    int64_t top_k, min_tokens, ignore_eos, priority, return_token_ids, add_special_tokens;
    double min_p, repetition_penalty;
    const uint32_t *stop_token_ids; /* [n_stop_token_ids] */
    size_t n_stop_token_ids;
    const char *session_id, *cache_salt, *request_id;
    int64_t cache_ttl; /* s that the prompt's KV is kept after the end; Tarn */

    const char *extra_body; /* a JSON object whose members are added, or replace ours */
};

void tarn_request_init(struct tarn_request *r, enum tarn_kind kind); /* everything unset */

/* A request as it is sent. Build it early: at the intended time only bytes have to go out. */
struct tarn_body {
    char *data; /* [len] JSON; owned: tarn_body_fini() */
    size_t len;
    enum tarn_kind kind;
    bool stream; /* as the JSON says, extra_body included */
};

enum tarn_error tarn_body_build(struct tarn_body *out, const struct tarn_request *r, char *why,
                                size_t why_size);
void tarn_body_fini(struct tarn_body *b); /* also fine on a zeroed struct */

/* --- answers --- */

/* One choice's piece of a stream, or one choice of a whole answer. */
struct tarn_chunk {
    uint64_t time_ns; /* when its last byte came */
    uint32_t index;   /* of the choice */
    const char *text; /* [text_len] content (or text); "" in chunks of role or finish only */
    size_t text_len;
    const char *reasoning; /* [reasoning_len] delta.reasoning_content (or reasoning), else "" */
    size_t reasoning_len;
    bool has_delta;      /* text, reasoning, ids or tool calls that are not empty */
    bool has_role;       /* the opening chunk of a chat */
    const uint32_t *ids; /* [n_ids] with return_token_ids; else NULL */
    size_t n_ids;
    const char *finish_reason; /* "stop", "length", ...; NULL while it goes on */
};

enum tarn_tier { TARN_TIER_DEVICE, TARN_TIER_HOST, TARN_TIER_DISK, TARN_TIER_REMOTE, TARN_N_TIERS };
const char *tarn_tier_name(enum tarn_tier t); /* "device", "host", "disk", "remote" */

/* -1: the server did not say. */
struct tarn_usage {
    int64_t prompt_tokens, completion_tokens, total_tokens;
    /* usage.prompt_tokens_details.cached_tokens, or llama.cpp's timings.cache_n. */
    int64_t cached_tokens;
    /* usage.prompt_tokens_details.cached_tokens_details {device, host, disk, remote}, or SGLang's
     * sglext.cached_tokens_details {device, host, storage}. */
    int64_t cached_by_tier[TARN_N_TIERS];
    int64_t reasoning_tokens; /* usage.completion_tokens_details.reasoning_tokens */
};

/* Valid during on_end. */
struct tarn_result {
    enum tarn_error error;
    int http_status;        /* 0: no answer */
    const char *message;    /* words; "" when OK */
    const char *code;       /* error.code of the server, else error.type, else "" */
    double retry_after_s;   /* -1: not said */
    const char *request_id; /* X-Request-Id of the answer, or "" */
    struct tarn_usage usage;
    char finish_reason[32]; /* of choice 0; "" when none came */
    uint64_t n_chunks;      /* calls of on_chunk */
    uint64_t n_deltas;      /* of these with has_delta */
    const char *body;       /* [body_len] of an answer that is no stream (errors too); else "" */
    size_t body_len;
    uint64_t start_ns; /* tarn_call_start() */
    uint64_t ready_ns; /* connected; 0: never */
    uint64_t head_ns;  /* the answer's headers; 0: never */
    uint64_t first_ns; /* first chunk with has_delta; 0: none */
    uint64_t last_ns;  /* last chunk with has_delta */
    uint64_t end_ns;
    bool reused; /* an older connection carried it */
};

/* Each may be NULL. on_end comes exactly once and last. None is called from inside of a function
 * declared here, tarn_generate() apart. */
struct tarn_handlers {
    void (*on_head)(void *arg, struct tarn_call *call, int http_status, uint64_t time_ns);
    void (*on_chunk)(void *arg, struct tarn_call *call, const struct tarn_chunk *chunk);
    void (*on_end)(void *arg, struct tarn_call *call, const struct tarn_result *result);
};

/* --- calls in a loop --- */

/* `client` and `body->data` are borrowed until on_end. On TARN_OK on_end will come and *out, which
 * may be NULL, is valid until it returns; else no callback comes. */
enum tarn_error tarn_call_start(struct tarn_call **out, struct http_loop *loop,
                                const struct tarn_client *client, const struct tarn_body *body,
                                const struct tarn_handlers *handlers, void *arg);
/* Anything else: GET when body is NULL, else POST of JSON. The answer is result.body. `path` begins
 * with '/'. */
enum tarn_error tarn_call_start_raw(struct tarn_call **out, struct http_loop *loop,
                                    const struct tarn_client *client, const char *path,
                                    const char *body, size_t body_len,
                                    const struct tarn_handlers *handlers, void *arg);
void tarn_call_cancel(struct tarn_call *call); /* hang up; on_end says TARN_ERR_CANCELLED */
void tarn_call_pause(struct tarn_call *call, bool paused); /* a slow reader */

/* --- calls that wait --- */

/* What a waiting call gives: tarn_answer_fini() in any case. */
struct tarn_answer {
    enum tarn_error error;
    int http_status;
    char message[512];
    char code[64];
    double retry_after_s;
    struct tarn_usage usage;
    char finish_reason[32];
    char *text; /* [text_len] generated text of choice 0, or the body; never NULL */
    size_t text_len;
    uint64_t start_ns, first_ns, last_ns, end_ns;
};
void tarn_answer_fini(struct tarn_answer *a);

/* Each returns answer->error. on_chunk may be NULL; it returns false to hang up. */
enum tarn_error tarn_generate(struct tarn_answer *answer, const struct tarn_client *client,
                              const struct tarn_request *request,
                              bool (*on_chunk)(void *arg, const struct tarn_chunk *chunk),
                              void *arg);
/* The answer's text is the body as it came. POST when body is not NULL. */
enum tarn_error tarn_fetch(struct tarn_answer *answer, const struct tarn_client *client,
                           const char *path, const char *body, size_t body_len);
enum tarn_error tarn_health(struct tarn_answer *answer, const struct tarn_client *client);
enum tarn_error tarn_metrics(struct tarn_answer *answer, const struct tarn_client *client);
/* /cache of Tarn, with the admin key: what the KV store holds (JSON), and forgetting it. */
enum tarn_error tarn_cache_stats(struct tarn_answer *answer, const struct tarn_client *client);
enum tarn_error tarn_cache_reset(struct tarn_answer *answer, const struct tarn_client *client);
/* Forget one span and all behind it, in every tier. key: 64 hex digits, as tarn_cache_stats() gives
 * them; TARN_ERR_INVALID otherwise. */
enum tarn_error tarn_cache_erase(struct tarn_answer *answer, const struct tarn_client *client,
                                 const char *key);
/* The text is one model's id per line. */
enum tarn_error tarn_models(struct tarn_answer *answer, const struct tarn_client *client);
/* On TARN_OK *ids [*n_ids] are the caller's: free(). answer->text is the body. */
enum tarn_error tarn_tokenize(struct tarn_answer *answer, const struct tarn_client *client,
                              const char *text, size_t len, uint32_t **ids, size_t *n_ids);
/* The text is the ids' text. */
enum tarn_error tarn_detokenize(struct tarn_answer *answer, const struct tarn_client *client,
                                const uint32_t *ids, size_t n_ids);

#ifdef __cplusplus
}
#endif
#endif
