/* request_id.h - ids that clients give their requests.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   none. */
#ifndef TARN_SERVER_HTTP_REQUEST_ID_H
#define TARN_SERVER_HTTP_REQUEST_ID_H

#include <stdbool.h>

/* Whether an id is shorter than HTTP_ID_BYTES and has letters, digits, and . _ - only. NULL: no. */
bool request_id_is_sane(const char *id);

#endif
