/* planted.cuh - small kernels, right and with one bug each, for test_planted_bugs.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  a case returns false for a wrong result, or ends the process.
 * Units   none. */
#ifndef TARN_TESTS_CUDA_EMULATION_PLANTED_CUH
#define TARN_TESTS_CUDA_EMULATION_PLANTED_CUH

enum need {
    ANYWHERE,
    NEEDS_ASAN /* only red zones show it */
};

struct planted_case {
    const char *name;
    bool (*run)(bool with_bug);
    enum need need;
};

extern const struct planted_case planted_cases[];
extern const unsigned n_planted_cases;
extern const struct planted_case planted_async_cases[]; /* planted_async.cu */
extern const unsigned n_planted_async_cases;

#endif
