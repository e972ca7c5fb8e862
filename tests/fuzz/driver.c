/* driver.c - runs a fuzz target without libFuzzer, on random mutations of a corpus.
 *
 *   fuzz_X [--seconds N] [--seed S] [--dict FILE] PATH...
 *
 * Each PATH is a file or a directory of files. The driver first runs all files unchanged, and then,
 * for N seconds, mixtures and mutations of them. The same seed gives the same inputs. An input that
 * crashes, or takes more than 30 s of CPU time, is written to ./crash-SEED-NUMBER; pass that file
 * as PATH to reproduce the crash. There is no coverage feedback, so crashes that need several rare
 * mutations are found by libFuzzer only. */
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "tests/fuzz/fuzz.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#include <sanitizer/common_interface_defs.h>
#define HAS_SANITIZER 1
#endif

#define N_FILES_MAX 4096
#define N_WORDS_MAX 1024
#define INPUT_BYTES_MAX ((size_t)1 << 16)
#define SECONDS_PER_INPUT_MAX 30

struct text {
    uint8_t *data;
    size_t len;
};

static struct text corpus[N_FILES_MAX], words[N_WORDS_MAX];
static size_t n_corpus, n_words;
static uint64_t seed = 1, n_random;

/* The current input, for the crash handler. */
static uint8_t input[INPUT_BYTES_MAX];
static const uint8_t *running = input;
static size_t running_len;
static uint64_t n_run;

/* ---- crashes ---- */

static void write_crash(void)
{
    char name[64];

    snprintf(name, sizeof name, "crash-%llu-%llu", (unsigned long long)seed,
             (unsigned long long)n_run);
    FILE *f = fopen(name, "wb");
    if (!f)
        return;
    fwrite(running, 1, running_len, f);
    fclose(f);
    fprintf(stderr, "fuzz: input %llu was written to %s\n", (unsigned long long)n_run, name);
}

static void on_signal(int number)
{
    fprintf(stderr, "fuzz: signal %d%s\n", number, number == SIGPROF ? ": too slow" : "");
    write_crash();
    signal(number, SIG_DFL);
    raise(number);
}

static void watch_crashes(void)
{
    signal(SIGPROF, on_signal);
    signal(SIGABRT, on_signal);
#ifdef HAS_SANITIZER
    __sanitizer_set_death_callback(write_crash);
#else
    signal(SIGSEGV, on_signal);
    signal(SIGBUS, on_signal);
    signal(SIGFPE, on_signal);
    signal(SIGILL, on_signal);
#endif
}

/* Seconds of this process's CPU time: a busy machine may let it wait. 0: no limit. */
static void limit_seconds(int n)
{
    const struct itimerval t = {.it_value = {.tv_sec = n}};

    (void)setitimer(ITIMER_PROF, &t, NULL);
}

static void run(const uint8_t *data, size_t len)
{
    running = data;
    running_len = len;
    limit_seconds(SECONDS_PER_INPUT_MAX);
    LLVMFuzzerTestOneInput(data, len);
    limit_seconds(0);
    n_run++;
}

/* ---- corpus ---- */

static void load_file(const char *path)
{
    struct text t = {.data = malloc(INPUT_BYTES_MAX)};
    FILE *f = fopen(path, "rb");

    if (!f || !t.data || n_corpus == N_FILES_MAX) {
        fprintf(stderr, "fuzz: cannot load %s\n", path);
        exit(1);
    }
    t.len = fread(t.data, 1, INPUT_BYTES_MAX, f);
    fclose(f);
    uint8_t *exact = malloc(t.len + 1); /* the exact length, so that a sanitizer sees overreads */
    if (!exact)
        exit(1);
    memcpy(exact, t.data, t.len);
    free(t.data);
    corpus[n_corpus++] = (struct text){exact, t.len};
}

static void load_path(const char *path)
{
    struct stat st;
    struct dirent **names;
    char file[4096];

    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        load_file(path);
        return;
    }
    int n = scandir(path, &names, NULL, alphasort); /* sorted, so that a seed is reproducible */
    for (int i = 0; i < n; i++) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
        if (stat(file, &st) == 0 && S_ISREG(st.st_mode))
            load_file(file);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
}

/* Load a line of a dictionary in libFuzzer's format: one "word" in quotes, with \xNN for bytes. */
static void load_word(const char *line)
{
    const char *end = strrchr(line, '"');
    struct text word = {.data = malloc(strlen(line) + 1)};

    if (line[0] != '"' || end == line || !word.data || n_words == N_WORDS_MAX) {
        free(word.data);
        return;
    }
    for (const char *p = line + 1; p < end; p++) {
        unsigned byte;
        if (p[0] == '\\' && p[1] == 'x' && sscanf(p + 2, "%2x", &byte) == 1) {
            word.data[word.len++] = (uint8_t)byte;
            p += 3;
        } else {
            p += p[0] == '\\';
            word.data[word.len++] = (uint8_t)*p;
        }
    }
    words[n_words++] = word;
}

static void load_dictionary(const char *path)
{
    char line[1024];
    FILE *f = fopen(path, "r");

    if (!f) {
        fprintf(stderr, "fuzz: cannot load %s\n", path);
        exit(1);
    }
    while (fgets(line, sizeof line, f))
        load_word(line);
    fclose(f);
}

static void free_all(void)
{
    for (size_t i = 0; i < n_corpus; i++)
        free(corpus[i].data);
    for (size_t i = 0; i < n_words; i++)
        free(words[i].data);
}

/* ---- mutations ---- */

static size_t below(size_t limit)
{
    return limit ? rng_u32(seed, n_random++) % limit : 0;
}

/* Replace input[at..at + n_old) by bytes. */
static size_t put(size_t len, size_t at, size_t n_old, const uint8_t *bytes, size_t n)
{
    if (len - n_old + n > INPUT_BYTES_MAX)
        return len;
    memmove(input + at + n, input + at + n_old, len - at - n_old);
    if (n)
        memcpy(input + at, bytes, n);
    return len - n_old + n;
}

/* A random length, mostly short. */
static size_t some_length(size_t max)
{
    size_t n = below(4) ? below(16) + 1 : below(1024) + 1;

    return n < max ? n : max;
}

static size_t put_piece_of_corpus(size_t len, size_t at)
{
    uint8_t piece[1024];
    const struct text *from = &corpus[below(n_corpus)];
    size_t start = below(from->len), n = some_length(from->len - start);

    memcpy(piece, from->data + start, n);
    return put(len, at, below(2) ? some_length(len - at) : 0, piece, n);
}

static size_t put_copy(size_t len, size_t at)
{
    uint8_t piece[1024];
    size_t start = below(len), n = some_length(len - start);

    memcpy(piece, input + start, n);
    for (size_t times = below(8) ? 1 : below(64); times > 0; times--)
        len = put(len, at, 0, piece, n);
    return len;
}

static size_t put_number(size_t len, size_t at)
{
    static const char *const numbers[] = {"0",          "-1",    "1",      "65536",
                                          "4294967295", "1e308", "-1e308", "9223372036854775807",
                                          "0.5",        "true",  "null",   "\"\""};
    const char *number = numbers[below(sizeof numbers / sizeof *numbers)];
    size_t end = at;

    while (at < len && !(input[at] >= '0' && input[at] <= '9'))
        at++;
    for (end = at; end < len && input[end] >= '0' && input[end] <= '9';)
        end++;
    return put(len, at, end - at, (const uint8_t *)number, strlen(number));
}

/* Find a quoted text in bytes[from..len). Return its length with the quotes; 0: there is none. */
static size_t find_quoted(const uint8_t *bytes, size_t len, size_t from, size_t *start)
{
    const uint8_t *open = memchr(bytes + from, '"', len - from);
    const uint8_t *close = open ? memchr(open + 1, '"', (size_t)(bytes + len - open - 1)) : NULL;

    if (!close)
        return 0;
    *start = (size_t)(open - bytes);
    return (size_t)(close - open) + 1;
}

/* Replace a quoted text by another one, so that JSON mostly stays valid. */
static size_t put_quoted(size_t len, size_t at)
{
    uint8_t piece[1024];
    const struct text *from = &corpus[below(n_corpus)];
    size_t start = 0, old = 0, n = find_quoted(from->data, from->len, below(from->len), &start);
    size_t n_old = find_quoted(input, len, at, &old);

    if (n == 0 || n_old == 0 || n > sizeof piece)
        return len;
    memcpy(piece, from->data + start, n);
    return put(len, old, n_old, piece, n);
}

static size_t mutate(size_t len)
{
    size_t at = below(len + 1);
    uint8_t byte = (uint8_t)below(256);
    const struct text *word = n_words ? &words[below(n_words)] : NULL;

    switch (below(12)) {
    case 0: return at < len ? put(len, at, 1, &byte, 1) : len;
    case 1: return put(len, at, 0, &byte, 1);
    case 2: return put(len, at, some_length(len - at), NULL, 0);
    case 3:
    case 4: return put_piece_of_corpus(len, at);
    case 5: return put_copy(len, at);
    case 6: return put_number(len, at);
    case 7:
        if (at < len)
            input[at] ^= (uint8_t)(1u << below(8));
        return len;
    case 8:
    case 9:
    case 10: return put_quoted(len, at);
    default:
        return word ? put(len, at,
                          below(2)               ? 0
                          : word->len < len - at ? word->len
                                                 : len - at,
                          word->data, word->len)
                    : len;
    }
}

static size_t next_input(void)
{
    const struct text *from = &corpus[below(n_corpus)];
    size_t len = from->len;

    memcpy(input, from->data, len);
    for (size_t n = below(2) ? 1 : below(8) + 1; n > 0; n--)
        len = mutate(len);
    return len;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void run_mutations(double seconds)
{
    double start = now();

    while (now() - start < seconds) {
        size_t len = next_input();
        uint8_t *exact = malloc(len + 1);
        if (!exact)
            exit(1);
        memcpy(exact, input, len);
        run(exact, len);
        free(exact);
    }
}

int main(int argc, char **argv)
{
    double seconds = 0, start = now();

    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--seconds") == 0 && has_value)
            seconds = atof(argv[++i]);
        else if (strcmp(argv[i], "--seed") == 0 && has_value)
            seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--dict") == 0 && has_value)
            load_dictionary(argv[++i]);
        else
            load_path(argv[i]);
    }
    if (n_corpus == 0) {
        fprintf(stderr, "usage: %s [--seconds N] [--seed S] [--dict FILE] PATH...\n", argv[0]);
        return 2;
    }
    watch_crashes();
    for (size_t i = 0; i < n_corpus; i++)
        run(corpus[i].data, corpus[i].len);
    run_mutations(seconds);
    printf("%llu inputs, %.0f execs/s, seed %llu\n", (unsigned long long)n_run,
           (double)n_run / (now() - start), (unsigned long long)seed);
    free_all();
    return 0;
}
