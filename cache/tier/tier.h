/* tier.h - one interface for every place that holds blocks of KV: device memory, host memory, disk,
 * other instances.
 *
 * The store (cache/store/) decides which blocks lie in which tier. A tier knows nothing of trees,
 * requests or policies: it reserves blocks, moves their bytes and says when a move is over. A block
 * is a number that tier_reserve() hands out.
 *
 * Every move has one side in host memory, given as one address per block: either blocks of a tier
 * that the host can address (tier_memory()), or buffers of a tier that needs staging
 * (tier_stage()). So a tier implements only "read into host memory" and "write from host memory",
 * never a copy to a particular other tier:
 *
 *   from     to       calls
 *   device   host     tier_read(device, ..., memory of the host's blocks)
 *   host     device   tier_write(device, ..., memory of the host's blocks)
 *   memory   disk     tier_stage(disk), tier_read(memory), tier_write(disk)
 *   disk     memory   tier_stage(disk), tier_read(disk), tier_write(memory), tier_unstage(disk)
 *   remote   memory   as from disk; nothing is written to other instances
 *   remote   device   from the device memory of another process: tier_remote_stage_near(),
 *                     tier_read(remote), tier_write(device): the buffers are device memory
 *
 * Moves of a tier that the host can address are immediate: the bytes are copied on the calling
 * thread before the call returns, and tier_poll() does not report them. The caller bounds how much
 * it copies in one step. All other moves are asynchronous: OK means under way, tier_poll() reports
 * the end, and the host memory must not be touched before.
 *
 * On a host device without copies the device tier and the host tier are two sets of block numbers
 * of one memory. A node changes tiers when the store reserves free numbers in one tier and drops
 * them in the other one: no byte moves.
 *
 * Owns    the memory or files of the blocks, staging buffers, moves under way.
 * Thread  engine thread only; no call waits except tier_wait() and tier_close().
 * Errors  read and write: a status, or the status in tier_done. A failed move changed no block that
 *         anybody may read.
 * Units   blocks; bytes where a name says so. */
#ifndef TARN_CACHE_TIER_TIER_H
#define TARN_CACHE_TIER_TIER_H

#include "base/buf.h"
#include "cache/key.h"
#include "cache/pool/pool.h"
#include "kernels/device.h"

/* Blocks of one move: a whole segment. */
#define TIER_MOVE_BLOCKS_MAX (KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS)

struct tier;

void tier_close(struct tier *t); /* NULL is fine; waits for the moves under way */

/* --- blocks --- */

uint32_t tier_n_blocks(const struct tier *t); /* 0 for NULL */
uint32_t tier_n_free(const struct tier *t);
/* Free blocks, and those that a drop or a read with `drop` will free. */
uint32_t tier_n_free_soon(const struct tier *t);
/* Blocks to fill. A tier whose drops take time keeps a few spare ones beyond these, so that a write
 * need not wait for a drop. */
uint32_t tier_capacity(const struct tier *t);
/* Reserve n blocks. All or nothing: false when fewer are free. */
NODISCARD bool tier_reserve(struct tier *t, uint32_t *blocks, uint32_t n);
/* Undo the last tier_reserve(): nothing was written to these blocks. */
void tier_unreserve(struct tier *t, const uint32_t *blocks, uint32_t n);
/* The content of these blocks is not needed any more; no move of theirs is under way. They become
 * free at once, or (disk) when their records are cleared. erase: overwrite the content first. */
void tier_drop(struct tier *t, const uint32_t *blocks, uint32_t n, bool erase);
/* The host's address of a block; NULL when the host cannot address this tier. */
void *tier_memory(const struct tier *t, uint32_t block);
/* Whether the host can address the blocks, so that moves are immediate. */
bool tier_is_addressable(const struct tier *t);

/* --- sleep: tiers in memory --- */

/* Give the memory of the blocks back to the system. All blocks are free, and no move is under way.
 * From then on no block is free, and none can be reserved. */
void tier_sleep(struct tier *t);
/* Take memory again, perhaps at another address. ERR_NOMEM: the tier sleeps on. A host tier in
 * shared memory wakes after the device tier. */
NODISCARD enum status tier_wake(struct tier *t);
bool tier_is_asleep(const struct tier *t);

/* --- moves --- */

/* A persistent tier stores this record beside each block, to find the block after a restart. */
struct tier_record {
    struct kv_key key, parent; /* parent: key of the previous block, zero for the first */
    struct kv_scope scope;
    uint64_t no; /* order of writing; filled in by tier_look() */
    uint32_t ids[KV_BLOCK_TOKENS];
    uint32_t n_tokens, pos0, depth, n_uses;
    bool starts_segment, is_registered;
};

/* Copy blocks [n] to host memory: to [n] addresses. drop: the blocks are dropped when the read is
 * over (asynchronous moves only). tag: the caller's name for the move, unique among those of the
 * tier that are under way. ERR_BUSY: too many moves are under way, nothing began. */
NODISCARD enum status tier_read(struct tier *t, const uint32_t *blocks, void *const *to, uint32_t n,
                                bool drop, uint64_t tag);
/* Copy from [n] addresses in host memory to blocks [n]. records [n]: NULL for memory tiers. A tier
 * with staging takes the buffers back itself when a write is over, or a read has failed; after
 * ERR_BUSY they are still the caller's. */
NODISCARD enum status tier_write(struct tier *t, const uint32_t *blocks, const void *const *from,
                                 const struct tier_record *records, uint32_t n, uint64_t tag);

struct tier_done {
    bool is_write;
    enum status status; /* of a failed write: its blocks drop themselves */
    uint64_t tag;
    uint32_t n;
};

/* Report at most n_max moves that are over. The moves of device memory end in the order in which
 * they began. */
uint32_t tier_poll(struct tier *t, struct tier_done *out, uint32_t n_max);
bool tier_is_busy(const struct tier *t); /* moves or drops are under way: poll again soon */
/* The tier does not answer: it takes no moves now. */
bool tier_is_hung(const struct tier *t);

/* --- order of moves in device memory; no effect on other tiers --- */

enum tier_order {
    TIER_BEFORE_KERNELS, /* kernels launched from now on see the result of the move */
    TIER_BEFORE_WRITES   /* writes to this tier that begin from now on come after the move */
};
/* The move is under way. If the device refuses to order, the host waits for the move. */
void tier_order(struct tier *t, uint64_t tag, enum tier_order before);
/* Free the blocks of the oldest read with `drop` before it is over: kernels and writes are ordered
 * behind the read, so they cannot overwrite what it still has to copy. False: there is none. */
bool tier_reap(struct tier *t);
/* Whether another move can begin. */
bool tier_can_move(const struct tier *t);
/* Wait on the host until the oldest move is over; tier_poll() reports it next. */
void tier_wait(struct tier *t);

/* --- staging buffers: tiers that the host cannot address --- */

uint32_t tier_n_buffers(const struct tier *t);
uint32_t tier_n_free_buffers(const struct tier *t);
/* Take n buffers of one block each. All or nothing. */
NODISCARD bool tier_stage(struct tier *t, void **buffers, uint32_t n);
void tier_unstage(struct tier *t, void *const *buffers, uint32_t n);

/* --- what a tier holds when it is opened --- */

enum tier_found {
    TIER_NOTHING,    /* the block is free */
    TIER_RECORD,     /* *out describes it */
    TIER_ERASING,    /* an earlier process began to erase the block and did not finish */
    TIER_TORN,       /* the other results are unusable records: half written, */
    TIER_FOREIGN,    /* of another fingerprint, */
    TIER_IMPOSSIBLE, /* with values that cannot be, */
    TIER_MISNAMED    /* or with a key that is not the hash of its ids */
};
/* Read the record of a block. To be called once for every block right after opening: blocks with
 * TIER_NOTHING become free; the caller drops those that it does not use. */
enum tier_found tier_look(struct tier *t, uint32_t block, struct tier_record *out);

/* --- counts --- */

struct tier_stats {
    uint32_t n_arriving;   /* blocks that asynchronous writes to device memory fill */
    uint32_t n_leaving;    /* dropped blocks that are not free yet */
    uint64_t n_failed;     /* moves of device memory that failed */
    uint64_t memory_bytes; /* of bookkeeping and staging; not the blocks */
    /* Disk only. */
    double open_s;  /* the time that opening took */
    const char *io; /* "io_uring", "threads" */
    bool is_direct; /* O_DIRECT */
    uint64_t extent_bytes;
    uint64_t n_read_bytes, n_written_bytes;                          /* of payload */
    uint64_t n_reads_failed, n_writes_failed, n_timeouts, n_corrupt; /* moves, each in one */
};
void tier_stats(const struct tier *t, struct tier_stats *out);
/* Bytes that moving one block takes: of a block, on disk of its extent. */
uint64_t tier_extent_bytes(const struct tier *t);
/* Count each block that is free, or would be if the tier did not sleep, in seen [n_ids], and ASSERT
 * that none was counted before. Returns their number. */
uint32_t tier_check_free(const struct tier *t, uint8_t *seen, uint32_t n_ids);

/* --- the device memory of other processes (CUDA IPC) --- */

struct tier_near;
#define TIER_SUMS_MAX 256u /* blocks of one job */

/* Buffers in device memory, and jobs that copy and compute CRC32Cs. ERR_NOMEM; ERR_UNSUPPORTED: the
 * device does not compute CRC32Cs of such blocks. */
NODISCARD enum status tier_near_open(struct tier_near **out, struct device *device,
                                     uint64_t block_bytes);
uint64_t tier_near_device_bytes(uint64_t block_bytes); /* that tier_near_open() takes */
void tier_near_close(struct tier_near *n);             /* NULL is fine; waits for the jobs */
void tier_near_wait(struct tier_near *n);              /* the same without closing */
bool tier_near_stage(struct tier_near *n, void **buffers, uint32_t n_buffers);
void tier_near_unstage(struct tier_near *n, void *buffer);
bool tier_near_has(const struct tier_near *n, const void *buffer); /* NULL: false */
/* Copy blocks from mapped memory to buffers, and compute their sums. ERR_BUSY: too many jobs. */
NODISCARD enum status tier_near_pull(struct tier_near *n, const void *const *from, void *const *to,
                                     uint32_t n_blocks, uint32_t *job);
/* Compute the sums of blocks of the device tier, behind what the compute stream has been given. */
NODISCARD enum status tier_near_sum(struct tier_near *n, const struct tier *t,
                                    const uint32_t *blocks, uint32_t n_blocks, uint32_t *job);
/* Whether the job is over: then *status and sums [n_blocks] are set, and the job is gone. */
bool tier_near_end(struct tier_near *n, uint32_t job, enum status *status, uint32_t *sums);

/* --- opening --- */

struct tier_device_config {
    struct device_group group; /* each device has an equal part of each block; one device where the
                                  host can address its memory */
    uint64_t block_bytes;      /* of all parts */
    uint32_t n_blocks;
    uint32_t n_shared;    /* further blocks of the same memory, for tier_host_open() */
    bool is_separate;     /* the host cannot address it: moves are copies on the device's streams */
    bool has_other_tiers; /* there will be moves */
};
NODISCARD enum status tier_device_open(struct tier **out, const struct tier_device_config *config);
/* The address of block 0, or of a rank's part of it, for kernels. */
void *tier_device_memory(const struct tier *t, uint32_t rank);
/* Host memory. shared: the device tier whose n_shared blocks this tier takes; NULL: pinned memory
 * of its own. */
NODISCARD enum status tier_host_open(struct tier **out, struct device *device,
                                     const struct tier *shared, uint64_t block_bytes,
                                     uint32_t n_blocks);

struct tier_disk_config {
    struct device *device; /* for the staging memory, which the device's copies can use */
    uint64_t block_bytes;
    const char *path;
    uint64_t n_bytes;
    const uint8_t *fingerprint; /* [KV_FINGERPRINT_BYTES] */
    uint32_t segment_tokens;
    uint64_t timeout_ns; /* of one move */
    bool threads_only;   /* no io_uring */
};
NODISCARD enum status tier_disk_open(struct tier **out, const struct tier_disk_config *config,
                                     struct buf *why);

/* Blocks that other instances lend. A block of this tier is a handle: it names a block of a found
 * lookup (cache/pool/pool.h). Reads of a lookup that is over fail with ERR_UNAVAILABLE. */
struct tier_remote_config {
    struct device *device; /* for the staging memory, as of the disk */
    uint64_t block_bytes;
    uint32_t n_blocks;      /* handles */
    struct pool *pool;      /* borrowed; so is the next one */
    struct tier_near *near; /* to read from other processes' device memory; may be NULL */
};
NODISCARD enum status tier_remote_open(struct tier **out, const struct tier_remote_config *config,
                                       struct buf *why);
/* A lookup was found. lookup: the caller's number for it, below POOL_TICKETS_MAX. */
void tier_remote_begin(struct tier *t, uint32_t lookup, uint32_t ticket,
                       const struct pool_found *found);
/* Let reserved blocks [n] name the blocks [at, at + n) of the lookup's path. */
void tier_remote_name(struct tier *t, const uint32_t *blocks, uint32_t n, uint32_t lookup,
                      uint32_t at);
/* Whether the block lies in mapped device memory. The blocks of a read all do, or none; their
 * buffers are those of tier_remote_stage_near() then, which tier_unstage() takes back, too. */
bool tier_remote_is_near(const struct tier *t, uint32_t block);
NODISCARD bool tier_remote_stage_near(struct tier *t, void **buffers, uint32_t n);
/* Blocks that name the lookup, and reads of it that are under way. */
uint32_t tier_remote_n_uses(const struct tier *t, uint32_t lookup);
/* The lookup that a block names, and what is known about it. */
uint32_t tier_remote_lookup(const struct tier *t, uint32_t block);
void tier_remote_found(const struct tier *t, uint32_t block, struct pool_found *out);

#endif
