/* tarn_client.h - libtarn-client: a client for Tarn's HTTP API (chat, completions, documents,
 * cache) and for other servers with an OpenAI-style API.
 *
 * There are two ways to send a request. tarn_generate() sends one and waits for its end. Or build a
 * body (tarn_request_init(), set fields, tarn_body_build()) and start a call in a loop
 * (base/http.h), which calls back for each piece of the answer. Only fields that were set are sent,
 * so that servers that refuse unknown fields accept the request.
 *
 * Owns    a client owns copies of its configuration; a call is valid until its on_end returns.
 * Thread  a client is read-only: any thread, also several. A call belongs to its loop's thread.
 * Errors  enum tarn_error for programs, with words for people.
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
    TARN_ERR_INVALID, /* an argument is invalid; nothing was sent */
    TARN_ERR_NOMEM,
    TARN_ERR_CONNECT, /* no such host, refused, no descriptor or port left */
    TARN_ERR_TLS,
    TARN_ERR_RESET, /* the connection broke before the end of the answer */
    TARN_ERR_TIMEOUT,
    TARN_ERR_BUSY,     /* HTTP 429; see result.retry_after_s */
    TARN_ERR_HTTP_4XX, /* the server refused; see result.http_status, code, message */
    TARN_ERR_HTTP_5XX,
    TARN_ERR_HTTP,      /* any other status that is not 2xx */
    TARN_ERR_PARSE,     /* the answer is not HTTP, not JSON, or has a wrong shape */
    TARN_ERR_STREAM,    /* {"error": ...} inside a stream or with status 200 */
    TARN_ERR_TRUNCATED, /* closed without [DONE], or before the Content-Length */
    TARN_ERR_TOO_LARGE, /* the answer exceeds a limit of the configuration */
    TARN_ERR_CANCELLED, /* by tarn_call_cancel() */
    TARN_ERR_INTERNAL,
    TARN_N_ERRORS
};

/* The error's name for reports: "ok", "connect", "http_4xx", "http_429", ... Never NULL. */
const char *tarn_error_name(enum tarn_error e);

/* --- client --- */

/* A field that is 0 or NULL has its default. Strings are copied. */
struct tarn_client_config {
    const char *url;       /* http(s)://host:port, with or without /v1 */
    const char *unix_path; /* Unix socket; default: connect to host and port of the url */
    const char *api_key;   /* default: none */
    const char *admin_key; /* for /cache; default: api_key */
    const char *ca_file;   /* default: the system's certificate authorities */
    bool tls_no_verify;
    bool fresh_connections;     /* a new connection for each call; default: reuse connections */
    const char *const *headers; /* [n_headers] "Name: value" for every request */
    size_t n_headers;
    uint32_t connect_timeout_ms; /* default: 10000 */
    uint32_t total_timeout_ms;   /* default: none */
    uint32_t idle_timeout_ms;    /* time without a byte; keep-alive comments count; default: none */
    size_t body_bytes_max;       /* of an answer that is not a stream; default: 64 MB */
    size_t event_bytes_max;      /* of one event of a stream; default: 4 MB */
};

/* Create a client. On an error `why` (may be NULL) gets a message. */
enum tarn_error tarn_client_create(struct tarn_client **out,
                                   const struct tarn_client_config *config, char *why,
                                   size_t why_size);
/* Only after the client's last call has ended. NULL is fine. */
void tarn_client_destroy(struct tarn_client *c);

/* --- requests --- */

enum tarn_kind {
    TARN_CHAT,       /* POST /v1/chat/completions */
    TARN_COMPLETION, /* POST /v1/completions */
};

/* Values of fields that are not set, and so not sent. */
#define TARN_UNSET INT64_MIN     /* integers, and booleans written as 0 or 1 */
#define TARN_UNSET_REAL (-1e308) /* reals */

struct tarn_text {
    const char *data; /* NULL: not set */
    size_t len;       /* 0: strlen(data) */
};

struct tarn_message {
    const char *role; /* "system", "user", "assistant" */
    struct tarn_text content;
};

struct tarn_document {
    struct tarn_text title; /* optional */
    struct tarn_text text;
};

/* A search among the registered documents, which adds its results to the request's documents. */
struct tarn_retrieval {
    const char *scope;      /* NULL: the server's default; "own", "public" or "all" */
    struct tarn_text query; /* not set: the last message of the user */
    int64_t top_k;          /* TARN_UNSET or 0: the server's default */
    const char *filter;     /* on metadata, a JSON object; NULL: none */
    const char *order;      /* "score", "cache", "id"; NULL: the server's default */
};

/* tarn_body_build() borrows all pointers until it returns. The body has the fields in this order,
 * so equal requests have equal bytes. */
struct tarn_request {
    enum tarn_kind kind;
    const char *model; /* NULL: the server's first model */

    const struct tarn_message *messages; /* [n_messages] chat */
    size_t n_messages;
    /* Extensions of Tarn: ids of registered documents, and behind them documents with text. */
    const char *const *document_ids; /* [n_document_ids] */
    size_t n_document_ids;
    const struct tarn_document *documents; /* [n_documents] */
    size_t n_documents;
    const char *documents_placement;        /* "system", "template" */
    const struct tarn_retrieval *retrieval; /* NULL: none; an extension of Tarn */
    struct tarn_text prompt;                /* completion; used only if prompt_ids is NULL */
    const uint32_t *prompt_ids;             /* [n_prompt_ids] completion: the prompt as token ids */
    size_t n_prompt_ids;

    bool stream;
    bool include_usage; /* with stream: stream_options.include_usage */

    int64_t n, max_tokens, max_completion_tokens, seed;
    double temperature, top_p, presence_penalty, frequency_penalty;
    const char *const *stop; /* [n_stop] */
    size_t n_stop;
    int64_t logprobs;     /* completion: number of alternatives; chat: 0 or 1 */
    int64_t top_logprobs; /* chat */
    const char *user;
    /* Extensions of Tarn, vLLM and others. */
    int64_t top_k, min_tokens, ignore_eos, priority, return_token_ids, add_special_tokens;
    double min_p, repetition_penalty;
    const uint32_t *stop_token_ids; /* [n_stop_token_ids] */
    size_t n_stop_token_ids;
    const char *session_id, *cache_salt, *request_id;
    int64_t cache_ttl; /* seconds to keep the prompt's KV after the request's end; Tarn only. Other
                          APIs' cache fields, such as cache_control, go into extra_body */

    const char *extra_body; /* a JSON object whose members are added, or replace those above */
};

/* Initialize a request in which no field is set. */
void tarn_request_init(struct tarn_request *r, enum tarn_kind kind);

/* A request's JSON. A load generator builds it early, so that sending it costs little time. */
struct tarn_body {
    char *data; /* [len] JSON; owned: tarn_body_fini() */
    size_t len;
    enum tarn_kind kind;
    bool stream; /* the JSON asks for a stream, extra_body included */
};

enum tarn_error tarn_body_build(struct tarn_body *out, const struct tarn_request *r, char *why,
                                size_t why_size);
void tarn_body_fini(struct tarn_body *b); /* also fine on a zeroed struct */

/* --- answers --- */

/* One choice's piece of a stream, or one choice of a whole answer. */
struct tarn_chunk {
    uint64_t time_ns; /* time of its last byte */
    uint32_t index;   /* of the choice */
    const char *text; /* [text_len] content (or text); "" in chunks of role or finish only */
    size_t text_len;
    const char *reasoning; /* [reasoning_len] delta.reasoning_content (or reasoning), else "" */
    size_t reasoning_len;
    bool has_delta;      /* has text, reasoning, ids or tool calls that are not empty */
    bool has_role;       /* the first chunk of a chat */
    const uint32_t *ids; /* [n_ids] with return_token_ids; else NULL */
    size_t n_ids;
    const char *finish_reason; /* "stop", "length", ...; NULL before the end of the choice */
};

enum tarn_tier { TARN_TIER_DEVICE, TARN_TIER_HOST, TARN_TIER_DISK, TARN_TIER_REMOTE, TARN_N_TIERS };
const char *tarn_tier_name(enum tarn_tier t); /* "device", "host", "disk", "remote" */

/* -1: the server did not report it. */
struct tarn_usage {
    int64_t prompt_tokens, completion_tokens, total_tokens;
    /* usage.prompt_tokens_details.cached_tokens, or llama.cpp's timings.cache_n. */
    int64_t cached_tokens;
    /* The same details' cache_write_tokens and held_tokens (Tarn only): prompt tokens that the
     * request computed and keeps, and all that it keeps. */
    int64_t cache_write_tokens, held_tokens;
    /* usage.prompt_tokens_details.cached_tokens_details {device, host, disk, remote}, or SGLang's
     * sglext.cached_tokens_details {device, host, storage}. */
    int64_t cached_by_tier[TARN_N_TIERS];
    int64_t reasoning_tokens; /* usage.completion_tokens_details.reasoning_tokens */
};

/* A document that the answer was made with. -1 and TARN_UNSET_REAL: the server did not say. */
#define TARN_SOURCE_BYTES 260
struct tarn_source {
    char id[TARN_SOURCE_BYTES];    /* "": inline */
    char title[TARN_SOURCE_BYTES]; /* cut at that length */
    double score;                  /* of the search that found it */
    int64_t n_tokens, cached_tokens;
    int64_t cached_by_tier[TARN_N_TIERS];
};

/* Valid during on_end. */
struct tarn_result {
    enum tarn_error error;
    int http_status;        /* 0: no answer */
    const char *message;    /* the error in words; "" when OK */
    const char *code;       /* the server's error.code, else error.type, else "" */
    double retry_after_s;   /* the header Retry-After; -1: absent or a date */
    const char *request_id; /* X-Request-Id of the answer, or "" */
    struct tarn_usage usage;
    const struct tarn_source *sources; /* [n_sources] in the order of the prompt */
    size_t n_sources;
    char finish_reason[32]; /* of choice 0; "" when none came */
    uint64_t n_chunks;      /* number of chunks */
    uint64_t n_deltas;      /* chunks with has_delta */
    const char *body;       /* [body_len] of an answer that is not a stream (errors too); else "" */
    size_t body_len;
    uint64_t start_ns; /* call of tarn_call_start() */
    uint64_t ready_ns; /* connected; 0: never */
    uint64_t head_ns;  /* the answer's headers were read; 0: never */
    uint64_t first_ns; /* first chunk with has_delta; 0: none */
    uint64_t last_ns;  /* last chunk with has_delta */
    uint64_t end_ns;
    bool reused; /* sent over a connection of an earlier call */
};

/* Callbacks, each of which may be NULL. on_end is called exactly once, as the last one. No callback
 * is called from inside a function of this header, except from tarn_generate(). */
struct tarn_handlers {
    void (*on_head)(void *arg, struct tarn_call *call, int http_status, uint64_t time_ns);
    void (*on_chunk)(void *arg, struct tarn_call *call, const struct tarn_chunk *chunk);
    void (*on_end)(void *arg, struct tarn_call *call, const struct tarn_result *result);
};

/* --- calls in a loop --- */

/* Start a call, which borrows `client` and `body->data` until on_end. On TARN_OK, on_end will be
 * called, and *out (out may be NULL) is valid until on_end returns. On an error no callback is
 * called. */
enum tarn_error tarn_call_start(struct tarn_call **out, struct http_loop *loop,
                                const struct tarn_client *client, const struct tarn_body *body,
                                const struct tarn_handlers *handlers, void *arg);
/* Start a call to any other path, which begins with '/': GET when body is NULL, else POST of JSON.
 * The answer is result.body. */
enum tarn_error tarn_call_start_raw(struct tarn_call **out, struct http_loop *loop,
                                    const struct tarn_client *client, const char *path,
                                    const char *body, size_t body_len,
                                    const struct tarn_handlers *handlers, void *arg);
/* Close the connection; on_end gets TARN_ERR_CANCELLED. */
void tarn_call_cancel(struct tarn_call *call);
/* Stop or resume reading from the connection. */
void tarn_call_pause(struct tarn_call *call, bool paused);

/* --- calls that wait --- */

/* The result of a call that waits. Call tarn_answer_fini() after errors too. */
struct tarn_answer {
    enum tarn_error error;
    int http_status;
    char message[512];
    char code[64];
    double retry_after_s;
    struct tarn_usage usage;
    struct tarn_source *sources; /* [n_sources] owned, like text */
    size_t n_sources;
    char finish_reason[32];
    char *text; /* [text_len] generated text of choice 0, or the body; never NULL */
    size_t text_len;
    uint64_t start_ns, first_ns, last_ns, end_ns;
};
void tarn_answer_fini(struct tarn_answer *a);

/* Send a request and wait for its end; returns answer->error, as all functions below. on_chunk (may
 * be NULL) returns false to cancel the call. */
enum tarn_error tarn_generate(struct tarn_answer *answer, const struct tarn_client *client,
                              const struct tarn_request *request,
                              bool (*on_chunk)(void *arg, const struct tarn_chunk *chunk),
                              void *arg);
/* GET a path, or POST a body that is not NULL. The answer's text is the unchanged body. */
enum tarn_error tarn_fetch(struct tarn_answer *answer, const struct tarn_client *client,
                           const char *path, const char *body, size_t body_len);
enum tarn_error tarn_health(struct tarn_answer *answer, const struct tarn_client *client);
enum tarn_error tarn_metrics(struct tarn_answer *answer, const struct tarn_client *client);
/* GET or DELETE Tarn's /cache, with the admin key: report what the KV store holds, as JSON, or
 * forget all. */
enum tarn_error tarn_cache_stats(struct tarn_answer *answer, const struct tarn_client *client);
enum tarn_error tarn_cache_reset(struct tarn_answer *answer, const struct tarn_client *client);
/* Forget a span and all spans behind it, in every tier. key: 64 hex digits, from the answer of
 * tarn_cache_stats(); any other text is TARN_ERR_INVALID. */
enum tarn_error tarn_cache_erase(struct tarn_answer *answer, const struct tarn_client *client,
                                 const char *key);
/* List the models. The answer's text has one model id per line. */
enum tarn_error tarn_models(struct tarn_answer *answer, const struct tarn_client *client);
/* Tokenize a text. On TARN_OK the caller owns *ids [*n_ids]: free(). answer->text is the body. */
enum tarn_error tarn_tokenize(struct tarn_answer *answer, const struct tarn_client *client,
                              const char *text, size_t len, uint32_t **ids, size_t *n_ids);
/* Detokenize ids. answer->text is their text. */
enum tarn_error tarn_detokenize(struct tarn_answer *answer, const struct tarn_client *client,
                                const uint32_t *ids, size_t n_ids);

/* --- registered documents (an extension of Tarn) --- */

/* The fields of a document to be registered. Only what is set is sent. */
struct tarn_document_fields {
    struct tarn_text title, text;
    const char *metadata;   /* a JSON object */
    const float *embedding; /* [n_embedding] */
    size_t n_embedding;
    int64_t is_public, is_pinned; /* 0 or 1 */
    int64_t ttl;                  /* seconds until the document expires */
    const char *prefill;          /* "now", "lazy" */
};
/* Initialize with no field set. */
void tarn_document_fields_init(struct tarn_document_fields *f);

/* Register a document or replace it. The answer's text is the document's JSON without its text, as
 * in the next functions. id: any text of 1 to 256 bytes, except "." and "..". */
enum tarn_error tarn_document_put(struct tarn_answer *answer, const struct tarn_client *client,
                                  const char *id, const struct tarn_document_fields *fields);
/* Change pin, ttl or prefill ("now": compute its KV soon); the text stays. */
enum tarn_error tarn_document_change(struct tarn_answer *answer, const struct tarn_client *client,
                                     const char *id, const struct tarn_document_fields *fields);
/* The document with its paths, tiers and uses. */
enum tarn_error tarn_document_get(struct tarn_answer *answer, const struct tarn_client *client,
                                  const char *id);
enum tarn_error tarn_document_delete(struct tarn_answer *answer, const struct tarn_client *client,
                                     const char *id);
/* A page of the list: at most `limit` documents (0: the server's default) behind the id `after`
 * (NULL: from the first). */
enum tarn_error tarn_documents_list(struct tarn_answer *answer, const struct tarn_client *client,
                                    const char *after, uint32_t limit);
/* Register many: `lines` [len] has one JSON object a line, with "id", "text" and the other fields.
 * The answer's text has the server's lines: progress, errors, and the sums at the end. */
enum tarn_error tarn_documents_import(struct tarn_answer *answer, const struct tarn_client *client,
                                      const char *lines, size_t len);
/* Register what comes before documents: a system message and tools, which all tenants may share if
 * it is public. tools: a JSON array, as in a chat; NULL: none. is_public: 0, 1 or TARN_UNSET. */
enum tarn_error tarn_preamble_put(struct tarn_answer *answer, const struct tarn_client *client,
                                  const char *id, const struct tarn_text *system_text,
                                  const char *tools, int64_t is_public);
enum tarn_error tarn_preamble_delete(struct tarn_answer *answer, const struct tarn_client *client,
                                     const char *id);
enum tarn_error tarn_preambles_list(struct tarn_answer *answer, const struct tarn_client *client);

#ifdef __cplusplus
}
#endif
#endif
