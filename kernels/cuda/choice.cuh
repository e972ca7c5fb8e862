/* choice.cuh - a choice between two kernels for the same results, made once, when a device opens:
 * mma.sync, or Hopper's own matrix instructions.
 *
 * Both compute the same random problem, and their results are compared. The new one is used if
 * they agree within rounding and it is faster by a margin, so that noise does not change the
 * choice: bits, and so stored KV, belong to it (ops.cu has its name). For the same reason the
 * choice of an earlier start is kept in a file (measure_dir), and only the results are compared
 * then. Whatever cannot be tried leaves the other kernel in use.
 *
 * Owns    nothing: memory that a trial allocates is the trial's.
 * Thread  as ops.h.
 * Errors  as context.cuh.
 * Units   elements unless the name says bytes. */
#ifndef TARN_KERNELS_CUDA_CHOICE_CUH
#define TARN_KERNELS_CUDA_CHOICE_CUH

#include "kernels/cuda/context.cuh"

#define TRIAL_ARRAYS 8

struct trial {
    const char *what;        /* "products", "attention" */
    const char *file;        /* beginning of the kept file's name */
    const char *subject;     /* in its text: of what it is the choice */
    float tolerance;         /* largest difference of two results, in parts of the largest result */
    size_t n_out;            /* results */
    float *out[2];           /* [n_out] by mma.sync, by wgmma */
    void *arrays[TRIAL_ARRAYS]; /* more memory, which trial_choose() frees */
    /* Load the kernels. */
    cudaError_t (*load)(const struct cuda_context *c, const struct trial *t);
    /* Prepare the inputs, by trial_fill() of what trial_array() allocates. */
    enum status (*prepare)(struct cuda_context *c, struct trial *t);
    /* Compute out[with_wgmma]. */
    enum status (*run)(struct cuda_context *c, struct trial *t, bool with_wgmma);
    void *arg;
};

/* Allocate array i of the trial. */
NODISCARD enum status trial_array(struct cuda_context *c, struct trial *t, int i, size_t n_bytes);
/* Fill memory with random words, each cut to the bits of `all` and with the bits of `one`. */
NODISCARD enum status trial_fill(struct cuda_context *c, void *to, size_t n_bytes, uint32_t all,
                                 uint32_t one);
/* Try the kernels out. *chosen is false unless the new one is right and faster, here or at an
 * earlier start. The context may have failed when this returns an error; *chosen is false then. */
NODISCARD enum status trial_choose(struct cuda_context *c, struct trial *t, bool *chosen);
/* Say what is to be done about a trial that failed with status s: nothing, unless the context did;
 * then ERR_INTERNAL. */
NODISCARD enum status trial_outcome(struct cuda_context *c, const char *what, enum status s,
                                    struct buf *why);

#endif
