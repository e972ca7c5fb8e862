#include "server/config.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/flags.h"
#include "base/log.h"
#include "cache/cache.h"
#include "engine/sched/scheduler.h"

#define FILE_LINE_BYTES_MAX 4096
#define CHOICE_END "|, "
#define VARIABLE_PREFIX "TARN_"
#define NAME_SHOWN_MAX 64
#define NUMBER_BYTES 32

enum kind {
    KIND_TEXT,
    KIND_CHOICE, /* one of `choices` (NULL: of words()), which "|" or ", " separates; `a=b`
                    there means that a is another word for b */
    KIND_COUNT,
    KIND_SIZE,
    KIND_NUMBER, /* a decimal fraction */
    KIND_SHARE,  /* a fraction above 0 and at most 1 */
    KIND_PART,   /* a fraction from 0 to 1 */
    KIND_BOOL,
};

struct option {
    const char *group; /* starts a group of --help when not NULL */
    const char *name;
    enum kind kind;
    size_t offset;       /* in struct config */
    uint64_t min, max;   /* KIND_NUMBER: in thousandths */
    const char *preset;  /* the default, written as a user would */
    const char *choices; /* KIND_CHOICE, as the next */
    const char *(*words)(void);
    const char *value; /* what --help calls it */
    const char *help;
    bool secret;
};

#define AT(field) offsetof(struct config, field)
#define U32_MAX UINT64_C(0xffffffff)
// clang-format off
#define TEXT(group, name, field, preset, value, help) \
    {group, name, KIND_TEXT, AT(field), 0, 0, preset, NULL, NULL, value, help, false}
#define SECRET(group, name, field, value, help) \
    {group, name, KIND_TEXT, AT(field), 0, 0, "", NULL, NULL, value, help, true}
#define CHOICE(group, name, field, preset, choices, help) \
    {group, name, KIND_CHOICE, AT(field), 0, 0, preset, choices, NULL, NULL, help, false}
#define LISTED(group, name, field, preset, words, help) \
    {group, name, KIND_CHOICE, AT(field), 0, 0, preset, NULL, words, NULL, help, false}
#define COUNT(group, name, field, min, max, preset, help) \
    {group, name, KIND_COUNT, AT(field), min, max, preset, NULL, NULL, "N", help, false}
#define SIZE(group, name, field, min, max, preset, help) \
    {group, name, KIND_SIZE, AT(field), min, max, preset, NULL, NULL, "SIZE", help, false}
#define NUMBER(group, name, field, min, max, preset, value, help) \
    {group, name, KIND_NUMBER, AT(field), min, max, preset, NULL, NULL, value, help, false}
#define SHARE(group, name, field, preset, help) \
    {group, name, KIND_SHARE, AT(field), 0, 1, preset, NULL, NULL, "SHARE", help, false}
#define PART(group, name, field, preset, help) \
    {group, name, KIND_PART, AT(field), 0, 1, preset, NULL, NULL, "SHARE", help, false}
#define BOOL(group, name, field, preset, help) \
    {group, name, KIND_BOOL, AT(field), 0, 1, preset, NULL, NULL, NULL, help, false}
// clang-format on

#define HOUR_MS UINT64_C(3600000000) /* in thousandths of a millisecond */
#define DTYPES "auto|f32|bf16|f16|float32=f32|float=f32|bfloat16=bf16|float16=f16|half=f16"

static const struct option options[] = {
    TEXT("Model", "model", model, "", "MODEL",
         "directory in Hugging Face layout, or org/name[@rev] in the local Hugging Face cache"),
    TEXT(NULL, "served-model-name", served_model_name, "", "NAMES",
         "names that requests may give, separated by commas; default: the value of --model"),
    TEXT(NULL, "chat-template", chat_template, "", "FILE",
         "Jinja template to use instead of the model's own"),
    TEXT(NULL, "preamble", preamble, "", "FILES",
         "system prompt (or several files, separated by commas) whose KV all tenants share"),
    BOOL(NULL, "parse-special", parse_special, "false",
         "special tokens spelled in the text of users, tools and documents are control tokens"),
    CHOICE(NULL, "load-format", load_format, "auto", "auto|dummy",
           "dummy: random weights for any config.json"),
    CHOICE(NULL, "dtype", dtype, "auto", DTYPES, "type of the weights; auto: as stored"),
    CHOICE(NULL, "quantization", quantization, "none", "none|int8|int4",
           "make weights smaller while they load; embedding and output layer keep 8 bits"),
    CHOICE(NULL, "quantization-group", quantization_group, "auto", "auto|32|128",
           "weights that share a scale; auto: 128 for int8, 32 for int4"),
    CHOICE(NULL, "kv-cache-dtype", kv_cache_dtype, "auto", DTYPES,
           "type of cached K and V; auto: that of --dtype"),
    COUNT(NULL, "max-model-len", max_model_len, 0, U32_MAX, "0",
          "longest prompt plus answer in tokens; 0: the model's, cut to what the KV pool holds"),

    TEXT("HTTP", "host", host, "127.0.0.1", "ADDRESS", "address to listen on"),
    COUNT(NULL, "port", port, 0, 65535, "8000", "port; 0: any free one, printed at start"),
    SECRET(NULL, "api-key", api_key, "KEYS",
           "key (or several, separated by commas) that every route but /health/* then needs"),
    TEXT(NULL, "api-key-file", api_key_file, "", "FILE",
         "JSON file with keys, their tenants and limits; read again on SIGHUP"),
    SECRET(NULL, "admin-api-key", admin_api_key, "KEYS",
           "key (or several) for /cache and other admin routes; opens all others too"),
    COUNT(NULL, "http-threads", http_threads, 1, 64, "4", "threads that talk to clients"),
    COUNT(NULL, "max-connections", max_connections, 1, 65536, "4096",
          "connections kept open at once; one more closes the idlest"),
    COUNT(NULL, "max-connections-per-ip", max_connections_per_ip, 0, 65536, "0",
          "connections of one client address; 0: no limit"),
    SIZE(NULL, "max-body-bytes", max_body_bytes, 1024, UINT64_C(1) << 30, "32M",
         "largest request body"),
    COUNT(NULL, "header-timeout", header_timeout_s, 0, 86400, "10",
          "seconds for a request's header, and for a connection's first byte; 0: no limit"),
    COUNT(NULL, "body-timeout", body_timeout_s, 0, 86400, "30",
          "seconds for a request's body, and one more per 16K of it; 0: no limit"),
    COUNT(NULL, "write-timeout", write_timeout_s, 0, 86400, "30",
          "seconds that a client may leave a piece of its answer untaken; 0: no limit"),
    COUNT(NULL, "idle-timeout", idle_timeout_s, 0, 86400, "75",
          "seconds that a connection may stay open between requests; 0: no limit"),
    TEXT(NULL, "uds", uds, "", "PATH", "listen on a Unix socket instead of --host and --port"),
    TEXT(NULL, "uds-mode", uds_mode, "0600", "MODE", "permissions of the Unix socket, octal"),
    TEXT(NULL, "tls-cert", tls_cert, "", "FILE",
         "certificate chain (PEM): serve HTTPS; read again on SIGHUP"),
    TEXT(NULL, "tls-key", tls_key, "", "FILE", "its private key (PEM)"),
    TEXT(NULL, "allowed-origins", allowed_origins, "", "ORIGINS",
         "origins whose pages a browser may let read answers (CORS), separated by commas; *: all"),
    COUNT(NULL, "drain-timeout", drain_timeout_s, 0, 86400, "30",
          "seconds that running requests get to finish after SIGTERM"),

    CHOICE("Machine", "device", device, "auto", "auto|cpu|cuda|ref",
           "where to compute; auto: a GPU, or the CPU where there is none; ref: plain C, slow, the "
           "truth"),
    CHOICE(NULL, "cpu-variant", cpu_variant, "auto", "auto|amx|avx512bf16|avx512|avx2|portable",
           "instruction set of the CPU; auto: the fastest of this machine"),
    BOOL(NULL, "batch-invariant", batch_invariant, "false",
         "GPU: the same answer whatever else runs, bit for bit; slower (a CPU always does so)"),
    COUNT(NULL, "threads", threads, 0, 1024, "0", "compute threads; 0: all cores of this process"),
    COUNT(NULL, "seed", seed, 0, UINT64_MAX, "0", "seed of dummy weights"),

    COUNT("Scheduling", "max-num-seqs", max_num_seqs, 1, 4096, "64", "sequences that run at once"),
    COUNT(NULL, "max-num-batched-tokens", max_num_batched_tokens, 1, 1 << 20, "512",
          "tokens of one step; longer prompts are computed in chunks"),
    COUNT(NULL, "max-num-queued-reqs", max_num_queued_reqs, 1, 1 << 20, "1024",
          "waiting requests; one more gets 429"),
    LISTED(NULL, "scheduling-policy", scheduling_policy, "skip-join-mlfq", scheduler_policies,
           "order of requests; in all of them a lower `priority` goes first"),
    NUMBER(NULL, "max-step-ms", max_step_ms, 0, HOUR_MS, "0", "MS",
           "prompts are cut so that a step takes no longer; 0: 200 on a CPU, 100 on a GPU"),
    NUMBER(NULL, "quantum-ms", quantum_ms, 0, HOUR_MS, "0", "MS",
           "time that the top level of an MLFQ gives a request; 0: that of a decode step"),
    NUMBER(NULL, "level-ratio", level_ratio, 1100, 16000, "2", "X",
           "how many times as much an MLFQ level gives as the one above, 1.1 to 16"),
    NUMBER(NULL, "starvation-ms", starvation_ms, 0, 24 * HOUR_MS, "0", "MS",
           "who has not run for so long goes before all; 0: 300 on a GPU, on a CPU 3000 or, if "
           "longer, 100 decode steps"),
    LISTED(NULL, "mlfq-variant", mlfq_variant, "tarn", scheduler_variants,
           "MLFQs as tuned here, as in FastServe's paper, or as in its authors' code"),
    BOOL(NULL, "profile-cost", profile_cost, "true",
         "measure at start how long steps take (seconds, once for a model and machine); off: "
         "learn it from requests"),

    SIZE("KV cache", "kv-device-bytes", kv_device_bytes, 0, UINT64_C(1) << 50, "0",
         "size of the KV pool; 0: chosen from free memory"),
    SHARE(NULL, "gpu-memory-utilization", gpu_memory_utilization, "0.9",
          "GPU: share of its memory for weights, buffers and KV pool; --kv-device-bytes wins"),
    COUNT(NULL, "kv-segment-tokens", kv_segment_tokens, 32, 256, "256",
          "tokens of a segment, a multiple of 32"),
    BOOL(NULL, "prefix-caching", prefix_caching, "true",
         "find computed prompts again; --no-prefix-caching switches it off"),
    SIZE(NULL, "kv-host-bytes", kv_host_bytes, 0, UINT64_C(1) << 50, "0",
         "host memory (pinned) for KV that the GPU has no room for; 0: none; on a CPU a second "
         "part of the same memory"),
    PART(NULL, "kv-prefetch-share", kv_prefetch_share, "0.1",
         "share of the KV pool that waiting requests may fetch into from host memory"),
    PART(NULL, "kv-hold-share", kv_hold_share, "0.25",
         "share of the KV pool that requests may keep with cache_ttl"),
    COUNT(NULL, "kv-reserve-blocks", kv_reserve_blocks, 0, U32_MAX, "0",
          "blocks kept free for those that come; 0: by need"),
    CHOICE(NULL, "kv-swap", kv_swap, "proactive", "proactive|reactive",
           "move KV to host memory and back before the room is needed, or when it is"),
    TEXT(NULL, "kv-disk-path", kv_disk_path, "", "DIR",
         "directory for KV that outlives memory and the process; one server uses it at a time"),
    SIZE(NULL, "kv-disk-bytes", kv_disk_bytes, 0, UINT64_C(1) << 50, "0",
         "size of all that lies in --kv-disk-path, whatever model wrote it"),
    COUNT(NULL, "kv-disk-min-uses", kv_disk_min_uses, 1, U32_MAX, "2",
          "what was used so often is written to disk; 1: all at once"),
    COUNT(NULL, "kv-disk-timeout-ms", kv_disk_timeout_ms, 1, 3600000, "1000",
          "what the disk has not read by then is computed instead"),
    CHOICE(NULL, "kv-preload", kv_preload, "registered", "none|registered|all",
           "read from disk at start: nothing, the KV of --preamble, or what fits into half of the "
           "KV pool"),
    LISTED(NULL, "cache-policy", cache_policy, "contest", cache_policies, "what is evicted first"),
    TEXT(NULL, "cache-dir", cache_dir, "", "DIR",
         "what outlives the process: the secret that keeps tenants apart, measured costs; default: "
         "$XDG_CACHE_HOME/tarn or ~/.cache/tarn"),

    CHOICE("Logs", "log-level", log_level, "info", "debug|info|warn|error|warning=warn",
           "least level that is written"),
    CHOICE(NULL, "log-format", log_format, "text", "text|json", "key=value text or JSON lines"),
    BOOL(NULL, "log-prompts", log_prompts, "false", "write prompts to the log, at level debug"),
};

/* Options that are no table rows because they end the program or say where to read rows from. */
static const char *const other_names[] = {"config", "help", "version"};

static const struct option *find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        if (strcmp(options[i].name, name) == 0)
            return &options[i];
    return NULL;
}

/* --- nearest name --- */

const char *config_nearest(const char *name)
{
    struct flag_near best = {0};

    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        flag_consider(&best, options[i].name, name);
    for (size_t i = 0; i < ARRAY_SIZE(other_names); i++)
        flag_consider(&best, other_names[i], name);
    return best.word;
}

/* --- values --- */

static enum status parse_bool(const char *text, bool *out)
{
    static const char *const yes[] = {"true", "1", "on", "yes"};
    static const char *const no[] = {"false", "0", "off", "no"};

    for (size_t i = 0; i < ARRAY_SIZE(yes); i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *out = strcasecmp(text, yes[i]) == 0;
            return OK;
        }
    }
    return ERR_INVALID;
}

static const char *choices_of(const struct option *o)
{
    return o->choices ? o->choices : o->words();
}

/* The word of `choices` that `text` stands for, copied to word[FLAG_NAME_BYTES_MAX]; false when
 * there is none, then the nearest one is there, or "". */
static bool choose(const char *choices, const char *text, char *word)
{
    struct flag_near best = {0}; /* only its distance is read: `one` is written again */
    char one[FLAG_NAME_BYTES_MAX], best_word[FLAG_NAME_BYTES_MAX] = "";

    for (const char *p = choices; *p;) {
        size_t n = strcspn(p, CHOICE_END);
        snprintf(one, sizeof one, "%.*s", (int)n, p);
        char *equals = strchr(one, '=');
        if (equals)
            *equals++ = '\0';
        if (strcmp(one, text) == 0) {
            snprintf(word, FLAG_NAME_BYTES_MAX, "%s", equals ? equals : one);
            return true;
        }
        if (flag_consider(&best, one, text))
            snprintf(best_word, sizeof best_word, "%s", one);
        p += n + strspn(p + n, CHOICE_END);
    }
    snprintf(word, FLAG_NAME_BYTES_MAX, "%s", best_word);
    return false;
}

/* "auto, f32, bf16": without the other words for the same. */
static void list_choices(const char *choices, char *out, size_t n_out, const char *separator)
{
    size_t used = 0;

    out[0] = '\0';
    for (const char *p = choices; *p;) {
        size_t n = strcspn(p, CHOICE_END);
        if (!memchr(p, '=', n) && used < n_out)
            used += (size_t)snprintf(out + used, n_out - used, "%s%.*s", used ? separator : "",
                                     (int)n, p);
        p += n + strspn(p + n, CHOICE_END);
    }
}

static enum status set_choice(struct config *c, const struct option *o, const char *text,
                              const char *source, struct buf *why)
{
    char word[FLAG_NAME_BYTES_MAX], all[256];

    if (choose(choices_of(o), text, word))
        return flag_set_text((char **)((char *)c + o->offset), word);
    list_choices(choices_of(o), all, sizeof all, ", ");
    if (word[0])
        return buf_why(why, ERR_INVALID,
                       "%s: \"%s\" is not known, did you mean \"%s\"? (one of %s)", source, text,
                       word, all);
    return buf_why(why, ERR_INVALID, "%s: \"%s\" is not known (one of %s)", source, text, all);
}

static enum status parse_share(const char *source, const char *text, bool may_be_0, double *out,
                               struct buf *why)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end != '\0' || !(v >= 0 && v <= 1) || (v == 0 && !may_be_0))
        return buf_why(why, ERR_INVALID, "%s: expected a number %s, got \"%s\"", source,
                       may_be_0 ? "from 0 to 1" : "above 0 and at most 1", text);
    *out = v;
    return OK;
}

static enum status parse_number(const char *source, const struct option *o, const char *text,
                                double *out, struct buf *why)
{
    const double min = (double)o->min / 1000, max = (double)o->max / 1000;
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end != '\0' || !(v >= min && v <= max))
        return buf_why(why, ERR_INVALID, "%s: expected a number from %.10g to %.10g, got \"%s\"",
                       source, min, max, text);
    *out = v;
    return OK;
}

/* `source` is how the user wrote the option's name: "--port", "TARN_PORT", "FILE:3: port". */
static enum status set_value(struct config *c, const struct option *o, const char *text,
                             const char *source, struct buf *why)
{
    void *at = (char *)c + o->offset;

    switch (o->kind) {
    case KIND_TEXT: return flag_set_text(at, text);
    case KIND_CHOICE: return set_choice(c, o, text, source, why);
    case KIND_BOOL:
        if (parse_bool(text, at) != OK)
            return buf_why(why, ERR_INVALID, "%s: expected true or false, got \"%s\"", source,
                           text);
        return OK;
    case KIND_SHARE:
    case KIND_PART: return parse_share(source, text, o->kind == KIND_PART, at, why);
    case KIND_NUMBER: return parse_number(source, o, text, at, why);
    case KIND_COUNT:
    case KIND_SIZE: break;
    }
    return flag_parse(o->kind == KIND_SIZE ? FLAG_SIZE : FLAG_COUNT, source, text, o->min, o->max,
                      at, why);
}

/* Count the items of a list. *has_empty: whether one of them is empty. */
static size_t count_items(const char *list, bool *has_empty)
{
    const char *item;
    size_t n = 0, len;

    *has_empty = false;
    while (flag_list_next(&list, &item, &len)) {
        *has_empty |= len == 0;
        n++;
    }
    return n;
}

/* Set a value that the user gave. An empty key, as from a variable that was never filled, is
 * refused: the server would be open. */
static enum status set(struct config *c, const struct option *o, const char *text,
                       const char *source, struct buf *why)
{
    bool has_empty;
    size_t n = count_items(text, &has_empty);

    if (has_empty && (o->secret || (n == 1 && o->offset == AT(api_key_file))))
        return buf_why(why, ERR_INVALID, "%s: %s; give %s, or leave the option out", source,
                       n > 1 ? "one of the keys is empty" : "is empty",
                       o->secret ? "a key" : "a file");
    if (o->offset == AT(served_model_name) && text[0] && has_empty)
        return buf_why(why, ERR_INVALID,
                       "%s: \"%s\" has an empty name; expected names separated "
                       "by commas",
                       source, text);
    if (o->offset == AT(served_model_name) && n > CONFIG_N_MODEL_NAMES_MAX)
        return buf_why(why, ERR_INVALID, "%s: %zu names, at most %d are taken", source, n,
                       CONFIG_N_MODEL_NAMES_MAX);
    return set_value(c, o, text, source, why);
}

static enum status unknown(const char *source, const char *name, struct buf *why)
{
    const char *near = config_nearest(name);

    if (near)
        return buf_why(why, ERR_INVALID, "%s: unknown option, did you mean --%s?", source, near);
    return buf_why(why, ERR_INVALID, "%s: unknown option, see --help", source);
}

/* --- sources --- */

/* "no-prefix-caching" and vLLM's "[no-]enable-prefix-caching". NULL when it is no such word. */
static const struct option *find_switch(const char *name, bool *on)
{
    const struct option *o;

    *on = strncmp(name, "no-", 3) != 0;
    if (!*on)
        name += 3;
    if (strncmp(name, "enable-", 7) == 0)
        name += 7;
    o = find(name);
    return o && o->kind == KIND_BOOL ? o : NULL;
}

static enum status read_flag(struct config *c, int argc, char **argv, int *i, bool only_config,
                             struct buf *why)
{
    const char *arg = argv[*i];
    char name[FLAG_NAME_BYTES_MAX], source[FLAG_NAME_BYTES_MAX + 2];
    bool on;

    if (strcmp(arg, "-h") == 0)
        arg = "--help";
    if (strncmp(arg, "--", 2) != 0)
        return buf_why(why, ERR_INVALID, "\"%s\": expected an option, see --help", arg);
    size_t n = strcspn(arg + 2, "=");
    if (n >= sizeof name)
        return unknown("a very long name", "", why);
    snprintf(name, sizeof name, "%.*s", (int)n, arg + 2);
    snprintf(source, sizeof source, "--%s", name);
    const char *value = arg[2 + n] == '=' ? arg + 3 + n : NULL;
    if (strcmp(name, "help") == 0 || strcmp(name, "version") == 0) {
        *(name[0] == 'h' ? &c->want_help : &c->want_version) = true;
        return OK;
    }
    const struct option *o = find_switch(name, &on);
    if (o && !value)
        return only_config ? OK : set(c, o, on ? "true" : "false", source, why);
    if (!o || !on)
        o = find(name);
    bool is_config = strcmp(name, "config") == 0;
    if (!o && !is_config)
        return unknown(source, name, why);
    if (!value) {
        if (*i + 1 >= argc)
            return buf_why(why, ERR_INVALID, "%s: needs a value", source);
        value = argv[++*i];
    }
    if (is_config)
        return only_config ? flag_set_text(&c->config_file, value) : OK;
    return only_config ? OK : set(c, o, value, source, why);
}

static enum status read_flags(struct config *c, int argc, char **argv, bool only_config,
                              struct buf *why)
{
    enum status s = OK;

    for (int i = 1; s == OK && i < argc; i++)
        s = read_flag(c, argc, argv, &i, only_config, why);
    return s;
}

/* TARN_MAX_NUM_SEQS -> max-num-seqs */
static void name_of_variable(const char *variable, size_t n, char name[FLAG_NAME_BYTES_MAX])
{
    size_t i;

    for (i = 0; i < n && i + 1 < FLAG_NAME_BYTES_MAX; i++)
        name[i] = variable[i] == '_' ? '-' : (char)tolower((unsigned char)variable[i]);
    name[i] = '\0';
}

static enum status read_environment(struct config *c, char **env, bool only_config, struct buf *why)
{
    char name[FLAG_NAME_BYTES_MAX], source[FLAG_NAME_BYTES_MAX + sizeof VARIABLE_PREFIX];
    enum status s = OK;

    for (; s == OK && *env; env++) {
        const char *equals = strchr(*env, '=');
        if (!equals || strncmp(*env, VARIABLE_PREFIX, sizeof VARIABLE_PREFIX - 1) != 0)
            continue;
        const char *start = *env + sizeof VARIABLE_PREFIX - 1;
        name_of_variable(start, (size_t)(equals - start), name);
        snprintf(source, sizeof source, "%.*s", (int)(equals - *env), *env);
        const struct option *o = find(name);
        if (strcmp(name, "config") == 0)
            s = only_config && !c->config_file ? flag_set_text(&c->config_file, equals + 1) : OK;
        else if (o && !only_config)
            s = set(c, o, equals + 1, source, why);
    }
    return s;
}

/* A variable that says something to another program of the project, or to the test suite. */
static bool is_for_others(const char *name)
{
    return strcmp(name, "url") == 0 || strncmp(name, "test-", 5) == 0;
}

void config_warn_unknown(char **env)
{
    char name[FLAG_NAME_BYTES_MAX];

    for (; *env; env++) {
        const char *equals = strchr(*env, '=');
        if (!equals || strncmp(*env, VARIABLE_PREFIX, sizeof VARIABLE_PREFIX - 1) != 0)
            continue;
        const char *start = *env + sizeof VARIABLE_PREFIX - 1;
        name_of_variable(start, (size_t)(equals - start), name);
        if (!find(name) && strcmp(name, "config") != 0 && !is_for_others(name))
            log_event(LOG_WARN, "unknown variable ignored", "name=\"%.*s\"",
                      (int)(equals - *env < NAME_SHOWN_MAX ? equals - *env : NAME_SHOWN_MAX), *env);
    }
}

static char *trim(char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    size_t n = strlen(s);
    while (n > 0 && isspace((unsigned char)s[n - 1]))
        s[--n] = '\0';
    return s;
}

static enum status read_line(struct config *c, char *line, const char *where, struct buf *why)
{
    char source[256];
    char *text = trim(line);
    char *equals = strchr(text, '=');

    if (text[0] == '\0' || text[0] == '#')
        return OK;
    if (!equals)
        return buf_why(why, ERR_INVALID, "%s: expected name = value", where);
    *equals = '\0';
    const char *name = trim(text), *value = trim(equals + 1);
    snprintf(source, sizeof source, "%s: %s", where, name);
    const struct option *o = find(name);
    return o ? set(c, o, value, source, why) : unknown(source, name, why);
}

static enum status read_file(struct config *c, struct buf *why)
{
    char line[FILE_LINE_BYTES_MAX], where[192];
    enum status s = OK;
    unsigned n = 0;

    if (!c->config_file)
        return OK;
    FILE *f = fopen(c->config_file, "r");
    if (!f)
        return buf_why(why, ERR_NOT_FOUND, "--config: cannot open %s: %s", c->config_file,
                       strerror(errno));
    while (s == OK && fgets(line, sizeof line, f)) {
        snprintf(where, sizeof where, "%.160s:%u", c->config_file, ++n);
        if (strlen(line) + 1 == sizeof line)
            s = buf_why(why, ERR_INVALID, "%s: a line is longer than %zu bytes", where,
                        sizeof line - 2);
        else
            s = read_line(c, line, where, why);
    }
    fclose(f);
    return s;
}

/* Permissions: one to four octal digits. */
static bool is_mode(const char *text)
{
    size_t n = strspn(text, "01234567");

    return n > 0 && text[n] == '\0' && strtoul(text, NULL, 8) <= 0777;
}

static enum status check_network(const struct config *c, struct buf *why)
{
    if (!is_mode(c->uds_mode))
        return buf_why(why, ERR_INVALID,
                       "--uds-mode: expected permissions such as 0600, got \"%s\"", c->uds_mode);
    if ((c->tls_cert[0] == '\0') != (c->tls_key[0] == '\0'))
        return buf_why(why, ERR_INVALID, "--tls-%s: needs --tls-%s as well",
                       c->tls_cert[0] ? "cert" : "key", c->tls_cert[0] ? "key" : "cert");
    return OK;
}

static enum status check_disk(const struct config *c, struct buf *why)
{
    if (c->kv_disk_path[0] && c->kv_disk_bytes == 0)
        return buf_why(why, ERR_INVALID,
                       "--kv-disk-path: needs --kv-disk-bytes as well: how much "
                       "of the disk may be used, such as 100G");
    if (!c->kv_disk_path[0] && c->kv_disk_bytes)
        return buf_why(why, ERR_INVALID,
                       "--kv-disk-bytes: needs --kv-disk-path as well: the "
                       "directory to use");
    if (c->kv_disk_path[0] && !c->prefix_caching)
        return buf_why(why, ERR_INVALID,
                       "--kv-disk-path: keeps computed prompts, and "
                       "--no-prefix-caching forgets them; leave one of the two out");
    return OK;
}

static enum status check_together(const struct config *c, struct buf *why)
{
    if (c->kv_segment_tokens % 32 != 0)
        return buf_why(why, ERR_INVALID, "--kv-segment-tokens: %llu is no multiple of 32",
                       (unsigned long long)c->kv_segment_tokens);
    if (c->model[0] == '\0')
        return buf_why(why, ERR_INVALID,
                       "--model: which model? a directory, or org/name from the Hugging Face "
                       "cache");
    enum status s = check_disk(c, why);
    return s == OK ? check_network(c, why) : s;
}

enum status config_load(struct config *c, int argc, char **argv, char **env, struct buf *why)
{
    enum status s = OK;

    memset(c, 0, sizeof *c);
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(options); i++)
        s = set_value(c, &options[i], options[i].preset, options[i].name, why);
    /* First only to learn which file to read, then in the order of who wins. */
    if (s == OK)
        s = read_flags(c, argc, argv, true, why);
    if (s != OK || c->want_help || c->want_version)
        return s;
    s = read_environment(c, env, true, why);
    if (s == OK)
        s = read_file(c, why);
    if (s == OK)
        s = read_environment(c, env, false, why);
    if (s == OK)
        s = read_flags(c, argc, argv, false, why);
    return s == OK ? check_together(c, why) : s;
}

/* The value of the last --log-format, or NULL. */
static const char *find_log_format(int argc, char **argv)
{
    static const char flag[] = "--log-format";
    const size_t n = sizeof flag - 1;
    const char *value = NULL;

    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], flag, n) != 0)
            continue;
        if (argv[i][n] == '=')
            value = argv[i] + n + 1;
        else if (argv[i][n] == '\0' && i + 1 < argc)
            value = argv[++i];
    }
    return value;
}

bool config_wants_json(const struct config *c, int argc, char **argv, char **env)
{
    static const char variable[] = VARIABLE_PREFIX "LOG_FORMAT=";
    const char *value = find_log_format(argc, argv);

    for (; !value && *env; env++)
        if (strncmp(*env, variable, sizeof variable - 1) == 0)
            value = *env + sizeof variable - 1;
    value = value ? value : c->log_format;
    return value && strcmp(value, "json") == 0;
}

void config_fini(struct config *c)
{
    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        if (options[i].kind == KIND_TEXT || options[i].kind == KIND_CHOICE)
            free(*(char **)((char *)c + options[i].offset));
    free(c->config_file);
    memset(c, 0, sizeof *c);
}

void config_forget_secrets(struct config *c)
{
    for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
        char *text = options[i].secret ? *(char **)((char *)c + options[i].offset) : NULL;
        if (!text || !text[0])
            continue;
        explicit_bzero(text, strlen(text));
        text[0] = '*'; /* what is logged still says that there was one */
    }
}

/* --- output --- */

static void print_option(FILE *f, const struct option *o)
{
    char all[128];

    if (o->kind == KIND_CHOICE)
        list_choices(choices_of(o), all, sizeof all, "|");
    flag_print(f, &(struct flag_row){o->group, o->name, o->kind == KIND_BOOL,
                                     o->kind == KIND_CHOICE ? all : o->value, o->help, o->preset});
}

void config_print_help(FILE *f)
{
    fputs("tarn-server --model DIR [options]\n\n"
          "Serves a language model over an OpenAI-style HTTP API.\n"
          "Every option --some-name V is also --some-name=V, the variable TARN_SOME_NAME=V, and a\n"
          "line `some-name = V` of the file given by --config. A flag wins over a variable, a\n"
          "variable over the file. Sizes take K, M, G (powers of 1024). Defaults are in [ ].\n",
          f);
    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        print_option(f, &options[i]);
    flag_print(f,
               &(struct flag_row){"Other", "config", false, "FILE", "read options from FILE", ""});
    flag_print(f, &(struct flag_row){NULL, "help, --version", false, NULL, "print and exit", ""});
}

/* The value of one option as a user would write it; numbers are written to text[NUMBER_BYTES]. */
static const char *value_of(const struct config *c, const struct option *o, char *text)
{
    const void *at = (const char *)c + o->offset;

    switch (o->kind) {
    case KIND_BOOL: return *(const bool *)at ? "true" : "false";
    case KIND_COUNT:
    case KIND_SIZE:
        snprintf(text, NUMBER_BYTES, "%llu", (unsigned long long)*(const uint64_t *)at);
        return text;
    case KIND_NUMBER:
    case KIND_SHARE:
    case KIND_PART: snprintf(text, NUMBER_BYTES, "%g", *(const double *)at); return text;
    case KIND_TEXT:
    case KIND_CHOICE: break;
    }
    const char *value = *(char *const *)at;
    return o->secret && value[0] ? "***" : value;
}

static enum log_value log_value_of(const struct option *o)
{
    return o->kind == KIND_TEXT || o->kind == KIND_CHOICE ? LOG_TEXT : LOG_NUMBER;
}

void config_describe(const struct config *c, struct buf *out)
{
    char text[NUMBER_BYTES];
    enum status s = OK;

    for (size_t i = 0; s == OK && i < ARRAY_SIZE(options); i++) {
        const char *quote = log_value_of(&options[i]) == LOG_TEXT ? "\"" : "";
        s = buf_printf(out, "%s%s=%s%s%s", i ? " " : "", options[i].name, quote,
                       value_of(c, &options[i], text), quote);
    }
}

void config_log(const struct config *c)
{
    struct log_field fields[ARRAY_SIZE(options)];
    char text[ARRAY_SIZE(options)][NUMBER_BYTES];

    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        fields[i] = (struct log_field){options[i].name, value_of(c, &options[i], text[i]),
                                       log_value_of(&options[i])};
    log_fields(LOG_INFO, "configuration", fields, ARRAY_SIZE(options));
}
