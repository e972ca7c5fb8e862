/* shared.cc - finds the static shared arrays of kernels.
 *
 * `__shared__` is `static` here. A section attribute cannot collect these variables, because GCC
 * ignores it for variables of templates. So they are found in the program's symbol table, as the
 * writable variables that are local to a function ("_ZZ", Itanium C++ ABI) of a file whose name
 * ends in .cu. */
#include "internal.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

struct range {
    char *p;
    size_t n_bytes;
};

/* The arrays by file, and the file of each kernel. */
static std::map<int, std::vector<range>> shared_arrays;
static std::map<const void *, int> file_of_kernel;

static int on_object(struct dl_phdr_info *info, size_t n_bytes, void *bias)
{
    (void)n_bytes;
    *static_cast<ElfW(Addr) *>(bias) = info->dlpi_addr;
    return 1; /* the first object is the program itself */
}

static bool ends_in_cu(const char *name)
{
    size_t n = strlen(name);

    return n > 3 && strcmp(name + n - 3, ".cu") == 0;
}

static void read_symbols(const char *image, const ElfW(Shdr) *sections, const ElfW(Shdr) *table)
{
    const ElfW(Sym) *symbols = reinterpret_cast<const ElfW(Sym) *>(image + table->sh_offset);
    const char *names = image + sections[table->sh_link].sh_offset;
    ElfW(Addr) bias = 0;
    bool in_cu = false;
    int file = 0;

    dl_iterate_phdr(on_object, &bias);
    for (size_t i = 0; i < table->sh_size / sizeof *symbols; i++) {
        const ElfW(Sym) *s = &symbols[i];
        const char *name = names + s->st_name;
        char *at = reinterpret_cast<char *>(bias + s->st_value);
        int type = ELF64_ST_TYPE(s->st_info);
        if (type == STT_FILE) { /* its local symbols follow */
            in_cu = ends_in_cu(name);
            file++;
        }
        if (!in_cu || ELF64_ST_BIND(s->st_info) != STB_LOCAL || s->st_shndx >= SHN_LORESERVE)
            continue;
        if (type == STT_FUNC)
            file_of_kernel[at] = file;
        if (type == STT_OBJECT && strncmp(name, "_ZZ", 3) == 0 &&
            (sections[s->st_shndx].sh_flags & SHF_WRITE))
            shared_arrays[file].push_back({at, s->st_size});
    }
}

static void read_program(void)
{
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat info;

    if (fd < 0 || fstat(fd, &info) != 0)
        emulation_die("/proc/self/exe: %s", strerror(errno));
    void *p = mmap(nullptr, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        emulation_die("/proc/self/exe: %s", strerror(errno));
    const char *image = static_cast<const char *>(p);
    const ElfW(Ehdr) *header = reinterpret_cast<const ElfW(Ehdr) *>(image);
    const ElfW(Shdr) *sections = reinterpret_cast<const ElfW(Shdr) *>(image + header->e_shoff);
    bool found = false;
    for (unsigned i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type == SHT_SYMTAB) {
            read_symbols(image, sections, &sections[i]);
            found = true;
        }
    if (!found)
        emulation_die("this program has no symbol table: it must not be stripped");
    munmap(p, (size_t)info.st_size);
    close(fd);
}

/* The arrays of the kernel's file. */
static const std::vector<range> &arrays_of(const void *kernel)
{
    static const bool once = (read_program(), true);
    static const std::vector<range> none, *found;
    static const void *last; /* which asks again for each access */

    (void)once;
    if (kernel == last)
        return *found;
    auto file = file_of_kernel.find(kernel);
    if (file == file_of_kernel.end())
        emulation_die("a kernel that is not `static __global__` in a .cu file");
    auto at = shared_arrays.find(file->second);
    last = kernel;
    found = at == shared_arrays.end() ? &none : &at->second;
    return *found;
}

void shared_fill(const void *kernel)
{
    for (const range &r : arrays_of(kernel))
        random_fill(r.p, r.n_bytes);
}

bool shared_holds(const void *kernel, const void *p, size_t n_bytes)
{
    const char *at = static_cast<const char *>(p);

    for (const range &r : arrays_of(kernel))
        if (at >= r.p && at + n_bytes <= r.p + r.n_bytes)
            return true;
    return false;
}
