/* tarnctl - a command-line client for Tarn and other servers with an OpenAI-style API. */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/c/tarn_client.h"
#include "clients/tarnctl/cache_table.h"
#include "clients/tarnctl/verify.h"

#define N_DOCUMENTS_MAX 64
#define N_WORDS_MAX 3
#define N_SPANS_MAX 256 /* of /cache */
#define STDIN_BYTES_MAX ((size_t)32 << 20)

static const char usage[] =
    "usage: tarnctl [--url URL] [OPTIONS] COMMAND\n"
    "\n"
    "commands\n"
    "  health              whether the server is ready\n"
    "  models              ids of the models, one a line\n"
    "  chat TEXT           an answer to TEXT, printed as it comes\n"
    "  complete TEXT       a continuation of TEXT, printed as it comes\n"
    "  tokenize TEXT       token ids of TEXT\n"
    "  metrics             Prometheus text (all of it: admin key)\n"
    "  cache               what the KV cache holds, by tier and span (admin key)\n"
    "  cache reset         forget all KV that no request uses\n"
    "  cache erase KEY     forget a span and all spans behind it, on disk as well; KEY as printed\n"
    "                      by `cache`, or all 64 digits (--json)\n"
    "  cache verify PATH   check the directory of --kv-disk-path, or one in it, without a server\n"
    "  TEXT may be - for standard input.\n"
    "\n"
    "options\n"
    "  --url URL           default $TARN_URL or http://127.0.0.1:8000\n"
    "  --unix PATH         connect to this Unix socket\n"
    "  --api-key KEY       default $TARN_API_KEY; also used as admin key\n"
    "  --ca-file FILE      authorities for https (PEM)\n"
    "  --insecure          accept any certificate\n"
    "  --model NAME        default: the server's\n"
    "  --system TEXT       system message of a chat\n"
    "  --document T: TEXT  a document for a chat, title before the first colon; repeatable\n"
    "  --max-tokens N      default 256\n"
    "  --temperature X     default: the server's\n"
    "  --seed N            default: the server's\n"
    "  --no-stream         print the answer when it is complete\n"
    "  --timeout SECONDS   give up after so many seconds without a byte; default 300\n"
    "  --usage             tokens and times on standard error\n"
    "  --spans N           spans that `cache` lists, at most 256; default 20\n"
    "  --json              `cache ...`: print JSON instead of tables\n"
    "  -h, --help          this text\n"
    "  -V, --version       the version\n"
    "\n"
    "Exit code: 0, 1 when the server or the network failed, 2 for a wrong command line. Of\n"
    "cache verify: 0 fine, 1 something is damaged, 2 something cannot be read.\n";

struct options {
    struct tarn_client_config client;
    struct tarn_request request; /* kind and prompt come later */
    const char *system;
    struct tarn_document documents[N_DOCUMENTS_MAX];
    size_t n_documents;
    bool no_stream, show_usage, json;
    int64_t n_spans;                /* -1: the server's default */
    const char *words[N_WORDS_MAX]; /* command and its arguments */
    size_t n_words;
};

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    fputs("tarnctl: ", stderr);
    vfprintf(stderr, format, ap);
    fputs("\n  try tarnctl --help\n", stderr);
    va_end(ap);
    exit(2);
}

/* --- the command line ---
 *
 * base/option_table.h does not fit here. The command and its arguments are several operands, and a
 * table has one. --document takes one word each time it is given, and an OPTION_LIST takes all that
 * follow. --seed may be negative. Of the environment only TARN_URL and TARN_API_KEY are read: a
 * table would read TARN_MODEL too, which is a directory for the server and a name here. */

static int64_t parse_int(const char *flag, const char *text, int64_t min, int64_t max)
{
    char *end;
    long long v = strtoll(text, &end, 10);

    if (end == text || *end || v < min || v > max)
        die("%s: expected a whole number from %lld to %lld, got \"%s\"", flag, (long long)min,
            (long long)max, text);
    return v;
}

static double parse_real(const char *flag, const char *text)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !(v >= 0 && v < 1e6))
        die("%s: expected a number that is not negative, got \"%s\"", flag, text);
    return v;
}

static void add_document(struct options *o, const char *text)
{
    const char *colon = strchr(text, ':');
    struct tarn_document *d = &o->documents[o->n_documents];

    if (o->n_documents == N_DOCUMENTS_MAX)
        die("--document: at most %d", N_DOCUMENTS_MAX);
    if (colon && colon > text)
        d->title = (struct tarn_text){text, (size_t)(colon - text)};
    if (colon)
        text = colon + 1 + strspn(colon + 1, " ");
    d->text = (struct tarn_text){text, strlen(text)};
    o->n_documents++;
}

static bool set_value(struct options *o, const char *flag, const char *value)
{
    if (strcmp(flag, "--url") == 0)
        o->client.url = value;
    else if (strcmp(flag, "--unix") == 0)
        o->client.unix_path = value;
    else if (strcmp(flag, "--api-key") == 0)
        o->client.api_key = value;
    else if (strcmp(flag, "--ca-file") == 0)
        o->client.ca_file = value;
    else if (strcmp(flag, "--model") == 0)
        o->request.model = value;
    else if (strcmp(flag, "--system") == 0)
        o->system = value;
    else if (strcmp(flag, "--document") == 0)
        add_document(o, value);
    else if (strcmp(flag, "--max-tokens") == 0)
        o->request.max_tokens = parse_int(flag, value, 1, INT32_MAX);
    else if (strcmp(flag, "--temperature") == 0)
        o->request.temperature = parse_real(flag, value);
    else if (strcmp(flag, "--seed") == 0)
        o->request.seed = parse_int(flag, value, INT64_MIN + 1, INT64_MAX);
    else if (strcmp(flag, "--spans") == 0)
        o->n_spans = parse_int(flag, value, 0, N_SPANS_MAX);
    else if (strcmp(flag, "--timeout") == 0)
        o->client.idle_timeout_ms = (uint32_t)(parse_int(flag, value, 1, 1000000) * 1000);
    else
        return false;
    return true;
}

static bool set_switch(struct options *o, const char *flag)
{
    if (strcmp(flag, "--insecure") == 0)
        o->client.tls_no_verify = true;
    else if (strcmp(flag, "--no-stream") == 0)
        o->no_stream = true;
    else if (strcmp(flag, "--usage") == 0)
        o->show_usage = true;
    else if (strcmp(flag, "--json") == 0)
        o->json = true;
    else
        return false;
    return true;
}

/* The exit code: 1 instead of 0 if standard output could not be written. */
static int end_output(int code)
{
    return fflush(stdout) != 0 && code == 0 ? 1 : code;
}

static void parse_arguments(struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "-h") == 0 || strcmp(a, "--help") == 0) {
            fputs(usage, stdout);
            exit(end_output(0));
        }
        if (strcmp(a, "-V") == 0 || strcmp(a, "--version") == 0) {
            puts("tarnctl " TARN_VERSION);
            exit(end_output(0));
        }
        if (a[0] != '-' || a[1] == '\0') {
            if (o->n_words == N_WORDS_MAX)
                die("one argument too many: \"%s\" (put a text in quotes)", a);
            o->words[o->n_words++] = a;
        } else if (!set_switch(o, a)) {
            if (i + 1 == argc || !set_value(o, a, argv[i + 1]))
                die(i + 1 == argc ? "%s: unknown, or its value is missing" : "%s: unknown option",
                    a);
            i++;
        }
    }
}

/* --- output --- */

static int fail(const struct tarn_client_config *config, const struct tarn_answer *a)
{
    fprintf(stderr, "tarnctl: %s: %s", tarn_error_name(a->error), a->message);
    if (a->code[0])
        fprintf(stderr, " (%s)", a->code);
    if (a->http_status == 401)
        fputs("\n  a key is needed: --api-key", stderr);
    if (a->error == TARN_ERR_BUSY && a->retry_after_s >= 0)
        fprintf(stderr, "\n  try again in %g s", a->retry_after_s);
    if (a->error == TARN_ERR_CONNECT)
        fprintf(stderr, "\n  is a server running at %s?", config->url);
    fputc('\n', stderr);
    return 1;
}

static bool print_chunk(void *arg, const struct tarn_chunk *chunk)
{
    (void)arg;
    if (chunk->index != 0)
        return true;
    fwrite(chunk->text, 1, chunk->text_len, stdout);
    return fflush(stdout) == 0; /* cancel the call when standard output is closed */
}

static void print_usage(const struct tarn_answer *a)
{
    const struct tarn_usage *u = &a->usage;
    double whole_s = (double)(a->end_ns - a->start_ns) * 1e-9;

    fprintf(stderr, "finish: %s", a->finish_reason[0] ? a->finish_reason : "?");
    if (u->prompt_tokens >= 0)
        fprintf(stderr, ", prompt: %lld tokens", (long long)u->prompt_tokens);
    if (u->cached_tokens >= 0)
        fprintf(stderr, " (%lld cached)", (long long)u->cached_tokens);
    if (u->held_tokens > 0)
        fprintf(stderr, " (%lld held)", (long long)u->held_tokens);
    if (u->completion_tokens >= 0)
        fprintf(stderr, ", answer: %lld tokens", (long long)u->completion_tokens);
    if (a->first_ns)
        fprintf(stderr, ", first after %.3f s", (double)(a->first_ns - a->start_ns) * 1e-9);
    fprintf(stderr, ", whole %.3f s\n", whole_s);
}

/* Print a text, and a newline if it does not end with one. */
static void print_text(const char *text, size_t len)
{
    fwrite(text, 1, len, stdout);
    if (len == 0 || text[len - 1] != '\n')
        putchar('\n');
}

/* --- commands --- */

static char *read_stdin(void)
{
    char *text = malloc(STDIN_BYTES_MAX + 1);
    size_t n;

    if (!text)
        die("out of memory");
    n = fread(text, 1, STDIN_BYTES_MAX + 1, stdin);
    if (n > STDIN_BYTES_MAX)
        die("standard input is longer than %zu bytes", STDIN_BYTES_MAX);
    text[n] = '\0';
    return text;
}

static int generate(const struct options *o, const struct tarn_client *client, enum tarn_kind kind,
                    const char *text)
{
    struct tarn_request r = o->request;
    struct tarn_message messages[2] = {{"system", {o->system, 0}}, {"user", {text, 0}}};
    struct tarn_answer a;

    r.kind = kind;
    r.prompt = (struct tarn_text){text, 0};
    r.messages = o->system ? messages : messages + 1;
    r.n_messages = o->system ? 2 : 1;
    r.documents = o->documents;
    r.n_documents = o->n_documents;
    r.stream = !o->no_stream;
    r.include_usage = true;
    enum tarn_error e = tarn_generate(&a, client, &r, print_chunk, NULL);
    if (a.first_ns)
        putchar('\n');
    fflush(stdout); /* so that it precedes the output on standard error */
    int code = e == TARN_OK ? 0 : fail(&o->client, &a);
    if (e == TARN_OK && o->show_usage)
        print_usage(&a);
    tarn_answer_fini(&a);
    return code;
}

static int tokenize(const struct options *o, const struct tarn_client *client, const char *text)
{
    struct tarn_answer a;
    uint32_t *ids;
    size_t n;
    enum tarn_error e = tarn_tokenize(&a, client, text, strlen(text), &ids, &n);

    for (size_t i = 0; e == TARN_OK && i < n; i++)
        printf("%s%u", i ? " " : "", ids[i]);
    if (e == TARN_OK)
        printf("\n");
    if (e == TARN_OK && o->show_usage)
        fprintf(stderr, "%zu tokens\n", n);
    int code = e == TARN_OK ? 0 : fail(&o->client, &a);
    free(ids);
    tarn_answer_fini(&a);
    return code;
}

typedef enum tarn_error fetch_function(struct tarn_answer *a, const struct tarn_client *client);

static int fetch(const struct options *o, const struct tarn_client *client, fetch_function *f)
{
    struct tarn_answer a;
    enum tarn_error e = f(&a, client);
    int code = e == TARN_OK ? 0 : fail(&o->client, &a);

    if (e == TARN_OK)
        print_text(a.text, a.text_len);
    tarn_answer_fini(&a);
    return code;
}

typedef enum status print_function(FILE *f, const char *json, size_t len);

/* Print an answer of /cache and free it. */
static int show(const struct options *o, struct tarn_answer *a, print_function *print)
{
    int code = a->error == TARN_OK ? 0 : fail(&o->client, a);
    enum status s = OK;

    if (a->error == TARN_OK && o->json)
        print_text(a->text, a->text_len);
    else if (a->error == TARN_OK)
        s = print(stdout, a->text, a->text_len);
    if (s != OK) {
        fprintf(stderr, "tarnctl: %s\n",
                s == ERR_NOMEM ? "out of memory"
                               : "this is not an answer of Tarn's /cache: --json prints it");
        code = 1;
    }
    tarn_answer_fini(a);
    return code;
}

static int cache(const struct options *o, const struct tarn_client *client)
{
    char path[48] = "/cache";
    struct tarn_answer a;

    if (o->n_spans >= 0)
        snprintf(path, sizeof path, "/cache?spans=%lld", (long long)o->n_spans);
    tarn_fetch(&a, client, path, NULL, 0);
    return show(o, &a, cache_table_print);
}

static int cache_reset(const struct options *o, const struct tarn_client *client)
{
    struct tarn_answer a;

    tarn_cache_reset(&a, client);
    return show(o, &a, cache_reset_print);
}

/* Check a KEY argument: all 64 digits, or at least 12, which find the key in the server's list. */
static void check_key(const char *text)
{
    size_t n = strlen(text);

    if (n < CACHE_KEY_DIGITS_SHOWN || n > CACHE_KEY_DIGITS ||
        strspn(text, "0123456789abcdefABCDEF") != n)
        die("cache erase: expected %d to %d hex digits, got \"%s\"", CACHE_KEY_DIGITS_SHOWN,
            CACHE_KEY_DIGITS, text);
}

static int cache_erase(const struct options *o, const struct tarn_client *client, const char *text)
{
    char key[CACHE_KEY_DIGITS + 1], path[48];
    struct tarn_answer a;
    size_t n_found = 1;

    snprintf(key, sizeof key, "%s", text);
    if (strlen(text) < CACHE_KEY_DIGITS) {
        snprintf(path, sizeof path, "/cache?spans=%d", N_SPANS_MAX);
        if (tarn_fetch(&a, client, path, NULL, 0) != TARN_OK)
            return show(o, &a, cache_erase_print);
        n_found = cache_key_find(key, a.text, a.text_len, text);
        tarn_answer_fini(&a);
    }
    if (n_found != 1) {
        fprintf(stderr,
                "tarnctl: %s of the spans that the server lists begins with \"%s\"; give "
                "all %d digits\n",
                n_found ? "more than one" : "none", text, CACHE_KEY_DIGITS);
        return 1;
    }
    tarn_cache_erase(&a, client, key);
    return show(o, &a, cache_erase_print);
}

struct command {
    const char *name;
    const char *argument; /* the word after the name; "TEXT": any text; NULL: none */
    const char *operand;  /* the word after the argument; NULL: none */
    fetch_function *fetch;
};

static const struct command commands[] = {
    {"health", NULL, NULL, tarn_health},   {"models", NULL, NULL, tarn_models},
    {"metrics", NULL, NULL, tarn_metrics}, {"cache", NULL, NULL, NULL},
    {"cache", "reset", NULL, NULL},        {"cache", "erase", "KEY", NULL},
    {"cache", "verify", "PATH", NULL},     {"chat", "TEXT", NULL, NULL},
    {"complete", "TEXT", NULL, NULL},      {"tokenize", "TEXT", NULL, NULL},
};

static bool fits(const struct command *c, const struct options *o)
{
    size_t n = c->operand ? 3 : c->argument ? 2 : 1;

    if (o->n_words != n || strcmp(c->name, o->words[0]) != 0)
        return false;
    return n == 1 || strcmp(c->argument, "TEXT") == 0 || strcmp(c->argument, o->words[1]) == 0;
}

static bool takes_key(const struct command *c)
{
    return c->operand && strcmp(c->operand, "KEY") == 0;
}

/* Whether the command reads a directory instead of asking a server. */
static bool takes_path(const struct command *c)
{
    return c->operand && strcmp(c->operand, "PATH") == 0;
}

/* Find the command of the command line. Exit with a message if there is none. */
static const struct command *find_command(const struct options *o)
{
    const struct command *near = NULL; /* a command that the line begins, but does not complete */

    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        const struct command *c = &commands[i];
        if (fits(c, o))
            return c;
        if (strcmp(c->name, o->words[0]) == 0 &&
            (!near || (o->n_words > 1 && c->operand && strcmp(c->argument, o->words[1]) == 0)))
            near = c;
    }
    if (!near)
        die("unknown command \"%s\"", o->words[0]);
    if (o->n_words == 1)
        die("%s: a text is missing", o->words[0]);
    if (o->n_words == 2 && near->operand)
        die("%s %s: %s is missing", near->name, near->argument, near->operand);
    if (near->argument && strcmp(near->argument, "TEXT") == 0)
        die("one argument too many: \"%s\" (put a text in quotes)", o->words[2]);
    die("%s: unexpected \"%s\"", o->words[0], o->words[o->n_words - 1]);
}

static int run(const struct options *o, const struct tarn_client *client)
{
    const struct command *c = find_command(o);
    char *input = NULL;
    const char *text = o->n_words > 1 ? o->words[1] : NULL;
    int code;

    if (c->fetch)
        return fetch(o, client, c->fetch);
    if (takes_key(c))
        return cache_erase(o, client, o->words[2]);
    if (strcmp(c->name, "cache") == 0)
        return (c->argument ? cache_reset : cache)(o, client);
    if (strcmp(text, "-") == 0)
        text = input = read_stdin();
    if (strcmp(c->name, "tokenize") == 0)
        code = tokenize(o, client, text);
    else
        code =
            generate(o, client, strcmp(c->name, "chat") == 0 ? TARN_CHAT : TARN_COMPLETION, text);
    free(input);
    return code;
}

int main(int argc, char **argv)
{
    struct options o = {.client = {.url = getenv("TARN_URL"),
                                   .api_key = getenv("TARN_API_KEY"),
                                   .idle_timeout_ms = 300000},
                        .n_spans = -1};
    struct tarn_client *client;
    char why[256];

    tarn_request_init(&o.request, TARN_CHAT);
    o.request.max_tokens = 256;
    if (!o.client.url || !o.client.url[0])
        o.client.url = "http://127.0.0.1:8000";
    parse_arguments(&o, argc, argv);
    if (o.n_words == 0)
        die("a command is missing");
    const struct command *command = find_command(&o);
    if (takes_path(command))
        return end_output(verify_path(stdout, stderr, o.words[2], o.json));
    if (takes_key(command))
        check_key(o.words[2]);
    if (tarn_client_create(&client, &o.client, why, sizeof why) != TARN_OK)
        die("%s", why);
    int code = run(&o, client);
    tarn_client_destroy(client);
    return end_output(code);
}
