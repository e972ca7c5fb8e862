#include "loadgen/bench/engine/report.h"

#include <string.h>

#include "base/check.h"
#include "base/json.h"

static const char *dtype_word(enum dtype t)
{
    static const char *const words[] = {
        [DTYPE_F32] = "f32", [DTYPE_F16] = "f16",    [DTYPE_BF16] = "bf16",  [DTYPE_I8] = "int8",
        [DTYPE_I4] = "int4", [DTYPE_A8] = "affine8", [DTYPE_A4] = "affine4", [DTYPE_F8] = "fp8"};
    return words[t];
}

static double row_tok_s(const struct runner_row *row, double seconds)
{
    return seconds > 0 ? case_tokens(&row->c) / seconds : 0;
}

static double row_share(const struct runner_row *row)
{
    return row->median > 0 ? row->floor.seconds / row->median : 0;
}

/* --- tables --- */

void report_machine(FILE *f, const struct rig_info *i)
{
    const struct bench_shape *m = &i->shape;

    fprintf(f,
            "%.1f M parameters, %u layers, %s weights (output %s, %.2f GB), %s KV (pool %.2f "
            "GB)\n%s, %u threads, steps of at most %u tokens, loaded in %.1f s\n\n",
            (double)i->n_params * 1e-6, m->n_layers, dtype_word(m->layers), dtype_word(m->output),
            (double)i->weight_bytes * 1e-9, dtype_word(m->kv), (double)i->kv_bytes * 1e-9,
            i->ops_name, i->n_threads, i->chunk, i->load_seconds);
}

void report_limits(FILE *f, const struct limits *l)
{
    fprintf(f, "limits of %u threads, cores at %.2f GHz\n", l->n_threads, l->clock_hz * 1e-9);
    for (int k = 0; k < LIMIT_COUNT; k++) {
        if (l->rate[k] <= 0)
            continue;
        fprintf(f, "  %-10s %9.1f %s/s", limits_name((enum limit_kind)k), l->rate[k] * 1e-9,
                k == LIMIT_READ ? "GB" : "Gop");
        if (l->expected[k] > 0)
            fprintf(f, "   %6.1f of %4.0f operations per cycle and core", l->per_cycle[k],
                    l->expected[k]);
        fputc('\n', f);
    }
    if (l->is_void)
        fprintf(f, "  VOID: %s\n", l->void_why);
    fputc('\n', f);
}

void report_rows(FILE *f, const struct runner_result *r)
{
    char name[BENCH_CASE_NAME_BYTES];

    fprintf(f, "%-20s %10s %10s %10s %10s", "case", "tok/s", "min", "max", "ms");
    if (r->has_limits)
        fprintf(f, " %10s %7s  %s", "floor ms", "share", "of");
    fputc('\n', f);
    for (uint32_t i = 0; i < r->n_rows; i++) {
        const struct runner_row *row = &r->rows[i];
        case_name(&row->c, name);
        if (row->skipped[0]) {
            fprintf(f, "%-20s skipped: %s\n", name, row->skipped);
            continue;
        }
        fprintf(f, "%-20s %10.2f %10.2f %10.2f %10.2f", name, row_tok_s(row, row->median),
                row_tok_s(row, row->seconds[row->n_done - 1]), row_tok_s(row, row->seconds[0]),
                row->median * 1e3);
        if (r->has_limits)
            fprintf(f, " %10.2f %6.1f%%  %s", row->floor.seconds * 1e3, row_share(row) * 100,
                    limits_name(row->floor.limit));
        fputc('\n', f);
    }
    fprintf(f, "\nmedians of %u rounds\n", r->n_rounds);
}

static void report_profile(FILE *f, const struct runner_row *row)
{
    char name[BENCH_CASE_NAME_BYTES];
    double n = (double)row->n_profiled, total = 0, mean = 0;

    for (uint32_t i = 0; i < row->n_done; i++)
        mean += row->seconds[i] / row->n_done;
    for (int i = 0; i < PROFILE_OP_COUNT; i++)
        total += row->profile.op[i].seconds / n;
    case_name(&row->c, name);
    fprintf(f, "\n%s: mean of %.0f passes, %.3f ms\n", name, n, mean * 1e3);
    fprintf(f, "  %-10s %10s %7s %8s %10s %10s\n", "op", "ms", "share", "calls", "Gop/s", "GB/s");
    for (int i = 0; i < PROFILE_OP_COUNT; i++) {
        double seconds = row->profile.op[i].seconds;
        if (row->profile.op[i].n_calls == 0)
            continue;
        fprintf(f, "  %-10s %10.3f %6.1f%% %8.0f", profile_op_name((enum profile_op)i),
                seconds / n * 1e3, mean > 0 ? seconds / n / mean * 100 : 0,
                (double)row->profile.op[i].n_calls / n);
        if (row->profile.op[i].ops && seconds > 0)
            fprintf(f, " %10.1f %10.2f", (double)row->profile.op[i].ops / seconds * 1e-9,
                    (double)row->profile.op[i].bytes / seconds * 1e-9);
        fputc('\n', f);
    }
    fprintf(f, "  %-10s %10.3f %6.1f%%\n", "other", (mean - total) * 1e3,
            mean > 0 ? (mean - total) / mean * 100 : 0);
}

void report_profiles(FILE *f, const struct runner_result *r)
{
    for (uint32_t i = 0; i < r->n_rows; i++)
        if (r->rows[i].n_profiled)
            report_profile(f, &r->rows[i]);
}

/* --- JSON --- */

static const struct {
    const char *name;
    enum limit_kind kind;
} rate_fields[] = {
    {"read_gb_s", LIMIT_READ},
    {"bf16_gflop_s", LIMIT_BF16},
    {"int8_gop_s", LIMIT_INT8},
    {"fp32_gflop_s", LIMIT_FP32},
    {"amx_bf16_gflop_s", LIMIT_AMX_BF16},
    {"amx_int8_gop_s", LIMIT_AMX_INT8},
    {"avx2_fp32_gflop_s", LIMIT_AVX2_FP32},
    {"avx2_int8_gop_s", LIMIT_AVX2_INT8},
};

static struct json *text(const char *s)
{
    return js_new_string(s, strlen(s));
}

/* Put value into obj unless something failed before; js_set() takes it over in any case. */
static void put(struct json *obj, const char *key, struct json *value, enum status *s)
{
    enum status one = js_set(obj, key, value);

    if (*s == OK)
        *s = one;
}

static enum status fill_limits(struct json *o, const struct limits *l)
{
    enum status s = OK;

    for (size_t i = 0; i < ARRAY_SIZE(rate_fields); i++) {
        double rate = l->rate[rate_fields[i].kind];
        put(o, rate_fields[i].name, rate > 0 ? js_new_real(rate * 1e-9) : js_new_null(), &s);
    }
    put(o, "int8_ops_per_cycle",
        l->per_cycle[LIMIT_INT8] > 0 ? js_new_real(l->per_cycle[LIMIT_INT8]) : js_new_null(), &s);
    put(o, "clock_ghz", js_new_real(l->clock_hz * 1e-9), &s);
    put(o, "threads", js_new_int(l->n_threads), &s);
    put(o, "void", js_new_bool(l->is_void), &s);
    put(o, "void_why", l->is_void ? text(l->void_why) : js_new_null(), &s);
    return s;
}

static enum status fill_profile(struct json *o, const struct runner_row *row)
{
    enum status s = OK;

    for (int i = 0; i < PROFILE_OP_COUNT; i++)
        put(o, profile_op_name((enum profile_op)i),
            js_new_real(row->profile.op[i].seconds / (double)row->n_profiled), &s);
    return s;
}

static enum status fill_row(struct json *o, const struct runner_row *row, bool has_limits)
{
    enum status s = OK;

    put(o, "phase", text(case_phase_name(&row->c)), &s);
    put(o, "prompt", js_new_int(row->c.prompt), &s);
    put(o, "batch", js_new_int(row->c.batch), &s);
    put(o, "context", js_new_int(row->c.context), &s);
    put(o, "tok_s", js_new_real(row_tok_s(row, row->median)), &s);
    put(o, "limit_share", has_limits ? js_new_real(row_share(row)) : js_new_null(), &s);
    put(o, "limit", has_limits ? text(limits_name(row->floor.limit)) : js_new_null(), &s);
    put(o, "seconds", js_new_real(row->median), &s);
    put(o, "floor_seconds", has_limits ? js_new_real(row->floor.seconds) : js_new_null(), &s);
    put(o, "repetitions", js_new_int(row->n_done), &s);
    put(o, "tok_s_min", js_new_real(row_tok_s(row, row->seconds[row->n_done - 1])), &s);
    put(o, "tok_s_max", js_new_real(row_tok_s(row, row->seconds[0])), &s);
    if (s == OK && row->n_profiled) {
        struct json *p = js_new_object();
        s = p ? fill_profile(p, row) : ERR_NOMEM;
        put(o, "profile", p, &s);
    }
    return s;
}

static enum status add_rows(struct json *array, const struct runner_result *r)
{
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < r->n_rows; i++) {
        if (r->rows[i].n_done == 0)
            continue;
        struct json *o = js_new_object();
        s = o ? fill_row(o, &r->rows[i], r->has_limits) : ERR_NOMEM;
        enum status pushed = js_push(array, o);
        s = s == OK ? pushed : s;
    }
    return s;
}

enum status report_json(struct buf *out, const struct limits *limits,
                        const struct runner_result *rows)
{
    struct json *root = js_new_object(), *l = limits ? js_new_object() : js_new_null();
    enum status s = root && l ? OK : ERR_NOMEM;

    if (s == OK && limits)
        s = fill_limits(l, limits);
    if (root)
        put(root, "limits", l, &s);
    if (s == OK && rows) {
        struct json *array = js_new_array();
        s = array ? add_rows(array, rows) : ERR_NOMEM;
        put(root, "rows", array, &s);
    }
    if (s == OK)
        s = js_write(out, root);
    if (s == OK)
        s = buf_putc(out, '\n');
    js_unref(root);
    return s;
}
