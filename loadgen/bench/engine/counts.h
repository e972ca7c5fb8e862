/* counts.h - the least number of operations and bytes of a step.
 *
 * Counted are the products (two operations per multiply-add, the output layer only for rows that
 * want logits), the two products of attention over the keys that each row sees, every packed weight
 * once, one embedding row per token, and the K and V that lie in the cache before the step. Not
 * counted are norms, activations, softmax, rotation and whatever stays in the caches of the CPU.
 *
 * Owns    nothing; plain data.
 * Thread  any.
 * Errors  none.
 * Units   operations, bytes, seconds. */
#ifndef TARN_LOADGEN_BENCH_ENGINE_COUNTS_H
#define TARN_LOADGEN_BENCH_ENGINE_COUNTS_H

#include "kernels/params.h"
#include "loadgen/bench/engine/cases.h"
#include "loadgen/bench/engine/limits.h"

/* The sizes of a model that counting needs. */
struct bench_shape {
    uint32_t n_layers, dim, n_heads, n_kv_heads, head_dim, ffn_dim, n_vocab;
    enum dtype layers;     /* of the layers' weights */
    uint32_t layers_group; /* as in struct weight; so for the output layer */
    enum dtype output;
    uint32_t output_group;
    enum dtype kv;
};

struct bench_work {
    uint64_t layer_ops; /* products of the layers */
    uint64_t output_ops;
    uint64_t attention_ops;
    uint64_t weight_bytes; /* embedding rows included */
    uint64_t kv_bytes;     /* read */
};

/* The type that an option names: "f32", "f16", "bf16", or "auto". */
enum dtype bench_dtype(const char *name, enum dtype if_auto);
/* Bytes of a packed weight [n, k]: pack_bytes(), counted anew from the layout's description. */
uint64_t counts_weight_bytes(enum dtype t, uint32_t n, uint32_t k, uint32_t group);
uint64_t counts_kv_token_bytes(const struct bench_shape *m);

/* One step: n_seqs sequences with n_rows new tokens each from position pos0 on, n_out of them with
 * logits. */
void counts_step(const struct bench_shape *m, uint32_t n_seqs, uint32_t pos0, uint32_t n_rows,
                 uint32_t n_out, struct bench_work *out);

/* Operations of attention for rows [pos0, pos0 + n_rows) of one sequence and one layer. */
uint64_t counts_attention_ops(uint32_t n_heads, uint32_t head_dim, uint32_t pos0, uint32_t n_rows);

/* Return the rate that bounds products with weights (or KV) of type t in the kernel set of this
 * name: the fastest rate that the set can reach. For bf16 that may be fp32: some machines take two
 * cycles for a vdpbf16ps. Tiles count in sets that have "amx" in their name. */
enum limit_kind counts_rate_of(const struct limits *l, const char *ops_name, enum dtype t);

struct bench_floor {
    double seconds;
    enum limit_kind limit; /* the largest contribution */
};

/* The shortest time of a case whose steps take at most chunk rows: of each step the longer of its
 * arithmetic and its reading. Zero seconds when the limits were not measured. */
void counts_floor(const struct bench_shape *m, const struct bench_case *c, uint32_t chunk,
                  const struct limits *l, const char *ops_name, struct bench_floor *out);

#endif
