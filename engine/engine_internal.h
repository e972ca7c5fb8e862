/* engine_internal.h - the engine's state, shared by engine.c (lifecycle) and step.c (the loop).
 *
 * Owns    as engine.h.
 * Thread  fields are grouped by who may touch them.
 * Errors  as engine.h.
 * Units   as engine.h. */
#ifndef TARN_ENGINE_ENGINE_INTERNAL_H
#define TARN_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "base/ring.h"
#include "engine/adapters.h"
#include "engine/run/attend.h"
#include "engine/run/batch.h"
#include "engine/run/cost_profile.h"
#include "engine/run/device_sampler.h"
#include "engine/draft_model.h"
#include "engine/engine.h"
#include "engine/run/forward.h"
#include "engine/run/ranks.h"
#include "engine/lineup.h"
#include "engine/model/model.h"
#include "engine/run/sampler.h"
#include "engine/sched/contest.h"
#include "engine/sched/proposing.h"
#include "engine/stopping.h"
#include "engine/model/weights.h"

/* A question of another thread to the engine thread (engine_ask.c). */
struct question {
    const struct estimate_query *query; /* to be predicted; NULL: nothing */
    struct engine_estimate *estimate;
    struct engine_cache_view *view; /* to be filled; NULL: not wanted */
    const struct kv_key *keys;      /* [n_keys] of spans to be looked up, into spans [n_keys] */
    uint32_t n_keys;
    struct cache_span *spans;
    const struct kv_key *erase; /* to be erased first; NULL: nothing */
    uint32_t n_erased;
    const struct kv_key *release; /* holds to be released; NULL: nothing */
    uint32_t n_released;
    uint64_t session; /* to be looked at, into *seen; 0: none */
    bool closes;      /* the session is closed then */
    struct engine_session *seen;
    struct adapter *adapter; /* to be brought to the device; NULL: nothing */
    enum status placed;      /* the result */
};

/* The owner of the contest: the contest thread while it runs, else the engine thread. */
enum contest_state { CONTEST_NONE, CONTEST_RUNS, CONTEST_ENDED };

/* --- pick.c --- */

/* A row of logits: the next token of the slot's sequence, or the logprob of the prompt token behind
 * position pos. */
#define PICK_NEXT UINT32_MAX
#define PICK_NONE UINT32_MAX
struct pick_row {
    uint32_t slot;  /* PICK_NONE: the row's step failed, and it gets no token */
    uint32_t pos;   /* PICK_NEXT: the next token */
    uint32_t ahead; /* with PICK_NEXT: tokens before it that are not known yet */
    bool waits;     /* by pick_begin() or pick_now(): the mask is not there, and the row gets no
                       token */
};

struct pick_job {
    struct engine *e;
    float *logits;
    struct pick_row *rows;    /* [n] */
    struct out_token *tokens; /* [n] */
    uint32_t turn;            /* of the device_sampler */
};

/* A step that was launched: what is left of it when the next one is laid out. */
struct step_job {
    struct pick_job pick; /* rows and tokens [n_logits_max] are owned */
    uint32_t n_rows;
    uint32_t n_items;  /* at the launch */
    uint64_t began_ns; /* its time is counted from here */
};

struct engine {
    /* Set by engine_open(), constant after. */
    struct engine_config config;
    struct engine_info info;
    struct model_config model;
    struct weights_config weights_config;
    struct weights weights;    /* of rank 0 */
    struct device *device;     /* of rank 0 */
    struct device_group group; /* all devices; one, but with tensor_parallel_size */
    struct model_config share; /* each rank's share of the model; one rank: the model */
    struct weights
        *rank_weights; /* [group.n] of further ranks, the first is not used; NULL: none */
    struct tokenizer *tokenizer;
    struct chat_template *chat_template;
    struct adapters *adapters; /* NULL: none; locks itself */
    char *model_dir;
    uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    uint32_t n_slots;
    uint64_t gpu_bytes_free_at_open[DEVICE_GROUP_MAX]; /* of each rank; 0: no GPU */
    struct step_graphs_cost graph_cost;                /* all 0: no step is recorded */
    uint64_t graph_bytes; /* reserved for recorded steps, but for those of a draft model */

    /* Any thread. */
    struct ring submitted;                 /* struct request *, one reference each */
    atomic_uint n_inside[SCHED_N_CLASSES]; /* submitted and not finished */
    atomic_uint n_prefilling;              /* of those, without a first token; no background ones */
    atomic_uint n_prefills_max;            /* so many of these saturate the engine */
    atomic_uint n_rejected;
    atomic_bool draining;
    atomic_bool stopping;
    atomic_bool failed;               /* engine_failed() */
    atomic_bool reset_wanted;         /* engine_reset_cache() */
    atomic_uint sleep_wanted;         /* of enum engine_part: engine_sleep() */
    atomic_uint asleep;               /* the same, as the engine thread has brought about */
    _Atomic uint64_t sleep_before_ns; /* usual requests submitted until then end first; 0: none */
    atomic_bool forget_wanted;        /* KV on disk, too, is to be forgotten */
    atomic_bool sleeps_deep;          /* that was wanted for the sleep that goes on */
    atomic_bool sleep_is_auto;        /* a request ends it: sleep_idle_s */
    atomic_bool is_asked;             /* a question was stored (engine_ask.c) */
    atomic_bool leave_wanted;         /* engine_leave_pool() */
    atomic_bool has_left;             /* engine_has_left_pool() */
    _Atomic uint64_t usual_ttft_us;

    /* Under stats_lock. */
    pthread_mutex_t stats_lock;
    struct engine_stats shared;
    struct question *question; /* NULL: no thread waits for an answer */
    pthread_cond_t answered;   /* on CLOCK_MONOTONIC */
    struct sleep_watcher {
        void (*changed)(void *arg); /* NULL: none */
        void *arg;
    } sleep_watchers[ENGINE_SLEEP_WATCHERS_MAX];
    enum status wake_error;
    char wake_why[BUF_WHY_MAX];

    pthread_mutex_t ask_lock; /* held by the thread that asks: one question at a time */

    /* Engine thread and contest thread. */
    struct contest *contest;
    _Atomic(enum contest_state) contest_state;
    sem_t contest_wake;

    /* Engine thread. */
    pthread_t contest_thread;
    bool contest_thread_runs;
    pthread_t thread;
    bool thread_runs;
    struct cache *cache;
    struct forward *forward;
    struct ranks *ranks;   /* the further ranks' forward passes; NULL: none */
    struct attend *attend; /* NULL: no queries, neither to other instances nor from them */
    struct lineup lineup;
    struct batch batch;
    uint32_t *free_slots; /* stack */
    uint32_t n_free_slots;
    uint32_t *live_slots;                  /* [n_slots - n_free_slots] in no order */
    void **intake;                         /* [n_slots] */
    struct device_sampler *device_sampler; /* NULL: tokens are picked on the host */
    uint32_t n_logits_max;                 /* rows of logits at once */
    struct form_worker *form_worker;
    uint32_t mask_slice;                  /* work for a row's mask in this step */
    struct sampler_candidate *candidates; /* [n_logits_max, V]; NULL with a device_sampler */
    float *raw_logits;                    /* the same */
    uint32_t n_adapted;                   /* sequences with an adapter */
    uint32_t n_guesses_max;               /* of a sequence in a step; 0: no speculation */
    struct acceptance accept;             /* of the guesses of all sequences */
    struct draft_rows draft_rows;
    struct draft_step draft_step; /* under way */
    struct step_job jobs[DEVICE_SAMPLER_TURNS];
    uint32_t turn;           /* of the job that is under way, or was last */
    bool is_async;           /* steps may be launched before the one before has ended: async.c */
    bool has_next;           /* the other job was launched, too, */
    enum status next_status; /* with this result */
    struct draft_model *draft_model; /* NULL: none */
    struct draft_seq *draft_seqs;    /* [max_num_seqs] with a draft model */
    struct proposing proposing;
    struct engine_stats live;
    struct cost_model cost;
    struct cost_profile_result profile;
    struct cost_model_subject cost_subject; /* of the file that the model is kept in */
    uint64_t n_prefills_learned;
    struct estimator *estimator;
    double mean_prompt_tokens;   /* moving mean of finished requests */
    double mean_computed_tokens; /* the same of prompt tokens that were not cached */
    uint64_t usual_ns;           /* time of usual_ttft_us */
    uint64_t computed_ns;        /* time of the previous step's tokens; 0: no step right before */
    uint64_t idle_since_ns;      /* without requests; 0: not idle */
    bool falls_asleep;           /* a part is on its way to sleep: poll soon */
    bool is_resting;             /* all sequences wait without KV, until the KV pool wakes */
    uint8_t content_hash[32];    /* of the weights of all ranks, as they were at the start */
};

/* The words of requests that a dead device ended or refused. */
#define DEVICE_FAILED_WORDS "the device failed; this server is ending, try another one"

/* The words of a request that was predicted to miss its target (engine_config.slo_reject). */
#define SLO_REJECTED_WORDS                                                                         \
    "the first token is predicted later than the target (slo_ttft_ms): try again later, or "       \
    "elsewhere"

const uint8_t *engine_fingerprint(const struct engine *e); /* [KV_FINGERPRINT_BYTES] */
uint32_t engine_segment_tokens(const struct engine *e);

/* --- engine_intake.c --- */

uint32_t engine_n_slots(const struct engine *e);
/* Count a request in before it is submitted; as engine_submit(). */
NODISCARD enum status engine_enter(struct engine *e, enum sched_class class, struct buf *why);
/* The request's prompt was computed. */
void engine_prefilled(struct engine *e, const struct request *r);
/* The request has ended, or could not be submitted. */
void engine_leave(struct engine *e, const struct request *r);
/* Learn from a finished request how many tokens of a prompt are usually computed. */
void engine_note_computed(struct engine *e, const struct request *r);
void engine_publish_room(struct engine *e);

/* --- engine_memory.c --- */

/* Free and total memory of a GPU; n_total may be NULL. */
NODISCARD enum status engine_gpu_memory(struct device *d, uint64_t *n_free, uint64_t *n_total,
                                        struct buf *why);
/* Measure what recorded steps cost, and reserve memory for them. */
void engine_reserve_graphs(struct engine *e);
/* Rows of logits in a step. A single sequence can verify all of its guesses. */
uint32_t engine_logits_rows(const struct engine *e);
struct forward_config engine_forward_shape(struct engine *e, uint32_t max_model_len);
struct device_sampler_config engine_sampler_shape(struct engine *e, uint32_t max_model_len);
/* Choose the KV pool's type and number of blocks, and the longest context that it holds. */
NODISCARD enum status engine_size_pool(struct engine *e, struct kv_pool *pool, struct buf *why);

/* --- engine_group.c --- */

/* Refuse what several GPUs cannot do. */
NODISCARD enum status engine_check_group(const struct engine_config *c, struct buf *why);
/* Open the devices of further ranks, which are like the first, and connect all. Sets e->group,
 * e->share and the ranks of e->weights_config. */
NODISCARD enum status engine_open_group(struct engine *e, const struct device_config *d,
                                        struct buf *why);
void engine_close_group(struct engine *e);
/* Load the weights of all ranks. hash [32]: of the content of all. */
NODISCARD enum status engine_load_weights(struct engine *e, uint8_t *hash, struct buf *why);
void engine_free_weights(struct engine *e);

/* --- engine_cost.c --- */

/* Measure T(cached, new, batch), or load the file of an earlier start. Where neither succeeds, the
 * server uses an estimate that the first prefills scale. */
void engine_obtain_cost(struct engine *e, const struct kv_pool *pool);
/* Read the lengths of answers that an earlier run learned. */
void engine_load_lengths(struct engine *e);
/* Write the corrected cost model and the lengths of answers to files, for the next start. */
void engine_keep_learned(struct engine *e);
/* Measure the seconds of copying a token's KV between host and device memory; 0: not measurable. */
double engine_measure_copy(struct engine *e);

/* --- engine_estimate.c --- */

enum status engine_create_estimator(struct engine *e);
/* Predict a sequence that was just submitted, and publish it in its request. False: the request is
 * to be refused, because it would miss its target. */
bool engine_predict(struct engine *e, uint32_t slot, uint64_t now_ns);
/* Learn from the first token and the end of a predicted sequence. */
void engine_note_first_token(struct engine *e, const struct sequence *q);
void engine_note_end(struct engine *e, const struct request *r, const struct estimate *estimate);
void engine_answer_estimate(struct engine *e, const struct estimate_query *q,
                            struct engine_estimate *out);
/* Publish the prediction of a usual request, at most every 0.1 s. */
void engine_publish_estimate(struct engine *e, uint64_t now_ns);

/* --- engine_contest.c --- */

/* The policy at the start: the configured one, or the default for "auto". */
const char *engine_first_policy(const struct engine *e);
/* Create the lineup, and the contest over its policies. */
NODISCARD enum status engine_open_lineup(struct engine *e, const struct lineup_config *l,
                                         struct buf *why);
void engine_close_lineup(struct engine *e); /* fine where nothing was created */
/* Start and join the contest thread, on the engine thread. Without a thread there are no contests.
 * `stopping` is set before the join. */
void engine_start_contests(struct engine *e);
void engine_stop_contests(struct engine *e);
/* Note for the next contest that a request has arrived, or has left. */
void engine_note_arrival(struct engine *e, uint32_t slot, const struct sched_request *asked);
void engine_note_leaving(struct engine *e, uint32_t slot);
/* Between two steps: begin a contest that is due; after one, follow its verdict. */
void engine_advance_contest(struct engine *e);
/* Whether engine_advance_contest() would do something. */
bool engine_contest_is_due(const struct engine *e);

/* --- engine_ask.c --- */

/* Answer a pending question, on the engine thread, between two steps. True: the answer may have
 * begun writes to disk. */
bool engine_answer(struct engine *e);
/* Bring an adapter to the device, which is not a host's. Waits for the engine thread. */
NODISCARD enum status engine_place_adapter(struct engine *e, struct adapter *a);

/* --- engine_adapters.c --- */

NODISCARD enum status engine_create_adapters(struct engine *e, struct buf *why);
/* Put the planned sequences of each adapter beside each other. */
void engine_sort_adapted(struct engine *e);
/* Publish how many sequences of each adapter run and wait. */
void engine_count_adapted(struct engine *e);

/* --- draft.c --- */

/* Guesses that a sequence may verify in a step; 0: speculation is off. */
uint32_t draft_tokens_max(const struct engine *e);
/* Have the sequences of the planned step that decode verify guesses: sets their n_guessed. */
void draft_choose(struct engine *e);
/* Whether a token's pick depends on the tokens before it. */
bool draft_is_stepwise(const struct sequence *q);
/* Token n_out of the sequence is known: learn from it, and guess anew. */
void draft_learn(struct engine *e, struct sequence *q, uint32_t n_out);
/* The step took so long without the draft model's passes: learn what its guesses cost. Whether the
 * cost model can learn nothing from the step, because it knows no steps with guesses. */
bool draft_learn_step(struct engine *e, double seconds);
/* Count the guesses of a step. */
void draft_note_run(struct engine *e, struct sequence *q, uint32_t n_guessed);
/* The guess at place `at` was right or wrong, and those before it were right. */
void draft_verified(struct engine *e, struct sequence *q, uint32_t at, bool is_right);

/* --- async.c --- */

/* Whether the engine may launch a step before the one before has ended. */
bool async_is_possible(const struct engine *e);
/* While the step of jobs[turn] runs, and after lineup_ahead(): launch the next one too, if it may
 * follow. Sets has_next. */
void async_launch(struct engine *e);
/* The step before has ended: make the one that follows it the step under way, jobs[turn]. Returns
 * the result of its launch. */
enum status async_resume(struct engine *e);
/* The sequence ends, or its step failed: it gets nothing from the step that follows. */
void async_forget(struct engine *e, uint32_t slot);
/* Wait for the step that follows, and drop it. */
void async_drop(struct engine *e);

/* --- engine_draft.c --- */

/* Read what the device has to be fit for, and raise *d to it. No effect without a draft model. */
NODISCARD enum status engine_read_draft(struct engine *e, struct device_config *d, struct buf *why);
/* Load the draft model. */
NODISCARD enum status engine_open_draft(struct engine *e, struct buf *why);
void engine_close_draft(struct engine *e);

/* --- pick.c; struct pick_job is above --- */

/* Pick one token per row of logits, on the device that has the logits. A GPU launches the work in
 * pick_begin(), and pick_finish() waits for it; a host picks in pick_begin(). */
enum status pick_begin(const struct pick_job *job, uint32_t n);
enum status pick_finish(const struct pick_job *job);
/* Pick the token of row i alone, now. */
enum status pick_now(const struct pick_job *job, uint32_t i);
/* Whether some tokens of the prompt still need a logprob. */
bool prompt_is_to_score(const struct sequence *q);
/* Compute the logprobs of the prompt tokens of this step, for the requests that want them.
 * Overwrites the logits, so the next tokens must be picked already. *scored: whether there were
 * any. */
enum status score_prompts(struct engine *e, bool *scored);

/* --- engine_sleep.c --- */

/* Between two steps: let parts fall asleep, or wake them. Returns whether no step may run. */
bool engine_advance_sleep(struct engine *e, uint64_t now_ns);

/* --- step.c --- */

/* Enqueue a laid out step: the model, and picking the tokens of its first n_out rows. */
enum status step_launch(struct engine *e, struct step_job *job, uint32_t n_out);
/* The engine thread's main function, arg = struct engine *. */
void *engine_loop(void *arg);
/* End all requests, with these words (constant). */
void engine_end_all(struct engine *e, enum status error, const char *words);
/* Publish a snapshot of the statistics. */
void engine_publish_stats(struct engine *e);

#endif
