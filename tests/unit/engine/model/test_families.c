/* test_families.c - a second family needs one descriptor and one line in the table.
 *
 * The family of this test has layers without a feed-forward part, tensors with names of its own and
 * a config field of its own. No file of Llama's knows it. */
#include "tests/unit/engine/run/forward_world.h"

#include <stdio.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "engine/model/fingerprint.h"
#include "tests/engine_test.h"

/* --- the family --- */

struct slim_config {
    uint32_t n_tricks;
    uint32_t zero;
};

struct slim_layer {
    float *norm;
    struct weight qkv, o;
};

static const struct field slim_fields[] = {
    FIELD(slim_config, n_tricks, "slim_tricks", FIELD_U32, .file = FIELD_CONFIG, .max = 9),
};

static enum status slim_read(const struct json *j, struct model_config *m, struct buf *why)
{
    enum status s = fields_read((struct field_table){slim_fields, ARRAY_SIZE(slim_fields)},
                                FIELD_CONFIG, j, m->own, why);

    return s == OK ? model_read_common(j, m, why) : s;
}

static enum status slim_plan(struct loader *l)
{
    const struct model_config *m = plan_model(l);
    struct slim_layer *y = plan_layers(l, sizeof *y);
    uint32_t q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim;
    enum status s = y ? plan_embedding(l, "tokens") : ERR_NOMEM;
    char prefix[32];

    for (uint32_t i = 0; s == OK && i < m->n_layers; i++) {
        snprintf(prefix, sizeof prefix, "slim%u/", i);
        s = plan_norm(l, &y[i].norm, m->dim, prefix, "norm");
        if (s == OK)
            s = plan_product(l, &y[i].qkv, NULL, m->dim, prefix,
                             (struct plan_part[]){{"q", q, PLAN_WHOLE},
                                                  {"k", kv, PLAN_WHOLE},
                                                  {"v", kv, PLAN_WHOLE}},
                             3);
        if (s == OK)
            s = plan_product(l, &y[i].o, NULL, q, prefix,
                             (struct plan_part[]){{"o", m->dim, PLAN_WHOLE}}, 1);
    }
    if (s == OK)
        s = plan_output(l, "last/norm", "head");
    if (s == OK)
        plan_first_product(l, &y[0].qkv);
    return s;
}

static uint32_t slim_buffers(const struct model_config *m, uint32_t widths[FAMILY_N_BUFFERS_MAX])
{
    widths[0] = (m->n_heads + 2 * m->n_kv_heads) * m->head_dim;
    widths[1] = m->n_heads * m->head_dim;
    return 2;
}

static enum status slim_run(const struct layer_step *p, uint32_t layer)
{
    const struct slim_layer *w = (const struct slim_layer *)p->weights->layers + layer;
    float *const *b = p->buffer;
    const float *in;
    enum status s;

    if ((s = layer_norm_for(p, p->n_rows, p->x, w->norm, NULL, &w->qkv, p->xn, &in)) != OK ||
        (s = layer_product(p, p->n_rows, in, &w->qkv, &w->o, NULL, b[0])) != OK ||
        (s = layer_rope_kv(p, layer, b[0])) != OK ||
        (s = layer_attention(p, layer, b[0], &w->o, b[1], &in)) != OK)
        return s;
    return layer_add_product(p, p->n_rows, in, &w->o, NULL, NULL, p->x);
}

static void slim_work(const struct model_config *m, const struct weights *w, struct model_work *out)
{
    *out = (struct model_work){.k_max = m->dim, .flops_per_pair = 4.0 * m->n_heads * m->head_dim};
    if (w) {
        out->flops_per_token = 2.0 * (double)w->n_params;
        out->weight_bytes = (double)w->n_bytes;
    }
}

static const struct model_family family_slim = {
    .name = "slim",
    .architectures = (const char *const[]){"SlimForCausalLM", NULL},
    .model_types = (const char *const[]){"slim", NULL},
    .embedding = "tokens",
    .read_config = slim_read,
    .plan_weights = slim_plan,
    .plan_buffers = slim_buffers,
    .run_layer = slim_run,
    .count_work = slim_work,
};

/* The table of this program, instead of families.c's. */
const struct model_family *const model_families[] = {&family_llama, &family_slim, NULL};

/* --- checkpoints --- */

#define N_TENSORS_MAX 32

/* A tensor of a checkpoint under the family's own name. Tensors with equal roles have equal values;
 * role 0 is zeros. */
struct tensor_spec {
    char name[64];
    uint32_t rows, cols, role;
};

struct spec {
    struct tensor_spec tensors[N_TENSORS_MAX];
    uint32_t n;
};

static void add(struct spec *s, uint32_t role, uint32_t rows, uint32_t cols, const char *name,
                uint32_t layer)
{
    ASSERT(s->n < N_TENSORS_MAX);
    struct tensor_spec *t = &s->tensors[s->n++];
    char layer_text[12], *out = t->name;

    snprintf(layer_text, sizeof layer_text, "%u", layer);
    for (; *name; name++) /* '#' is the layer's number */
        out += snprintf(out, (size_t)(t->name + sizeof t->name - out), "%s",
                        *name == '#' ? layer_text : (char[]){*name, '\0'});
    t->rows = rows;
    t->cols = cols;
    t->role = role;
}

/* Parts that both families have: names [8] of embedding, norm, Q, K, V, O, last norm, output. */
static void add_shared(struct spec *s, const struct model_config *m, const char *const *names)
{
    uint32_t q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim;

    add(s, 1, m->n_vocab, m->dim, names[0], 0);
    for (uint32_t i = 0; i < m->n_layers; i++) {
        add(s, 10 * i + 11, m->dim, 0, names[1], i);
        add(s, 10 * i + 12, q, m->dim, names[2], i);
        add(s, 10 * i + 13, kv, m->dim, names[3], i);
        add(s, 10 * i + 14, kv, m->dim, names[4], i);
        add(s, 10 * i + 15, m->dim, q, names[5], i);
    }
    add(s, 2, m->dim, 0, names[6], 0);
    add(s, 3, m->n_vocab, m->dim, names[7], 0);
}

static void llama_spec(struct spec *s, const struct model_config *m)
{
    static const char *const names[] = {
        "model.embed_tokens.weight",
        "model.layers.#.input_layernorm.weight",
        "model.layers.#.self_attn.q_proj.weight",
        "model.layers.#.self_attn.k_proj.weight",
        "model.layers.#.self_attn.v_proj.weight",
        "model.layers.#.self_attn.o_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    };

    s->n = 0;
    add_shared(s, m, names);
    for (uint32_t i = 0; i < m->n_layers; i++) {
        add(s, 7, m->dim, 0, "model.layers.#.post_attention_layernorm.weight", i);
        add(s, 8, m->ffn_dim, m->dim, "model.layers.#.mlp.gate_proj.weight", i);
        add(s, 9, m->ffn_dim, m->dim, "model.layers.#.mlp.up_proj.weight", i);
        add(s, 0, m->dim, m->ffn_dim, "model.layers.#.mlp.down_proj.weight", i);
    }
}

static void slim_spec(struct spec *s, const struct model_config *m)
{
    static const char *const names[] = {
        "tokens",         "slim#/norm.weight", "slim#/q.weight", "slim#/k.weight",
        "slim#/v.weight", "slim#/o.weight",    "last/norm",      "head"};

    s->n = 0;
    add_shared(s, m, names);
}

static void write_values(FILE *f, const struct tensor_spec *t)
{
    uint64_t x = t->role;

    for (uint32_t i = 0; i < t->rows * (t->cols ? t->cols : 1); i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        float v = t->role ? (float)(int32_t)(x >> 32) * 0x1p-31f : 0;
        ASSERT(fwrite(&v, sizeof v, 1, f) == 1);
    }
}

static void write_checkpoint(const char *dir, const struct spec *s)
{
    char header[8192], path[128];
    size_t n = 0, at = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        const struct tensor_spec *t = &s->tensors[i];
        size_t bytes = sizeof(float) * t->rows * (t->cols ? t->cols : 1);
        char cols[16] = "";
        if (t->cols)
            snprintf(cols, sizeof cols, ",%u", t->cols);
        n += (size_t)snprintf(header + n, sizeof header - n,
                              "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%u%s],"
                              "\"data_offsets\":[%zu,%zu]}",
                              i ? ',' : '{', t->name, t->rows, cols, at, at + bytes);
        at += bytes;
    }
    ASSERT(n + 1 < sizeof header);
    header[n++] = '}';
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "wb");
    ASSERT(f);
    uint64_t n_header = n;
    ASSERT(fwrite(&n_header, 8, 1, f) == 1 && fwrite(header, n, 1, f) == 1);
    for (uint32_t i = 0; i < s->n; i++)
        write_values(f, &s->tensors[i]);
    ASSERT(fclose(f) == 0);
}

/* --- tests --- */

#define N_IDS 70

static void prefill_checkpoint(const struct model_config *m, const struct spec *s, float *logits)
{
    char dir[] = "/tmp/tarn-families-XXXXXX", path[128];
    uint32_t ids[N_IDS];
    struct world w;

    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = i * 7 % m->n_vocab;
    assert_non_null(mkdtemp(dir));
    write_checkpoint(dir, s);
    world_open(&w, m, dir, NULL);
    world_prefill(&w, ids, N_IDS, WORLD_N_ROWS, logits);
    world_close(&w);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    rmdir(dir);
}

static void its_logits_are_those_of_llama_with_a_silent_feed_forward(void **state)
{
    struct model_config llama = world_llama(), slim = llama;
    size_t n = (size_t)N_IDS * llama.n_vocab;
    float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    static struct spec s;

    (void)state;
    assert_true(want && got);
    slim.family = &family_slim;
    llama_spec(&s, &llama);
    prefill_checkpoint(&llama, &s, want);
    slim_spec(&s, &slim);
    prefill_checkpoint(&slim, &s, got);
    assert_memory_equal(got, want, n * sizeof *want);
    assert_true(want[0] != want[n - 1]);
    free(want);
    free(got);
}

static const char slim_json[] =
    "{\"architectures\":[\"SlimForCausalLM\"],\"hidden_size\":24,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":40,"
    "\"vocab_size\":50,\"max_position_embeddings\":512,\"slim_tricks\":%u}";

/* Generate 8 tokens with an engine over random weights. */
static void generate(const char *json, char fingerprint[65])
{
    uint32_t ids[40] = {1, 2, 3};
    struct engine_config c;
    struct engine_test t;
    struct sampling sp;
    struct stopping st;

    engine_config_init(&c);
    c.kv_bytes = 1 << 20;
    c.n_threads = 1;
    engine_test_open(&t, json, &c);
    engine_test_params(&sp, &st, 8);
    struct request *r = engine_test_submit(&t, ids, 40, NULL, 0, &sp, &st);
    engine_test_wait(r);
    assert_int_equal(request_finish(r), FINISH_LENGTH);
    memcpy(fingerprint, engine_info(t.engine)->fingerprint_hex, 65);
    request_unref(r);
    engine_test_close(&t);
}

static void an_engine_runs_it(void **state)
{
    char json[512], first[65], again[65], other[65];

    (void)state;
    snprintf(json, sizeof json, slim_json, 4u);
    generate(json, first);
    generate(json, again);
    assert_string_equal(first, again);
    snprintf(json, sizeof json, slim_json, 5u); /* the family's own field */
    generate(json, other);
    assert_string_not_equal(first, other);
}

static void load(const char *json, enum status want, const char *words)
{
    char dir[ENGINE_TEST_DIR_BYTES];
    struct model_config m;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    engine_test_make_model(dir, json);
    assert_int_equal(model_config_load(&m, dir, &why), want);
    if (want == OK)
        assert_string_equal(m.family->name, words);
    else if (!strstr(buf_str(&why), words))
        fail_msg("\"%s\" does not say \"%s\"", buf_str(&why), words);
    engine_test_remove_model(dir);
    buf_fini(&why);
}

#define SHAPE                                                                                      \
    "\"hidden_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":2,"                         \
    "\"intermediate_size\":6,\"vocab_size\":5}"

static void a_config_names_its_family(void **state)
{
    (void)state;
    load("{\"architectures\":[\"SlimForCausalLM\"]," SHAPE, OK, "slim");
    load("{\"architectures\":[\"LlamaModel\"]," SHAPE, OK, "llama");
    load("{\"model_type\":\"slim\"," SHAPE, OK, "slim");
    load("{\"model_type\":\"llama\"," SHAPE, OK, "llama");
    load("{\"model_type\":\"bert\"," SHAPE, ERR_UNSUPPORTED, "llama, slim");
    load("{" SHAPE, ERR_UNSUPPORTED, "missing, too");
    load("{\"architectures\":[\"BertModel\"]," SHAPE, ERR_UNSUPPORTED,
         "LlamaForCausalLM, LlamaModel, SlimForCausalLM");
    load("{\"model_type\":\"slim\",\"slim_tricks\":10," SHAPE, ERR_INVALID, "slim_tricks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_config_names_its_family),
        cmocka_unit_test(its_logits_are_those_of_llama_with_a_silent_feed_forward),
        cmocka_unit_test(an_engine_runs_it),
    };

    if (hash_init() != OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
