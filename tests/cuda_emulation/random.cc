/* random.cc - the emulation's random numbers: xorshift64* (Vigna 2016), seeded by the
 * environment. */
#include "internal.h"

static uint64_t state;

void emulation_seed(uint64_t seed)
{
    state = (seed + 1) * 0x9e3779b97f4a7c15u;
    if (state == 0)
        state = 1;
}

uint64_t random_u64(void)
{
    if (state == 0)
        emulation_seed(env_number("TARN_EMULATION_SEED", 1));
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1du;
}

/* Fill with NaNs, or with noise, so that a sum that uses these bytes is wrong, and mostly an index
 * too. Not instrumented, because whole words may reach into a sanitizer's red zone. */
__attribute__((no_sanitize("address", "undefined"), noinline)) void random_fill(void *p,
                                                                               size_t n_bytes)
{
    unsigned char *bytes = static_cast<unsigned char *>(p);
    bool nan = random_u64() >> 63;
    uint64_t noise = nan ? ~(uint64_t)0 : random_u64();
    size_t i = 0;

    for (; i < n_bytes && reinterpret_cast<uintptr_t>(bytes + i) % 8; i++)
        bytes[i] = (unsigned char)noise;
    for (; i + 8 <= n_bytes; i += 8) {
        *reinterpret_cast<volatile uint64_t *>(bytes + i) = noise;
        if (!nan)
            noise = noise * 6364136223846793005u + 1442695040888963407u; /* Knuth's generator */
    }
    for (; i < n_bytes; i++)
        reinterpret_cast<volatile unsigned char *>(bytes)[i] = (unsigned char)(noise >> 56);
}
