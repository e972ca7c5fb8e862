/* early_end.h - ends the process at once, with 0, on SIGTERM or SIGINT while the server starts.
 *
 * A start takes minutes if a large model has to be read, measured or checked. Ending in the middle
 * is safe: files are replaced atomically or survive SIGKILL. So a thread waits for the signals,
 * which all other threads block, and ends the process. Once the server serves, main handles the
 * signals and drains.
 *
 * Owns    the thread.
 * Thread  main.
 * Errors  ERR_IO, ERR_NOMEM.
 * Units   none. */
#ifndef TARN_SERVER_EARLY_END_H
#define TARN_SERVER_EARLY_END_H

#include "base/status.h"

/* Block SIGTERM and SIGINT in this thread and in all created later, and start the thread. */
NODISCARD enum status early_end_begin(void);
/* End the thread: the signals stay pending for the caller from here on. Does nothing without
 * early_end_begin(), and the second time. */
void early_end_stop(void);

#endif
