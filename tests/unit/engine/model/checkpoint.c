#include "tests/unit/engine/model/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "kernels/pack.h"

struct checkpoint {
    char header[16384];
    size_t n_header, n_data; /* bytes */
    enum dtype dtype;
};

static void add_tensor(struct checkpoint *c, const char *name, uint32_t rows, uint32_t cols)
{
    static const char *const dtypes[] = {"F32", "F16", "BF16"};
    size_t n = (size_t)rows * (cols ? cols : 1) * dtype_bytes(c->dtype);
    char shape[32];

    if (cols)
        snprintf(shape, sizeof shape, "%u,%u", rows, cols);
    else
        snprintf(shape, sizeof shape, "%u", rows);
    c->n_header += (size_t)snprintf(c->header + c->n_header, sizeof c->header - c->n_header,
                                    "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],"
                                    "\"data_offsets\":[%zu,%zu]}",
                                    c->n_header ? "," : "{", name, dtypes[c->dtype], shape,
                                    c->n_data, c->n_data + n);
    c->n_data += n;
}

static void add_layer(struct checkpoint *c, const struct model_config *m, uint32_t layer)
{
    uint32_t q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim;
    const struct {
        const char *name;
        uint32_t rows, cols;
    } tensors[] = {{"input_layernorm.weight", m->dim, 0},
                   {"post_attention_layernorm.weight", m->dim, 0},
                   {"self_attn.q_proj.weight", q, m->dim},
                   {"self_attn.q_proj.bias", q, 0},
                   {"self_attn.k_proj.weight", kv, m->dim},
                   {"self_attn.k_proj.bias", kv, 0},
                   {"self_attn.v_proj.weight", kv, m->dim},
                   {"self_attn.v_proj.bias", kv, 0},
                   {"self_attn.o_proj.weight", m->dim, q},
                   {"self_attn.o_proj.bias", m->dim, 0},
                   {"mlp.gate_proj.weight", m->ffn_dim, m->dim},
                   {"mlp.up_proj.weight", m->ffn_dim, m->dim},
                   {"mlp.down_proj.weight", m->dim, m->ffn_dim}};
    char name[96];

    for (size_t i = 0; i < ARRAY_SIZE(tensors); i++) {
        if (strstr(tensors[i].name, ".bias") && !m->attention_bias)
            continue;
        snprintf(name, sizeof name, "model.layers.%u.%s", layer, tensors[i].name);
        add_tensor(c, name, tensors[i].rows, tensors[i].cols);
    }
}

static void add_all(struct checkpoint *c, const struct model_config *m)
{
    *c = (struct checkpoint){.dtype = m->stored_dtype};
    add_tensor(c, "model.embed_tokens.weight", m->n_vocab, m->dim);
    for (uint32_t i = 0; i < m->n_layers; i++)
        add_layer(c, m, i);
    add_tensor(c, "model.norm.weight", m->dim, 0);
    if (!m->tied)
        add_tensor(c, "lm_head.weight", m->n_vocab, m->dim);
    c->header[c->n_header++] = '}';
    while (c->n_header % 8) /* the data is aligned, as in files of the safetensors library */
        c->header[c->n_header++] = ' ';
    ASSERT(c->n_header < sizeof c->header);
}

void checkpoint_write(const char *dir, const struct model_config *m)
{
    static struct checkpoint c;
    uint64_t x = 99;
    char path[256];

    add_all(&c, m);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "wb");
    ASSERT(f);
    uint64_t n_header = c.n_header;
    ASSERT(fwrite(&n_header, 8, 1, f) == 1);
    ASSERT(fwrite(c.header, c.n_header, 1, f) == 1);
    for (size_t i = 0; i < c.n_data / dtype_bytes(c.dtype); i++) {
        unsigned char element[4];
        x = x * 6364136223846793005u + 1442695040888963407u;
        dtype_store(c.dtype, element, 0, (float)(int32_t)(x >> 32) * 0x1p-31f);
        ASSERT(fwrite(element, dtype_bytes(c.dtype), 1, f) == 1);
    }
    ASSERT(fclose(f) == 0);
}

void checkpoint_remove(const char *dir)
{
    char path[256];

    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
}
