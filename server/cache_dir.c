#include "server/cache_dir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool cache_dir_find(char out[PATH_MAX], const char *dir)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = 0;

    if (dir[0])
        n = snprintf(out, PATH_MAX, "%s", dir);
    /* The XDG base directory specification demands that relative paths are ignored. */
    else if (cache && cache[0] == '/')
        n = snprintf(out, PATH_MAX, "%s/tarn", cache);
    else if (home && home[0] == '/')
        n = snprintf(out, PATH_MAX, "%s/.cache/tarn", home);
    return n > 0 && n < PATH_MAX;
}

const char *cache_dir_make(const char *path)
{
    char part[PATH_MAX];

    if (snprintf(part, sizeof part, "%s", path) >= PATH_MAX)
        return "the path is too long";
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(part, 0700) != 0 && errno != EEXIST)
            return strerror(errno);
        *slash = '/';
    }
    return mkdir(part, 0700) == 0 || errno == EEXIST ? NULL : strerror(errno);
}

/* Check the folder's owner and permissions: a user who may write to its parent could have made
 * it. */
static const char *look_at(const char *path)
{
    struct stat st;

    if (lstat(path, &st) != 0)
        return strerror(errno);
    if (!S_ISDIR(st.st_mode))
        return "it is not a directory";
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return "it belongs to another user";
    if (st.st_mode & S_IWOTH)
        return "all users may write to it";
    return access(path, R_OK | W_OK | X_OK) == 0 ? NULL : strerror(errno);
}

const char *cache_dir_open(char out[PATH_MAX], const char *dir, const char *name)
{
    char base[PATH_MAX];

    if (!cache_dir_find(base, dir))
        return dir[0] ? "the path is too long" : "neither XDG_CACHE_HOME nor HOME is set";
    if (snprintf(out, PATH_MAX, "%s/%s", base, name) >= PATH_MAX)
        return "the path is too long";
    const char *wrong = cache_dir_make(out);
    return wrong ? wrong : look_at(out);
}
