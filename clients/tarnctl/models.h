/* models.h - `tarnctl models inspect` and `tarnctl models download`, without a running server.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  the exit code: 0; 1 a refused or failed download, or a model that a server would refuse;
 *         130 stopped by Ctrl-C.
 * Units   none. */
#ifndef TARN_CLIENTS_TARNCTL_MODELS_H
#define TARN_CLIENTS_TARNCTL_MODELS_H

#include "clients/tarnctl/tarnctl.h"

/* Run `tarn-server --model PATH --inspect`, from the directory of this program or from PATH. The
 * report needs the loader, the kernels and the devices of the server that would load the model,
 * with its settings; tarnctl is linked with none of them. */
int models_inspect(const struct ctl_options *o);
int models_download(const struct ctl_options *o);

#endif
