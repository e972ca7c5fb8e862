/* metrics_documents.c - metrics of registered documents, their prefills and searches. */
#include "server/api/exposition.h"
#include "server/api/library.h"
#include "server/api/metrics.h"
#include "server/config.h"
#include "server/server.h"

static void write_catalog(struct page *p, const struct catalog_stats *c)
{
    page_gauge(p, "tarn:documents", "Registered documents.", (double)c->n_documents);
    page_gauge(p, "tarn:documents_public", "Of those, public.", (double)c->n_public);
    page_gauge(p, "tarn:documents_pinned", "Of those, pinned.", (double)c->n_pinned);
    page_gauge(p, "tarn:preambles", "Registered preambles.", (double)c->n_preambles);
    page_gauge(p, "tarn:documents_file_bytes", "Size of the file of documents.",
               (double)c->file_bytes);
}

static void write_prefills(struct page *p, const struct librarian_stats *l)
{
    page_gauge(p, "tarn:documents_ready", "Documents behind a preamble whose KV is cached.",
               (double)l->n_ready);
    page_gauge(p, "tarn:documents_ready_blocks", "KV blocks of those.", (double)l->n_ready_blocks);
    page_gauge(p, "tarn:documents_prefill_queue", "Documents that wait for their prefill.",
               (double)l->n_queued);
    page_gauge(p, "tarn:documents_without_room",
               "Documents that are not prefilled because too many are warm already.",
               (double)l->n_no_room);
    page_gauge(p, "tarn:documents_prefill_failed", "Documents whose prefill failed.",
               (double)l->n_failed);
    page_counter(p, "tarn:documents_prefilled_total", "Prefills of documents that have ended.",
                 l->n_prefilled);
    page_counter(p, "tarn:documents_refilled_total", "Of those, after an eviction.", l->n_refilled);
    page_counter(p, "tarn:documents_prefilled_tokens_total", "Tokens that those computed.",
                 l->n_prefilled_tokens);
}

static void write_librarian(struct page *p, const struct librarian_stats *l)
{
    page_counter(p, "tarn:documents_expired_total", "Documents deleted at the end of their ttl.",
                 l->n_expired);
    page_counter(p, "tarn:documents_erased_blocks_total",
                 "KV blocks erased because their document was deleted or replaced.",
                 l->n_erased_blocks);
    page_counter(p, "tarn:documents_notes_total", "Prompts with registered documents.", l->n_notes);
    page_counter(p, "tarn:documents_notes_dropped_total",
                 "Of those, not counted because the queue was full.", l->n_notes_dropped);
}

static void write_followed(struct page *p, const struct librarian_stats *l)
{
    page_counter(p, "tarn:documents_followed_total",
                 "Changes of documents and preambles taken over from other instances.",
                 l->n_records_applied);
    page_counter(p, "tarn:documents_sent_total", "Such changes sent to other instances.",
                 l->n_records_sent);
    page_counter(p, "tarn:documents_refused_total",
                 "Messages and changes of other instances that were refused.",
                 l->n_records_refused);
    page_gauge(p, "tarn:documents_peers_that_differ",
               "Other instances whose documents and preambles are not those of this one.",
               l->n_peers_differ);
    page_gauge(p, "tarn:documents_lag_seconds", "For how long the first of these has differed.",
               l->follow_lag_s);
}

void metrics_write_documents(struct page *p, const struct server *srv)
{
    struct library_stats st;

    library_stats(srv->library, &st);
    write_catalog(p, &st.catalog);
    write_prefills(p, &st.librarian);
    write_librarian(p, &st.librarian);
    if (config_has_pool(srv->config))
        write_followed(p, &st.librarian);
}
