/* temp_dir.h - a directory below /tmp, with all that is in it, for the time of a test.
 *
 * Owns    the directory, until temp_dir_remove().
 * Thread  any, one at a time for one directory.
 * Errors  everything that fails ends the test with a message.
 * Units   none. */
#ifndef TARN_TESTS_TEMP_DIR_H
#define TARN_TESTS_TEMP_DIR_H

struct temp_dir {
    char path[64];
};

void temp_dir_make(struct temp_dir *d);
void temp_dir_remove(const struct temp_dir *d);

#endif
