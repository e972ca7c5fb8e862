#include "server/api/library_call.h"

#include <string.h>

#include "server/api/caller.h"
#include "server/api/document_json.h"
#include "server/auth/auth.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/server.h"

/* A list of a thousand documents with the largest metadata. */
#define BODY_BYTES_MAX (96u << 20)

bool library_call_begin(struct library_call *c, struct server *srv, struct http_exchange *x,
                        const char *prefix)
{
    *c = (struct library_call){.srv = srv, .x = x, .account = caller_account(x), .id = ""};
    buf_init(&c->body, BODY_BYTES_MAX);
    buf_init(&c->why, BUF_WHY_MAX);
    c->w = (struct writer){&c->body, OK};
    c->is_admin = caller_check_admin(srv, c->account, &c->why) == OK;
    buf_reset(&c->why);
    enum status s = OK;
    if (prefix) {
        c->id = http_path(x) + strlen(prefix);
        s = document_check_id(c->id, strlen(c->id), &c->why);
    }
    if (s == OK)
        s = library_use(srv->library, &c->parts, &c->why);
    if (s != OK)
        library_call_reply(c, s);
    return s == OK;
}

void library_name_bound(enum status s, struct buf *why)
{
    if (s == ERR_FULL)
        s = buf_puts(why, " (the maximum of the file is --documents-bytes)");
    (void)s; /* where the words have no room for the flag's name, they go without it */
}

void library_call_reply(struct library_call *c, enum status s)
{
    library_name_bound(s, &c->why);
    if (s == OK)
        s = c->w.status;
    if (s == OK)
        http_reply(c->x, 200, "application/json", &c->body);
    else
        error_reply(c->x, s, NULL, c->why.len ? buf_str(&c->why) : status_words(s));
}

void library_call_end(struct library_call *c)
{
    buf_fini(&c->body);
    buf_fini(&c->why);
}

enum status library_call_public(struct library_call *c, bool *wants)
{
    const char *text = http_query(c->x, "public");

    if (!text)
        return OK;
    *wants = strcmp(text, "true") == 0;
    return *wants || strcmp(text, "false") == 0
               ? OK
               : buf_why(&c->why, ERR_INVALID, "public: expected true or false, got \"%.40s\"",
                         text);
}

enum status library_call_check_admin(struct library_call *c)
{
    return caller_check_admin(c->srv, c->account, &c->why);
}
