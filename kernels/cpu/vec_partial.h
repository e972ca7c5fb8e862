/* vec_partial.h - loads and stores of the first n lanes (0 .. VW), for variants without masks. They
 * go through a small buffer, so that memory behind the end is neither read nor written. */
static inline vf v_load_n(const float *p, uint32_t n)
{
    float t[VW] = {0};

    if (n == VW)
        return v_load(p);
    memcpy(t, p, n * sizeof(*p));
    return v_load(t);
}

static inline void v_store_n(float *p, vf v, uint32_t n)
{
    float t[VW];

    if (n == VW) {
        v_store(p, v);
        return;
    }
    v_store(t, v);
    memcpy(p, t, n * sizeof(*p));
}

static inline vh h_load_n(const uint16_t *p, uint32_t n)
{
    uint16_t t[VW] = {0};

    if (n == VW)
        return h_load(p);
    memcpy(t, p, n * sizeof(*p));
    return h_load(t);
}

static inline void h_store_n(uint16_t *p, vh v, uint32_t n)
{
    if (n == VW)
        memcpy(p, &v, sizeof(v)); /* one instruction */
    else
        memcpy(p, &v, n * sizeof(*p));
}
