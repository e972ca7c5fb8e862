"""Properties that the PTX of a kernel must have: how wide its loads are, which
accesses come before a wait, and that each register it reads is written somewhere.

cuda_report.py calls check() for each PTX file of a compilation (ctest cuda_compiles). The last rule
holds for every kernel: nvcc 13.0 compiled copies of arrays in structs to reads of registers that
nothing wrote, which neither a warning nor the emulation can show. Other rules are about the product
kernels, whose speed is that of their loads:

    tile_kernel    both operands come by cp.async of 16 bytes, and by no narrower one
    narrow_kernel  activations and weights are loaded 16 bytes a lane, quantized weights by
                   cp.async; before griddepcontrol.wait nothing is stored, and no activations are
                   loaded: the kernel may begin while the one before still writes them
    rmsnorm_kernel, rope_kv_kernel, rope_scaled_kernel, silu_mul_kernel
                   before griddepcontrol.wait nothing is stored, and only a norm loads: its weights
    wgmma_kernel   activations come by bulk copies alone; weights are loaded 16 bytes a lane
    attn_wgmma_kernel
                   K and V are loaded (f16: 8 bytes) and stored to shared memory 16 bytes a lane;
                   each place that stores there fences its stores for the products; registers move
                   from the warpgroup that loads to those that compute, for which no trap may be
                   there (ptxas then ignores the registers that a warpgroup takes)
"""
from __future__ import annotations

import re

ENTRY = re.compile(r"\.entry\s+(\w+)\s*\(")
TARGET = re.compile(r"^\.target\s+sm_(\d+)", re.M)
COPY = re.compile(r"\bcp\.async\.c[ag]\.shared\.global\s+\[[^\]]+\],\s*\[[^\]]+\],\s*(\d+)")
LOAD16, WEIGHT16 = "ld.global.v4.", "ld.global.nc.L1::no_allocate.v4."
LOAD_ONCE8, OF_F16 = "ld.global.L1::no_allocate.v2.", re.compile(r"IL[^_]*EL5dtype1E")
QUANTIZED = re.compile(r"narrow_kernelIL5dtype[3-7]E")  # mangled
REGISTER = re.compile(r"%(?:rd|rs|r|fd|f|p|b|h|hh)\d+")
# What stands before an operation: labels, braces, comments and line numbers; its guard.
PREFIX = re.compile(r"(?:\s|\$?\w+:|\{|\}|//[^\n]*\n|\.(?:loc|pragma)\b[^\n]*\n)*")
GUARD = re.compile(r"@!?(%p\d+)\s+")
# Operations without a result, and those whose first operand is a source, too.
NO_RESULT = re.compile(r"(?:st|red|cp|multimem)\.|bra\b|ret\b|call|trap|exit|nanosleep|prefetch|"
                       r"bar(?:rier)?\.(?:cta\.|warp\.)?(?:sync|arrive)|mbarrier\.i|griddep|fence|"
                       r"membar|setmaxnreg|wgmma\.(?:fence|commit|wait)|stmatrix")
IN_PLACE = re.compile(r"w?g?mma\.")
LOAD_ONCE16, TRAP = "ld.global.L1::no_allocate.v4.", re.compile(r"\btrap;")
EARLY = re.compile(r"rmsnorm_kernel|rope_(?:kv|scaled)_kernel|silu_mul_kernel")


def entries(text: str) -> dict[str, str]:
    """The body of each kernel by its mangled name."""
    starts = [(m[1], m.start()) for m in ENTRY.finditer(text)]
    ends = [at for _, at in starts[1:]] + [len(text)]
    return {name: text[at:end] for (name, at), end in zip(starts, ends)}


def split_result(operands: str) -> tuple[list[str], str]:
    """The registers that an operation writes, and its other operands."""
    vector = re.match(r"\s*\{([^}]*)\}", operands)
    if vector:
        return REGISTER.findall(vector[1]), operands[vector.end():]
    first, _, rest = operands.partition(",")
    return REGISTER.findall(first), rest


def never_written(body: str) -> list[str]:
    """The registers of a kernel that operations read and none writes."""
    written, read = set(), {}
    for statement in body[body.index("{") + 1:].split(";"):
        statement = statement[PREFIX.match(statement).end():]  # type: ignore[union-attr]
        if guard := GUARD.match(statement):
            read[guard[1]] = statement
            statement = statement[guard.end():]
        operation, _, operands = statement.partition(" ")
        operation, tab, more = operation.partition("\t")
        operands = more + " " + operands if tab else operands
        results: list[str] = []
        if operation.startswith("."):
            continue  # a declaration
        if not NO_RESULT.match(operation):
            results, rest = split_result(operands)
            operands = operands if IN_PLACE.match(operation) else rest
        written.update(results)
        read.update((register, statement) for register in REGISTER.findall(operands))
    return sorted(read.keys() - written)


def check_narrow(name: str, body: str, sm: int) -> list[str]:
    errors = []
    parts = body.split("griddepcontrol.wait", 1)
    if LOAD16 not in parts[-1]:
        errors.append(f"{name}: activations are not loaded 16 bytes a lane ({LOAD16})")
    if set(COPY.findall(body)) != {"16"} if QUANTIZED.search(name) else WEIGHT16 not in body:
        errors.append(f"{name}: weights are not loaded 16 bytes a lane")
    if sm < 90:
        return errors
    if len(parts) < 2:
        errors.append(f"{name}: may begin early and never waits")
    elif "st.global" in parts[0] or LOAD16 in parts[0]:
        errors.append(f"{name}: stores, or loads activations, before griddepcontrol.wait")
    return errors


def check_early(name: str, body: str, sm: int) -> list[str]:
    parts = body.split("griddepcontrol.wait", 1)
    if sm < 90:
        return []
    if len(parts) < 2:
        return [f"{name}: may begin early and never waits"]
    if "st.global" in parts[0] or ("ld.global" in parts[0] and "rmsnorm" not in name):
        return [f"{name}: stores, or loads, before griddepcontrol.wait"]
    return []


def check_tile(name: str, body: str) -> list[str]:
    widths = set(COPY.findall(body))
    return [] if widths == {"16"} else [f"{name}: copies of {sorted(widths)} bytes instead of 16"]


def check_wgmma(name: str, body: str) -> list[str]:
    errors = []
    if "wgmma.mma_async" not in body:
        errors.append(f"{name}: no products of a warpgroup")
    if "cp.async.bulk." not in body or COPY.search(body):
        errors.append(f"{name}: activations do not come by bulk copies alone")
    if WEIGHT16 not in body:
        errors.append(f"{name}: weights are not loaded 16 bytes a lane ({WEIGHT16})")
    return errors


def check_attention(name: str, body: str) -> list[str]:
    errors = []
    if body.count("fence.proxy.async") < 3:  # queries, K and V, V without what a row does not see
        errors.append(f"{name}: stores to shared memory are not fenced for products")
    load = LOAD_ONCE8 if OF_F16.search(name) else LOAD_ONCE16
    if load not in body or "st.shared.v4." not in body:
        errors.append(f"{name}: K and V do not move 16 bytes a lane (loads of f16: 8)")
    if "setmaxnreg.inc" not in body or "setmaxnreg.dec" not in body or TRAP.search(body):
        errors.append(f"{name}: warpgroups do not get their registers")
    return errors


def check(text: str) -> list[str]:
    """The faults of a PTX file."""
    target = TARGET.search(text)
    errors: list[str] = []
    sm = int(target[1]) if target else 0
    for name, body in entries(text).items():
        if unwritten := never_written(body):
            errors.append(f"{name}: reads registers that nothing writes: {unwritten[:8]}")
        if "narrow_kernel" in name:
            errors += check_narrow(name, body, sm)
        elif EARLY.search(name):
            errors += check_early(name, body, sm)
        elif "tile_kernel" in name:
            errors += check_tile(name, body)
        elif "attn_wgmma_kernel" in name:
            errors += check_attention(name, body)
        elif "wgmma_kernel" in name:
            errors += check_wgmma(name, body)
    return errors
