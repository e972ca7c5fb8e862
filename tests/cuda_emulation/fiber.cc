/* fiber.cc - execution contexts with a stack each, switched explicitly. */
#include "internal.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

/* Kernels that are inlined into one frame at -O1 with sanitizers need large stacks. Pages that are
 * never touched cost nothing. */
#define STACK_BYTES ((size_t)256 << 10)
/* Stacks that all began at the same place of a page would share a few sets of the first cache. */
#define LINE_BYTES 64u
#define LINES_OF_PAGE 64u
#define LINES_APART 39u /* prime to LINES_OF_PAGE, and neighbours lie far apart */

struct fiber {
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
    char *stack; /* lowest address; a guard page lies below */
    size_t stack_bytes;
    char *top; /* where the first frame begins */
    fiber_entry *entry;
    void *arg;
#if EMULATION_ASAN
    void *fake_stack;
#endif
#if defined(__SANITIZE_THREAD__)
    void *tsan;
#endif
};

static fiber main_fiber;

#if defined(__x86_64__)
/* Save the callee-saved registers on this stack and continue where the other fiber saved its own
 * (System V ABI). The rounding mode is not saved, because all fibers use the same. */
extern "C" void emulation_switch_stack(void **save_sp, void *sp);
asm(".text\n"
    ".globl emulation_switch_stack\n"
    ".type emulation_switch_stack, @function\n"
    "emulation_switch_stack:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size emulation_switch_stack, . - emulation_switch_stack\n");
#endif

/* Plain globals, because the fibers of a grid share one OS thread, under the runtime's lock. */
static fiber *leaving, *entering;

/* Tell AddressSanitizer about the switch; called first on a stack that was entered. */
static void arrived(void)
{
#if EMULATION_ASAN
    const void *bottom;
    size_t n_bytes;

    __sanitizer_finish_switch_fiber(entering->fake_stack, &bottom, &n_bytes);
    if (leaving == &main_fiber) { /* the only way to learn the bounds of the OS thread's stack */
        main_fiber.stack = static_cast<char *>(const_cast<void *>(bottom));
        main_fiber.stack_bytes = n_bytes;
    }
#endif
}

static void first_function(void)
{
    arrived();
    entering->entry(entering->arg);
    abort();
}

fiber *fiber_main(void)
{
    return &main_fiber;
}

fiber *fiber_create(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *p = static_cast<char *>(mmap(nullptr, STACK_BYTES + page, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));

    if (p == MAP_FAILED || mprotect(p, page, PROT_NONE) != 0)
        emulation_die("no memory for a fiber's stack: %s", strerror(errno));
    fiber *f = new fiber();
    static unsigned n_created;
    f->stack = p + page;
    f->stack_bytes = STACK_BYTES;
    f->top = f->stack + STACK_BYTES - n_created++ * LINES_APART % LINES_OF_PAGE * LINE_BYTES;
#if EMULATION_ASAN
    __asan_unpoison_memory_region(f->stack, STACK_BYTES); /* of what lay there before */
#endif
#if defined(__x86_64__)
    f->sp = f->top;
#endif
#if defined(__SANITIZE_THREAD__)
    f->tsan = __tsan_create_fiber(0);
#endif
    return f;
}

void fiber_prepare(fiber *f, fiber_entry *entry, void *arg)
{
    f->entry = entry;
    f->arg = arg;
#if EMULATION_ASAN
    char *lowest = f->stack;
#if defined(__x86_64__)
    lowest = static_cast<char *>(f->sp); /* where it left for the last time */
#endif
    f->fake_stack = nullptr;
    /* Frames that never returned. */
    __asan_unpoison_memory_region(lowest, (size_t)(f->top - lowest));
#endif
#if defined(__x86_64__)
    void **top = reinterpret_cast<void **>(f->top);
    *--top = nullptr; /* first_function's return address: the stack is aligned as after a call */
    *--top = reinterpret_cast<void *>(&first_function);
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    f->sp = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = (size_t)(f->top - f->stack);
    f->context.uc_link = nullptr;
    makecontext(&f->context, first_function, 0);
#endif
}

void fiber_switch(fiber *from, fiber *to)
{
    leaving = from;
    entering = to;
#if EMULATION_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    if (from == &main_fiber)
        from->tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
#if defined(__x86_64__)
    emulation_switch_stack(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
    arrived();
}
