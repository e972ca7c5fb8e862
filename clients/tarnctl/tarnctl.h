/* tarnctl.h - what the commands of tarnctl share: the command line, messages, files.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  commands return the exit code: 0, or 1 when the server or the network failed. ctl_die()
 *         ends the program with 2, for a wrong command line.
 * Units   bytes. */
#ifndef TARN_CLIENTS_TARNCTL_TARNCTL_H
#define TARN_CLIENTS_TARNCTL_TARNCTL_H

#include <stdio.h>

#include "base/buf.h"
#include "clients/c/tarn_client.h"

#define CTL_N_DOCUMENTS_MAX 64
#define CTL_N_WORDS_MAX 1024
#define CTL_N_GLOBS_MAX 64
#define CTL_INPUT_BYTES_MAX ((size_t)32 << 20)

struct ctl_options {
    struct tarn_client_config client;
    struct tarn_request request; /* kind and prompt come later */
    const char *system;
    struct tarn_document documents[CTL_N_DOCUMENTS_MAX];
    size_t n_documents;
    const char *document_ids[CTL_N_DOCUMENTS_MAX];
    size_t n_document_ids;
    bool no_stream, show_usage, json;
    int64_t n_spans;                    /* -1: the server's default */
    struct tarn_document_fields fields; /* of documents to be registered */
    const char *id, *after;             /* NULL: not given */
    uint32_t limit;                     /* 0: the server's default */
    const char *globs[CTL_N_GLOBS_MAX]; /* [n_globs] --include */
    size_t n_globs;
    const char *words[CTL_N_WORDS_MAX]; /* command and its arguments */
    size_t n_words;
};

__attribute__((noreturn, format(printf, 1, 2))) void ctl_die(const char *format, ...);
/* Print the error of a call. Returns 1. */
int ctl_fail(const struct ctl_options *o, const struct tarn_answer *a);
/* Print a text, and a newline if it does not end with one. */
void ctl_print(const char *text, size_t len);
/* Append a file ("-": standard input) to *out. ERR_TOO_LARGE, ERR_IO, ERR_NOT_FOUND, ERR_NOMEM:
 * words name the file. */
NODISCARD enum status ctl_read(const char *path, struct buf *out, struct buf *why);

#endif
