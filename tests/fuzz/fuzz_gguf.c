/* fuzz_gguf.c - any bytes as a GGUF file: container, configuration, tensors.
 *
 * Checks beyond crashes: every value, string and tensor of an opened file can be read, a
 * configuration that is read has the sizes that families rely on, and codecs stay in their
 * tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/gguf.h"
#include "engine/model/checkpoint.h"
#include "engine/model/family.h"
#include "tests/fuzz/fuzz.h"

#define N_ELEMENTS_MAX 65536

static const char *const names[] = {
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.0.input_layernorm.bias",
    "model.layers.0.post_attention_layernorm.weight",
    "model.layers.0.pre_feedforward_layernorm.weight",
    "model.layers.0.post_feedforward_layernorm.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.self_attn.q_proj.bias",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.0.self_attn.v_proj.weight",
    "model.layers.0.self_attn.qkv_proj.weight",
    "model.layers.0.self_attn.o_proj.weight",
    "model.layers.0.self_attn.q_norm.weight",
    "model.layers.0.mlp.gate_proj.weight",
    "model.layers.0.mlp.up_proj.weight",
    "model.layers.0.mlp.gate_up_proj.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.layers.0.mlp.gate.weight",
    "model.layers.0.mlp.experts.0.gate_proj.weight",
    "model.layers.0.mlp.experts.1.down_proj.weight",
    "model.layers.0.mlp.shared_expert_gate.weight",
    "model.layers.0.block_sparse_moe.experts.1.w1.weight",
};

static volatile unsigned sum; /* so that reads are not left out */

static void read_bytes(const void *data, uint64_t n)
{
    const unsigned char *p = data;

    for (uint64_t i = 0; i < n; i++)
        sum += p[i];
}

static void read_container(const char *path, struct buf *why)
{
    struct gguf_array a;
    struct gguf *g;
    size_t len;

    if (gguf_open(&g, path, why) != OK) {
        ASSERT(why->len > 0);
        return;
    }
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor(g, i);
        ASSERT(gguf_find(g, t->name) == t && t->n_dims >= 1 && t->n_dims <= GGUF_N_DIMS_MAX);
        read_bytes(t->data, t->n_bytes);
    }
    if (gguf_get_array(g, "tokenizer.ggml.tokens", &a, why) == OK)
        for (uint64_t i = 0; i < a.n && a.type == GGUF_STRING; i++) {
            const char *text = gguf_array_str(g, &a, i, &len);
            read_bytes(text, len);
        }
    if (gguf_get_array(g, "tokenizer.ggml.token_type", &a, why) == OK)
        for (uint64_t i = 0; i < a.n; i++)
            sum += gguf_array_number(&a, i) > 0;
    gguf_close(g);
}

static void read_tensor(const struct tensor *t)
{
    uint64_t k = t->n_dims == 1 ? 1 : t->shape[1], rows = t->shape[0];

    ASSERT(t->n_dims == 1 || t->n_dims == 2);
    if (!t->codec) {
        ASSERT(t->dtype_known && t->n_bytes == rows * k * dtype_bytes(t->dtype));
        return;
    }
    if (rows > N_ELEMENTS_MAX || k > N_ELEMENTS_MAX || rows * k > N_ELEMENTS_MAX)
        return;
    float *values = malloc(rows * k * sizeof *values);
    ASSERT(values);
    t->codec->read_rows(t, 0, (uint32_t)rows, values);
    if (t->code_bits) {
        uint8_t *codes = malloc(rows * k);
        float *scales = malloc(rows * k / 32 * sizeof *scales);
        float *offsets = malloc(rows * k / 32 * sizeof *offsets);
        ASSERT(codes && scales && offsets && t->code_group == 32 && k % 32 == 0);
        t->codec->read_codes(t, 0, (uint32_t)rows, codes, scales, offsets);
        for (uint64_t i = 0; i < rows * k; i++)
            ASSERT(codes[i] >> (t->code_bits - 1) <= 1);
        free(codes);
        free(scales);
        free(offsets);
    }
    free(values);
}

static void read_model(const char *path, struct buf *why)
{
    struct model_config m;
    struct checkpoint *c;
    double freqs[MODEL_ROPE_PAIRS_MAX];

    if (model_config_load(&m, path, why) == OK) {
        ASSERT(m.n_heads % m.n_kv_heads == 0 && m.n_layers <= MODEL_N_LAYERS_MAX);
        ASSERT(m.head_dim >= 2 && m.head_dim <= 256 && model_rot_dim(&m) <= m.head_dim);
        sum += model_rope_freqs(&m, false, freqs);
    } else {
        ASSERT(why->len > 0);
    }
    if (checkpoint_open(&c, path, why) != OK) {
        ASSERT(why->len > 0);
        return;
    }
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        const struct tensor *t = checkpoint_find(c, names[i]);
        if (t)
            read_tensor(t);
    }
    checkpoint_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    struct buf why;
    int fd = memfd_create("fuzz_gguf", 0);

    ASSERT(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    buf_init(&why, BUF_WHY_MAX);
    read_container(path, &why);
    if (gguf_is(path)) {
        buf_reset(&why);
        read_model(path, &why);
    }
    buf_fini(&why);
    close(fd);
    return 0;
}
