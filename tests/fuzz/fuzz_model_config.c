/* fuzz_model_config.c - any bytes as config.json and, in the second part of the input, as
 * generation_config.json.
 *
 * Checks beyond crashes: a config that a family accepts has the shapes that the engine divides by
 * and sizes its memory with, whatever the context, and its text can be written. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "engine/model/family.h"
#include "engine/model/model.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_folder.h"

static void check_rope(struct model_config m)
{
    static const uint32_t contexts[] = {1, 100, 8192, 1 << 20};
    double freqs[MODEL_ROPE_PAIRS_MAX];

    for (unsigned i = 0; i < 4; i++) {
        model_set_context(&m, contexts[i]);
        for (int local = 0; local < 2; local++) {
            uint32_t n = model_rope_freqs(&m, local, freqs);
            ASSERT(n <= MODEL_ROPE_PAIRS_MAX && 2 * n == model_rot_dim(&m));
        }
    }
}

static void check_config(const struct model_config *m)
{
    uint32_t widths[FAMILY_N_BUFFERS_MAX];
    struct model_work work;
    struct buf text;

    ASSERT(m->family && m->n_layers >= 1 && m->n_layers <= MODEL_N_LAYERS_MAX);
    ASSERT(m->dim >= 1 && m->ffn_dim >= 1 && m->n_vocab >= 1 && m->max_pos >= 1);
    ASSERT(m->n_kv_heads >= 1 && m->n_heads % m->n_kv_heads == 0);
    ASSERT(m->head_dim >= 2 && m->head_dim <= 256 && m->head_dim % 2 == 0);
    ASSERT(model_rot_dim(m) <= m->head_dim && model_rot_dim(m) % 2 == 0);
    ASSERT(m->n_eos_ids <= MODEL_N_EOS_MAX);
    for (uint32_t i = 0; i < m->n_eos_ids; i++)
        ASSERT(m->eos_ids[i] < m->n_vocab);
    ASSERT(m->family->plan_buffers(m, widths) <= FAMILY_N_BUFFERS_MAX);
    m->family->count_work(m, NULL, &work);
    ASSERT(work.k_max >= m->dim && isfinite(work.flops_per_pair));
    buf_init(&text, (size_t)1 << 16);
    ASSERT(model_config_write(m, false, &text) == OK && text.len > 0);
    buf_fini(&text);
    check_rope(*m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);
    struct model_config m;
    struct buf why;

    fuzz_write_file("config.json", in.first, in.first_len);
    fuzz_write_file("generation_config.json", in.second ? in.second : "{}",
                    in.second ? in.second_len : 2);
    buf_init(&why, BUF_WHY_MAX);
    enum status s = model_config_load(&m, fuzz_folder, &why);
    if (s == OK)
        check_config(&m);
    else
        ASSERT(why.len > 0);
    buf_fini(&why);
    return 0;
}
