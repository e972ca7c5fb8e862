#include "engine/inspect.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "engine/model/family.h"
#include "engine/opening.h"
#include "engine/settings.h"
#include "engine/step_memory.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/device.h"

#define CONFIG_BYTES_MAX ((size_t)4 << 20)
#define BLOCK_ROUND(n) (((n) + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS)

static void add_reason(struct inspection *i, const char *words)
{
    for (uint32_t k = 0; k < i->n_reasons; k++)
        if (strcmp(i->reasons[k], words) == 0)
            return;
    char *copy = i->n_reasons < INSPECT_N_REASONS_MAX ? strdup(words) : NULL;
    if (copy)
        i->reasons[i->n_reasons++] = copy;
    else
        i->n_more++;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);

    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* --- files and config --- */

static void count_file(struct inspection *i, const char *dir, const char *name)
{
    char path[2 * sizeof i->path];
    struct stat st;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (ends_with(name, ".bin") || ends_with(name, ".pth") || ends_with(name, ".pt"))
        i->has_pickles = true;
    if (!ends_with(name, i->is_gguf ? ".gguf" : ".safetensors") || stat(path, &st) != 0)
        return;
    i->n_files++;
    i->n_file_bytes += (uint64_t)st.st_size;
}

/* The files of weights: of a directory all of their kind, of a split GGUF model its parts. */
static void count_files(struct inspection *i)
{
    char dir[sizeof i->path];
    struct stat st;
    struct dirent *e;

    snprintf(dir, sizeof dir, "%s", i->path);
    char *slash = strrchr(dir, '/');
    const char *first = !i->is_gguf ? "" : slash ? i->path + (slash + 1 - dir) : i->path;
    const char *number = strstr(first, "-00001-of-");
    if (i->is_gguf && !number) {
        i->n_files = 1;
        i->n_file_bytes = stat(i->path, &st) == 0 ? (uint64_t)st.st_size : 0;
        return;
    }
    if (i->is_gguf && slash)
        *slash = '\0';
    if (i->is_gguf && !slash)
        snprintf(dir, sizeof dir, ".");
    size_t n_same = number ? (size_t)(number - first) : 0;
    DIR *d = opendir(dir[0] ? dir : "/");
    while (d && (e = readdir(d)))
        if (strncmp(e->d_name, first, n_same) == 0)
            count_file(i, dir, e->d_name);
    if (d)
        closedir(d);
}

/* Read what config.json says of a model, also of one that is refused. */
static void read_names(struct inspection *i)
{
    char path[2 * sizeof i->path];
    struct json *j = NULL;
    struct buf why;
    const char *text = NULL;

    snprintf(path, sizeof path, "%s/config.json", i->path);
    buf_init(&why, BUF_WHY_MAX);
    if (!i->is_gguf && js_parse_file(&j, path, CONFIG_BYTES_MAX, &why) == OK) {
        const struct json *first = js_at(js_get_set(j, "architectures"), 0);
        if (js_is(first, JS_STRING))
            text = js_string(first, NULL);
        else if (js_get_str(j, "model_type", &text, NULL, &why) != OK)
            text = NULL;
        snprintf(i->architecture, sizeof i->architecture, "%s", text ? text : "");
        text = NULL;
        const struct json *q = js_get_set(j, "quantization_config");
        if (q && js_get_str(q, "quant_method", &text, NULL, &why) == OK)
            snprintf(i->stored_as, sizeof i->stored_as, "%s", text ? text : "");
    }
    js_unref(j);
    buf_fini(&why);
}

/* --- tokenizer --- */

static void read_tokenizer(struct inspection *i)
{
    struct tokenizer *t = NULL;
    struct chat_template *c = NULL;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (tokenizer_load(&t, i->path, &why) != OK) {
        add_reason(i, buf_str(&why));
        buf_fini(&why);
        return;
    }
    i->has_tokenizer = true;
    i->tokenizer = tokenizer_kind(t);
    i->n_tokens = tokenizer_n_vocab(t);
    const char *source = tokenizer_chat_template(t);
    i->has_chat_template = source != NULL;
    if (source && chat_template_create(&c, source, strlen(source), &why) != OK)
        add_reason(i, buf_str(&why));
    chat_template_destroy(c);
    tokenizer_destroy(t);
    buf_fini(&why);
}

/* --- memory --- */

/* A line "NAME:   123 kB" of /proc/meminfo. */
static uint64_t read_meminfo(const char *name)
{
    char line[128];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/meminfo", "r");

    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':') {
            if (sscanf(line + strlen(name) + 1, "%llu", &kb) != 1)
                kb = 0;
            break;
        }
    if (f)
        fclose(f);
    return (uint64_t)kb * 1024;
}

/* A number in a file of the control group; UINT64_MAX: none, or "max". */
static uint64_t read_cgroup(const char *name)
{
    char path[128];
    unsigned long long v;

    snprintf(path, sizeof path, "/sys/fs/cgroup/%s", name);
    FILE *f = fopen(path, "r");
    int n = f ? fscanf(f, "%llu", &v) : 0;
    if (f)
        fclose(f);
    return n == 1 ? v : UINT64_MAX;
}

static void read_memory(struct inspection *i, struct device *device)
{
    size_t n_free, n_total;

    if (!device_is_host(device) && device_memory(device, &n_free, &n_total) == OK) {
        i->n_free_bytes = n_free;
        i->n_total_bytes = n_total;
        return;
    }
    uint64_t limit = read_cgroup("memory.max"), used = read_cgroup("memory.current");
    i->n_free_bytes = read_meminfo("MemAvailable");
    i->n_total_bytes = read_meminfo("MemTotal");
    if (limit < i->n_total_bytes) {
        i->n_total_bytes = limit;
        uint64_t left = used < limit ? limit - used : 0;
        i->n_free_bytes = left < i->n_free_bytes ? left : i->n_free_bytes;
    }
}

static const char *type_name(enum dtype t)
{
    static const char *const names[] = {
        [DTYPE_F32] = "f32",         [DTYPE_BF16] = "bf16", [DTYPE_F16] = "f16",
        [DTYPE_I8] = "int8",         [DTYPE_I4] = "int4",   [DTYPE_A8] = "int8, affine",
        [DTYPE_A4] = "int4, affine", [DTYPE_F8] = "fp8"};

    return (size_t)t < sizeof names / sizeof *names && names[t] ? names[t] : "as coded";
}

static uint32_t kv_token_bytes(const struct model_config *m, enum dtype kv)
{
    struct kv_pool pool = {.layout = kv_layout_of(kv),
                           .n_layers = m->n_layers,
                           .n_kv_heads = m->n_kv_heads,
                           .head_dim = m->head_dim};

    return (uint32_t)(kv_block_bytes(&pool) / KV_BLOCK_TOKENS);
}

/* The types of KV that the device can read, the chosen one first. */
static void list_kv(struct inspection *i, struct device *device, enum dtype chosen)
{
    static const enum dtype others[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_I8, DTYPE_F8};

    i->kv[i->n_kv++] = (struct inspect_kv){type_name(chosen), kv_token_bytes(&i->model, chosen)};
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        if (others[k] != chosen && device_ops(device)->kv_dtypes >> others[k] & 1)
            i->kv[i->n_kv++] =
                (struct inspect_kv){type_name(others[k]), kv_token_bytes(&i->model, others[k])};
}

/* Memory of steps, beside weights and KV. */
struct buffers {
    uint64_t step_bytes, graph_bytes; /* graph_bytes: on a GPU, reserved for recorded steps */
    struct step_graphs_cost graph_cost;
    double utilization; /* 0: the device is the host */
    enum dtype kv;      /* of the pool */
    bool kv_is_auto;    /* it is the type of the weights */
};

/* Size the buffers as a start does: of one device, with the options that size steps. */
static void size_buffers(struct buffers *b, const struct inspection *i,
                         const struct engine_config *options, struct device *device)
{
    struct engine_config c = *options;
    struct step_memory m = {.config = &c,
                            .model = &i->model,
                            .share = &i->model,
                            .group = device_group_of(device),
                            .max_model_len = i->model.max_pos};

    b->utilization = device_is_host(device) ? 0 : c.gpu_memory_utilization;
    if (i->model.family->is_encoder)
        return; /* the activations of a few texts */
    c.max_batched_tokens = step_memory_batched_tokens(&c, device_is_host(device));
    if (c.max_model_len > 0 && c.max_model_len < m.max_model_len)
        m.max_model_len = c.max_model_len;
    b->graph_bytes = step_memory_reserve(&m, &b->graph_cost);
    b->step_bytes = step_memory_bytes(&m);
}

/* Bytes for KV beside weights and buffers. */
static uint64_t kv_bytes(const struct inspection *i, const struct inspect_memory *m,
                         const struct buffers *b)
{
    uint64_t n_kept = b->graph_cost.n_kept, taken = m->weight_bytes + n_kept;
    struct kv_room room = {.n_total = i->n_total_bytes,
                           .n_free = i->n_free_bytes > taken ? i->n_free_bytes - taken : 0,
                           .taken_bytes = taken,
                           .step_bytes = m->buffer_bytes - n_kept,
                           .utilization = b->utilization};

    if (b->utilization > 0)
        return kv_room_bytes(&room);
    return room.n_free > room.step_bytes ? room.n_free - room.step_bytes : 0;
}

static void fill_memory(struct inspection *i, struct inspect_memory *m, const struct buffers *b,
                        enum dtype kv)
{
    uint64_t taken = m->weight_bytes + m->buffer_bytes;

    m->kv_token_bytes = i->is_embedding ? 0 : kv_token_bytes(&i->model, kv);
    if (m->kv_token_bytes)
        m->n_tokens_fit = kv_bytes(i, m, b) / m->kv_token_bytes / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;
    for (uint32_t k = 0; k < i->n_contexts; k++) {
        uint64_t n = BLOCK_ROUND(i->contexts[k]);
        m->total_bytes[k] = taken + m->kv_token_bytes * n;
        m->fits[k] = m->kv_token_bytes ? n <= m->n_tokens_fit : taken <= i->n_free_bytes;
    }
}

/* Measure the weights once for each quantization. The first measurement is that of the checkpoint
 * as stored, and its faults are reasons. */
static enum status measure(struct inspection *i, struct weights_config *w, const struct buffers *b,
                           struct buf *why)
{
    static const char *const names[INSPECT_N_MEMORIES] = {"auto", "none", "int8", "int4"};
    static const char *const shown[INSPECT_N_MEMORIES] = {"as stored", "bf16", "int8", "int4"};
    struct weights_measure one;
    enum dtype stored = w->dtype;

    for (uint32_t k = 0; k < INSPECT_N_MEMORIES; k++) {
        struct inspect_memory *m = &i->memories[k];
        enum status s = quantization_parse(&w->quantization, names[k], 0, why);
        w->dtype = k == 1 ? DTYPE_BF16 : stored;
        if (s == OK)
            s = weights_measure(&one, w, i->file, why);
        if (s != OK)
            return s;
        m->quantization = shown[k];
        m->type = type_name(one.product);
        m->weight_bytes = one.n_bytes + one.n_mapped_bytes;
        m->buffer_bytes = b->step_bytes + b->graph_bytes;
        fill_memory(i, m, b, b->kv_is_auto ? w->dtype : b->kv);
        if (k == 0)
            i->weights = one;
    }
    for (uint32_t k = 0; k < i->weights.n_faults && k < WEIGHTS_N_FAULTS_MAX; k++)
        add_reason(i, i->weights.faults[k]);
    if (i->weights.n_faults > WEIGHTS_N_FAULTS_MAX)
        i->n_more += i->weights.n_faults - WEIGHTS_N_FAULTS_MAX;
    i->is_measured = true;
    return OK;
}

static void choose_contexts(struct inspection *i)
{
    static const uint32_t usual[] = {4096, 32768};

    for (uint32_t k = 0; k < sizeof usual / sizeof *usual; k++)
        if (usual[k] < i->model.max_pos)
            i->contexts[i->n_contexts++] = usual[k];
    i->contexts[i->n_contexts++] = i->model.max_pos;
}

/* A host needs no memory for rows; a GPU takes as much as for a start. */
static enum status open_device(struct device **out, const struct engine_config *c,
                               const struct weights_config *w, struct buf *why)
{
    static const enum device_kind kinds[] = {DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA, DEVICE_REF};
    uint32_t kind = 0, n_rows = step_memory_batched_tokens(c, false);
    struct device_config d = {.n_threads = 1,
                              .max_rows = 1,
                              .max_rows_gpu = n_rows > c->max_num_seqs ? n_rows : c->max_num_seqs,
                              .batch_invariant = c->batch_invariant};
    enum status s = opening_choose("{device}", DEVICE_NAMES, c->device, &kind, why);

    opening_fit_device(&d, w);
    d.kind = kinds[kind];
    return s == OK ? device_open(out, &d, why) : s;
}

/* The type of KV that the options choose. A type that the device does not take is a reason. */
static void choose_kv(struct inspection *i, struct buffers *b, const char *name, enum dtype auto_is,
                      const struct device *device)
{
    struct buf words;

    buf_init(&words, BUF_WHY_MAX);
    b->kv_is_auto = strcmp(name, "auto") == 0;
    if (opening_kv_dtype("{kv_cache_dtype}", name, auto_is, device, &b->kv, &words) != OK) {
        add_reason(i, buf_str(&words));
        b->kv = auto_is;
        b->kv_is_auto = true;
    }
    buf_fini(&words);
}

/* Weigh a model, whose config and files are valid. */
static enum status weigh(struct inspection *i, const struct engine_config *c, struct buf *why)
{
    struct opening o = {.load_format = "auto", .dtype = "auto", .quantization = "auto"};
    struct buffers b = {.step_bytes = 0};
    struct weights_config w;
    struct device *device = NULL;
    struct buf inner;

    buf_init(&inner, BUF_WHY_MAX);
    enum status s = opening_weights(&w, &o, &i->model, i->path, &inner);
    if (s != OK) {
        add_reason(i, buf_str(&inner));
        w = (struct weights_config){
            .model = &i->model, .dir = i->path, .dtype = i->model.stored_dtype};
    }
    w.no_output = i->is_embedding;
    choose_contexts(i);
    model_set_context(&i->model, i->model.max_pos);
    s = open_device(&device, c, &w, why);
    if (s == OK) {
        w.device = device;
        i->device = device_is_host(device) ? "this machine" : "the GPU";
        read_memory(i, device);
        choose_kv(i, &b, c->kv_dtype, w.dtype, device);
        if (!i->is_embedding)
            list_kv(i, device, b.kv);
        size_buffers(&b, i, c, device);
        buf_reset(&inner);
        enum status measured = measure(i, &w, &b, &inner);
        if (measured == ERR_NOMEM)
            s = buf_why(why, measured, "%s", buf_str(&inner));
        else if (measured != OK)
            add_reason(i, buf_str(&inner));
    }
    device_close(device);
    buf_fini(&inner);
    return s;
}

enum status inspect_model(struct inspection *out, const struct inspect_config *c, struct buf *why)
{
    struct stat st;
    struct buf inner;

    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", c->name);
    snprintf(out->path, sizeof out->path, "%s", c->path);
    if (stat(c->path, &st) != 0)
        return buf_why(why, ERR_NOT_FOUND, "there is no %s", c->path);
    out->is_gguf = S_ISREG(st.st_mode);
    count_files(out);
    read_names(out);
    buf_init(&inner, BUF_WHY_MAX);
    out->is_readable = model_config_load(&out->model, out->path, &inner) == OK;
    if (!out->is_readable)
        add_reason(out, buf_str(&inner));
    else if (!out->architecture[0])
        snprintf(out->architecture, sizeof out->architecture, "%s",
                 out->model.family->architectures[0]);
    out->is_embedding = out->is_readable &&
                        (out->model.family->is_encoder || ends_with(out->architecture, "Model"));
    buf_reset(&inner);
    if (checkpoint_open(&out->file, out->path, &inner) != OK) {
        add_reason(out, buf_str(&inner));
        if (out->has_pickles && out->n_files == 0)
            add_reason(out, "the weights are in files of PyTorch (.bin, .pt, .pth), which may run "
                            "code when they are read: convert them to safetensors");
    }
    buf_fini(&inner);
    read_tokenizer(out);
    return out->is_readable && out->file ? weigh(out, c->engine, why) : OK;
}

void inspect_fini(struct inspection *i)
{
    for (uint32_t k = 0; k < i->n_reasons; k++)
        free(i->reasons[k]);
    checkpoint_close(i->file);
    memset(i, 0, sizeof *i);
}
