/* exposition.h - writes a page in Prometheus' text format, version 0.0.4.
 *
 * A family is a page_head() and its samples, without other samples between them. Samples of vllm:*
 * and tarn:* carry the page's constant labels (model_name, engine); those of process_* and http_*,
 * which other programs export too, do not. Label values are escaped, and bytes that are not UTF-8
 * become U+FFFD, because a scraper refuses a whole page for one such byte.
 *
 * Owns    nothing; the buf is the caller's.
 * Thread  one at a time.
 * Errors  in page.w.status, see writer.h.
 * Units   none. */
#ifndef TARN_SERVER_API_EXPOSITION_H
#define TARN_SERVER_API_EXPOSITION_H

#include <stdint.h>

#include "base/hist.h"
#include "server/api/writer.h"

#define PAGE_LABELS_BYTES 512

struct page {
    struct writer w;
    char labels[PAGE_LABELS_BYTES]; /* model_name="...",engine="0" */
};

/* Begin a page. *out must be empty. */
void page_begin(struct page *p, struct buf *out, const char *model);

/* Append ,name="value" to the labels in `out`, a string in n_out bytes. Cuts a value that does not
 * fit. */
void label_add(char *out, size_t n_out, const char *name, const char *value);

/* Write HELP and TYPE. type: "counter", "gauge" or "histogram". */
void page_head(struct page *p, const char *name, const char *type, const char *help);
/* Write a sample with the constant labels. `more`: further labels with a leading comma, or "". */
void page_sample(struct page *p, const char *name, const char *more, double value);
/* Write a sample without the constant labels. `labels`: with a leading comma, or "". */
void page_bare_sample(struct page *p, const char *name, const char *labels, double value);
/* Write the buckets, the sum and the count of one series. */
void page_hist(struct page *p, const char *name, const char *more, const struct hist *h);
void page_bare_hist(struct page *p, const char *name, const char *labels, const struct hist *h);

/* Write a family of one sample or series. */
void page_gauge(struct page *p, const char *name, const char *help, double value);
void page_counter(struct page *p, const char *name, const char *help, uint64_t value);
void page_histogram(struct page *p, const char *name, const char *help, const struct hist *h);

#endif
