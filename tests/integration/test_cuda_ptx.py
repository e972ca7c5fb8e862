#!/usr/bin/env python3
"""tests/tools/cuda_ptx.py finds narrow loads in PTX, what comes before a wait, and registers that
nothing writes."""
from __future__ import annotations

import sys

from http_helpers import REPO, run_tests

sys.path.insert(0, str(REPO / "tests" / "tools"))
import cuda_ptx  # noqa: E402

# Registers that the kernels below read.
WRITTEN = "".join(f"    mov.b64 %rd{i}, 0;\n" for i in (1, 2, 3)) + "".join(
    f"    mov.b32 %{r}, 0;\n" for r in ("r1", "r2", "r3", "r4", "r5", "f1"))
GOOD = """.version 9.0
.target sm_90
.visible .entry _Z13narrow_kernelIL5dtype2ELi0EEv7product(
) {
    ld.global.nc.L1::no_allocate.v4.u32 {%r1,%r2,%r3,%r4}, [%rd1];
    griddepcontrol.wait;
    ld.global.v4.u32 {%r5,%r6,%r7,%r8}, [%rd2];
    st.global.f32 [%rd3], %f1;
}
.visible .entry _Z13narrow_kernelIL5dtype4ELi32EEv7product(
) {
    cp.async.cg.shared.global [%r1], [%rd2], 16, %r2;
    griddepcontrol.wait;
    ld.global.v4.u32 {%r5,%r6,%r7,%r8}, [%rd1];
}
.visible .entry _Z11tile_kernelIL5dtype4ELi32EEv7product(
) {
    cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;
}
"""
EARLY = """.version 9.0
.target sm_90
.visible .entry _Z14rmsnorm_kernelILi16ELb1EEv14rmsnorm_params(
) {
    ld.param.u64 %rd1, [_Z1kPf_param_0];
    ld.param.u64 %rd3, [_Z1kPf_param_1];
    ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1];
    griddepcontrol.wait;
    st.global.f32 [%rd3], %f1;
}
.visible .entry _Z14rope_kv_kernelIL5dtype2ELb1EEv14rope_kv_params9rope_grid(
) {
    ld.param.u64 %rd1, [_Z1kPf_param_0];
    ld.param.u64 %rd3, [_Z1kPf_param_1];
    griddepcontrol.wait;
    ld.global.f32 %f1, [%rd1];
    st.global.f32 [%rd3], %f1;
}
"""
WGMMA = """.version 9.0
.target sm_90a
.visible .entry _Z12wgmma_kernelIL5dtype4ELi32EEv7productPKh(
) {
    ld.global.nc.L1::no_allocate.v4.u32 {%r1,%r2,%r3,%r4}, [%rd1];
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd2], %r2, [%r3];
    wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%f1}, {%r1}, %rd1, p, 1, 1, 0;
}
"""
ATTENTION = """.version 9.0
.target sm_90a
.visible .entry _Z17attn_wgmma_kernelILi128EEv8attn_job(
) {
    fence.proxy.async.shared::cta;
    setmaxnreg.dec.sync.aligned.u32 88;
    ld.global.L1::no_allocate.v4.u32 {%r1,%r2,%r3,%r4}, [%rd1];
    st.shared.v4.b32 [%r5], {%r1, %r2, %r3, %r4};
    fence.proxy.async.shared::cta;
    setmaxnreg.inc.sync.aligned.u32 208;
    fence.proxy.async.shared::cta;
}
"""
GOOD, WGMMA, ATTENTION = (ptx.replace(") {\n", ") {\n" + WRITTEN)
                         for ptx in (GOOD, WGMMA, ATTENTION))
# Each way to name a register: guards, labels, vectors, a result that is a source as well.
WAYS = """.target sm_90
.visible .entry _Z1kPf(
    .param .u64 _Z1kPf_param_0
)
.maxntid 256
{
    .reg .b32 %r<9>;
    // a comment; of two parts
    .loc 1 2 3
    ld.param.u64 %rd1, [_Z1kPf_param_0];
    setp.eq.s32 %p1, 0, 1;
    barrier.cta.red.or.pred %p3, 0, %p1;
    mbarrier.test_wait.shared.b64 %p4, [%rd1], %r4;
    selp.u32 %r5, 1, 0, %p3;
    @%p4 st.shared.u32 [%rd1], %r5;
    @%p1 bra $L__BB0_2;
$L__BB0_1:
    ld.global.v2.u32 {%r1, %r2}, [%rd1];
    shfl.sync.idx.b32 %r3|%p2, %r1, %r2, 31, -1;
    @!%p2 add.s32 %r4, %r3, %r2;
    {
    mov.b32 %f1, %r4; }
    mma.sync.aligned {%f1}, {%r1}, {%r2}, {%f1};
$L__BB0_2:
    st.global.u32 [%rd1], %r4;
    ret;
}
"""


def good_ptx_passes() -> None:
    assert cuda_ptx.check(GOOD) == []
    assert cuda_ptx.check(EARLY) == []
    assert len(cuda_ptx.entries(GOOD)) == 3
    assert cuda_ptx.check(WGMMA) == []
    assert cuda_ptx.check(ATTENTION) == []


def each_rule_finds_its_fault() -> None:
    wait = "griddepcontrol.wait;"
    for old, new, words in (
            ("[%rd1], 16,", "[%rd1], 8,", "copies of"),
            ("[%rd2], 16,", "[%rd2], 8,", "weights are not"),
            ("ld.global.v4.u32 {%r5,%r6,%r7,%r8}, [%rd2]", "ld.global.u32 %r5, [%rd2]",
             "activations are not"),
            ("no_allocate.v4.u32", "no_allocate.v2.u32", "weights are not"),
            (wait, "", "never waits"),
            (wait, "st.global.f32 [%rd3], %f1; " + wait, "before griddepcontrol"),
            (wait, "ld.global.v4.u32 {%r5,%r6,%r7,%r8}, [%rd2]; " + wait,
             "before griddepcontrol")):
        found = cuda_ptx.check(GOOD.replace(old, new, 1))
        assert len(found) == 1 and words in found[0], (old, new, found)


def products_of_a_warpgroup_have_their_rules() -> None:
    copy = "cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;"
    for old, new, words in (
            ("no_allocate.v4.u32", "no_allocate.v2.u32", "weights are not"),
            ("cp.async.bulk", "cp.none", "bulk copies alone"),
            ("wgmma.mma_async", copy + " wgmma.mma_async", "bulk copies alone"),
            ("wgmma.mma_async", "mma", "no products")):
        found = cuda_ptx.check(WGMMA.replace(old, new))
        assert len(found) == 1 and words in found[0], (old, new, found)


def attention_of_a_warpgroup_has_its_rules() -> None:
    fence, take = "fence.proxy.async.shared::cta;\n    setmaxnreg.inc", "setmaxnreg.inc"
    for old, new, words in (
            (fence, take, "not fenced"),
            ("no_allocate.v4", "no_allocate.v2", "16 bytes a lane"),
            ("st.shared.v4", "st.shared", "16 bytes a lane"),
            (take, "trap; " + take, "their registers"),
            (take, "setmaxnreg.dec", "their registers")):
        found = cuda_ptx.check(ATTENTION.replace(old, new))
        assert len(found) == 1 and words in found[0], (old, new, found)


def kernels_that_begin_early_wait_first() -> None:
    wait, load = "griddepcontrol.wait;", "ld.global.f32 %f1, [%rd1];"
    for old, new, n in ((wait, "", 2), (wait, "st.global.f32 [%rd3], %f1; " + wait, 2),
                        (f"{wait}\n    {load}", f"{load}\n    {wait}", 1)):
        found = cuda_ptx.check(EARLY.replace(old, new))
        assert len(found) == n and all("wait" in f for f in found), (old, new, found)


def registers_that_nothing_writes_are_found() -> None:
    assert cuda_ptx.check(WAYS) == []
    for line, register in (("ld.param.u64 %rd1, [_Z1kPf_param_0];", "%rd1"),
                           ("setp.eq.s32 %p1, 0, 1;", "%p1"),
                           ("@!%p2 add.s32 %r4, %r3, %r2;", "%r4")):
        assert line in WAYS
        found = cuda_ptx.check(WAYS.replace(line, ""))
        assert len(found) == 1 and f"'{register}'" in found[0], (line, found)
    found = cuda_ptx.check(WAYS.replace("%r3|%p2", "%r3"))
    assert len(found) == 1 and "'%p2'" in found[0], found


def older_gpus_have_no_wait() -> None:
    ptx = GOOD.replace("sm_90", "sm_80").replace("griddepcontrol.wait;", "")
    assert cuda_ptx.check(ptx) == []


if __name__ == "__main__":
    sys.exit(run_tests([good_ptx_passes, each_rule_finds_its_fault,
                        products_of_a_warpgroup_have_their_rules,
                        attention_of_a_warpgroup_has_its_rules,
                        kernels_that_begin_early_wait_first,
                        registers_that_nothing_writes_are_found, older_gpus_have_no_wait]))
