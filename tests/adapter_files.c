#include "tests/adapter_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/rng.h"

static void die(const char *what)
{
    fprintf(stderr, "adapter_files: %s\n", what);
    abort();
}

static void must(enum status s)
{
    if (s != OK)
        die("out of memory");
}

void adapter_files_write(const char *dir, const char *name, const void *bytes, size_t n)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        die(path);
}

float adapter_files_at(const struct adapter_files *f, uint32_t layer, uint32_t m, int is_b,
                       size_t i)
{
    uint64_t stream = f->seed * 1000003 + layer * 1009 + m * 2 + (uint32_t)is_b;
    float unit = (float)((double)rng_u32(stream, i) / 2147483648.0 - 1);

    return unit * (is_b ? f->gain / sqrtf((float)f->rank) : 1 / sqrtf((float)f->modules[m].k));
}

/* The header's entry and the bytes of one matrix. */
static void add_matrix(const struct adapter_files *f, uint32_t layer, uint32_t m, int is_b,
                       struct buf *head, struct buf *data)
{
    uint32_t rows = is_b ? f->modules[m].n : f->rank, cols = is_b ? f->rank : f->modules[m].k;
    size_t n = (size_t)rows * cols, begin = data->len;

    for (size_t i = 0; i < n; i++) {
        float v = adapter_files_at(f, layer, m, is_b, i);
        must(buf_append(data, &v, sizeof v));
    }
    must(buf_printf(head,
                    "%s\"base_model.model.model.layers.%u.%s.lora_%c.weight\":{\"dtype\":\"F32\","
                    "\"shape\":[%u,%u],\"data_offsets\":[%zu,%zu]}",
                    head->len > 1 ? "," : "", layer, f->modules[m].name, is_b ? 'B' : 'A', rows,
                    cols, begin, data->len));
}

static void write_tensors(const char *dir, const struct adapter_files *f)
{
    struct buf head, data, file;

    buf_init(&head, 1 << 20);
    buf_init(&data, 64 << 20);
    buf_init(&file, 65 << 20);
    must(buf_puts(&head, "{"));
    for (uint32_t layer = 0; layer < f->n_layers; layer++)
        for (uint32_t m = 0; m < f->n_modules; m++)
            for (int is_b = 0; is_b < 2; is_b++)
                add_matrix(f, layer, m, is_b, &head, &data);
    must(buf_puts(&head, "}"));
    while (head.len % 8)
        must(buf_puts(&head, " "));
    uint64_t n = head.len;
    must(buf_append(&file, &n, sizeof n));
    must(buf_append(&file, head.data, head.len));
    must(buf_append(&file, data.data, data.len));
    adapter_files_write(dir, "adapter_model.safetensors", file.data, file.len);
    buf_fini(&head);
    buf_fini(&data);
    buf_fini(&file);
}

void adapter_files_make(char dir[ADAPTER_FILES_DIR_BYTES], const struct adapter_files *f)
{
    char config[256];

    snprintf(dir, ADAPTER_FILES_DIR_BYTES, "/tmp/tarn-adapter-XXXXXX");
    if (!mkdtemp(dir))
        die("mkdtemp");
    snprintf(config, sizeof config,
             "{\"peft_type\":\"LORA\",\"r\":%u,\"lora_alpha\":%u,\"target_modules\":[],"
             "\"bias\":\"none\"}",
             f->rank, 2 * f->rank);
    const char *text = f->config ? f->config : config;
    adapter_files_write(dir, "adapter_config.json", text, strlen(text));
    write_tensors(dir, f);
}

void adapter_files_remove(const char *dir)
{
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    char path[256];

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}
