/* result.h - the figures that only a simulation has: plain numbers for the report.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   as the names say; sums over all instances. */
#ifndef TARN_LOADGEN_SIM_RESULT_H
#define TARN_LOADGEN_SIM_RESULT_H

#include <stdbool.h>
#include <stdint.h>

struct sim_result {
    const char *policy, *swap, *routing, *cost_model, *cache_policy;
    uint32_t n_instances, n_running_max, n_tokens_max;
    double load;           /* share of the capacity; 0: not asked for */
    double capacity_per_s; /* requests; 0: not measured */
    double rate_per_s;     /* of the load, in the unit of --rate; 0: not asked for */

    uint64_t n_requests; /* of warm-up and measured part */
    uint64_t n_steps, n_items, n_step_tokens;
    uint64_t busy_ns; /* of steps, from plan to end */
    uint64_t n_preempted_for_place, n_preempted_for_memory, n_starving, n_demoted;
    uint64_t n_reordered; /* times that a request passed others for its cached prompt */
    /* With --estimates, |predicted - actual| / actual of the time to the first token and to the
     * end: median and 90th percentile. */
    uint64_t n_estimated;
    double ttft_error[2], e2e_error[2];
    uint64_t n_background;                 /* documents prefilled in the background */
    double background_s;                   /* until the last one of them */
    uint64_t n_contests, n_policy_changes; /* under the policy "auto" */
    uint64_t n_plans_ahead;
    uint64_t n_speculated, n_speculated_in_vain; /* prefills of provisional lists */
    uint64_t n_cut;                              /* answers cut to what memory holds */
    uint64_t n_tokens_restored, n_tokens_recomputed;

    uint64_t bytes_per_token, n_device_blocks, n_host_blocks; /* of one instance */
    uint64_t n_spilled_ahead, n_spilled_on_demand, n_fetched_ahead, n_fetched_on_demand;
    uint64_t n_expected_lost; /* blocks */
    uint64_t copied_in_bytes, copied_out_bytes;
    uint64_t compute_waited_ns, host_waited_ns; /* for copies */

    /* The light model only; counts of the whole run. */
    bool is_light, is_pool;
    double access_cv; /* of the tokens found in each instance's cache, by itself or others */
    double access_cv_windows; /* the same in windows of 10 s, their mean */
    uint64_t n_reads, read_tokens, read_bytes, n_stale;
    uint64_t n_queries, query_bytes;           /* requests that sent queries */
    uint64_t n_copies, n_moves, copied_tokens; /* in the background */
    uint64_t n_group_steps, helped_ns;         /* steps in which others helped, and their time */
    uint64_t n_lookups, n_lookups_refused, n_directory_commands, n_directory_entries;
    double directory_busy_share, link_busy_share;
    uint64_t link_busy_ns, n_directory_lost, n_moved_jobs;
    uint64_t memory_bytes; /* of this process for caches and directory */

    double simulated_s;
    /* including those that measured the capacity: */
    uint64_t n_simulated; /* requests */
    double wall_s, cpu_s;
};

#endif
