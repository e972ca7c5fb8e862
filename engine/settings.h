/* settings.h - the engine's settings: their defaults, and the names that choices take.
 *
 * engine_config_init() sets these defaults, and the tables of options of tarn-server, tarn-loadgen
 * sim and the benches print them. Macros only: numbers are also parts of texts, see SETTING_TEXT().
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   bytes, tokens; names in _MS milliseconds; shares are fractions of 1. */
#ifndef TARN_ENGINE_SETTINGS_H
#define TARN_ENGINE_SETTINGS_H

/* A number below as a text: SETTING_TEXT(DEFAULT_LEVEL_RATIO) is "2". */
#define SETTING_TEXT(number) SETTING_TEXT_OF(number)
#define SETTING_TEXT_OF(number) #number

/* The order is that of the enum or table in engine.c. */
#define DEVICE_NAMES "auto|cpu|cuda|ref"
#define DTYPE_NAMES "auto|f32|bf16|f16"
#define KV_DTYPE_NAMES DTYPE_NAMES "|int8|fp8"
#define LOAD_FORMAT_NAMES "auto|dummy"
#define QUANTIZATION_NAMES "auto|none|int8|int4|fp8"
/* In the order of enum latency_objective (sched/lengths.h). */
#define LATENCY_OBJECTIVE_NAMES "normalized|e2e"
#define KV_SWAP_NAMES "proactive|reactive"
#define KV_PRELOAD_NAMES "none|registered|all"
#define POOL_QUERY_NAMES "auto|never|always" /* as enum cache_query */
#define DEFAULT_POOL_QUERY "auto"

#define DEFAULT_DEVICE "auto"
#define DEFAULT_DTYPE "auto"
#define DEFAULT_LOAD_FORMAT "auto"
#define DEFAULT_QUANTIZATION "auto"
#define DEFAULT_SCHEDULING_POLICY "skip-join-mlfq"
#define DEFAULT_MLFQ_VARIANT "learned"
#define DEFAULT_LATENCY_OBJECTIVE "normalized"
#define DEFAULT_LEVEL_RATIO 2
#define DEFAULT_CACHE_REORDER_WINDOW 8
#define DEFAULT_MAX_NUM_SEQS 64
#define DEFAULT_MAX_NUM_BATCHED_TOKENS 512
#define DEFAULT_GPU_BATCHED_TOKENS 2048
#define DEFAULT_MAX_NUM_QUEUED_REQS 1024
#define DEFAULT_SPECULATIVE_TOKENS 24
/* Time limit of a step with chunks of prompts. */
#define DEFAULT_CPU_STEP_MS 200
#define DEFAULT_GPU_STEP_MS 100
#define DEFAULT_TENSOR_PARALLEL_SIZE 1
#define DEFAULT_GPU_MEMORY_UTILIZATION 0.9 /* vLLM's */
#define DEFAULT_KV_SEGMENT_TOKENS 256
#define DEFAULT_KV_PREFETCH_SHARE 0.1
#define DEFAULT_KV_HOLD_SHARE 0.25
#define DEFAULT_KV_SWAP "proactive"
#define DEFAULT_KV_DISK_MIN_USES 2
#define DEFAULT_KV_DISK_TIMEOUT_MS 1000
#define DEFAULT_KV_PRELOAD "registered"
#define DEFAULT_CACHE_POLICY "contest"

#endif
