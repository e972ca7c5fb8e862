#include "loadgen/bench/cache/shape.h"

#include <string.h>

#include "engine/model/model.h"

static const char config_json[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":1024,\"num_hidden_layers\":28,"
    "\"num_attention_heads\":16,\"num_key_value_heads\":8,\"head_dim\":128,"
    "\"intermediate_size\":3072,\"vocab_size\":50257,\"max_position_embeddings\":131072,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":500000,\"tie_word_embeddings\":true,"
    "\"torch_dtype\":\"bfloat16\"}\n";

static enum status read_shape(struct bench_shape *shape, bool *tied,
                              const struct cachebench_options *o, const char *dir, struct buf *why)
{
    struct model_config m;
    enum status s = model_config_load(&m, dir, why);

    if (s != OK)
        return s;
    if (m.n_experts > 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "the figures are those of a dense model; the model in %s has experts", dir);
    *tied = m.tied;
    *shape = (struct bench_shape){.n_layers = m.n_layers,
                                  .dim = m.dim,
                                  .n_heads = m.n_heads,
                                  .n_kv_heads = m.n_kv_heads,
                                  .head_dim = m.head_dim,
                                  .ffn_dim = m.ffn_dim,
                                  .n_vocab = m.n_vocab};
    shape->layers = shape->output = bench_dtype(o->dtype, m.stored_dtype);
    shape->kv = bench_dtype(o->kv_cache_dtype, shape->layers);
    return OK;
}

enum status shape_open(struct bench_shape *shape, bool *tied, const char **dir,
                       struct model_files *files, const struct cachebench_options *o,
                       struct buf *why)
{
    enum status s = OK;

    *dir = o->model;
    if (!o->model[0]) {
        s = model_files_make(files, config_json, why);
        *dir = files->dir;
    }
    return s == OK ? read_shape(shape, tied, o, *dir, why) : s;
}

uint64_t shape_block_bytes(const struct bench_shape *shape)
{
    struct kv_pool pool = {.layout = kv_layout_of(shape->kv),
                           .n_layers = shape->n_layers,
                           .n_kv_heads = shape->n_kv_heads,
                           .head_dim = shape->head_dim};

    return kv_block_bytes(&pool);
}

void shape_engine_config(struct engine_config *c, const struct cachebench_options *o,
                         const char *dir)
{
    engine_config_init(c);
    c->model_dir = dir;
    c->device = "cpu";
    c->cpu_variant = strcmp(o->cpu_variant, "auto") == 0 ? NULL : o->cpu_variant;
    c->dtype = o->dtype;
    c->kv_dtype = o->kv_cache_dtype;
    c->load_format = o->load_format;
    c->n_threads = (uint32_t)o->threads;
    c->max_batched_tokens = (uint32_t)o->chunk;
    if (o->cache_policy[0])
        c->cache_policy = o->cache_policy;
}
