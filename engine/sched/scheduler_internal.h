/* scheduler_internal.h - what the scheduler's files share:
 *   scheduler.c             lifecycle, events, looking
 *   scheduler_plan.c        the plan: the first of the order that fit
 *   scheduler_policies.c    who stands where in the order, and when that changes
 *   scheduler_tenants.c     rounds between tenants
 *   scheduler_trajectory.c  sessions
 *
 * Owns    nothing beyond scheduler.h.
 * Thread  as scheduler.h.
 * Errors  none.
 * Units   as scheduler.h. */
#ifndef TARN_ENGINE_SCHED_SCHEDULER_INTERNAL_H
#define TARN_ENGINE_SCHED_SCHEDULER_INTERNAL_H

#include "base/map.h"
#include "engine/sched/cost_model.h"
#include "engine/sched/order.h"
#include "engine/sched/scheduler.h"

#define NS_PER_S 1e9
#define NO_TRAJECTORY UINT32_MAX

enum entry_state { ENTRY_NONE, ENTRY_WAITING, ENTRY_RUNNING };

struct entry {
    enum entry_state state;
    uint32_t n_known, n_computed; /* by the steps that have ended */
    uint32_t n_flying;            /* tokens in the step under way */
    uint32_t n_out_left;          /* it may still generate */
    int32_t priority;
    uint32_t level;
    double charged_s;      /* of its level's quantum */
    double prefill_s;      /* of its prompt, as expected when it came */
    uint64_t round, rank;  /* inside the level: of the tenants, then in order */
    uint64_t urgent_no;    /* among those moved up */
    uint64_t arrival;      /* number */
    uint64_t last_run_ns;  /* or when it came */
    uint32_t older, newer; /* by last_run_ns; those moved up are in no list */
    uint32_t running_at;   /* place in s->running */
    uint32_t tenant;
    uint32_t trajectory;
    uint32_t n_had; /* computed when it was preempted */
    bool has_run;
    bool has_lost;    /* some of that is to be computed again, and no token came since:
                         its time to starve goes on although it runs */
    bool has_cleared; /* others lost their place for it, and it has not run since:
                         should it not fit all the same, nobody goes past it */
    bool is_urgent;   /* moved up until its next token */
    bool is_listed;   /* by last_run_ns */
};

/* Classes of priority whose rounds are counted apart: below 0, 0, above. */
#define N_CLASSES 3

/* What a tenant has had of a level, in one class. */
struct tenant_level {
    uint64_t round; /* its latest request stands in */
    double credit;  /* left in that round; 1 is a whole quantum */
};

struct tenants {
    struct map index;        /* id -> place */
    uint64_t *ids;           /* [n_max] */
    uint32_t *refs;          /* [n_max] requests inside */
    uint32_t *older, *newer; /* [n_max] of those without a request, by when they left: their
                                rounds are remembered, or who sends one request at a time
                                would be new in every round */
    uint32_t oldest, newest;
    uint32_t n, n_max;
    struct tenant_level *levels; /* [n_max][SCHEDULER_N_LEVELS * N_CLASSES] */
};

struct trajectory {
    uint64_t session; /* 0: free */
    uint32_t refs;    /* requests inside */
    uint32_t level;   /* where its last request ended */
    double charged_s;
    uint64_t ended_ns;
    double pause_s;        /* moving mean; 0: not known */
    uint32_t older, newer; /* of those without a request inside, by their ends */
};

struct trajectories {
    struct map index;
    struct trajectory *v; /* [n_max] */
    uint32_t n_max, n;
    uint32_t oldest, newest;
};

enum mlfq_variant { MLFQ_TARN, MLFQ_PAPER, MLFQ_RELEASED };

struct scheduler {
    struct scheduler_config config;
    enum mlfq_variant variant;
    const struct policy *policy;
    struct cost_model own_cost; /* where the configuration has none */
    double decode_s;            /* a step of n_running_max, as expected at create */
    double quantum_s[SCHEDULER_N_LEVELS];
    double quanta_before_s[SCHEDULER_N_LEVELS]; /* the sum of all above a level */
    uint64_t starvation_ns;                     /* as configured; UINT64_MAX: never */
    double restore_s;                           /* moving mean of what it costs to bring one back */
    uint32_t n_started;                         /* waiting ones that have run */

    struct entry *entries; /* [n_slots] */
    struct order order;    /* all of them */
    uint32_t *running;     /* [n_running] in the order as of the last plan */
    uint32_t n_running, n_waiting;
    uint32_t oldest, newest; /* by last_run_ns */
    uint32_t n_in_level[SCHEDULER_N_LEVELS];
    uint64_t round[SCHEDULER_N_LEVELS * N_CLASSES]; /* the latest that was served */
    struct tenants tenants;
    struct trajectories trajectories;
    uint64_t n_arrived, n_ranked, n_urgent_ever, n_plans, version;
    uint64_t n_preempted_for_place, n_preempted_for_memory, n_starving, n_demoted;

    struct plan_item *items;  /* [n_running_max] decodes, then chunks */
    struct plan_item *chunks; /* [n_running_max] */
    uint32_t *preempt;        /* [n_running_max] */
    bool *is_victim;          /* [n_running_max] of s->running, while a plan is made */
};

struct policy {
    const char *name;
    bool has_levels;
    bool overtakes_equals; /* so that who waits for equals may starve as well */
    /* It is new: level and rank. */
    void (*join)(struct scheduler *s, uint32_t slot);
    /* It had a whole iteration: a token came. */
    void (*ran)(struct scheduler *s, uint32_t slot);
    /* Place among its equals of priority and level: the key but for `high`. */
    struct order_key (*place)(const struct scheduler *s, uint32_t slot);
    /* Seconds in which those before it are expected to have had their turn. */
    double (*ahead_s)(const struct scheduler *s, uint32_t slot);
};

/* --- scheduler.c --- */

/* As if the step under way had ended: ids known, computed, and left to run (at least 1). */
uint32_t entry_known(const struct entry *e);
uint32_t entry_computed(const struct entry *e);
uint32_t entry_left(const struct entry *e);
/* Its place in the order follows what the policy says now. */
void entry_placed(struct scheduler *s, uint32_t slot);
/* To another level, behind those who are there (or before them). */
void entry_to_level(struct scheduler *s, uint32_t slot, uint32_t level, bool to_front);
/* It is admitted with so many computed tokens. */
void entry_found(struct entry *e, uint32_t n_computed);
/* It ran, or came: it stands last in the list of those who may starve. */
void age_list_append(struct scheduler *s, uint32_t slot, uint64_t now_ns);
void age_list_take(struct scheduler *s, uint32_t slot);

double prefill_seconds(const struct scheduler *s, uint32_t n_cached, uint32_t n_new);
double decode_seconds(const struct scheduler *s, uint32_t n_cached, uint32_t n_seqs);
/* What the next iteration takes: the rest of the prefill, or a decode step. */
double next_iteration_seconds(const struct scheduler *s, const struct entry *e);

/* --- scheduler_policies.c --- */

const struct policy *policy_find(const char *name);
bool variant_find(const char *name, enum mlfq_variant *out);
void policy_init_levels(struct scheduler *s);
/* The threshold as it is now. */
uint64_t starvation_now_ns(const struct scheduler *s);
/* Move up who has not run for too long. */
void promote_starving(struct scheduler *s, uint64_t now_ns);

/* --- scheduler_tenants.c --- */

enum status tenants_init(struct tenants *t, uint32_t n_max);
void tenants_fini(struct tenants *t);
uint32_t tenants_enter(struct tenants *t, uint64_t id);
void tenants_leave(struct tenants *t, uint32_t tenant);
/* Of a level and class, for the arrays of rounds. */
uint32_t round_index(uint32_t level, int32_t priority);
/* The round in which one more request of the tenant stands there, `now_served` being its round. */
uint64_t tenants_round(struct tenants *t, uint32_t tenant, uint32_t index, uint64_t now_served);
/* It used only that share of the quantum that it was counted for. */
void tenants_refund(struct tenants *t, uint32_t tenant, uint32_t index, double unused);

/* --- scheduler_trajectory.c --- */

enum status trajectories_init(struct trajectories *t, uint32_t n_max);
void trajectories_fini(struct trajectories *t);
/* A request of the session comes. *goes_on: within max_pause_ns of the end of the one before, or
 * beside it. NO_TRAJECTORY: no session. */
uint32_t trajectories_enter(struct trajectories *t, uint64_t session, uint64_t now_ns,
                            uint64_t max_pause_ns, bool *goes_on);
void trajectories_leave(struct trajectories *t, uint32_t i, uint32_t level, double charged_s,
                        uint64_t now_ns);
double trajectories_pause_s(const struct trajectories *t, uint64_t session);

#endif
