/* test_planted_bugs.cc - shows that the emulation finds missing barriers and similar bugs.
 *
 * Each case of planted.cu and planted_async.cu runs in a child process with many seeds. The correct
 * form must always pass; the form with the bug must fail at least once, by a wrong result or a
 * crash. Usage:
 *   test_planted_bugs [-v]     -v: print the children's messages */
#include "emulation.h"
#include "planted.cuh"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/ptx.cuh"
#include "kernels/pack.h"

#define N_SEEDS_RIGHT 50
#define N_SEEDS_BUG 20

#ifdef __SANITIZE_ADDRESS__
static const bool has_asan = true;
#else
static const bool has_asan = false;
#endif

static bool verbose;

/* Whether the case passes with a seed. */
static bool passes(const struct planted_case *c, bool with_bug, unsigned seed)
{
    int status;

    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (!verbose) {
            int nowhere = open("/dev/null", O_WRONLY);
            dup2(nowhere, 2);
        }
        emulation_seed(seed);
        _exit(c->run(with_bug) ? 0 : 1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("fork");
        return false;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static unsigned n_failures(const struct planted_case *c, bool with_bug, unsigned n_seeds)
{
    unsigned n = 0;

    for (unsigned seed = 1; seed <= n_seeds; seed++)
        n += !passes(c, with_bug, seed);
    return n;
}

static bool check_case(const struct planted_case *c)
{
    if (c->need == NEEDS_ASAN && !has_asan) {
        printf("skip  %s (needs AddressSanitizer)\n", c->name);
        return true;
    }
    unsigned right = n_failures(c, false, N_SEEDS_RIGHT), bug = n_failures(c, true, N_SEEDS_BUG);
    bool good = right == 0 && bug > 0;
    printf("%s  %s: right fails %u of %d, bug found by %u of %d seeds\n", good ? "ok  " : "FAIL",
           c->name, right, N_SEEDS_RIGHT, bug, N_SEEDS_BUG);
    return good;
}

/* Compare the emulation's 16-bit floats with the conversions of the reference kernels. */
static bool check_floats(void)
{
    uint64_t noise = 1;

    for (unsigned i = 0; i < 1u << 20; i++) {
        noise = noise * 6364136223846793005u + 1442695040888963407u;
        float v = __uint_as_float(i < 1u << 17 ? i << 15 : (unsigned)(noise >> 32));
        uint16_t bf16, f16;
        dtype_store(DTYPE_BF16, &bf16, 0, v);
        dtype_store(DTYPE_F16, &f16, 0, v);
        bool same = v != v ? emulation_f16_value((uint16_t)pack_f16(v, 0)) != 0 &&
                                 (pack_bf16(v, 0) & 0x7fff) > 0x7f80
                           : pack_bf16(v, 0) == bf16 && pack_f16(v, 0) == f16;
        if (same && v == v && !isinf(emulation_f16_value(f16)))
            same = emulation_f16_value(f16) == dtype_load(DTYPE_F16, &f16, 0);
        if (!same) {
            printf("FAIL  %a becomes bf16 %04x (want %04x), f16 %04x (want %04x)\n", (double)v,
                   pack_bf16(v, 0), bf16, pack_f16(v, 0), f16);
            return false;
        }
    }
    printf("ok    16-bit floats\n");
    return true;
}

int main(int argc, char **argv)
{
    bool good = true;

    verbose = argc > 1 && strcmp(argv[1], "-v") == 0;
    for (unsigned i = 0; i < n_planted_cases; i++)
        good = check_case(&planted_cases[i]) && good;
    for (unsigned i = 0; i < n_planted_async_cases; i++)
        good = check_case(&planted_async_cases[i]) && good;
    good = check_floats() && good;
    return good ? 0 : 1;
}
