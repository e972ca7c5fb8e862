/* fuzz_transport.c - any bytes as what a stranger sends to the port of an instance, and to its
 * handshake.
 *
 * Bit 0 of the first byte of an input chooses.
 * 0: the rest goes through a socket to a transport of the kind tcp, in steps of 1 + (first byte /
 * 2)
 *    bytes. A parser written a second time from docs/design/pool.md says which messages must be
 *    reported; payload goes to memory of exactly its length, or is thrown away if the head's first
 *    byte is odd.
 * 1: the rest is messages for the acceptor of a handshake, each with a byte for its length before
 *    it. None may make the stranger a member. The second part of the input changes the messages of
 *    a valid handshake by triples of a message's number, an offset and a mask; any change ends it.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "cache/pool/handshake.h"
#include "cache/pool/transport.h"
#include "tests/fuzz/fuzz.h"

#define PAYLOAD_MAX 100000u
#define FRAME 16u
#define N_STEPS_MAX 64u /* writes of one input */

static uint64_t get(const uint8_t *p, int n)
{
    uint64_t v = 0;

    for (int i = 0; i < n; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

/* --- framing --- */

struct stranger {
    struct transport *t;
    const uint8_t *bytes;
    size_t n, at;     /* the next frame begins at `at` */
    uint8_t *payload; /* where it is being received; NULL: nowhere */
    size_t n_payload;
    bool is_closed;
};

/* Whether a complete head that is allowed begins at `at`. */
static bool has_message(const struct stranger *s)
{
    const uint8_t *f = s->bytes + s->at;

    return s->n - s->at >= FRAME && memcmp(f, "TRN1", 4) == 0 && get(f + 4, 4) <= 65536 &&
           get(f + 8, 8) <= PAYLOAD_MAX && s->n - s->at - FRAME >= get(f + 4, 4);
}

static void on_message(struct stranger *s, const struct transport_event *e)
{
    const uint8_t *f = s->bytes + s->at;

    ASSERT(!s->payload && has_message(s));
    ASSERT(e->n_head == get(f + 4, 4) && e->n_payload == get(f + 8, 8));
    ASSERT(e->n_head == 0 || memcmp(e->head, f + FRAME, e->n_head) == 0);
    s->at += FRAME + e->n_head;
    s->n_payload = e->n_payload;
    if (e->n_payload == 0)
        return;
    if (e->n_head > 0 && f[FRAME] & 1) { /* thrown away */
        s->at = s->n - s->at < e->n_payload ? s->n : s->at + e->n_payload;
        return;
    }
    s->payload = malloc(e->n_payload);
    ASSERT(s->payload);
    size_t half = e->n_payload / 3;
    struct iovec to[2] = {{s->payload, half}, {s->payload + half, e->n_payload - half}};
    transport_receive(s->t, e->conn, to, 2, 1);
}

static void take(struct stranger *s)
{
    struct transport_event e;

    while (transport_next(s->t, &e)) {
        if (e.kind == TRANSPORT_MESSAGE)
            on_message(s, &e);
        if (e.kind == TRANSPORT_RECEIVED) {
            ASSERT(s->payload && s->n - s->at >= s->n_payload);
            ASSERT(memcmp(s->payload, s->bytes + s->at, s->n_payload) == 0);
            s->at += s->n_payload;
            free(s->payload);
            s->payload = NULL;
        }
        if (e.kind == TRANSPORT_CLOSED) {
            ASSERT(!s->payload || s->n - s->at < s->n_payload);
            ASSERT(s->payload || !has_message(s));
            s->is_closed = true;
        }
    }
}

/* From an address of its own: the ports of one would be used up by closed connections. */
static int dial(const struct transport *t)
{
    static uint32_t n_dialed;
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    from.sin_addr.s_addr = htonl(0x7F010101u + n_dialed++ % 0xFD0000u);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)atoi(strrchr(transport_address(t), ':') + 1));
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    ASSERT(fd >= 0 && bind(fd, (const struct sockaddr *)&from, sizeof from) == 0);
    ASSERT(connect(fd, (const struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

static void fuzz_framing(const uint8_t *bytes, size_t n, size_t step)
{
    static struct transport *t;
    struct transport_config config = {
        .kind = "tcp", .listen = "127.0.0.1:0", .payload_max = PAYLOAD_MAX};

    if (!t)
        ASSERT(transport_open(&t, &config, NULL) == OK);
    struct stranger s = {.t = t, .bytes = bytes, .n = n};
    int fd = dial(t);
    if (step < n / N_STEPS_MAX + 1)
        step = n / N_STEPS_MAX + 1;
    for (size_t at = 0; at < n; at += step) {
        ssize_t rc = send(fd, bytes + at, n - at < step ? n - at : step, MSG_NOSIGNAL);
        if (rc < 0)
            break; /* closed already */
        transport_progress(t, clock_now_ns());
        take(&s);
    }
    shutdown(fd, SHUT_WR);
    while (!s.is_closed) {
        transport_progress(t, clock_now_ns());
        take(&s);
    }
    free(s.payload);
    close(fd);
}

/* --- handshake --- */

struct sides {
    struct handshake_self self[2];
    struct handshake h[2]; /* connector, acceptor */
};

static void begin(struct sides *s)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < 2; i++) {
        memset(s->self[i].secret, 5, sizeof s->self[i].secret);
        s->self[i].id = 1 + (uint64_t)i;
        s->self[i].block_bytes = 4096;
        handshake_init(&s->h[i], &s->self[i], i == 0);
    }
}

static enum status give(struct handshake *h, const uint8_t *m, uint32_t n, uint8_t *out,
                        uint32_t *n_out)
{
    uint8_t *exact = malloc(n > 0 ? n : 1);
    const char *why = NULL;

    ASSERT(exact);
    memcpy(exact, m, n);
    enum status s = handshake_take(h, exact, n, out, n_out, &why);
    free(exact);
    ASSERT((s == OK) == (why == NULL) && *n_out <= HANDSHAKE_MESSAGE_MAX);
    ASSERT(s == OK || *n_out == 0);
    return s;
}

static void fuzz_stranger(const uint8_t *bytes, size_t n)
{
    struct sides s;
    uint8_t out[HANDSHAKE_MESSAGE_MAX];
    uint32_t n_out;

    begin(&s);
    for (size_t at = 0; at < n;) {
        size_t len = bytes[at++];
        len = len < n - at ? len : n - at;
        (void)!give(&s.h[1], bytes + at, (uint32_t)len, out, &n_out);
        ASSERT(!s.h[1].is_done);
        at += len;
    }
}

/* triples [n]: number, offset, mask. */
static void fuzz_change(const uint8_t *triples, size_t n)
{
    struct sides s;
    uint8_t m[HANDSHAKE_MESSAGE_MAX], before[HANDSHAKE_MESSAGE_MAX], out[HANDSHAKE_MESSAGE_MAX];
    uint32_t n_out, len;
    bool changed = false;

    begin(&s);
    len = handshake_begin(&s.h[0], m);
    for (uint32_t k = 0; len > 0; k++) {
        memcpy(before, m, len);
        for (size_t i = 0; i + 2 < n; i += 3)
            if (triples[i] % 4 == k)
                m[triples[i + 1] % len] ^= triples[i + 2];
        changed = changed || memcmp(before, m, len) != 0;
        if (give(&s.h[1 - k % 2], m, len, out, &n_out) != OK) {
            ASSERT(changed);
            return;
        }
        memcpy(m, out, n_out);
        len = n_out;
    }
    ASSERT(!changed && s.h[0].is_done && s.h[1].is_done);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);

    if (size == 0 || in.first_len == 0)
        return 0;
    ASSERT(hash_init() == OK);
    if ((data[0] & 1) == 0) {
        fuzz_framing(data + 1, size - 1, 1 + data[0] / 2u);
        return 0;
    }
    fuzz_stranger(data + 1, in.first_len - 1);
    if (in.second)
        fuzz_change((const uint8_t *)in.second, in.second_len);
    return 0;
}
