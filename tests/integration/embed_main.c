/* tarn-embed - the vector of a text, or the logits of a text or a pair, from engine/embedder.h.
 *
 *     tarn-embed MODEL_DIR TEXT_FILE OUT_FILE [--dtype T] [--quantization Q] [--cpu-variant V]
 *                [--threads N] [--step N] [--max-tokens N] [--role query]
 *                [--classify FILE]
 *
 * OUT_FILE gets raw little-endian float32 [dim]. Standard output gets the model's name, the number
 * of tokens that were computed, and the ids of the whole text. With --classify the model is one
 * with labels, OUT_FILE gets [labels], and the ids are those that were computed; FILE is the second
 * text of a pair, and "-" stands for none. A test program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/embedder.h"
#include "engine/text/tokenizer/tokenizer.h"

#define TEXT_BYTES_MAX ((size_t)32 << 20)

static void die(const char *what, const char *detail)
{
    fprintf(stderr, "%s: %s\n", what, detail);
    exit(1);
}

static void check(enum status s, const struct buf *why)
{
    if (s != OK)
        die(status_name(s), buf_str(why));
}

static const char *second_file; /* of --classify; "-": none */

static void parse(struct embedder_config *c, enum embedder_role *role, int argc, char **argv)
{
    if (argc < 4)
        die("usage", "tarn-embed MODEL_DIR TEXT_FILE OUT_FILE [options]");
    c->model_dir = argv[1];
    for (int i = 4; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        if (!strcmp(argv[i], "--role"))
            *role = !strcmp(v, "query") ? EMBEDDER_QUERY : EMBEDDER_DOCUMENT;
        else if (!strcmp(argv[i], "--classify"))
            second_file = v;
        else if (!strcmp(argv[i], "--dtype"))
            c->dtype = v;
        else if (!strcmp(argv[i], "--quantization"))
            c->quantization = v;
        else if (!strcmp(argv[i], "--cpu-variant"))
            c->cpu_variant = v;
        else if (!strcmp(argv[i], "--threads"))
            c->n_threads = (uint32_t)atoi(v);
        else if (!strcmp(argv[i], "--step"))
            c->step_tokens = (uint32_t)atoi(v);
        else if (!strcmp(argv[i], "--max-tokens"))
            c->max_tokens = (uint32_t)atoi(v);
        else
            die("unknown option", argv[i]);
    }
}

static char *read_text(const char *path, size_t *len)
{
    char *text = malloc(TEXT_BYTES_MAX);
    FILE *f = fopen(path, "rb");

    if (!text || !f)
        die("cannot read", path);
    *len = fread(text, 1, TEXT_BYTES_MAX, f);
    fclose(f);
    return text;
}

static void write_vector(const char *path, const float *v, uint32_t dim)
{
    FILE *f = fopen(path, "wb");

    if (!f || fwrite(v, sizeof *v, dim, f) != dim || fclose(f) != 0)
        die("cannot write", path);
}

/* The ids of the text, from a tokenizer of its own. */
static void print_ids(const char *dir, const char *text, size_t len, struct buf *why)
{
    struct tokenizer *t;
    struct buf ids;

    buf_init(&ids, TEXT_BYTES_MAX * 4);
    check(tokenizer_load(&t, dir, why), why);
    check(tokenizer_encode(t, text, len, TOKENIZE_ADD_SPECIAL, &ids), why);
    for (size_t i = 0; i < ids.len / 4; i++)
        printf(" %u", ((const uint32_t *)(const void *)ids.data)[i]);
    printf("\n");
    tokenizer_destroy(t);
    buf_fini(&ids);
}

static void tokenize_file(struct embedder *e, const char *path, bool add_special, struct buf *ids,
                          struct buf *why)
{
    size_t len;
    char *text = read_text(path, &len);

    buf_init(ids, EMBEDDER_IDS_BYTES_MAX);
    check(embedder_tokenize(e, EMBEDDER_PLAIN, text, len, add_special, ids, why), why);
    free(text);
}

/* Classify the text, or the pair. */
static void classify(struct embedder *e, char **argv, struct buf *why)
{
    bool is_pair = strcmp(second_file, "-") != 0;
    float *logits = calloc(embedder_labels(e)->n, sizeof *logits);
    struct buf first, second, ids;
    uint32_t n_first = UINT32_MAX, n;

    if (!logits)
        die("out of memory", "");
    buf_init(&ids, EMBEDDER_IDS_BYTES_MAX);
    tokenize_file(e, argv[2], !is_pair, &first, why);
    if (is_pair) {
        tokenize_file(e, second_file, false, &second, why);
        check(embedder_join(e, &first, &second, embedder_max_tokens(e), &ids, &n_first, why), why);
        buf_fini(&second);
    }
    uint32_t *all = (uint32_t *)(void *)(is_pair ? ids.data : first.data);
    n = embedder_cut(e, all, (is_pair ? ids.len : first.len) / 4, embedder_max_tokens(e), true);
    check(embedder_classify_ids(e, all, n, n_first, logits, why), why);
    printf("%s %u", embedder_name(e), n);
    for (uint32_t i = 0; i < n; i++)
        printf(" %u", all[i]);
    printf("\n");
    write_vector(argv[3], logits, embedder_labels(e)->n);
    buf_fini(&first);
    buf_fini(&ids);
    free(logits);
}

int main(int argc, char **argv)
{
    struct embedder_config c = {0};
    enum embedder_role role = EMBEDDER_DOCUMENT;
    struct embedder *e;
    struct buf why;
    uint32_t n_tokens;
    size_t len;

    buf_init(&why, BUF_WHY_MAX);
    parse(&c, &role, argc, argv);
    c.classifies = second_file != NULL;
    check(embedder_open(&e, &c, &why), &why);
    if (second_file) {
        classify(e, argv, &why);
        embedder_close(e);
        buf_fini(&why);
        return 0;
    }
    float *v = calloc(embedder_dim(e), sizeof *v);
    char *text = read_text(argv[2], &len);
    if (!v)
        die("out of memory", "");
    check(embedder_encode(e, role, text, len, v, &n_tokens, &why), &why);
    printf("%s %u", embedder_name(e), n_tokens);
    print_ids(c.model_dir, text, len, &why);
    write_vector(argv[3], v, embedder_dim(e));
    embedder_close(e);
    free(text);
    free(v);
    buf_fini(&why);
    return 0;
}
