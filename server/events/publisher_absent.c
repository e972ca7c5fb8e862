/* publisher_absent.c - stands in for publisher.c where ZeroMQ or msgpack-c was not found. */
#include "server/events/publisher.h"

enum status publisher_create(struct publisher **out, const struct publisher_config *c,
                             struct buf *why)
{
    (void)c;
    *out = NULL;
    return buf_why(why, ERR_UNSUPPORTED,
                   "{kv_events_endpoint}: this tarn-server was built without KV events; build it "
                   "with libzmq3-dev and libmsgpack-dev");
}

struct cache_events *publisher_queue(const struct publisher *p)
{
    (void)p;
    return NULL;
}

void publisher_note_salt(struct publisher *p, uint64_t salt, const char *words, size_t len,
                         const char *adapter)
{
    (void)adapter;
    (void)p;
    (void)salt;
    (void)words;
    (void)len;
}

enum status publisher_start(struct publisher *p, const char *topic, struct buf *why)
{
    (void)p;
    (void)topic;
    return buf_why(why, ERR_UNSUPPORTED, "built without KV events");
}

void publisher_destroy(struct publisher *p)
{
    (void)p;
}

void publisher_stats(const struct publisher *p, struct publisher_stats *out)
{
    (void)p;
    *out = (struct publisher_stats){0};
}
