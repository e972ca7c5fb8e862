#include "engine/model/fingerprint.h"

#include "base/check.h"
#include "base/hash.h"

#define TEXT_BYTES_MAX ((size_t)64 << 10)
#define CONTENT_HASH_BYTES sizeof(((struct weights *)0)->content_hash)
#define ROW(member, name) FIELD(fingerprint_terms, member, name, FIELD_U32, .file = FIELD_COMPUTED)

static const struct field rows[] = {
    ROW(format_version, "kv_format_version"),
    ROW(segment_tokens, "segment_tokens"),
    ROW(ops_version, "ops_version"),
    ROW(weights_dtype, "weights_dtype"),
    ROW(quantization.dtype, "quantization_dtype"),
    ROW(quantization.group, "quantization_group"),
    ROW(kv.dtype, "kv_dtype"),
    ROW(kv.scale_group, "kv_scale_group"),
    ROW(kv.k_order, "kv_k_order"),
    ROW(kv.v_order, "kv_v_order"),
    ROW(kv.block_tokens, "kv_block_tokens"),
};

struct field_table fingerprint_fields(void)
{
    return (struct field_table){rows, ARRAY_SIZE(rows)};
}

/* The frequencies are in the text beside the settings that they follow from: another C library's
 * pow() may round them differently. */
static enum status write_freqs(const struct model_config *m, bool local, struct buf *out)
{
    double freqs[MODEL_ROPE_PAIRS_MAX];
    enum status s = buf_puts(out, local ? " rope_local_freqs=" : " rope_freqs=");
    uint32_t n = model_rope_freqs(m, local, freqs);

    for (uint32_t i = 0; s == OK && i < n; i++)
        s = buf_printf(out, "%s%a", i ? "," : "", freqs[i]);
    return s;
}

enum status fingerprint_write(const struct fingerprint_config *c, struct buf *out)
{
    char hex[2 * CONTENT_HASH_BYTES + 1];
    enum status s = buf_puts(out, "tarn-kv");

    hash_hex(hex, c->content_hash, CONTENT_HASH_BYTES);
    if (s == OK)
        s = model_config_write(c->model, true, out);
    if (s == OK)
        s = write_freqs(c->model, false, out);
    if (s == OK && c->model->rope_local.theta > 0)
        s = write_freqs(c->model, true, out);
    if (s == OK)
        s = fields_write(fingerprint_fields(), &c->terms, true, out);
    return s == OK ? buf_printf(out, " ops=%s weights=%s", c->ops_name, hex) : s;
}

enum status fingerprint_make(uint8_t out[FINGERPRINT_BYTES], const struct fingerprint_config *c)
{
    struct buf text;

    buf_init(&text, TEXT_BYTES_MAX);
    enum status s = fingerprint_write(c, &text);
    if (s == OK)
        hash_blake2b(out, FINGERPRINT_BYTES, text.data, text.len, NULL, 0);
    buf_fini(&text);
    return s;
}
