/* libucp is loaded when a transport is opened and not linked: its constructors install signal
 * handlers and replace sigaction(), which a server without --pool, or with tcp, must not have. The
 * environment says before loading what the library reads only then; variables that are set already
 * stay, so UCX can be configured as usual.
 *
 * A connection is closed by force, and TRANSPORT_CLOSED waits until UCX has ended all operations on
 * its payload. Payload is fetched by the receiver (RNDV_SCHEME get_zcopy, or copied by it), so no
 * peer writes into memory whose connection is closed. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/pool/transport_ucx_inner.h"

struct ucx_library ucx;

/* --- the library --- */

static void *find_function(const char *name, bool *ok)
{
    void *f = dlsym(ucx.library, name);

    if (!f)
        *ok = false;
    return f;
}

bool transport_ucx_is_worthwhile(void)
{
    DIR *d = opendir("/sys/class/infiniband"); /* RDMA devices, RoCE too */
    bool any = false;
    const struct dirent *e;

    while (d && !any && (e = readdir(d)))
        any = e->d_name[0] != '.';
    if (d)
        closedir(d);
    return any;
}

static enum status load(struct buf *why)
{
    bool ok = true;

    if (ucx.library)
        return OK;
    setenv("UCX_HANDLE_ERRORS", "none", 0);
    setenv("UCX_ERROR_SIGNALS", "", 0);
    setenv("UCX_DEBUG_SIGNO", "0", 0);
    setenv("UCX_LOG_LEVEL", "fatal", 0); /* what matters is reported as an event */
    /* Else UCX rewrites mmap() and its kind in the running process, which only the registration of
     * memory for RDMA needs, and which systemd's MemoryDenyWriteExecute= forbids. */
    if (!transport_ucx_is_worthwhile())
        setenv("UCX_MEM_EVENTS", "no", 0);
    ucx.library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!ucx.library)
        return buf_why(why, ERR_UNSUPPORTED, "UCX cannot be loaded (libucx0): %s", dlerror());
#define FIND(name) *(void **)&ucx.name = find_function(#name, &ok);
    UCX_FUNCTIONS(FIND)
    FIND(ucs_status_string)
#undef FIND
    if (ok)
        return OK;
    dlclose(ucx.library);
    ucx.library = NULL;
    return buf_why(why, ERR_UNSUPPORTED, "this version of UCX is too old: 1.11 is needed");
}

/* --- open and close --- */

static int ucx_fd(const struct transport *t)
{
    return ((const struct ux *)t->state)->fd;
}

/* Memory that cannot be registered works too, slower. */
static void ucx_register(struct transport *t, const void *base, uint64_t n_bytes)
{
    struct ux *ux = t->state;
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address = (void *)base,
        .length = n_bytes,
    };
    ucp_mem_h *more = realloc(ux->regions, (ux->n_regions + 1) * sizeof *more);

    if (!more)
        return;
    ux->regions = more;
    if (ucx.ucp_mem_map(ux->context, &params, &more[ux->n_regions]) == UCS_OK)
        ux->n_regions++;
}

static void ucx_unregister_all(struct transport *t)
{
    struct ux *ux = t->state;

    while (ux->n_regions > 0)
        ucx.ucp_mem_unmap(ux->context, ux->regions[--ux->n_regions]);
}

static ucs_status_t make_context(struct ux *ux)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                           .name = "tarn"};
    ucp_config_t *config;
    ucs_status_t s = ucx.ucp_config_read(NULL, NULL, &config);

    if (s != UCS_OK)
        return s;
    if (!getenv("UCX_RNDV_SCHEME"))
        ucx.ucp_config_modify(config, "RNDV_SCHEME", "get_zcopy");
    s = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &ux->context);
    ucx.ucp_config_release(config);
    return s;
}

static ucs_status_t make_worker(struct ux *ux)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    ucs_status_t s = ucx.ucp_worker_create(ux->context, &params, &ux->worker);

    if (s == UCS_OK)
        s = ux_set_handlers(ux);
    if (s == UCS_OK)
        s = ucx.ucp_worker_get_efd(ux->worker, &ux->fd);
    if (s == UCS_OK)
        s = ucx.ucp_worker_query(ux->worker, &attr);
    ux->n_header_max = (uint32_t)attr.max_am_header;
    return s == UCS_OK && attr.max_am_header < WIRE_BYTES ? UCS_ERR_UNSUPPORTED : s;
}

static ucs_status_t make_listener(struct ux *ux, const struct sockaddr *a, socklen_t n)
{
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {.addr = a, .addrlen = n},
        .conn_handler = {.cb = ux_on_request, .arg = ux},
    };
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucs_status_t s = ucx.ucp_listener_create(ux->worker, &params, &ux->listener);

    if (s == UCS_OK)
        s = ucx.ucp_listener_query(ux->listener, &attr);
    if (s == UCS_OK)
        ux->t->bound = attr.sockaddr;
    return s;
}

static void ucx_close(struct transport *t)
{
    struct ux *ux = t->state;

    ux_await_connections(ux);
    for (uint32_t i = 0; ux->conns && i < t->config.n_conns_max; i++)
        if (ux->conns[i].state != CONN_FREE)
            transport_disconnect(t, i);
    for (uint32_t i = 0; i < ux->n_requests; i++)
        ucx.ucp_listener_reject(ux->listener, ux->requests[i]);
    if (ux->listener)
        ucx.ucp_listener_destroy(ux->listener);
    if (ux->worker)
        ucx.ucp_worker_destroy(ux->worker);
    ucx_unregister_all(t);
    if (ux->context)
        ucx.ucp_cleanup(ux->context);
    free(ux->regions);
    free(ux->conns);
    free(ux);
}

static enum status ucx_open(struct transport *t, const struct sockaddr *listen, socklen_t n_listen,
                            struct buf *why)
{
    struct ux *ux = calloc(1, sizeof *ux);

    if (!ux)
        return buf_why(why, ERR_NOMEM, "out of memory");
    t->state = ux;
    ux->t = t;
    ux->conns = calloc(t->config.n_conns_max, sizeof *ux->conns);
    const char *step = "start";
    ucs_status_t s = ux->conns ? make_context(ux) : UCS_ERR_NO_MEMORY;
    if (s == UCS_OK)
        s = make_worker(ux);
    if (s == UCS_OK) {
        step = "listen";
        s = make_listener(ux, listen, n_listen);
    }
    if (s == UCS_OK)
        return OK;
    buf_why(why, ERR_IO, "UCX cannot %s: %s", step,
            s == UCS_ERR_BUSY ? "the address is in use" : ucx.ucs_status_string(s));
    ucx_close(t);
    return s == UCS_ERR_NO_MEMORY ? ERR_NOMEM : ERR_IO;
}

static const struct transport_ops ucx_ops = {
    .name = "ucx",
    .family = AF_INET, /* UCX 1.13 reads and frees memory that is not its own with IPv6 addresses */
    .open = ucx_open,
    .close = ucx_close,
    .register_memory = ucx_register,
    .unregister_all = ucx_unregister_all,
    .fd = ucx_fd,
    .progress = ux_progress,
    .connect = ux_connect,
    .disconnect = ux_disconnect,
    .send = ux_send,
    .receive = ux_receive,
    .taken = ux_taken,
    .count_conns = ux_count_conns,
};

enum status transport_ucx_load(const struct transport_ops **ops, struct buf *why)
{
    enum status s = load(why);

    *ops = s == OK ? &ucx_ops : NULL;
    return s;
}
