/* fuzz_embedder.c - any bytes as the files of an embedding model: config.json, and, behind lines of
 * "-----", the files of sentence-transformers. An absent part is an absent file. The same files are
 * read as those of a model with labels.
 *
 * Checks beyond crashes: an error has a message; what is accepted keeps its bounds; reading twice
 * gives the same result. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "engine/embedder_files.h"
#include "engine/embedder_labels.h"
#include "engine/model/family.h"
#include "tests/fuzz/fuzz.h"

#define CUT "\n-----\n"

static const char *const names[] = {"config.json",
                                    "modules.json",
                                    "1_Pooling/config.json",
                                    "sentence_bert_config.json",
                                    "config_sentence_transformers.json",
                                    "tokenizer_config.json"};
static char dir[64];

static void remove_files(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    ASSERT(system(command) == 0);
}

/* Make the directory in memory if possible. */
static void make_dir(void)
{
    char path[96];

    if (dir[0])
        return;
    snprintf(dir, sizeof dir, "%s/tarn-fuzz-embedder-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    ASSERT(mkdtemp(dir));
    atexit(remove_files);
    snprintf(path, sizeof path, "%s/1_Pooling", dir);
    ASSERT(mkdir(path, 0700) == 0);
}

static void write_file(const char *path, const char *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    ASSERT(fd >= 0 && (n == 0 || write(fd, bytes, n) == (ssize_t)n));
    ASSERT(close(fd) == 0);
}

static void write_files(const char *bytes, size_t n)
{
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        const char *cut = n ? memmem(bytes, n, CUT, strlen(CUT)) : NULL;
        size_t len = cut ? (size_t)(cut - bytes) : n, used = cut ? len + strlen(CUT) : n;
        char path[128];

        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (len > 0)
            write_file(path, bytes, len);
        else
            unlink(path);
        bytes += used;
        n -= used;
    }
}

static void check_model(const struct model_config *m)
{
    uint32_t widths[FAMILY_N_BUFFERS_MAX];
    struct model_work work;

    ASSERT(m->dim > 0 && m->n_layers > 0 && m->n_vocab > 0 && m->n_heads % m->n_kv_heads == 0);
    ASSERT(m->family->plan_buffers(m, widths) <= FAMILY_N_BUFFERS_MAX);
    m->family->count_work(m, NULL, &work);
    ASSERT(work.k_max >= m->dim);
    if (!m->family->is_encoder)
        return;
    ASSERT(m->n_heads * m->head_dim == m->dim && m->n_kv_heads == m->n_heads);
    ASSERT(m->max_pos > 0 && m->max_pos <= 1 << 20 && m->own[0] <= 1 << 20);
    ASSERT(m->n_types <= 1 << 20 && !m->tied && !m->window);
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static void check_files(uint32_t dim, bool is_encoder)
{
    struct embedder_files f, again;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = embedder_files_load(&f, dir, dim, is_encoder, &why);
    ASSERT(s == OK || why.len > 0);
    ASSERT(embedder_files_load(&again, dir, dim, is_encoder, NULL) == s);
    if (s == OK) {
        ASSERT(f.pooling <= (is_encoder ? POOLING_FIRST : POOLING_MEAN));
        ASSERT(f.pooling == again.pooling && f.max_tokens == again.max_tokens);
        ASSERT(same_text(f.query_prompt, again.query_prompt) &&
               same_text(f.document_prompt, again.document_prompt));
        embedder_files_fini(&f);
        embedder_files_fini(&again);
    }
    buf_fini(&why);
}

static void check_labels(uint32_t n)
{
    struct embedder_labels l, again;
    float logits[3] = {-200, 3, 1e30f};
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = embedder_labels_load(&l, dir, n, &why);
    ASSERT(s == OK || why.len > 0);
    ASSERT(embedder_labels_load(&again, dir, n, NULL) == s);
    if (s == OK) {
        ASSERT(l.n == n && l.of_texts == again.of_texts && l.of_pairs == again.of_pairs);
        ASSERT(l.has_types == again.has_types);
        for (uint32_t i = 0; i < n; i++)
            ASSERT(same_text(l.names[i], again.names[i]));
        embedder_labels_activate(l.of_pairs, logits, ARRAY_SIZE(logits));
        for (size_t i = 0; i < ARRAY_SIZE(logits) && l.of_pairs != LABELS_PLAIN; i++)
            ASSERT(logits[i] >= 0 && logits[i] <= 1);
        embedder_labels_fini(&l);
        embedder_labels_fini(&again);
    }
    buf_fini(&why);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model_config m;
    struct buf why;

    make_dir();
    write_files((const char *)data, size);
    buf_init(&why, BUF_WHY_MAX);
    enum status s = model_config_load(&m, dir, &why);
    ASSERT(s == OK || why.len > 0);
    if (s == OK)
        check_model(&m);
    ASSERT(s != OK || m.n_labels <= MODEL_N_LABELS_MAX);
    check_labels(s == OK && m.n_labels > 0 ? m.n_labels : 2);
    buf_fini(&why);
    check_files(s == OK ? m.dim : 32, s != OK || m.family->is_encoder);
    return 0;
}
