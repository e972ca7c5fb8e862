/* temp_dir.h - a directory below /tmp that exists during a test.
 *
 * Owns    the directory and all files in it, until temp_dir_remove().
 * Thread  any, one at a time for one directory.
 * Errors  any failure ends the test with a message.
 * Units   none. */
#ifndef TARN_TESTS_TEMP_DIR_H
#define TARN_TESTS_TEMP_DIR_H

struct temp_dir {
    char path[64];
};

void temp_dir_make(struct temp_dir *d);
void temp_dir_remove(const struct temp_dir *d);

#endif
