/* tests_main.c - all tests of tests/cuda and the test of promise P1 on a GPU, in one program. Each
 * program contains all kernels, so one program per test would be too large to copy to a GPU
 * machine.
 *
 *   tarn-gpu-tests NAME     exit status 77 where there is no GPU
 *   tarn-gpu-tests --list */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "kernels/device.h"

/* The main() functions of the tests, renamed by CMakeLists.txt. */
int test_activation_main(void);
int test_attention_main(void);
int test_attention_shared_main(void);
int test_attention_wgmma_main(void);
int test_collective_main(void);
int test_device_main(void);
int test_experts_main(void);
int test_gemm_main(void);
int test_crc32c_main(void);
int test_norms_main(void);
int test_same_tokens_gpu_main(void);
int test_sample_main(void);
int test_small_main(void);
int test_wgmma_main(void);

static const struct {
    const char *name;
    int (*run)(void);
} tests[] = {
    {"activation", test_activation_main},
    {"attention", test_attention_main},
    {"attention_shared", test_attention_shared_main},
    {"attention_wgmma", test_attention_wgmma_main},
    {"collective", test_collective_main},
    {"device", test_device_main},
    {"experts", test_experts_main},
    {"gemm", test_gemm_main},
    {"crc32c", test_crc32c_main},
    {"norms", test_norms_main},
    {"same_tokens_gpu", test_same_tokens_gpu_main},
    {"sample", test_sample_main},
    {"small", test_small_main},
    {"wgmma", test_wgmma_main},
};

static int without_gpu(void)
{
    struct device_config config = {.kind = DEVICE_CUDA,
                                   .n_threads = 1,
                                   .max_rows = 1,
                                   .max_k = 1,
                                   .max_heads = 1,
                                   .max_head_dim = 1};
    struct device *d;
    struct buf why;
    int status = 0;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = device_open(&d, &config, &why);
    if (s == OK)
        device_close(d);
    else
        printf("%s: %s\n", s == ERR_UNSUPPORTED ? "SKIP: no GPU" : "no device", buf_str(&why));
    if (s != OK)
        status = s == ERR_UNSUPPORTED ? 77 : 1;
    buf_fini(&why);
    return status;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";

    for (size_t i = 0; i < ARRAY_SIZE(tests); i++) {
        if (strcmp(name, "--list") == 0)
            puts(tests[i].name);
        if (strcmp(name, tests[i].name) == 0) {
            int status = without_gpu();
            return status ? status : tests[i].run();
        }
    }
    if (strcmp(name, "--list") == 0)
        return 0;
    fprintf(stderr, "tarn-gpu-tests NAME, one of tarn-gpu-tests --list\n");
    return 2;
}
