/* cors.h - which browser pages of other origins may read the server's answers.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   none. */
#ifndef TARN_SERVER_HTTP_CORS_H
#define TARN_SERVER_HTTP_CORS_H

#include <stdbool.h>

/* Whether `origin`, sent by a browser (may be NULL), is in `list`: origins such as
 * https://chat.example.org, separated by commas and blanks. A * in the list allows every origin, an
 * empty list none. Origins are compared byte by byte; there are no patterns. */
bool cors_allows(const char *list, const char *origin);

#endif
