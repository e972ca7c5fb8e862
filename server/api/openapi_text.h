/* openapi_text.h - the bytes of openapi.json, which server/CMakeLists.txt makes C of.
 *
 * tests/tools/openapi_page.py writes openapi.json.
 *
 * Owns    nothing; constants.
 * Thread  any.
 * Errors  none.
 * Units   bytes. */
#ifndef TARN_SERVER_API_OPENAPI_TEXT_H
#define TARN_SERVER_API_OPENAPI_TEXT_H

#include <stddef.h>

extern const unsigned char openapi_text[];
extern const size_t openapi_text_len;

#endif
