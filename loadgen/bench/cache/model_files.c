#include "loadgen/bench/cache/model_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_NAME "/config.json"

static enum status write_config(const char *dir, const char *text, struct buf *why)
{
    char path[MODEL_FILES_PATH_BYTES + sizeof CONFIG_NAME];
    FILE *f;

    snprintf(path, sizeof path, "%s" CONFIG_NAME, dir);
    f = fopen(path, "w");
    if (!f)
        return buf_why(why, ERR_IO, "cannot write %s: %s", path, strerror(errno));
    int failed = fputs(text, f) < 0;
    if (fclose(f) != 0 || failed)
        return buf_why(why, ERR_IO, "cannot write %s: is the disk full?", path);
    return OK;
}

enum status model_files_make(struct model_files *m, const char *config_json, struct buf *why)
{
    const char *tmp = getenv("TMPDIR");
    int n;

    if (!tmp || !*tmp)
        tmp = "/tmp";
    n = snprintf(m->dir, sizeof m->dir, "%s/tarn-cachebench-XXXXXX", tmp);
    if (n < 0 || (size_t)n >= sizeof m->dir) {
        m->dir[0] = '\0';
        return buf_why(why, ERR_IO, "TMPDIR is longer than %d bytes", MODEL_FILES_PATH_BYTES - 32);
    }
    if (!mkdtemp(m->dir)) {
        m->dir[0] = '\0';
        return buf_why(why, ERR_IO,
                       "cannot make a directory in %s (%s): set TMPDIR to one that "
                       "can be written",
                       tmp, strerror(errno));
    }
    enum status s = write_config(m->dir, config_json, why);
    if (s != OK)
        model_files_remove(m);
    return s;
}

void model_files_remove(struct model_files *m)
{
    char path[MODEL_FILES_PATH_BYTES + sizeof CONFIG_NAME];

    if (!m->dir[0])
        return;
    snprintf(path, sizeof path, "%s" CONFIG_NAME, m->dir);
    unlink(path);
    rmdir(m->dir);
    m->dir[0] = '\0';
}
