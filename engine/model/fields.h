/* fields.h - a table that describes a plain struct: one row per member.
 *
 * The reader of the struct and its canonical text come from the same rows, so a member cannot be
 * read and then forgotten in the text. Tests check that the rows cover every byte of the struct.
 *
 * Owns    nothing; tables are constants of the modules that own the structs.
 * Thread  any.
 * Errors  fields_read(): ERR_INVALID with words that name the field. fields_write(): as buf.h.
 * Units   bytes. */
#ifndef TARN_ENGINE_MODEL_FIELDS_H
#define TARN_ENGINE_MODEL_FIELDS_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/json.h"

enum field_type {
    FIELD_U32,   /* uint32_t, or an enum */
    FIELD_F32,   /* float */
    FIELD_F64,   /* double */
    FIELD_FLAG,  /* uint32_t, 0 or 1; a JSON bool */
    FIELD_NAMED, /* pointer to a struct that begins with `const char *name`, which the text has */
};

/* The file that fields_read() takes a field from. */
enum field_file {
    FIELD_COMPUTED = 0, /* none: code derives the value */
    FIELD_CONFIG,       /* config.json */
    FIELD_GENERATION,   /* generation_config.json */
};

struct field {
    const char *name; /* in the text; the JSON key, too, of a field that is read */
    enum field_type type;
    uint32_t offset;
    uint32_t n_bytes; /* of the member: an array has several elements of the type */
    enum field_file file;
    bool required;   /* in the file */
    bool not_of_kv;  /* the bytes of stored KV do not depend on the field */
    double min, max; /* allowed in the file; not for flags */
};

/* A row for `member` of struct `s`; further designated initializers may follow. */
#define FIELD(s, member, field_name, field_type_, ...)                                             \
    {                                                                                              \
        .name = field_name, .type = (field_type_), .offset = (uint32_t)offsetof(struct s, member), \
        .n_bytes = (uint32_t)sizeof(((struct s *)0)->member), __VA_ARGS__                          \
    }

struct field_table {
    const struct field *rows;
    size_t n;
};

/* Read the fields of one file from the JSON object j into the struct at base. A field that j leaves
 * out keeps its value, unless it is required. Arrays are never read. */
NODISCARD enum status fields_read(struct field_table t, enum field_file file, const struct json *j,
                                  void *base, struct buf *why);

/* Append " name=value" for each field, in the order of the rows. Floats are hexadecimal, so equal
 * texts mean equal bits. only_kv leaves out the fields that are not_of_kv. */
NODISCARD enum status fields_write(struct field_table t, const void *base, bool only_kv,
                                   struct buf *out);

#endif
