/* report_sim.c - the figures that only a simulation has. */
#include <inttypes.h>

#include "loadgen/load/report_json.h"
#include "loadgen/sim/result.h"

static double share(double part, double of)
{
    return of > 0 ? part / of : 0;
}

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

static void put_kv(struct put *p, const struct sim_result *r)
{
    put_count(p, "kv_bytes_per_token", r->bytes_per_token);
    put_count(p, "kv_device_blocks", r->n_device_blocks);
    put_count(p, "kv_host_blocks", r->n_host_blocks);
    put_text(p, "kv_swap", r->swap);
    put_text(p, "cache_policy", r->cache_policy);
    put_count(p, "spilled_ahead_blocks", r->n_spilled_ahead);
    put_count(p, "spilled_on_demand_blocks", r->n_spilled_on_demand);
    put_count(p, "fetched_ahead_blocks", r->n_fetched_ahead);
    put_count(p, "fetched_on_demand_blocks", r->n_fetched_on_demand);
    put_count(p, "expected_lost_blocks", r->n_expected_lost);
    put_count(p, "restored_tokens", r->n_tokens_restored);
    put_count(p, "recomputed_tokens", r->n_tokens_recomputed);
    put_count(p, "copied_in_bytes", r->copied_in_bytes);
    put_count(p, "copied_out_bytes", r->copied_out_bytes);
    put_real(p, "compute_waited_s", seconds(r->compute_waited_ns));
    put_real(p, "host_waited_s", seconds(r->host_waited_ns));
    put_count(p, "cut_answers", r->n_cut);
}

static void put_light(struct put *p, const struct sim_result *r)
{
    put(p, "pool", js_new_bool(r->is_pool));
    put_real(p, "access_cv", r->access_cv);
    put_real(p, "access_cv_windows", r->access_cv_windows);
    put_count(p, "pool_reads", r->n_reads);
    put_count(p, "pool_read_tokens", r->read_tokens);
    put_count(p, "pool_read_bytes", r->read_bytes);
    put_count(p, "pool_stale", r->n_stale);
    put_count(p, "pool_queries", r->n_queries);
    put_count(p, "pool_query_bytes", r->query_bytes);
    put_count(p, "pool_copies", r->n_copies);
    put_count(p, "pool_moves", r->n_moves);
    put_count(p, "pool_copied_tokens", r->copied_tokens);
    put_count(p, "group_steps", r->n_group_steps);
    put_real(p, "helped_s", seconds(r->helped_ns));
    put_count(p, "directory_lookups", r->n_lookups);
    put_count(p, "directory_refused", r->n_lookups_refused);
    put_count(p, "directory_commands", r->n_directory_commands);
    put_real(p, "directory_commands_per_s", share((double)r->n_directory_commands, r->simulated_s));
    put_count(p, "directory_entries", r->n_directory_entries);
    put_count(p, "directory_lost", r->n_directory_lost);
    put_real(p, "directory_busy_share", r->directory_busy_share);
    put_real(p, "link_busy_share", r->link_busy_share);
    put_count(p, "moved_requests", r->n_moved_jobs);
    put_count(p, "memory_bytes", r->memory_bytes);
}

void report_put_sim(struct put *p, const struct sim_result *r)
{
    struct put one = {js_new_object(), OK};

    put_text(&one, "scheduling_policy", r->policy);
    put_text(&one, "cost_model", r->cost_model);
    put_count(&one, "instances", r->n_instances);
    put_text(&one, "routing", r->routing);
    put_count(&one, "max_num_seqs", r->n_running_max);
    put_count(&one, "max_num_batched_tokens", r->n_tokens_max);
    put(&one, "load", r->load > 0 ? js_new_real(r->load) : js_new_null());
    put(&one, "capacity_rps", r->load > 0 ? js_new_real(r->capacity_per_s) : js_new_null());
    put(&one, "rate", r->load > 0 ? js_new_real(r->rate_per_s) : js_new_null());
    put_count(&one, "requests", r->n_requests);
    put_count(&one, "steps", r->n_steps);
    put_count(&one, "steps_planned_ahead", r->n_plans_ahead);
    put_real(&one, "mean_batch", share((double)r->n_items, (double)r->n_steps));
    put_real(&one, "mean_step_tokens", share((double)r->n_step_tokens, (double)r->n_steps));
    put_real(&one, "busy_share", share(seconds(r->busy_ns), r->simulated_s * r->n_instances));
    put_count(&one, "preempted_for_place", r->n_preempted_for_place);
    put_count(&one, "preempted_for_memory", r->n_preempted_for_memory);
    put_count(&one, "starving", r->n_starving);
    put_count(&one, "demoted", r->n_demoted);
    put_count(&one, "reordered", r->n_reordered);
    put_count(&one, "estimated", r->n_estimated);
    put_real(&one, "ttft_error_p50", r->ttft_error[0]);
    put_real(&one, "ttft_error_p90", r->ttft_error[1]);
    put_real(&one, "e2e_error_p50", r->e2e_error[0]);
    put_real(&one, "e2e_error_p90", r->e2e_error[1]);
    put_count(&one, "background_documents", r->n_background);
    put_real(&one, "background_s", r->background_s);
    put_count(&one, "contests", r->n_contests);
    put_count(&one, "policy_changes", r->n_policy_changes);
    put_count(&one, "speculative_prefills", r->n_speculated);
    put_count(&one, "speculative_prefills_in_vain", r->n_speculated_in_vain);
    put_kv(&one, r);
    if (r->is_light)
        put_light(&one, r);
    put_real(&one, "simulated_s", r->simulated_s);
    put_count(&one, "simulated_requests", r->n_simulated);
    put_real(&one, "wall_s", r->wall_s);
    put_real(&one, "cpu_s", r->cpu_s);
    put_real(&one, "requests_per_wall_minute", share(60 * (double)r->n_simulated, r->wall_s));
    put_real(&one, "requests_per_cpu_minute", share(60 * (double)r->n_simulated, r->cpu_s));
    if (p->status == OK)
        p->status = one.status;
    put(p, "sim", one.o);
}

static void print_count(FILE *f, const char *name, uint64_t n)
{
    fprintf(f, "%-40s %-10" PRIu64 "\n", name, n);
}

static void print_real(FILE *f, const char *name, double v)
{
    fprintf(f, "%-40s %-10.2f\n", name, v);
}

static void print_light(FILE *f, const struct sim_result *r)
{
    print_real(f, "CV of accesses over instances (%):", 100 * r->access_cv);
    if (!r->is_pool)
        return;
    fprintf(f, "%-40s %" PRIu64 " of %.2f GB, %" PRIu64 " stale\n",
            "Reads from others:", r->n_reads, (double)r->read_bytes / 1e9, r->n_stale);
    fprintf(f, "%-40s %" PRIu64 " of %.2f GB\n", "Requests that sent queries:", r->n_queries,
            (double)r->query_bytes / 1e9);
    fprintf(f, "%-40s %" PRIu64 " copies, %" PRIu64 " moves\n", "In the background:", r->n_copies,
            r->n_moves);
    fprintf(f, "%-40s %.0f/s, busy %.2f %%\n",
            "Commands of the directory:", share((double)r->n_directory_commands, r->simulated_s),
            100 * r->directory_busy_share);
    print_real(f, "Links busy (%):", 100 * r->link_busy_share);
}

void report_print_sim(FILE *f, const struct sim_result *r)
{
    fputs("--------------------Simulation--------------------\n", f);
    fprintf(f, "%-40s %s, KV swap %s\n", "Scheduling:", r->policy, r->swap);
    if (r->n_instances > 1)
        fprintf(f, "%-40s %u, %s\n", "Instances, routing:", r->n_instances, r->routing);
    if (r->load > 0) {
        fprintf(f, "%-40s %.4g req/s\n", "Capacity (all at once, fcfs):", r->capacity_per_s);
        fprintf(f, "%-40s %.4g of it: --rate %.4g\n", "Load:", r->load, r->rate_per_s);
    }
    print_count(f, "Steps:", r->n_steps);
    print_real(f, "Mean batch (sequences):", share((double)r->n_items, (double)r->n_steps));
    print_real(f, "Busy (%):", 100 * share(seconds(r->busy_ns), r->simulated_s * r->n_instances));
    if (r->n_contests > 0)
        fprintf(f, "%-40s %" PRIu64 ", %" PRIu64 " changes\n",
                "Contests of policies:", r->n_contests, r->n_policy_changes);
    if (r->n_estimated > 0)
        fprintf(f, "%-40s %.1f (P90 %.1f), %.1f (P90 %.1f)\n",
                "Error of predicted TTFT and E2EL (%):", 100 * r->ttft_error[0],
                100 * r->ttft_error[1], 100 * r->e2e_error[0], 100 * r->e2e_error[1]);
    if (r->n_background > 0)
        fprintf(f, "%-40s %" PRIu64 " in %.2f s\n", "Documents in the background:", r->n_background,
                r->background_s);
    if (r->is_light)
        print_light(f, r);
    print_count(f, "Preempted for place:", r->n_preempted_for_place);
    print_count(f, "Preempted for memory:", r->n_preempted_for_memory);
    fprintf(f, "%-40s %" PRIu64 " ahead, %" PRIu64 " on demand\n",
            "KV blocks swapped out:", r->n_spilled_ahead, r->n_spilled_on_demand);
    fprintf(f, "%-40s %" PRIu64 " ahead, %" PRIu64 " on demand\n",
            "KV blocks swapped in:", r->n_fetched_ahead, r->n_fetched_on_demand);
    print_count(f, "Tokens computed again:", r->n_tokens_recomputed);
    print_real(f, "Computing waited for copies (s):", seconds(r->compute_waited_ns));
    print_real(f, "Simulated time (s):", r->simulated_s);
    fprintf(f, "%-40s %.2f, of this core %.2f\n", "Wall time (s):", r->wall_s, r->cpu_s);
    fprintf(f, "%-40s %.0f\n",
            "Requests per minute of the core:", share(60 * (double)r->n_simulated, r->cpu_s));
}
