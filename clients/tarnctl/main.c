/* tarnctl - a command-line client for Tarn and other servers with an OpenAI-style API. */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "clients/tarnctl/cache_table.h"
#include "clients/tarnctl/docs.h"
#include "clients/tarnctl/import.h"
#include "clients/tarnctl/instances.h"
#include "clients/tarnctl/models.h"
#include "clients/tarnctl/tarnctl.h"
#include "clients/tarnctl/verify.h"

#define N_SPANS_MAX 256   /* of /cache */
#define N_LISTED_MAX 1000 /* of /v1/documents */
#define TTL_S_MAX INT32_MAX

static const char usage[] =
    "usage: tarnctl [--url URL] [OPTIONS] COMMAND\n"
    "\n"
    "commands\n"
    "  health              whether the server is ready\n"
    "  models              ids of the models that the server has, one a line\n"
    "  models inspect M    what model M needs and whether it can be loaded, without a server: a\n"
    "                      directory, a .gguf file, or org/name[@revision][:FILE.gguf] in the\n"
    "                      Hugging Face cache\n"
    "  models download M   get org/name[@revision][:FILE.gguf] into the Hugging Face cache\n"
    "  chat TEXT           an answer to TEXT, printed as it comes\n"
    "  complete TEXT       a continuation of TEXT, printed as it comes\n"
    "  tokenize TEXT       token ids of TEXT\n"
    "  metrics             Prometheus text (all of it: admin key)\n"
    "  cache               what the KV cache holds, by tier and span (admin key)\n"
    "  cache reset         forget all KV that no request uses\n"
    "  cache erase KEY     forget a span and all spans behind it, on disk as well; KEY as printed\n"
    "                      by `cache`, or all 64 digits (--json)\n"
    "  cache verify PATH   check the directory of --kv-disk-path, or one in it, without a server\n"
    "  instances           the instances of the server's pool (admin key)\n"
    "  docs add FILE       register FILE as a document, under its name; - is standard input\n"
    "  docs list           registered documents: a page, in the order of their ids\n"
    "  docs show ID        a document, and for which prompts its KV is ready\n"
    "  docs warm ID...     compute the KV of documents behind every registered preamble\n"
    "  docs pin ID...      keep the KV of documents\n"
    "  docs unpin ID...    let it be evicted again\n"
    "  docs rm ID...       delete documents, and their KV in every tier\n"
    "  docs import PATH    register every .txt and .md file below a folder, or a file of JSON "
    "lines\n"
    "                      ({\"id\", \"text\", ...}); - is standard input\n"
    "  preambles add FILE  register FILE as a system message in front of documents;\n"
    "                      FILE.json: {\"system\": TEXT, \"tools\": [...]}\n"
    "  preambles list      registered preambles\n"
    "  preambles rm ID...  delete preambles\n"
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
    "  --document-id ID    a registered document for a chat; repeatable\n"
    "  --max-tokens N      default 256\n"
    "  --temperature X     default: the server's\n"
    "  --seed N            default: the server's\n"
    "  --no-stream         print the answer when it is complete\n"
    "  --timeout SECONDS   give up after so many seconds without a byte; default 300\n"
    "  --usage             tokens and times on standard error\n"
    "  --spans N           spans that `cache` lists, at most 256; default 20\n"
    "  --id ID             `add`: id instead of the file's name\n"
    "  --title TEXT        `docs add`: default: first heading of a .md file, or the file's name\n"
    "  --metadata JSON     `docs add`: an object, for filters\n"
    "  --public            `add`, `import`: share with all tenants (admin key)\n"
    "  --pin               `docs add`, `docs import`: keep the KV\n"
    "  --ttl SECONDS       `docs add`, `docs import`: delete the document after that time\n"
    "  --prefill now|lazy  `docs add`, `docs import`: compute the KV soon, or at the first use\n"
    "  --after ID          `docs list`: begin behind this id\n"
    "  --limit N           `docs list`: at most 1000; default 100\n"
    "  --include GLOB      `models download`: the files of that name instead of those that Tarn\n"
    "                      needs; repeatable\n"
    "  --json              `cache`, `instances`, `docs`, `preambles`, `models inspect`: print\n"
    "                      JSON instead of tables\n"
    "  -h, --help          this text\n"
    "  -V, --version       the version\n"
    "\n"
    "Exit code: 0, 1 when the server or the network failed, 2 for a wrong command line. Of\n"
    "cache verify: 0 fine, 1 something is damaged, 2 something cannot be read.\n";

void ctl_die(const char *format, ...)
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
        ctl_die("%s: expected a whole number from %lld to %lld, got \"%s\"", flag, (long long)min,
                (long long)max, text);
    return v;
}

static double parse_real(const char *flag, const char *text)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !(v >= 0 && v < 1e6))
        ctl_die("%s: expected a number that is not negative, got \"%s\"", flag, text);
    return v;
}

static void add_document(struct ctl_options *o, const char *text)
{
    const char *colon = strchr(text, ':');
    struct tarn_document *d = &o->documents[o->n_documents];

    if (o->n_documents == CTL_N_DOCUMENTS_MAX)
        ctl_die("--document: at most %d", CTL_N_DOCUMENTS_MAX);
    if (colon && colon > text)
        d->title = (struct tarn_text){text, (size_t)(colon - text)};
    if (colon)
        text = colon + 1 + strspn(colon + 1, " ");
    d->text = (struct tarn_text){text, strlen(text)};
    o->n_documents++;
}

static void add_document_id(struct ctl_options *o, const char *id)
{
    if (o->n_document_ids == CTL_N_DOCUMENTS_MAX)
        ctl_die("--document-id: at most %d", CTL_N_DOCUMENTS_MAX);
    o->document_ids[o->n_document_ids++] = id;
}

static void add_glob(struct ctl_options *o, const char *glob)
{
    if (o->n_globs == CTL_N_GLOBS_MAX)
        ctl_die("--include: at most %d", CTL_N_GLOBS_MAX);
    o->globs[o->n_globs++] = glob;
}

/* Options of `docs` and `preambles`. */
static bool set_docs_value(struct ctl_options *o, const char *flag, const char *value)
{
    struct tarn_document_fields *f = &o->fields;

    if (strcmp(flag, "--id") == 0)
        o->id = value;
    else if (strcmp(flag, "--title") == 0)
        f->title = (struct tarn_text){value, 0};
    else if (strcmp(flag, "--metadata") == 0)
        f->metadata = value;
    else if (strcmp(flag, "--ttl") == 0)
        f->ttl = parse_int(flag, value, 1, TTL_S_MAX);
    else if (strcmp(flag, "--prefill") == 0 && (!strcmp(value, "now") || !strcmp(value, "lazy")))
        f->prefill = value;
    else if (strcmp(flag, "--prefill") == 0)
        ctl_die("--prefill: expected now or lazy, got \"%s\"", value);
    else if (strcmp(flag, "--after") == 0)
        o->after = value;
    else if (strcmp(flag, "--limit") == 0)
        o->limit = (uint32_t)parse_int(flag, value, 1, N_LISTED_MAX);
    else
        return false;
    return true;
}

static bool set_value(struct ctl_options *o, const char *flag, const char *value)
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
    else if (strcmp(flag, "--document-id") == 0)
        add_document_id(o, value);
    else if (strcmp(flag, "--include") == 0)
        add_glob(o, value);
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
        return set_docs_value(o, flag, value);
    return true;
}

static bool set_switch(struct ctl_options *o, const char *flag)
{
    if (strcmp(flag, "--insecure") == 0)
        o->client.tls_no_verify = true;
    else if (strcmp(flag, "--no-stream") == 0)
        o->no_stream = true;
    else if (strcmp(flag, "--usage") == 0)
        o->show_usage = true;
    else if (strcmp(flag, "--json") == 0)
        o->json = true;
    else if (strcmp(flag, "--public") == 0)
        o->fields.is_public = 1;
    else if (strcmp(flag, "--pin") == 0)
        o->fields.is_pinned = 1;
    else
        return false;
    return true;
}

/* The exit code: 1 instead of 0 if standard output could not be written. */
static int end_output(int code)
{
    return fflush(stdout) != 0 && code == 0 ? 1 : code;
}

static void parse_arguments(struct ctl_options *o, int argc, char **argv)
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
            if (o->n_words == CTL_N_WORDS_MAX)
                ctl_die("one argument too many: \"%s\" (put a text in quotes)", a);
            o->words[o->n_words++] = a;
        } else if (!set_switch(o, a)) {
            if (i + 1 == argc || !set_value(o, a, argv[i + 1]))
                ctl_die(i + 1 == argc ? "%s: unknown, or its value is missing"
                                      : "%s: unknown option",
                        a);
            i++;
        }
    }
}

/* --- output --- */

int ctl_fail(const struct ctl_options *o, const struct tarn_answer *a)
{
    if (a->http_status >= 400)
        fprintf(stderr, "tarnctl: the server answered %d: %s", a->http_status, a->message);
    else
        fprintf(stderr, "tarnctl: %s: %s", tarn_error_name(a->error), a->message);
    if (a->code[0])
        fprintf(stderr, " (%s)", a->code);
    if (a->http_status == 401)
        fputs("\n  a key is needed: --api-key", stderr);
    if (a->error == TARN_ERR_BUSY && a->retry_after_s >= 0)
        fprintf(stderr, "\n  try again in %g s", a->retry_after_s);
    if (a->error == TARN_ERR_CONNECT)
        fprintf(stderr, "\n  is a server running at %s?", o->client.url);
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

void ctl_print(const char *text, size_t len)
{
    fwrite(text, 1, len, stdout);
    if (len == 0 || text[len - 1] != '\n')
        putchar('\n');
}

/* --- commands --- */

enum status ctl_read(const char *path, struct buf *out, struct buf *why)
{
    bool is_stdin = strcmp(path, "-") == 0;
    const char *name = is_stdin ? "standard input" : path;
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    char part[1 << 14];
    enum status s = OK;
    size_t n;

    if (!f)
        return buf_why(why, ERR_NOT_FOUND, "cannot open %s: %s", path, strerror(errno));
    while (s == OK && (n = fread(part, 1, sizeof part, f)) > 0)
        s = buf_append(out, part, n);
    if (s == ERR_TOO_LARGE)
        buf_why(why, s, "%s is longer than %zu bytes", name, out->max);
    else if (s != OK)
        buf_why(why, s, "out of memory");
    else if (ferror(f))
        s = buf_why(why, ERR_IO, "%s cannot be read: %s", name, strerror(errno));
    if (!is_stdin)
        fclose(f);
    return s;
}

static int generate(const struct ctl_options *o, const struct tarn_client *client,
                    enum tarn_kind kind, const char *text)
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
    r.document_ids = o->document_ids;
    r.n_document_ids = o->n_document_ids;
    r.stream = !o->no_stream;
    r.include_usage = true;
    enum tarn_error e = tarn_generate(&a, client, &r, print_chunk, NULL);
    if (a.first_ns)
        putchar('\n');
    fflush(stdout); /* so that it precedes the output on standard error */
    int code = e == TARN_OK ? 0 : ctl_fail(o, &a);
    if (e == TARN_OK && o->show_usage)
        print_usage(&a);
    tarn_answer_fini(&a);
    return code;
}

static int tokenize(const struct ctl_options *o, const struct tarn_client *client, const char *text)
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
    int code = e == TARN_OK ? 0 : ctl_fail(o, &a);
    free(ids);
    tarn_answer_fini(&a);
    return code;
}

typedef enum tarn_error fetch_function(struct tarn_answer *a, const struct tarn_client *client);

static int fetch(const struct ctl_options *o, const struct tarn_client *client, fetch_function *f)
{
    struct tarn_answer a;
    enum tarn_error e = f(&a, client);
    int code = e == TARN_OK ? 0 : ctl_fail(o, &a);

    if (e == TARN_OK)
        ctl_print(a.text, a.text_len);
    tarn_answer_fini(&a);
    return code;
}

typedef enum status print_function(FILE *f, const char *json, size_t len);

/* Print an answer of /cache or /v1/instances and free it. */
static int show(const struct ctl_options *o, struct tarn_answer *a, print_function *print)
{
    int code = a->error == TARN_OK ? 0 : ctl_fail(o, a);
    enum status s = OK;

    if (a->error == TARN_OK && o->json)
        ctl_print(a->text, a->text_len);
    else if (a->error == TARN_OK)
        s = print(stdout, a->text, a->text_len);
    if (s != OK) {
        fprintf(stderr, "tarnctl: %s\n",
                s == ERR_NOMEM
                    ? "out of memory"
                    : "this is not the answer of a Tarn of this version: --json prints it");
        code = 1;
    }
    tarn_answer_fini(a);
    return code;
}

static int cache(const struct ctl_options *o, const struct tarn_client *client)
{
    char path[48] = "/cache";
    struct tarn_answer a;

    if (o->n_spans >= 0)
        snprintf(path, sizeof path, "/cache?spans=%lld", (long long)o->n_spans);
    tarn_fetch(&a, client, path, NULL, 0);
    return show(o, &a, cache_table_print);
}

static int cache_reset(const struct ctl_options *o, const struct tarn_client *client)
{
    struct tarn_answer a;

    tarn_cache_reset(&a, client);
    return show(o, &a, cache_reset_print);
}

static int instances(const struct ctl_options *o, const struct tarn_client *client)
{
    struct tarn_answer a;

    tarn_fetch(&a, client, "/v1/instances", NULL, 0);
    return show(o, &a, instances_print);
}

/* Check a KEY argument: all 64 digits, or at least 12, which find the key in the server's list. */
static void check_key(const char *text)
{
    size_t n = strlen(text);

    if (n < CACHE_KEY_DIGITS_SHOWN || n > CACHE_KEY_DIGITS ||
        strspn(text, "0123456789abcdefABCDEF") != n)
        ctl_die("cache erase: expected %d to %d hex digits, got \"%s\"", CACHE_KEY_DIGITS_SHOWN,
                CACHE_KEY_DIGITS, text);
}

static int cache_erase(const struct ctl_options *o, const struct tarn_client *client)
{
    char key[CACHE_KEY_DIGITS + 1], path[48];
    const char *text = o->words[2];
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

typedef int run_function(const struct ctl_options *o, const struct tarn_client *client);

struct command {
    const char *name;
    const char *argument; /* the word after the name; "TEXT": any text; NULL: none */
    const char *operand;  /* the word after the argument; "ID...": one or more; NULL: none */
    run_function *run;
    fetch_function *fetch;
    int (*run_local)(const struct ctl_options *o); /* without a server */
};

static int cache_verify(const struct ctl_options *o)
{
    return verify_path(stdout, stderr, o->words[2], o->json);
}

static int run_text(const struct ctl_options *o, const struct tarn_client *client)
{
    const char *name = o->words[0], *text = o->words[1];
    struct buf input, why;
    int code;

    buf_init(&input, CTL_INPUT_BYTES_MAX);
    buf_init(&why, BUF_WHY_MAX);
    if (strcmp(text, "-") == 0) {
        if (ctl_read(text, &input, &why) != OK)
            ctl_die("%s", buf_str(&why));
        text = buf_str(&input);
    }
    if (strcmp(name, "tokenize") == 0)
        code = tokenize(o, client, text);
    else
        code = generate(o, client, strcmp(name, "chat") == 0 ? TARN_CHAT : TARN_COMPLETION, text);
    buf_fini(&input);
    buf_fini(&why);
    return code;
}

static const struct command commands[] = {
    {"health", .fetch = tarn_health},
    {"models", .fetch = tarn_models},
    {"models", "inspect", "MODEL", .run_local = models_inspect},
    {"models", "download", "MODEL", .run_local = models_download},
    {"metrics", .fetch = tarn_metrics},
    {"cache", .run = cache},
    {"cache", "reset", .run = cache_reset},
    {"cache", "erase", "KEY", .run = cache_erase},
    {"cache", "verify", "PATH", .run_local = cache_verify},
    {"instances", .run = instances},
    {"chat", "TEXT", .run = run_text},
    {"complete", "TEXT", .run = run_text},
    {"tokenize", "TEXT", .run = run_text},
    {"docs", "add", "FILE", .run = docs_add},
    {"docs", "list", .run = docs_list},
    {"docs", "show", "ID", .run = docs_show},
    {"docs", "warm", "ID...", .run = docs_warm},
    {"docs", "pin", "ID...", .run = docs_pin},
    {"docs", "unpin", "ID...", .run = docs_unpin},
    {"docs", "rm", "ID...", .run = docs_rm},
    {"docs", "import", "PATH", .run = docs_import},
    {"preambles", "add", "FILE", .run = preambles_add},
    {"preambles", "list", .run = preambles_list},
    {"preambles", "rm", "ID...", .run = preambles_rm},
};

static bool repeats(const struct command *c)
{
    return c->operand && strcmp(c->operand, "ID...") == 0;
}

static bool takes_text(const struct command *c)
{
    return c->argument && strcmp(c->argument, "TEXT") == 0;
}

static bool fits(const struct command *c, const struct ctl_options *o)
{
    size_t n = c->operand ? 3 : c->argument ? 2 : 1;

    if (o->n_words < n || (o->n_words > n && !repeats(c)) || strcmp(c->name, o->words[0]) != 0)
        return false;
    return n == 1 || takes_text(c) || strcmp(c->argument, o->words[1]) == 0;
}

/* Find the command of the command line. Exit with a message if there is none. */
static const struct command *find_command(const struct ctl_options *o)
{
    const struct command *near = NULL; /* a command that the line begins, but does not complete */

    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        const struct command *c = &commands[i];
        if (fits(c, o))
            return c;
        if (strcmp(c->name, o->words[0]) == 0 &&
            (!near || (o->n_words > 1 && c->operand && strcmp(c->argument, o->words[1]) == 0)))
            near = c;
    }
    if (!near)
        ctl_die("unknown command \"%s\"", o->words[0]);
    if (o->n_words == 1)
        ctl_die("%s: %s", near->name, takes_text(near) ? "a text is missing" : "which command?");
    if (o->n_words == 2 && near->operand && strcmp(near->argument, o->words[1]) == 0)
        ctl_die("%s %s: %s is missing", near->name, near->argument, near->operand);
    if (takes_text(near))
        ctl_die("one argument too many: \"%s\" (put a text in quotes)", o->words[2]);
    ctl_die("%s: unexpected \"%s\"", o->words[0],
            near->operand && o->n_words > 3 ? o->words[3] : o->words[o->n_words > 2 ? 2 : 1]);
}

int main(int argc, char **argv)
{
    struct ctl_options o = {.client = {.url = getenv("TARN_URL"),
                                       .api_key = getenv("TARN_API_KEY"),
                                       .idle_timeout_ms = 300000},
                            .n_spans = -1};
    struct tarn_client *client;
    char why[256];

    tarn_request_init(&o.request, TARN_CHAT);
    tarn_document_fields_init(&o.fields);
    o.request.max_tokens = 256;
    if (!o.client.url || !o.client.url[0])
        o.client.url = "http://127.0.0.1:8000";
    parse_arguments(&o, argc, argv);
    if (o.n_words == 0)
        ctl_die("a command is missing");
    const struct command *command = find_command(&o);
    if (command->run_local)
        return end_output(command->run_local(&o));
    if (command->run == cache_erase)
        check_key(o.words[2]);
    if (tarn_client_create(&client, &o.client, why, sizeof why) != TARN_OK)
        ctl_die("%s", why);
    int code = command->fetch ? fetch(&o, client, command->fetch) : command->run(&o, client);
    tarn_client_destroy(client);
    return end_output(code);
}
