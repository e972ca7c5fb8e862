/* scheduler_internal.h - declarations shared by the scheduler's files:
 *   scheduler.c             lifecycle, events, queries
 *   scheduler_plan.c        the plan: the first sequences of the order that fit
 *   scheduler_reorder.c     what is cached changes the order
 *   scheduler_policies.c    the order of service: places, levels, starvation
 *   scheduler_tenants.c     rounds between tenants
 *   scheduler_trajectory.c  sessions
 *   scheduler_probe.c       questions that change nothing
 *
 * Owns    nothing beyond scheduler.h.
 * Thread  as scheduler.h.
 * Errors  none.
 * Units   as scheduler.h. */
#ifndef TARN_ENGINE_SCHED_SCHEDULER_INTERNAL_H
#define TARN_ENGINE_SCHED_SCHEDULER_INTERNAL_H

#include "base/map.h"
#include "engine/sched/cost_model.h"
#include "engine/sched/lengths.h"
#include "engine/sched/order.h"
#include "engine/sched/scheduler.h"

#define NS_PER_S 1e9
#define NO_TRAJECTORY UINT32_MAX

enum entry_state { ENTRY_NONE, ENTRY_WAITING, ENTRY_RUNNING };

struct entry {
    enum entry_state state;
    enum sched_class class;
    uint32_t n_known, n_computed; /* after the last step that ended */
    uint32_t n_flying;            /* tokens in the step under way */
    uint32_t n_following;         /* tokens, 0 or 1, in a step that follows it and was taken, too */
    uint32_t n_out, n_out_left;   /* tokens generated, and that it may still generate */
    uint32_t n_accepted;          /* of those generated: right guesses */
    uint32_t n_cached;            /* ids of its prompt in the cache, at arrival */
    int32_t priority;
    uint32_t level;
    double charged_s;      /* time used of its level's quantum */
    double served_s;       /* time of all steps that it took part in */
    double prefill_s;      /* expected time of its prompt, at arrival */
    uint64_t round, rank;  /* place inside the level: first by the tenants' round, then by rank */
    uint64_t urgent_no;    /* order of service among starving ones */
    uint64_t arrival;      /* sequence number of the arrival */
    uint64_t last_run_ns;  /* time of arrival if it never ran */
    uint32_t older, newer; /* neighbours in the list by last_run_ns */
    uint32_t running_at;   /* index in s->running */
    uint32_t tenant;
    uint32_t trajectory;
    uint32_t n_had;        /* most tokens that it had computed at a preemption */
    uint32_t length_class; /* of lengths.h */
    uint32_t program;      /* class of its session's programs; without a session not used */
    double age_s;          /* that it begins with: of its session's program */
    uint32_t rank_step;    /* lengths_step() of the place, plus 1; 0: it has none yet */
    double place_age_s;    /* T of the place */
    double usual_log;      /* u of the place */
    double before_s;       /* prefill or restoring, as the place was computed */
    uint64_t origin_ns;    /* arrival, or that of the first request of its round */
    uint64_t place_us;     /* variant learned */
    double keep;           /* scheduler.keep as the place was computed; 0: it waited */
    /* Targets of latency; 0: none. first_ns: time of the first token. */
    double slo_ttft_s, slo_tpot_s;
    uint64_t came_ns, first_ns;
    uint64_t due_ns;  /* in s->due: the latest time to run for the next target */
    bool is_due;      /* goes before others of its priority until its next token */
    bool is_unserved; /* in s->unserved */
    bool is_ending;   /* in s->ending */
    bool is_elder;    /* goes before others of its priority until it ends */
    bool has_run;
    bool has_lost;    /* some of the n_had tokens must be recomputed, and no token came since: it
                         keeps ageing towards starvation although it runs */
    bool has_cleared; /* the last plan preempted others for this sequence. If it still does not fit,
                         nothing behind it is admitted */
    bool is_urgent;   /* starving: goes first until its next token */
    uint32_t n_shared_waits; /* plans that passed it over: computed_by_other() */
    uint32_t n_passed;       /* sequences that passed it (scheduler_reorder.c) */
    uint32_t n_seen;         /* tokens cached, as seen in the plan of that number */
    uint64_t seen_in_plan;
    bool is_listed; /* in the list by last_run_ns; a starving one is not, until it runs */
};

/* Rounds are counted separately for priorities below 0, at 0 and above 0. */
#define N_CLASSES 3

/* A tenant's share of one level, in one class of priority. */
struct tenant_level {
    uint64_t round; /* of its latest request */
    double credit;  /* left in that round; 1 is a whole quantum */
};

struct tenants {
    struct map index;        /* id -> place */
    uint64_t *ids;           /* [n_max] */
    uint32_t *refs;          /* [n_max] requests of the tenant */
    uint32_t *older, *newer; /* [n_max] list of tenants without a request, oldest departure first.
                                Their rounds are kept: a tenant that sends one request at a time
                                would otherwise be new in every round */
    uint32_t oldest, newest;
    uint32_t n, n_max;
    struct tenant_level *levels; /* [n_max + 1][SCHEDULER_N_LEVELS * N_CLASSES]; the last one is
                                    the stand-in of tenants_probe() */
};

/* The rounds of one class of priority, in the variant learned: tenants take turns by rounds, and
 * all requests of a round count as arrived with its first one. So the backlog of a busy tenant is
 * not older than the first request of another. */
struct rounds {
    uint64_t first, last; /* first: the earliest round with a request that never ran */
    uint64_t *origin_ns;  /* [n_rounds] arrival of the first request of round r % n_rounds */
    uint32_t *n_fresh;    /* [n_rounds] requests that never ran */
};

/* Moving means over pauses. */
struct pauses {
    double mean_s, spread_s; /* spread: of the distance from the mean */
    uint32_t n;
};

/* A session: a program of several requests, with pauses between them. */
struct trajectory {
    uint64_t session;
    uint32_t refs;  /* requests of the session */
    uint32_t level; /* of its last request, at its end */
    double charged_s;
    uint64_t first_ns, ended_ns; /* arrival of the first request, end of the last */
    uint32_t n_calls;
    uint64_t n_generated; /* tokens, all requests */
    double served_s;      /* sum of the steps that its requests took part in */
    struct pauses pauses;
    /* The program: its requests since the first, or since it was over. */
    uint64_t tenant;
    double attained;   /* tokens, those that its prefills took the time of included */
    double active_s;   /* time in which requests of it were here */
    uint64_t began_ns; /* of the present such time */
    bool is_over;      /* it has paused so long that it counts as ended, and its length is known */
    bool is_closed;    /* forgotten when its requests have ended */
    uint32_t older, newer; /* list of sessions without a request, by the end of the last; newer also
                              links unused places */
};

struct trajectories {
    struct map index;
    struct trajectory *v; /* [n_max + 1]; the last one is a stand-in, trajectories_probe() */
    uint32_t n_max, n;
    uint32_t oldest, newest;
    uint32_t first_open;  /* in the list: the first whose program is not over */
    uint32_t unused;      /* places of closed sessions */
    struct pauses pauses; /* of all sessions */
};

enum mlfq_variant { MLFQ_TARN, MLFQ_PAPER, MLFQ_RELEASED, MLFQ_LEARNED };

struct scheduler {
    struct scheduler_config config;
    enum mlfq_variant variant;
    const struct policy *policy;
    struct cost_model own_cost; /* used when the configuration has none */
    double decode_s;            /* expected time of a decode step of n_running_max sequences, at
                                   create */
    double quantum_s[SCHEDULER_N_LEVELS];
    double quanta_before_s[SCHEDULER_N_LEVELS]; /* sum of the quanta above a level */
    uint64_t starvation_ns;                     /* as configured; UINT64_MAX: never */
    double restore_s;                           /* moving mean of the cost of restoring a preempted
                                                   sequence */
    struct lengths *lengths;
    double spent_s;   /* moving mean of the time from the arrival to the end of a request */
    double usual_log; /* u: moving mean of the logarithm of the ranks of arrivals, plus 1 */
    uint64_t n_logs;
    double decode_tokens, decode_steps; /* faded sums over all sequences' decodes */
    double turn_s;                      /* moving mean of the time between two ends */
    double age_s; /* moving mean, over ends, of the mean age of the requests that are here */
    /* Seconds of restoring since the last end; their share of the time, a moving mean over ends;
     * and the advantage of running sequences, see learned_ended(). */
    double restored_s, restoring, keep;
    double came_sum_s; /* of the arrivals of the requests that are here */
    uint64_t n_ended, last_ended_ns;
    uint32_t n_started; /* waiting usual sequences that have run before */

    struct entry *entries; /* [n_slots] */
    struct order order;    /* of running and waiting usual slots */
    struct order others;   /* of running and waiting slots of the other classes */
    uint32_t *running;     /* [n_running] sorted by the last plan, usual ones first */
    uint32_t n_running;
    uint32_t n_running_of[SCHED_N_CLASSES], n_waiting_of[SCHED_N_CLASSES];
    uint32_t oldest, newest; /* ends of the list by last_run_ns */
    uint32_t n_in_level[SCHEDULER_N_LEVELS];
    uint64_t round[SCHEDULER_N_LEVELS * N_CLASSES]; /* latest round that was served */
    struct tenants tenants;
    struct order due; /* sequences with a target that can still be met, by due_ns */
    uint32_t n_due;   /* sequences with is_due */
    /* Variant learned: sequences without a first token, by priority, round and arrival; the one of
     * them that goes first for its age; and the earliest time of the next such one. */
    struct order unserved;
    uint32_t elder;
    uint64_t next_elder_ns;
    struct order ending; /* begun ones that are expected to end soon, in the same order */
    uint32_t n_elders;   /* sequences with is_elder */
    double step_s;       /* expected time of the last planned step */
    struct rounds rounds[N_CLASSES];
    uint32_t n_rounds; /* kept at a time */
    struct trajectories trajectories;
    uint64_t n_arrived, n_ranked, n_urgent_ever, n_plans, version;
    uint64_t n_preempted_for_place, n_preempted_for_memory, n_starving, n_demoted, n_reordered;
    uint32_t match_at; /* slot, of reorder_by_match() */

    struct plan_item *items;  /* [n_running_max] decodes, then chunks */
    struct plan_item *chunks; /* [n_running_max] */
    uint32_t *preempt;        /* [n_running_max] */
    bool *is_victim;          /* [n_running_max] like running; valid while a plan is made */
};

struct policy {
    const char *name;
    bool has_levels;
    bool by_size;          /* the place depends on the expected time of the prefill */
    bool overtakes_equals; /* an equal that arrived later may run first, so a sequence can starve
                              behind equals */
    /* Set the level of a new sequence. */
    void (*join)(struct scheduler *s, uint32_t slot);
    /* An iteration ended with a new token: demote the sequence if its quantum is used up. */
    void (*ran)(struct scheduler *s, uint32_t slot);
    /* The key within one priority and level: all of it but `high`. */
    struct order_key (*place)(const struct scheduler *s, uint32_t slot);
    /* Expected seconds until all sequences before it have had their turn. */
    double (*ahead_s)(const struct scheduler *s, uint32_t slot);
};

/* --- scheduler.c --- */

/* Known ids, computed ones and those left to run (at least 1), as if the step under way had
 * ended. */
uint32_t entry_known(const struct entry *e);
uint32_t entry_computed(const struct entry *e);
uint32_t entry_left(const struct entry *e);
/* Whether a runs before b: by class, then by place. */
bool entry_precedes(const struct scheduler *s, uint32_t a, uint32_t b);
/* The next waiting sequence of an order; slot ORDER_NONE: the first. ORDER_NONE: no more. */
uint32_t entry_next_waiting(const struct scheduler *s, const struct order *order, uint32_t slot);
/* Take a running sequence out of the array. */
void entry_stops(struct scheduler *s, uint32_t slot);
/* Update a usual sequence's place in the order to what the policy answers now. */
void entry_placed(struct scheduler *s, uint32_t slot);
/* Move the sequence to a level: behind all others there, or in front of them. */
void entry_to_level(struct scheduler *s, uint32_t slot, uint32_t level, bool to_front);
/* Record how many tokens an admitted sequence has in the cache. */
void entry_found(struct entry *e, uint32_t n_computed);
/* Make the sequence the youngest of the list by last_run_ns: it ran, or arrived. */
void age_list_append(struct scheduler *s, uint32_t slot, uint64_t now_ns);
void age_list_take(struct scheduler *s, uint32_t slot);

double prefill_seconds(const struct scheduler *s, uint32_t n_cached, uint32_t n_new);
double decode_seconds(const struct scheduler *s, uint32_t n_cached, uint32_t n_seqs);
/* Tokens that a decode of the sequence yields in a step: more than 1 with guesses that are right.
 * The mean over all sequences, as long as few of its own are known. */
double entry_yield(const struct scheduler *s, const struct entry *e);
/* Expected time of the next iteration: the rest of the prefill, or one decode step. */
double next_iteration_seconds(const struct scheduler *s, const struct entry *e);
/* Whether a step in which n_finishing sequences of n_all get their first token ends before a chunk
 * of n tokens behind n_before. */
bool step_ends_before(const struct scheduler *s, const struct cost_step *step, uint32_t n_before,
                      uint32_t n, uint32_t n_finishing, uint32_t n_all);

/* Fill the entry of a new sequence, which is in no order yet. */
void entry_begin(struct scheduler *s, uint32_t slot, const struct sched_request *r,
                 uint64_t now_ns);
/* Give a usual sequence its level and its place in the order. goes_on: at the level of its
 * session's last request, if that is lower. */
void entry_join(struct scheduler *s, uint32_t slot, bool goes_on);
enum length_kind entry_kind(const struct scheduler *s, uint32_t trajectory);

/* --- scheduler_probe.c --- */

/* State of the scheduler before a probe, which scheduler_unprobe() restores. */
struct sched_probe {
    uint64_t version, n_arrived, n_ranked, n_logs;
    uint64_t first_round, last_round;
    double usual_log;
};
/* Place a usual request in the order as if it were submitted now. scheduler_unprobe() follows
 * before any other event, and leaves the scheduler as it was. */
void scheduler_probe(struct scheduler *s, uint32_t slot, const struct sched_request *r,
                     uint64_t now_ns, struct sched_probe *probe);
void scheduler_unprobe(struct scheduler *s, uint32_t slot, const struct sched_probe *probe);

/* --- scheduler_policies.c --- */

const struct policy *policy_find(const char *name, enum mlfq_variant variant);
bool variant_find(const char *name, enum mlfq_variant *out);
const char *variant_name(enum mlfq_variant variant);
void policy_init_levels(struct scheduler *s);
/* The current starvation threshold. */
uint64_t starvation_now_ns(const struct scheduler *s);
/* Move up all sequences that have not run for the threshold. */
void promote_starving(struct scheduler *s, uint64_t now_ns);

/* --- scheduler_reorder.c --- */

/* A place is about to be given to `first`, which waits: the sequence that should have it instead,
 * which then stands at the place of `first`; or `first`. */
uint32_t reorder_first(struct scheduler *s, const struct sched_view *view, uint32_t first);
/* Before a plan: let the places of waiting sequences follow what is cached. */
void reorder_by_match(struct scheduler *s, const struct sched_view *view);

/* --- scheduler_learned.c --- */

enum status learned_init(struct scheduler *s);
void learned_fini(struct scheduler *s);
/* A request arrives: give it its round, origin and place. */
void learned_join(struct scheduler *s, uint32_t slot);
/* A sequence runs for the first time, or leaves without having run. */
void learned_started(struct scheduler *s, const struct entry *e);
/* Undo learned_join() of a sequence that was asked about; first, last: of the rounds before. */
void learned_unjoin(struct scheduler *s, const struct entry *e, uint64_t first, uint64_t last);
struct rounds *learned_rounds(struct scheduler *s, int32_t priority);
/* The variant comes into force: forget all rounds, then place each sequence anew. */
void learned_forget_rounds(struct scheduler *s);
void learned_rejoin(struct scheduler *s, uint32_t slot);
/* T, the time constant of ageing. */
double learned_age_s(const struct scheduler *s);
/* Compute the place of a sequence again, if it has progressed. */
void learned_rank(struct scheduler *s, uint32_t slot);
struct order_key learned_place(const struct scheduler *s, uint32_t slot);
/* A token came at now_ns, or the sequence has arrived: compute when it is due next. */
void learned_set_due(struct scheduler *s, uint32_t slot, uint64_t now_ns);
/* The sequence leaves. */
void learned_forget_due(struct scheduler *s, uint32_t slot);
/* Sequences whose time has come go before others. */
void learned_promote_due(struct scheduler *s, uint64_t now_ns);
/* A request has finished, and the scheduler learns from it. */
/* Programs: the requests of a session. Enter with a request, and leave before its trajectory. */
void learned_enter_program(struct scheduler *s, struct entry *e, uint64_t now_ns);
/* As learned_enter_program() for a request that is only asked about. */
void learned_probe_program(const struct scheduler *s, struct entry *e, uint64_t now_ns);
void learned_leave_program(struct scheduler *s, const struct entry *e);
void learned_end_program(struct scheduler *s, const struct trajectory *x);
void learned_ended(struct scheduler *s, uint32_t slot, uint64_t now_ns);
double learned_ahead(const struct scheduler *s, uint32_t slot);

/* --- scheduler_tenants.c --- */

enum status tenants_init(struct tenants *t, uint32_t n_max);
void tenants_fini(struct tenants *t);
uint32_t tenants_enter(struct tenants *t, uint64_t id);
void tenants_leave(struct tenants *t, uint32_t tenant);
/* A stand-in with the rounds of the tenant, valid until the next call. No tenant is entered. */
uint32_t tenants_probe(struct tenants *t, uint64_t id);
/* Index of a level and a class of priority in the arrays of rounds. */
uint32_t round_index(uint32_t level, int32_t priority);
/* The round of one more request of the tenant, while round `now_served` is being served. */
uint64_t tenants_round(struct tenants *t, uint32_t tenant, uint32_t index, uint64_t now_served);
/* Return the unused share of a request's quantum to the tenant. */
void tenants_refund(struct tenants *t, uint32_t tenant, uint32_t index, double unused);
/* Begin the rounds of all tenants anew, without credit: the levels have changed. */
void tenants_forget_rounds(struct tenants *t);

/* --- scheduler_trajectory.c --- */

enum status trajectories_init(struct trajectories *t, uint32_t n_max);
void trajectories_fini(struct trajectories *t);
/* Begin a request of the session. *goes_on: it arrived within max_pause_ns of the end of the
 * previous one, or while another is running. Returns NO_TRAJECTORY without a session, or when the
 * table is full of sessions with requests. */
uint32_t trajectories_enter(struct trajectories *t, uint64_t session, uint64_t tenant,
                            uint64_t now_ns, uint64_t max_pause_ns, bool *goes_on);
void trajectories_leave(struct trajectories *t, uint32_t i, uint32_t level, double charged_s,
                        uint64_t now_ns);
/* As trajectories_enter(), but into a stand-in that is valid until the next call. */
uint32_t trajectories_probe(struct trajectories *t, uint64_t session, uint64_t tenant,
                            uint64_t now_ns, uint64_t max_pause_ns, bool *goes_on);
/* A request of the session has ended that attained so many tokens. */
void trajectories_attain(struct trajectories *t, uint32_t i, double n_tokens);
/* A session whose program is over since it has paused too long; each is answered once. NULL: there
 * is no other. */
const struct trajectory *trajectories_next_over(struct trajectories *t, uint64_t now_ns);
/* A request of the session took part in a step, and got n_new tokens. */
void trajectories_charge(struct trajectories *t, uint32_t i, double step_s, uint32_t n_new);
/* Forget the session, when its requests have ended. False: there is no such session. */
bool trajectories_close(struct trajectories *t, uint64_t session);
/* NULL: there is no such session. */
const struct trajectory *trajectories_find(const struct trajectories *t, uint64_t session);
/* The expected pause; x NULL: of a session without pauses of its own. */
struct sched_pause trajectories_pause(const struct trajectories *t, const struct trajectory *x);

#endif
