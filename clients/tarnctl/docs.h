/* docs.h - `tarnctl docs` and `tarnctl preambles`, over libtarn-client.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  as tarnctl.h: each function returns the exit code.
 * Units   none. */
#ifndef TARN_CLIENTS_TARNCTL_DOCS_H
#define TARN_CLIENTS_TARNCTL_DOCS_H

#include "clients/tarnctl/tarnctl.h"

int docs_add(const struct ctl_options *o, const struct tarn_client *client);
int docs_list(const struct ctl_options *o, const struct tarn_client *client);
int docs_show(const struct ctl_options *o, const struct tarn_client *client);
int docs_warm(const struct ctl_options *o, const struct tarn_client *client);
int docs_pin(const struct ctl_options *o, const struct tarn_client *client);
int docs_unpin(const struct ctl_options *o, const struct tarn_client *client);
int docs_rm(const struct ctl_options *o, const struct tarn_client *client);
int preambles_add(const struct ctl_options *o, const struct tarn_client *client);
int preambles_list(const struct ctl_options *o, const struct tarn_client *client);
int preambles_rm(const struct ctl_options *o, const struct tarn_client *client);

#endif
