/* families.c - the table of model families: one line each. The table is a file of its own, so that
 * a test can link another one. */
#include "engine/model/family.h"

const struct model_family *const model_families[] = {
    &family_llama,       &family_mistral,        &family_qwen2,
    &family_qwen3,       &family_phi3,           &family_gemma2,
    &family_gemma3,      &family_smollm3,        &family_olmo2,
    &family_granite,     &family_stablelm,       &family_mixtral,
    &family_qwen2_moe,   &family_qwen3_moe,      &family_olmoe,
    &family_bailing_moe, &family_bert,           &family_bert_labels,
    &family_roberta,     &family_roberta_labels, NULL,
};
