#include "server/http/http_tls.h"

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <microhttpd.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "server/http/http_listen.h"

#define N_CHAIN_MAX 16
#define KEY_ID_BYTES 64

/* A certificate chain and its key. Any number of handshakes may use it at once. */
struct pair {
    struct pair *older;
    struct buf cert_text, key_text; /* the files' bytes, to detect a change */
    gnutls_pcert_st chain[N_CHAIN_MAX];
    unsigned n_chain;
    gnutls_privkey_t key;
};

struct tls {
    const char *cert_path, *key_path;
    struct pair *_Atomic newest;
};

static struct tls *(*tls_of)(struct MHD_Connection *connection);

static void pair_destroy(struct pair *p)
{
    if (!p)
        return;
    for (unsigned i = 0; i < p->n_chain; i++)
        gnutls_pcert_deinit(&p->chain[i]);
    if (p->key)
        gnutls_privkey_deinit(p->key);
    buf_fini(&p->cert_text);
    buf_fini(&p->key_text);
    free(p);
}

static gnutls_datum_t datum_of(const struct buf *b)
{
    return (gnutls_datum_t){.data = (unsigned char *)b->data, .size = (unsigned)b->len};
}

/* Check that the key belongs to the certificate. Returns 0 or GnuTLS's error code. */
static int compare_keys(const struct pair *p)
{
    unsigned char of_cert[KEY_ID_BYTES], of_key[KEY_ID_BYTES];
    size_t n_cert = sizeof of_cert, n_key = sizeof of_key;
    gnutls_pubkey_t pub;
    int rc = gnutls_pubkey_init(&pub);

    if (rc != 0)
        return rc;
    rc = gnutls_pubkey_import_privkey(pub, p->key, 0, 0);
    if (rc == 0)
        rc = gnutls_pubkey_get_key_id(pub, GNUTLS_KEYID_USE_SHA256, of_key, &n_key);
    if (rc == 0)
        rc =
            gnutls_pubkey_get_key_id(p->chain[0].pubkey, GNUTLS_KEYID_USE_SHA256, of_cert, &n_cert);
    if (rc == 0 && (n_cert != n_key || memcmp(of_cert, of_key, n_key) != 0))
        rc = GNUTLS_E_CERTIFICATE_KEY_MISMATCH;
    gnutls_pubkey_deinit(pub);
    return rc;
}

static int import_pair(struct pair *p)
{
    gnutls_datum_t cert = datum_of(&p->cert_text), key = datum_of(&p->key_text);
    unsigned n = N_CHAIN_MAX;
    int rc = gnutls_pcert_list_import_x509_raw(p->chain, &n, &cert, GNUTLS_X509_FMT_PEM, 0);

    if (rc != 0)
        return rc;
    p->n_chain = n;
    rc = gnutls_privkey_init(&p->key);
    if (rc == 0)
        rc = gnutls_privkey_import_x509_raw(p->key, &key, GNUTLS_X509_FMT_PEM, NULL, 0);
    return rc == 0 ? compare_keys(p) : rc;
}

static enum status read_pair(const struct tls *t, struct pair **out, struct buf *why)
{
    struct pair *p = calloc(1, sizeof *p);

    *out = NULL;
    if (!p)
        return ERR_NOMEM;
    enum status s =
        listen_read_pem(&p->cert_text, "tls-cert", t->cert_path, "BEGIN CERTIFICATE", why);
    if (s == OK)
        s = listen_read_pem(&p->key_text, "tls-key", t->key_path, "PRIVATE KEY", why);
    int rc = s == OK ? import_pair(p) : 0;
    if (s == OK && rc != 0)
        s = buf_why(why, ERR_INVALID,
                    "tls-cert, tls-key: %s and %s cannot be used together, is the key that of the "
                    "certificate? (%s)",
                    t->cert_path, t->key_path, gnutls_strerror(rc));
    if (s != OK) {
        pair_destroy(p);
        return s;
    }
    *out = p;
    return OK;
}

static bool is_same_text(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && memcmp(a->data, b->data, a->len) == 0;
}

enum status tls_reload(struct tls *t, bool *changed, struct buf *why)
{
    struct pair *p, *old = atomic_load(&t->newest);

    *changed = false;
    enum status s = read_pair(t, &p, why);
    if (s != OK)
        return s;
    if (old && is_same_text(&p->cert_text, &old->cert_text) &&
        is_same_text(&p->key_text, &old->key_text)) {
        pair_destroy(p);
        return OK;
    }
    p->older = old;
    atomic_store(&t->newest, p);
    *changed = true;
    return OK;
}

enum status tls_create(struct tls **out, const char *cert_path, const char *key_path,
                       struct buf *why)
{
    struct tls *t = calloc(1, sizeof *t);
    bool changed;

    *out = NULL;
    if (!t)
        return ERR_NOMEM;
    t->cert_path = cert_path;
    t->key_path = key_path;
    enum status s = tls_reload(t, &changed, why);
    if (s != OK) {
        free(t);
        return s;
    }
    *out = t;
    return OK;
}

void tls_destroy(struct tls *t)
{
    if (!t)
        return;
    for (struct pair *p = atomic_load(&t->newest); p;) {
        struct pair *older = p->older;
        pair_destroy(p);
        p = older;
    }
    free(t);
}

/* Give GnuTLS the certificate for a handshake. The pair stays owned by struct tls. */
static int on_handshake(gnutls_session_t session, const gnutls_datum_t *ca_names, int n_ca_names,
                        const gnutls_pk_algorithm_t *algorithms, int n_algorithms,
                        gnutls_pcert_st **chain, unsigned *n_chain, gnutls_privkey_t *key)
{
    struct tls *t = tls_of(gnutls_session_get_ptr(session)); /* MHD stores its connection there */

    (void)ca_names;
    (void)n_ca_names;
    (void)algorithms;
    (void)n_algorithms;
    if (!t)
        return -1;
    struct pair *p = atomic_load(&t->newest);
    *chain = p->chain;
    *n_chain = p->n_chain;
    *key = p->key;
    return 0;
}

void *tls_callback(struct tls *(*of)(struct MHD_Connection *connection))
{
    tls_of = of;
    return (void *)(uintptr_t)on_handshake;
}

void tls_send_last(struct MHD_Connection *connection, const char *bytes, size_t n)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);

    if (!info)
        return;
    if (gnutls_record_send(info->tls_session, bytes, n) < 0)
        return; /* the connection is closed all the same */
    gnutls_bye(info->tls_session, GNUTLS_SHUT_WR);
}
