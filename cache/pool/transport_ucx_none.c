/* Instead of transport_ucx.c where CMake does not find the headers of UCX. */
#include "cache/pool/transport_inner.h"

enum status transport_ucx_load(const struct transport_ops **ops, struct buf *why)
{
    *ops = NULL;
    return buf_why(why, ERR_UNSUPPORTED, "Tarn was built without UCX (libucx-dev)");
}

bool transport_ucx_is_worthwhile(void)
{
    return false;
}
