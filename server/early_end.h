/* early_end.h - SIGTERM and SIGINT while the server starts: the process ends at once, with 0.
 *
 * A start takes minutes when a large model is read, measured or checked, and nothing of that can be
 * lost: files are replaced whole or survive being killed. So a thread waits for the signals, which
 * all other threads block, and ends the process. Once the server serves, main takes the signals and
 * drains.
 *
 * Owns    the thread.
 * Thread  main.
 * Errors  ERR_IO, ERR_NOMEM.
 * Units   none. */
#ifndef TARN_SERVER_EARLY_END_H
#define TARN_SERVER_EARLY_END_H

#include "base/status.h"

/* SIGTERM and SIGINT are blocked, in this thread and in those made later. */
NODISCARD enum status early_end_begin(void);
/* From now on the signals stay pending for the caller. Without early_end_begin() this does
 * nothing; so does a second call. */
void early_end_stop(void);

#endif
