#include "server/http/http_check.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#define MALFORMED "malformed request: "
#define BROKEN_FIELD MALFORMED "a header field contains a NUL or is folded over two lines"
#define N_ARGUMENTS_MAX 100 /* each takes 64 bytes of the connection's memory */

/* One list per HTTP thread, because MHD's log callback does not name the connection. A connection
 * is served by one thread for its whole life. */
static _Thread_local struct http_head *first_head;

/* --- the request target --- */

/* Length of "http://host:port" at the start of an absolute target; 0 for other targets. */
static size_t origin_len(const char *target)
{
    size_t n = strncasecmp(target, "http://", 7) == 0    ? 7
               : strncasecmp(target, "https://", 8) == 0 ? 8
                                                         : 0;

    return n ? n + strcspn(target + n, "/?#") : 0;
}

static const char *target_fault(const char *target, size_t n_origin)
{
    for (const char *c = target; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f)
            return MALFORMED "the request target contains a blank or a control character";
    const char *nul = strstr(target, "%00");
    if (nul && nul < target + strcspn(target, "?")) /* in an argument a NUL is the handler's */
        return MALFORMED "the request target contains a NUL";
    if (target[0] != '/' && strcmp(target, "*") != 0 && n_origin == 0)
        return MALFORMED "the request target must be a path or http://host/path";
    /* MHD decodes %xx in the host too, so n_origin would no longer be where the path begins. */
    if (memchr(target, '%', n_origin))
        return MALFORMED "the host in the request target contains a %";
    return NULL;
}

void http_head_begin(struct http_head *head, struct MHD_Connection *connection, const char *target,
                     void *owner)
{
    *head = (struct http_head){.connection = connection,
                               .owner = owner,
                               .target = target,
                               .n_target = strlen(target),
                               .n_origin = origin_len(target)};
    head->fault = target_fault(target, head->n_origin);
    head->next = first_head;
    if (first_head)
        first_head->prev = head;
    first_head = head;
}

bool http_head_is_too_long(const struct http_head *head)
{
    const char *query = strchr(head->target, '?');
    unsigned n = 0;

    for (const char *c = query; c && n <= N_ARGUMENTS_MAX; c = strchr(c + 1, '&'))
        n++;
    return n > N_ARGUMENTS_MAX;
}

void http_head_end(struct http_head *head)
{
    if (head->prev)
        head->prev->next = head->next;
    else if (first_head == head)
        first_head = head->next;
    if (head->next)
        head->next->prev = head->prev;
    head->next = head->prev = NULL;
}

/* --- the fields --- */

struct fields {
    bool layout_known;
    const char *at;    /* the next name must begin here or, after CR LF, one byte later */
    const char *fault; /* the first error found; NULL: none */
    unsigned n_hosts, n_lengths, n_encodings;
    const char *length, *encoding; /* the first Content-Length and Transfer-Encoding */
};

/* A token, RFC 9110 section 5.6.2. */
static bool is_token(const char *text, size_t n)
{
    static const char others[] = "!#$%&'*+-.^_`|~";

    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && (c == '\0' || !strchr(others, c)))
            return false;
    }
    return n > 0;
}

static bool is_clean_value(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)text[i] < ' ' && text[i] != '\t') || text[i] == 0x7f)
            return false;
    return true;
}

/* Check that the field follows the one before without a gap. MHD has replaced the colon and the
 * line's end by NULs. */
static const char *layout_fault(struct fields *f, const char *name, size_t n_name,
                                const char *value, size_t n_value)
{
    bool in_place = name == f->at || (name == f->at + 1 && *f->at == '\0');

    if (!in_place || (uintptr_t)value <= (uintptr_t)(name + n_name))
        return BROKEN_FIELD;
    for (const char *c = name + n_name + 1; c < value; c++)
        if (*c != ' ' && *c != '\t')
            return BROKEN_FIELD;
    f->at = value + n_value + 1;
    return NULL;
}

static const char *field_fault(struct fields *f, const char *name, size_t n_name, const char *value,
                               size_t n_value)
{
    if (f->layout_known) {
        const char *fault = layout_fault(f, name, n_name, value, n_value);
        if (fault)
            return fault;
    }
    if (!is_token(name, n_name))
        return MALFORMED "a header field has a blank or an invalid character in its name";
    if (!is_clean_value(value, n_value))
        return MALFORMED "a header field has a control character in its value";
    return NULL;
}

static enum MHD_Result on_field(void *arg, enum MHD_ValueKind kind, const char *name, size_t n_name,
                                const char *value, size_t n_value)
{
    struct fields *f = arg;

    (void)kind;
    if (!value) {
        value = "";
        n_value = 0;
    }
    if (!f->fault)
        f->fault = field_fault(f, name, n_name, value, n_value);
    while (n_value > 0 && (value[n_value - 1] == ' ' || value[n_value - 1] == '\t'))
        n_value--;
    if (strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0 && f->n_hosts++ == 0 && !f->fault &&
        strcspn(value, " \t/\\?#@,") < n_value)
        f->fault = MALFORMED "the Host field is not a host";
    if (strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0 && f->n_lengths++ == 0)
        f->length = value;
    if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0 && f->n_encodings++ == 0)
        f->encoding = value;
    return MHD_YES;
}

static bool is_layout_known(void)
{
    return strncmp(MHD_get_version(), "0.9.", 4) == 0;
}

int http_check_strictness(void)
{
    /* When told to be strict, 0.9.75 answers a refused request twice. */
    return is_layout_known() ? 0 : 1;
}

static const char *length_fault(const char *length, int *status)
{
    size_t n_digits = strspn(length, "0123456789");

    if (n_digits == 0 || length[n_digits])
        return MALFORMED "Content-Length is not a number";
    while (n_digits > 1 && *length == '0') {
        length++;
        n_digits--;
    }
    /* 2^64 has 20 digits. */
    if (n_digits > 20 || (n_digits == 20 && strcmp(length, "18446744073709551615") >= 0)) {
        *status = 413;
        return "the body is too large";
    }
    return NULL;
}

static const char *framing_fault(const struct fields *f, bool is_1_0, int *status)
{
    if (f->n_lengths > 1)
        return MALFORMED "there is more than one Content-Length";
    if (f->n_encodings > 1)
        return MALFORMED "there is more than one Transfer-Encoding";
    if (f->n_encodings && f->n_lengths)
        return MALFORMED "Content-Length and Transfer-Encoding exclude each other";
    if (f->n_encodings && is_1_0)
        return MALFORMED "HTTP/1.0 has no Transfer-Encoding";
    if (f->n_encodings && strcasecmp(f->encoding, "chunked") != 0) {
        *status = 501;
        return "the only Transfer-Encoding supported is: chunked";
    }
    if (f->n_hosts > 1)
        return MALFORMED "there is more than one Host field";
    if (f->n_hosts == 0 && !is_1_0)
        return MALFORMED "there is no Host field";
    return f->length ? length_fault(f->length, status) : NULL;
}

/* Whether method, target and version follow each other with one NUL after each. */
static bool is_first_line_whole(const struct http_head *head)
{
    return head->method + strlen(head->method) + 1 == head->target &&
           head->target + head->n_target + 1 == head->version;
}

/* Whether the head ends at `at` with the empty line: CR LF, or LF alone. */
static bool ends_at(const struct http_head *head, const char *at)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(head->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);

    if (!info)
        return false;
    const char *end = head->method + info->header_size;
    if (end < at + 1 || end > at + 3)
        return false;
    while (at < end && *at == '\0')
        at++;
    return at == end;
}

const char *http_check_head(const struct http_head *head, int *status)
{
    struct fields f = {.layout_known = is_layout_known(), .at = head->version + 9};

    *status = 400;
    if (head->fault)
        return head->fault;
    if (!is_token(head->method, strlen(head->method)))
        return MALFORMED "the method contains a wrong character";
    if (f.layout_known && !is_first_line_whole(head))
        return MALFORMED "the first line contains a NUL or too many blanks";
    MHD_get_connection_values_n(head->connection, MHD_HEADER_KIND, on_field, &f);
    if (f.fault)
        return f.fault;
    if (f.layout_known && !ends_at(head, f.at))
        return BROKEN_FIELD;
    return framing_fault(&f, strcmp(head->version, "HTTP/1.0") == 0, status);
}

struct http_head *http_check_refused(const char **words, int *status)
{
    struct http_head *head;
    struct fields f = {0};

    /* MHD calls the handler right after it has read a head, before it reads another one on this
     * thread. So at most one head of the list is complete. */
    for (head = first_head; head; head = head->next)
        if (MHD_get_connection_info(head->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE))
            break;
    if (!head)
        return NULL;
    MHD_get_connection_values_n(head->connection, MHD_HEADER_KIND, on_field, &f);
    *status = 400;
    *words = f.length ? length_fault(f.length, status) : NULL;
    if (!*words) {
        *status = 431;
        *words = "the header fields are too large";
    }
    return head;
}
