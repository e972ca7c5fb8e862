# The CUDA backend's sources by name. Readers: CMakeLists.txt in this folder (nvcc), the tests'
# emulation (g++) and tests/tools/cuda_report.py.
set(TARN_CUDA_SOURCES
    activation.cu
    attn_choice.cu
    attn_decode.cu
    attn_launch.cu
    attn_plain.cu
    attn_prefill.cu
    choice.cu
    collective.cu
    crc32c.cu
    device.cu
    embed.cu
    experts.cu
    gemm.cu
    gemm_choice.cu
    gemm_cublas.cu
    gemm_int.cu
    gemm_rows.cu
    graph.cu
    ops.cu
    rmsnorm.cu
    rope.cu
    sample.cu)
# Compiled for compute capability 9.0 alone, with the instructions that only it has.
set(TARN_CUDA_SM90A_SOURCES
    attn_wgmma.cu
    gemm_wgmma.cu)
