#include "loadgen/bench/engine/memory.h"

#include <inttypes.h>
#include <stdio.h>

static uint64_t machine_available(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    uint64_t kib = UINT64_MAX >> 10;
    char line[128];

    if (!f)
        return UINT64_MAX;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            break;
    fclose(f);
    return kib << 10;
}

/* A number alone in a file; UINT64_MAX: no limit ("max"). */
static uint64_t read_file(const char *path)
{
    FILE *f = fopen(path, "r");
    uint64_t value;

    if (!f)
        return UINT64_MAX;
    if (fscanf(f, "%" SCNu64, &value) != 1)
        value = UINT64_MAX;
    fclose(f);
    return value;
}

uint64_t memory_available(void)
{
    uint64_t machine = machine_available();
    uint64_t limit = read_file("/sys/fs/cgroup/memory.max");
    uint64_t used = read_file("/sys/fs/cgroup/memory.current");

    if (limit == UINT64_MAX || used == UINT64_MAX)
        return machine;
    uint64_t left = limit > used ? limit - used : 0;
    return left < machine ? left : machine;
}
