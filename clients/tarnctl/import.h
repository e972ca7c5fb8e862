/* import.h - `tarnctl docs import`: a folder, a file or JSON lines become registered documents.
 *
 * Documents are sent in batches of about a megabyte. A document that is refused is reported on
 * standard error and does not end the import. An import may be repeated: documents that are there
 * already, with the same text, are not computed again.
 *
 * Owns    nothing after it returns.
 * Thread  one.
 * Errors  as tarnctl.h; 1 also when a document was refused.
 * Units   none. */
#ifndef TARN_CLIENTS_TARNCTL_IMPORT_H
#define TARN_CLIENTS_TARNCTL_IMPORT_H

#include "clients/tarnctl/tarnctl.h"

int docs_import(const struct ctl_options *o, const struct tarn_client *client);
/* The title of a file: the first heading of Markdown, else the name without folder and ending.
 * Valid until the next call. */
const char *import_title(const char *path, const char *text);

#endif
