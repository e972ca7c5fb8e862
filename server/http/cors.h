/* cors.h - which browser pages of other origins may read our answers.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   none. */
#ifndef TARN_SERVER_HTTP_CORS_H
#define TARN_SERVER_HTTP_CORS_H

#include <stdbool.h>

/* `list`: origins such as https://chat.example.org, separated by commas, blanks around them are
 * skipped; * is every origin; empty is none. `origin`: what the browser sent, may be NULL. An
 * origin is compared as a whole, letter by letter: no wildcards, no "ends with". */
bool cors_allows(const char *list, const char *origin);

#endif
