/* jinja_value.h - the values of a template run, with Python's semantics, and the run itself.
 *
 * Owns    nothing: every value, string and list is in the run's arena, or is borrowed from the
 *         template and the JSON context, which outlive the run.
 * Thread  a run belongs to one thread.
 * Errors  jinja_fail() puts "chat template line N: ..." into the run's `why`. ERR_TOO_LARGE: steps,
 *         depth, memory or output exceed their limit.
 * Units   strings are slices of UTF-8 in bytes, not NUL-terminated. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_VALUE_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/status.h"

/* Return the status of a call that failed. Errors need no cleanup: all memory belongs to the
 * arena. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        enum status try_status = (call);                                                           \
        if (try_status != OK)                                                                      \
            return try_status;                                                                     \
    } while (0)

#define JINJA_STEPS_MAX 10000000u /* about one second */
#define JINJA_DEPTH_MAX 600u      /* nested evaluations; keeps the C stack under 1 MiB */
#define JINJA_RANGE_MAX 100000    /* MAX_RANGE of jinja2's sandbox */

enum jinja_type {
    JINJA_MISSING = 0, /* an argument that was not given; templates never see it */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STR,
    JINJA_SEQ,
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_MACRO,
    JINJA_FUNCTION,
    JINJA_METHOD,
    JINJA_LOOP,
};

enum jinja_seq_kind {
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_RANGE,
    JINJA_KEYS,
    JINJA_VALUES,
    JINJA_ITEMS,
    JINJA_GENERATOR, /* result of map() and select(): iterable once, without a length */
};

/* Why a value is undefined. It decides the message when the value is used. */
enum jinja_undefined_kind {
    JINJA_UNDEF_VARIABLE, /* 'name' is undefined */
    JINJA_UNDEF_ATTR,     /* 'owner object' has no attribute 'name' */
    JINJA_UNDEF_ELEMENT,  /* 'owner object' has no element name */
    JINJA_UNDEF_UNSAFE,   /* access to attribute 'name' of 'owner' object is unsafe */
    JINJA_UNDEF_TEXT,     /* name is the whole message */
};

struct jinja_run;
struct jinja_value;
struct jinja_args;

struct jinja_str {
    const char *p;
    size_t len;
};

struct jinja_function {
    const char *name;
    enum status (*call)(struct jinja_run *r, const struct jinja_args *args,
                        struct jinja_value *out);
};

struct jinja_value {
    enum jinja_type type;
    uint8_t undef_kind; /* enum jinja_undefined_kind, JINJA_UNDEFINED only */
    bool markup;        /* JINJA_STR only: Markup, the result of |safe or |escape */
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct jinja_str str;
        struct {
            const char *name;
            const char *owner;
        } undef;
        struct jinja_seq *seq;
        struct jinja_dict *dict; /* JINJA_DICT and JINJA_NAMESPACE */
        struct jinja_macro *macro;
        const struct jinja_function *function;
        struct jinja_method *method;
        struct jinja_loop *loop;
    };
};

struct jinja_seq {
    enum jinja_seq_kind kind;
    bool spent; /* a generator that was iterated */
    size_t n;
    struct jinja_value *items;
    int64_t start, stop, step; /* JINJA_RANGE: for printing */
};

struct jinja_pair {
    struct jinja_value key;
    struct jinja_value value;
};

/* Pairs in insertion order. A lookup compares key by key and is charged to the run's steps. */
struct jinja_dict {
    size_t n;
    size_t cap;
    struct jinja_pair *pairs;
};

struct jinja_method {
    struct jinja_value self;
    const char *name;
};

struct jinja_loop {
    const struct jinja_seq *seq;
    size_t index0;
    const struct jinja_node *recursive; /* the for node if it is marked recursive, else NULL */
    struct jinja_scope *scope;          /* the scope of that node */
    int depth0;
    struct jinja_value last_changed;
};

struct jinja_kwarg {
    struct jinja_str name;
    struct jinja_value value;
};

struct jinja_args {
    struct jinja_value *pos;
    size_t n_pos;
    struct jinja_kwarg *kw;
    size_t n_kw;
};

/* Defined in jinja_marks.h. */
struct jinja_marks_page;
struct jinja_marks {
    struct jinja_marks_page *pages; /* open addressing, linear probing; at most half full */
    size_t n, cap;
};

struct jinja_run {
    struct arena *arena;
    struct jinja_marks marks;
    struct buf *why;
    const struct jinja_dict *context; /* the variables given to the render */
    int64_t now_s;
    size_t out_max_bytes;      /* limit of the render and of each captured block */
    uint64_t steps, steps_max; /* 0: JINJA_STEPS_MAX */
    unsigned depth;
    int line; /* of the node being evaluated, for messages */
};

/* Format a message as "chat template line N: ..."; returns `s`. */
enum status jinja_fail(struct jinja_run *r, enum status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Count `n` steps of work; ERR_TOO_LARGE beyond steps_max. */
NODISCARD enum status jinja_charge(struct jinja_run *r, uint64_t n);
/* Zeroed memory from the arena. */
NODISCARD enum status jinja_alloc(struct jinja_run *r, size_t n_bytes, void *ptr_out);
NODISCARD enum status jinja_alloc_array(struct jinja_run *r, size_t n, size_t each, void *ptr_out);

/* Constructors that cannot fail. */
static inline struct jinja_value jinja_none(void)
{
    return (struct jinja_value){.type = JINJA_NONE};
}

static inline struct jinja_value jinja_bool(bool b)
{
    return (struct jinja_value){.type = JINJA_BOOL, .boolean = b};
}

static inline struct jinja_value jinja_int(int64_t i)
{
    return (struct jinja_value){.type = JINJA_INT, .integer = i};
}

static inline struct jinja_value jinja_float(double f)
{
    return (struct jinja_value){.type = JINJA_FLOAT, .real = f};
}

static inline struct jinja_value jinja_str(const char *p, size_t len)
{
    return (struct jinja_value){.type = JINJA_STR, .str = {p, len}};
}

static inline struct jinja_value jinja_cstr(const char *text)
{
    return jinja_str(text, strlen(text));
}

/* A piece of `whole`, or text derived from it: Markup stays Markup. */
static inline struct jinja_value jinja_str_like(const struct jinja_value *whole, const char *p,
                                                size_t len)
{
    return (struct jinja_value){.type = JINJA_STR, .markup = whole->markup, .str = {p, len}};
}

static inline struct jinja_value jinja_undefined(enum jinja_undefined_kind kind, const char *name,
                                                 const char *owner)
{
    return (struct jinja_value){
        .type = JINJA_UNDEFINED, .undef_kind = (uint8_t)kind, .undef = {name, owner}};
}

static inline bool jinja_is(const struct jinja_value *v, enum jinja_type t)
{
    return v->type == t;
}

static inline bool jinja_is_seq(const struct jinja_value *v, enum jinja_seq_kind kind)
{
    return v->type == JINJA_SEQ && v->seq->kind == kind;
}

static inline bool jinja_str_is(struct jinja_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.p, text, s.len) == 0;
}

/* A sequence with room for n items, which are JINJA_MISSING until set. */
NODISCARD enum status jinja_seq_new(struct jinja_run *r, enum jinja_seq_kind kind, size_t n,
                                    struct jinja_value *out);
NODISCARD enum status jinja_pair_tuple(struct jinja_run *r, const struct jinja_value *a,
                                       const struct jinja_value *b, struct jinja_value *out);
/* A growing list; zeroed: empty. */
struct jinja_list {
    struct jinja_value *items;
    size_t n;
    size_t cap;
};
NODISCARD enum status jinja_list_push(struct jinja_run *r, struct jinja_list *l,
                                      const struct jinja_value *v);
NODISCARD enum status jinja_list_seq(struct jinja_run *r, enum jinja_seq_kind kind,
                                     const struct jinja_list *l, struct jinja_value *out);

NODISCARD enum status jinja_dict_new(struct jinja_run *r, size_t cap, struct jinja_value *out);
NODISCARD enum status jinja_dict_set(struct jinja_run *r, struct jinja_dict *d,
                                     const struct jinja_value *key,
                                     const struct jinja_value *value);
/* *found points into the dict, or is NULL. ERR_INVALID: a key that Python cannot hash. */
NODISCARD enum status jinja_dict_get(struct jinja_run *r, const struct jinja_dict *d,
                                     const struct jinja_value *key,
                                     const struct jinja_value **found);
NODISCARD enum status jinja_dict_get_text(struct jinja_run *r, const struct jinja_dict *d,
                                          const char *key, size_t len,
                                          const struct jinja_value **found);
/* keys(), values() or items() as a sequence of that kind. */
NODISCARD enum status jinja_dict_view(struct jinja_run *r, const struct jinja_dict *d,
                                      enum jinja_seq_kind kind, struct jinja_value *out);

/* Copy the structure of `j` and borrow its strings: `j` must outlive the run. */
NODISCARD enum status jinja_from_json(struct jinja_run *r, const struct json *j,
                                      struct jinja_value *out);

bool jinja_truth(const struct jinja_value *v);
/* Python's type name: "str", "list", "dict_items", ... */
const char *jinja_type_name(const struct jinja_value *v);
/* As a number; bool counts as one, as in Python. False: v is not a number. */
bool jinja_as_int(const struct jinja_value *v, int64_t *out);
bool jinja_as_number(const struct jinja_value *v, double *out);

/* Fail with the message for using an undefined value. Returns ERR_INVALID. */
enum status jinja_fail_undefined(struct jinja_run *r, const struct jinja_value *v);

NODISCARD enum status jinja_equal(struct jinja_run *r, const struct jinja_value *a,
                                  const struct jinja_value *b, bool *out);
/* *out < 0, 0, > 0. ERR_INVALID: Python has no order for them (`op` is for the message). With NaN,
 * *unordered is set. */
NODISCARD enum status jinja_compare(struct jinja_run *r, const struct jinja_value *a,
                                    const struct jinja_value *b, const char *op, int *out,
                                    bool *unordered);
/* The items as a sequence: characters of a string, keys of a dict. A generator is used up. */
NODISCARD enum status jinja_iterate(struct jinja_run *r, const struct jinja_value *v,
                                    const struct jinja_seq **out);
/* ERR_INVALID: Python's len() raises. */
NODISCARD enum status jinja_length(struct jinja_run *r, const struct jinja_value *v, size_t *out);

/* Bind arguments to names as Python does. `names` is "first second third", of which the first
 * `n_required` must be given. slots[] must be zeroed; absent ones stay JINJA_MISSING. */
NODISCARD enum status jinja_bind(struct jinja_run *r, const struct jinja_args *args,
                                 const char *what, const char *names, size_t n_required,
                                 struct jinja_value *slots);

#endif
