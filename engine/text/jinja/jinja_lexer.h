/* jinja_lexer.h - template source to tokens, with trim_blocks and lstrip_blocks on.
 *
 * Owns    nothing: tokens and decoded strings are in the run's arena, raw text stays in `source`.
 * Thread  any.
 * Errors  ERR_INVALID with the line.
 * Units   bytes; lines count from 1. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_LEXER_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_LEXER_H

#include "engine/text/jinja/jinja_value.h"

enum jinja_tok {
    TOK_EOF,
    TOK_DATA,
    TOK_VAR_BEGIN,
    TOK_VAR_END,
    TOK_BLOCK_BEGIN,
    TOK_BLOCK_END,
    TOK_NAME,
    TOK_STRING,
    TOK_INT,
    TOK_FLOAT,
    TOK_ADD,
    TOK_SUB,
    TOK_MUL,
    TOK_DIV,
    TOK_FLOORDIV,
    TOK_MOD,
    TOK_POW,
    TOK_TILDE,
    TOK_EQ,
    TOK_NE,
    TOK_LT,
    TOK_LE,
    TOK_GT,
    TOK_GE,
    TOK_ASSIGN,
    TOK_DOT,
    TOK_COLON,
    TOK_PIPE,
    TOK_COMMA,
    TOK_SEMICOLON,
    TOK_LPAREN,
    TOK_RPAREN,
    TOK_LBRACKET,
    TOK_RBRACKET,
    TOK_LBRACE,
    TOK_RBRACE,
    TOK_IN, /* not made by the lexer: the parser's operators of comparisons */
    TOK_NOTIN,
};

struct jinja_token {
    enum jinja_tok type;
    int line;
    struct jinja_str text; /* DATA, NAME, STRING (decoded) */
    int64_t integer;
    double real;
};

struct jinja_tokens {
    struct jinja_token *items; /* the last one is TOK_EOF */
    size_t n;
    size_t cap;
};

/* `r` supplies the arena and `why`. The source must be valid UTF-8 and outlive the tokens. */
NODISCARD enum status jinja_lex(struct jinja_run *r, const char *source, size_t len,
                                struct jinja_tokens *out);

/* "end of print statement", "'name'", ...: for messages. Never NULL. */
const char *jinja_tok_name(enum jinja_tok t);

#endif
