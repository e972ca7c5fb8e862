/* families.c - the table of model families: one line each. The table is a file of its own, so that
 * a test can link another one. */
#include "engine/model/family.h"

const struct model_family *const model_families[] = {
    &family_llama,
    NULL,
};
