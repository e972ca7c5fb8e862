/* fuzz_adapter.c - any bytes as adapter_config.json and, in the second part of the input, as the
 * header of adapter_model.safetensors: its JSON up to a "}" that a new line follows. Behind it the
 * file has bytes of a pattern, as many as are left of 512.
 *
 * Checks beyond crashes: what is refused has a reason; the matrices of an adapter are finite, lie
 * in its memory, and can be added to a step. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"
#include "engine/model/adapter.h"
#include "engine/model/layer.h"
#include "engine/model/model.h"
#include "kernels/pack.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_folder.h"

#define DATA_BYTES 512u
#define FILE_BYTES_MAX (1u << 16)
#define DIM 8
#define RANK_MAX 4

static const char config[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":8,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":4,\"intermediate_size\":8,"
    "\"vocab_size\":16,\"max_position_embeddings\":64,\"tie_word_embeddings\":false}";

static struct model_config model;
static struct device *device;
static struct weights weights;
static unsigned char file[FILE_BYTES_MAX];

/* The model that adapters are for, once. */
static void open_model(struct buf *why)
{
    const struct device_config d = {.kind = DEVICE_REF,
                                    .n_threads = 1,
                                    .max_rows = 4,
                                    .max_k = DIM,
                                    .max_heads = 2,
                                    .max_head_dim = 4};

    if (device)
        return;
    ASSERT(hash_init() == OK);
    fuzz_write_file("config.json", config, sizeof config - 1);
    ASSERT(model_config_load(&model, fuzz_make_folder(), why) == OK);
    ASSERT(device_open(&device, &d, why) == OK);
    const struct weights_config w = {.device = device, .model = &model, .dummy = true};
    ASSERT(weights_load(&weights, &w, why) == OK);
}

/* Make the file of tensors; return its bytes. */
static size_t make_file(const char *text, size_t len)
{
    const char *end = memmem(text, len, "}\n", 2);
    uint64_t n = end ? (uint64_t)(end - text) + 1 : len;

    n = n < FILE_BYTES_MAX - 8 - DATA_BYTES ? n : FILE_BYTES_MAX - 8 - DATA_BYTES;
    memcpy(file, &n, 8);
    memcpy(file + 8, text, n);
    for (size_t i = 0; i < DATA_BYTES; i++)
        file[8 + n + i] = (unsigned char)(i % 4 == 3 ? 0x3c : i);
    return 8 + n + DATA_BYTES;
}

static void check_weight(const struct adapter *a, const struct weight *w)
{
    const unsigned char *data = w->data;

    ASSERT(data >= a->memory && data + pack_weight_bytes(w) <= a->memory + a->n_bytes);
    for (uint32_t n = 0; n < w->n; n++)
        for (uint32_t k = 0; k < w->k; k++)
            ASSERT(isfinite(pack_at(w, n, k)));
}

static void check_adapter(const struct adapter *a)
{
    float in[2 * DIM], out[2 * 2 * DIM], mid[2 * ADAPTER_N_UPS_MAX * RANK_MAX];
    const struct adapter_run run = {1, 1, a};
    const struct layer_step s = {.device = device,
                                 .ops = device_ops(device),
                                 .model = &model,
                                 .weights = &weights,
                                 .n_rows = 2,
                                 .adapter_runs = &run,
                                 .n_adapter_runs = 1,
                                 .adapter_mid = mid};
    static const uint32_t widths[ADAPTER_N_PLACES] = {2 * DIM, DIM, 2 * DIM, DIM};

    ASSERT(a->rank >= 1 && a->rank <= RANK_MAX);
    for (uint32_t i = 0; i < 2 * ADAPTER_N_PLACES; i++) {
        const struct adapter_product *y = &a->products[i];
        uint32_t place = i % ADAPTER_N_PLACES;

        for (uint32_t k = 0; k < y->n_ups; k++) {
            ASSERT(y->ups[k].col0 + y->ups[k].w.n <= widths[place]);
            check_weight(a, &y->ups[k].w);
        }
        if (y->n_ups > 0)
            check_weight(a, &y->down);
        for (uint32_t k = 0; k < 2 * DIM; k++)
            in[k] = 1;
        memset(out, 0, sizeof out);
        ASSERT(adapter_add(&s, i / ADAPTER_N_PLACES, (enum adapter_place)place, in, out,
                           widths[place]) == OK);
        for (uint32_t k = 0; k < widths[place]; k++)
            ASSERT(out[k] == 0); /* the row without the adapter */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);
    struct adapter *a;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    open_model(&why);
    const struct adapter_source source = {.name = "a",
                                          .dir = fuzz_make_folder(),
                                          .model = &model,
                                          .weights = &weights,
                                          .layout = device_weight_layout(device),
                                          .rank_max = RANK_MAX};
    fuzz_write_file("adapter_config.json", in.first, in.first_len);
    fuzz_write_file("adapter_model.safetensors", file,
                    make_file(in.second ? in.second : "", in.second ? in.second_len : 0));
    buf_reset(&why);
    enum status s = adapter_load(&a, &source, &why);
    ASSERT((s == OK) == (a != NULL) && (s == OK || why.len > 0));
    if (a)
        check_adapter(a);
    adapter_free(a);
    buf_fini(&why);
    return 0;
}
