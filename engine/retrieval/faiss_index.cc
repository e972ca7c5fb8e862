// faiss_index.cc - faiss_index.h by Faiss. ONLY file that includes Faiss.
//
// Two classes of Faiss are replaced by subclasses whose inner loops are dot.h's: the Faiss of
// Debian is compiled for any x86-64 CPU, and its inner product is a scalar loop. Training and
// assignment go through the same loops and not through a BLAS, so that the speed does not depend on
// the BLAS that is installed.
#include "engine/retrieval/faiss_index.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include <omp.h>

#include <faiss/IndexFlat.h>
#include <faiss/IndexHNSW.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/impl/FaissException.h>
#include <faiss/impl/IDSelector.h>
#include <faiss/index_factory.h>
#include <faiss/utils/Heap.h>

#include "engine/retrieval/dot.h"

namespace {

using label_t = int64_t;
using Worst = faiss::CMin<float, label_t>; // a heap whose top is the worst hit

constexpr size_t TILE_ROWS = 64;
constexpr size_t TILE_QUERY_BYTES = 24 << 10; // queries of a tile stay in the first-level cache
constexpr size_t TILE_QUERIES_MAX = 64;
constexpr int KMEANS_ITERATIONS = 8; // not tuned
constexpr int HNSW_EF_SEARCH = 64;
constexpr unsigned long FACTORY_NUMBER_MAX = 1 << 18;

struct Invalid : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct Corrupt : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct Stopped : std::exception {
};
struct Unwritten : std::exception {
};

thread_local const bool *stop_flag; // of the faiss_work that this thread runs

bool is_stopped()
{
    return stop_flag && __atomic_load_n(stop_flag, __ATOMIC_RELAXED);
}

// Limits the threads of Faiss's loops for calls from this thread.
struct Threads {
    int before = omp_get_max_threads();

    explicit Threads(const faiss_work *work)
    {
        omp_set_num_threads(work && work->n_threads ? (int)work->n_threads : 1);
        stop_flag = work ? work->stop : nullptr;
    }
    ~Threads()
    {
        omp_set_num_threads(before);
        stop_flag = nullptr;
    }
};

void push(size_t k, float *scores, label_t *labels, float score, label_t label,
          const faiss::IDSelector *sel)
{
    if (Worst::cmp2(scores[0], score, labels[0], label) && (!sel || sel->is_member(label)))
        faiss::heap_replace_top<Worst>(k, scores, labels, score, label);
}

struct DotComputer : faiss::FlatCodesDistanceComputer {
    size_t dim;
    const float *query = nullptr;

    DotComputer(const uint8_t *codes, size_t dim)
        : FlatCodesDistanceComputer(codes, dim * sizeof(float)), dim(dim)
    {
    }
    void set_query(const float *x) override
    {
        query = x;
    }
    const float *row(label_t i) const
    {
        return (const float *)(codes + i * code_size);
    }
    float distance_to_code(const uint8_t *code) override
    {
        return dot_one(query, (const float *)code, dim);
    }
    float symmetric_dis(label_t i, label_t j) override
    {
        return dot_one(row(i), row(j), dim);
    }
};

struct DotFlat : faiss::IndexFlat {
    explicit DotFlat(label_t d) : IndexFlat(d, faiss::METRIC_INNER_PRODUCT)
    {
    }

    void search_tile(size_t n, const float *x, size_t k, float *scores, label_t *labels,
                     const faiss::IDSelector *sel) const
    {
        std::vector<float> tile(n * TILE_ROWS);

        faiss::heap_heapify<Worst>(n * k, scores, labels);
        for (size_t from = 0; from < (size_t)ntotal && !is_stopped(); from += TILE_ROWS) {
            size_t n_rows = std::min(TILE_ROWS, (size_t)ntotal - from);

            dot_many(tile.data(), x, n, get_xb() + from * d, n_rows, d);
            for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j < n_rows; j++)
                    push(k, scores + i * k, labels + i * k, tile[i * n_rows + j], from + j, sel);
        }
        for (size_t i = 0; i < n; i++)
            faiss::heap_reorder<Worst>(k, scores + i * k, labels + i * k);
    }

    void search(label_t n, const float *x, label_t k, float *scores, label_t *labels,
                const faiss::SearchParameters *params = nullptr) const override
    {
        const faiss::IDSelector *sel = params ? params->sel : nullptr;
        const bool *stop = stop_flag;
        label_t step = std::clamp(TILE_QUERY_BYTES / (d * sizeof(float)), (size_t)4,
                                  TILE_QUERIES_MAX);

#pragma omp parallel for schedule(dynamic) if (n > step)
        for (label_t i = 0; i < n; i += step) {
            stop_flag = stop; // of the threads of this loop
            search_tile(std::min(step, n - i), x + i * d, k, scores + i * k, labels + i * k, sel);
        }
        stop_flag = stop;
        if (is_stopped())
            throw Stopped();
    }

    faiss::FlatCodesDistanceComputer *get_FlatCodesDistanceComputer() const override
    {
        return new DotComputer(codes.data(), d);
    }
};

struct DotScanner : faiss::InvertedListScanner {
    size_t dim;
    const float *query = nullptr;

    DotScanner(size_t dim, bool store_pairs, const faiss::IDSelector *sel)
        : InvertedListScanner(store_pairs, sel), dim(dim)
    {
        keep_max = true;
        code_size = dim * sizeof(float);
    }
    void set_query(const float *x) override
    {
        query = x;
    }
    void set_list(label_t list, float) override
    {
        list_no = list;
    }
    float distance_to_code(const uint8_t *code) const override
    {
        return dot_one(query, (const float *)code, dim);
    }
    size_t scan_codes(size_t n, const uint8_t *codes, const label_t *ids, float *scores,
                      label_t *labels, size_t k) const override
    {
        float tile[TILE_ROWS];

        for (size_t from = 0; from < n; from += TILE_ROWS) {
            size_t n_rows = std::min(TILE_ROWS, n - from);

            dot_many(tile, query, 1, (const float *)(codes + from * code_size), n_rows, dim);
            for (size_t j = 0; j < n_rows; j++)
                push(k, scores, labels, tile[j], ids[from + j], sel);
        }
        return 0;
    }
};

struct DotIvf : faiss::IndexIVFFlat {
    DotIvf(faiss::Index *quantizer, size_t d, size_t n_lists)
        : IndexIVFFlat(quantizer, d, n_lists, faiss::METRIC_INNER_PRODUCT)
    {
    }
    faiss::InvertedListScanner *get_InvertedListScanner(bool store_pairs,
                                                        const faiss::IDSelector *sel) const override
    {
        return new DotScanner(d, store_pairs, sel);
    }
};

// --- create ---

void check_supported(bool good)
{
    if (!good)
        throw Invalid("this kind of index is not supported: choose Flat, IVF<n>,Flat or HNSW<m>");
}

// Replaces the classes of a new, empty index by those of this file.
std::unique_ptr<faiss::Index> converted(std::unique_ptr<faiss::Index> from)
{
    if (auto hnsw = dynamic_cast<faiss::IndexHNSWFlat *>(from.get())) {
        auto storage = std::make_unique<DotFlat>(hnsw->d);

        if (hnsw->own_fields)
            delete hnsw->storage;
        hnsw->storage = storage.release();
        hnsw->own_fields = true;
        hnsw->hnsw.efSearch = HNSW_EF_SEARCH; // not in parameters: Faiss 1.7.3 ignores them
        return from;
    }
    if (typeid(*from) == typeid(faiss::IndexIVFFlat)) {
        auto ivf = static_cast<faiss::IndexIVFFlat *>(from.get());

        check_supported(ivf->own_fields && ivf->nlist > 0);
        ivf->own_fields = false;
        auto quantizer = converted(std::unique_ptr<faiss::Index>(ivf->quantizer));
        auto to = std::make_unique<DotIvf>(quantizer.get(), ivf->d, ivf->nlist);
        quantizer.release();
        to->own_fields = true;
        to->quantizer_trains_alone = ivf->quantizer_trains_alone;
        to->cp = ivf->cp;
        return to;
    }
    check_supported(dynamic_cast<faiss::IndexFlat *>(from.get()) && !from->ntotal);
    return std::make_unique<DotFlat>(from->d);
}

// A number in a factory may make Faiss allocate as many lists.
void check_numbers(const char *factory)
{
    for (const char *p = factory; *p;) {
        char *end = (char *)p + 1;

        if (isdigit((unsigned char)*p)) {
            unsigned long number = strtoul(p, &end, 10);

            if (number == 0 || number > FACTORY_NUMBER_MAX)
                throw Invalid("a number that is 0 or too large");
        }
        p = end;
    }
}

// Calls f and turns every exception into a status.
template <typename F> enum status guarded(struct buf *why, F f) noexcept
{
    try {
        f();
        return OK;
    } catch (const Stopped &) {
        return buf_why(why, ERR_CANCELLED, "the work on the index was stopped");
    } catch (const Unwritten &) {
        return ERR_IO;
    } catch (const Invalid &e) {
        return buf_why(why, ERR_INVALID, "%s", e.what());
    } catch (const Corrupt &e) {
        return buf_why(why, ERR_CORRUPT, "%s", e.what());
    } catch (const std::bad_alloc &) {
        return buf_why(why, ERR_NOMEM, "no memory for the index of vectors");
    } catch (const std::length_error &) {
        return buf_why(why, ERR_NOMEM, "no memory for the index of vectors");
    } catch (const std::exception &e) {
        return buf_why(why, ERR_INTERNAL, "Faiss: %s", e.what());
    } catch (...) {
        return buf_why(why, ERR_INTERNAL, "Faiss failed without words");
    }
}

struct Fits : faiss::IDSelector {
    const faiss_hits *hits;

    explicit Fits(const faiss_hits *hits) : hits(hits)
    {
    }
    bool is_member(label_t label) const override
    {
        return !hits->fits || hits->fits(hits->arg, label);
    }
};

// Where Faiss found fewer than k, it fills up with label -1.
uint32_t count_hits(const label_t *labels, size_t k)
{
    uint32_t n = 0;

    while (n < k && labels[n] >= 0)
        n++;
    return n;
}

// --- store ---
//
//   flat   n u64, vectors [n, dim]
//   HNSW   as flat, then entry point i32, top level i32, levels [n] i32, neighbours [n_neighbours]
//          i32; a node's neighbours follow those of the node before
//   IVF    the coarse quantizer (flat or HNSW), then for each list n u64, labels [n] i64,
//          vectors [n, dim]
//
// Faiss's own reader believes every size in a file and allocates as much.

struct Output {
    bool (*write)(void *arg, const void *bytes, size_t n);
    void *arg;

    void put(const void *bytes, size_t n) const
    {
        if (n && !write(arg, bytes, n))
            throw Unwritten();
    }
    template <typename T> void put(T value) const
    {
        put(&value, sizeof value);
    }
};

struct Input {
    const uint8_t *at;
    size_t left;

    // The next n items; they may be at any address, so they are only copied.
    const void *take(uint64_t n, size_t size)
    {
        const void *here = at;

        check(n <= left / size);
        at += n * size;
        left -= n * size;
        return here;
    }
    template <typename T> T take()
    {
        T value;

        memcpy(&value, take(1, sizeof value), sizeof value);
        return value;
    }
    template <typename T> std::vector<T> take_many(uint64_t n)
    {
        const void *from = take(n, sizeof(T));
        std::vector<T> values(n);

        if (n)
            memcpy(values.data(), from, n * sizeof(T));
        return values;
    }
    static void check(bool good)
    {
        if (!good)
            throw Corrupt("the stored index contradicts itself");
    }
};

void write_one(const faiss::Index *index, const Output &out)
{
    auto hnsw = dynamic_cast<const faiss::IndexHNSWFlat *>(index);
    auto flat = static_cast<const DotFlat *>(hnsw ? hnsw->storage : index);

    out.put((uint64_t)flat->ntotal);
    out.put(flat->codes.data(), flat->codes.size());
    if (hnsw) {
        out.put((int32_t)hnsw->hnsw.entry_point);
        out.put((int32_t)hnsw->hnsw.max_level);
        out.put(hnsw->hnsw.levels.data(), hnsw->hnsw.levels.size() * sizeof(int32_t));
        out.put(hnsw->hnsw.neighbors.data(), hnsw->hnsw.neighbors.size() * sizeof(int32_t));
    }
}

// Reads the graph. A search reads a node's neighbours of a level at an offset that follows from
// the levels of the nodes before, and assumes that these neighbours reach up to that level.
void read_graph(faiss::HNSW &h, size_t n, Input &in)
{
    const auto &upto = h.cum_nneighbor_per_level;

    h.entry_point = in.take<int32_t>();
    h.max_level = in.take<int32_t>();
    h.levels = in.take_many<int>(n);
    h.offsets.resize(n + 1);
    for (size_t i = 0; i < n; i++) {
        Input::check(h.levels[i] >= 1 && (size_t)h.levels[i] < upto.size());
        h.offsets[i + 1] = h.offsets[i] + (size_t)upto[h.levels[i]];
    }
    h.neighbors = in.take_many<faiss::HNSW::storage_idx_t>(h.offsets[n]);
    for (size_t i = 0; i < n; i++)
        for (int level = 0; level < h.levels[i]; level++)
            for (size_t at = h.offsets[i] + upto[level]; at < h.offsets[i] + upto[level + 1]; at++)
                Input::check(h.neighbors[at] >= -1 && h.neighbors[at] < (label_t)n &&
                             (h.neighbors[at] < 0 || h.levels[h.neighbors[at]] > level));
    Input::check(n == 0 ? h.entry_point == -1 && h.max_level == -1
                        : h.entry_point >= 0 && (size_t)h.entry_point < n &&
                              h.levels[h.entry_point] == h.max_level + 1);
}

void read_one(faiss::Index *index, Input &in)
{
    auto hnsw = dynamic_cast<faiss::IndexHNSWFlat *>(index);
    auto flat = static_cast<DotFlat *>(hnsw ? hnsw->storage : index);
    uint64_t n = in.take<uint64_t>();
    const void *codes = in.take(n, flat->code_size);

    Input::check(n <= INT32_MAX);
    flat->codes.resize(n * flat->code_size);
    if (n)
        memcpy(flat->codes.data(), codes, flat->codes.size());
    flat->ntotal = index->ntotal = (label_t)n;
    if (hnsw)
        read_graph(hnsw->hnsw, n, in);
}

void read_ivf(DotIvf *ivf, Input &in)
{
    label_t n_total = 0;

    read_one(ivf->quantizer, in);
    Input::check(ivf->quantizer->ntotal == (label_t)ivf->nlist);
    ivf->quantizer->is_trained = ivf->is_trained = true;
    for (size_t i = 0; i < ivf->nlist; i++) {
        uint64_t n = in.take<uint64_t>();
        std::vector<label_t> labels = in.take_many<label_t>(n);

        ivf->invlists->add_entries(i, n, labels.data(),
                                   (const uint8_t *)in.take(n, ivf->code_size));
        n_total += (label_t)n;
    }
    ivf->ntotal = n_total;
    for (size_t i = 0; i < ivf->nlist; i++)
        for (size_t k = 0; k < ivf->invlists->list_size(i); k++) {
            label_t label = ivf->invlists->get_ids(i)[k];

            Input::check(label >= 0 && label < n_total);
        }
}

} // namespace

struct faiss_index {
    std::unique_ptr<faiss::Index> index;

    DotIvf *ivf() const
    {
        return dynamic_cast<DotIvf *>(index.get());
    }
    faiss::IndexHNSWFlat *hnsw() const
    {
        return dynamic_cast<faiss::IndexHNSWFlat *>(index.get());
    }
    const DotFlat *flat() const // the vectors of an index without lists
    {
        return static_cast<const DotFlat *>(hnsw() ? hnsw()->storage : index.get());
    }
};

bool faiss_index_is_supported(void)
{
    return true;
}

enum status faiss_index_create(struct faiss_index **out, uint32_t dim, const char *factory,
                               uint64_t seed, struct buf *why)
{
    *out = nullptr;
    return guarded(why, [&] {
        std::unique_ptr<faiss::Index> made;

        check_numbers(factory);
        try {
            made.reset(faiss::index_factory((int)dim, factory, faiss::METRIC_INNER_PRODUCT));
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception &) {
            throw Invalid("Faiss knows no such index");
        }
        made = converted(std::move(made));
        auto ix = std::make_unique<faiss_index>();
        ix->index = std::move(made);
        if (DotIvf *ivf = ix->ivf()) {
            ivf->cp.niter = KMEANS_ITERATIONS;
            ivf->cp.seed = (int)(seed & 0x7fffffff);
            ivf->cp.spherical = true;
            ivf->cp.min_points_per_centroid = 1; // the caller chose the sample
            ivf->cp.max_points_per_centroid = 1 << 20;
        }
        *out = ix.release();
    });
}

void faiss_index_destroy(struct faiss_index *ix)
{
    delete ix;
}

uint32_t faiss_index_n_lists(const struct faiss_index *ix)
{
    return ix->ivf() ? (uint32_t)ix->ivf()->nlist : 0;
}

uint64_t faiss_index_n_total(const struct faiss_index *ix)
{
    return (uint64_t)ix->index->ntotal;
}

static uint64_t flat_bytes(const faiss::Index *index)
{
    auto hnsw = dynamic_cast<const faiss::IndexHNSW *>(index);
    auto flat = dynamic_cast<const faiss::IndexFlat *>(hnsw ? hnsw->storage : index);
    uint64_t n = flat ? flat->codes.capacity() : 0;

    if (hnsw)
        n += hnsw->hnsw.neighbors.capacity() * sizeof(faiss::HNSW::storage_idx_t) +
             hnsw->hnsw.offsets.capacity() * sizeof(size_t) +
             hnsw->hnsw.levels.capacity() * sizeof(int);
    return n;
}

uint64_t faiss_index_bytes(const struct faiss_index *ix)
{
    DotIvf *ivf = ix->ivf();

    if (!ivf)
        return flat_bytes(ix->index.get());
    auto lists = static_cast<const faiss::ArrayInvertedLists *>(ivf->invlists);
    uint64_t n = flat_bytes(ivf->quantizer);
    for (size_t i = 0; i < lists->nlist; i++)
        n += lists->codes[i].capacity() + lists->ids[i].capacity() * sizeof(label_t) +
             sizeof lists->codes[i] + sizeof lists->ids[i];
    return n;
}

enum status faiss_index_train(struct faiss_index *ix, const struct faiss_work *work, const float *x,
                              uint64_t n, struct buf *why)
{
    DotIvf *ivf = ix->ivf();

    return guarded(why, [&] {
        Threads threads(work);
        DotFlat assigner(ix->index->d);

        if (!ivf || ivf->is_trained)
            return;
        ivf->clustering_index = &assigner;
        try {
            ivf->train((label_t)n, x);
        } catch (...) {
            ivf->clustering_index = nullptr;
            throw;
        }
        ivf->clustering_index = nullptr;
    });
}

enum status faiss_index_add(struct faiss_index *ix, const struct faiss_work *work, const float *x,
                            uint64_t n, struct buf *why)
{
    return guarded(why, [&] {
        Threads threads(work);

        ix->index->add((label_t)n, x);
    });
}

void faiss_index_trim(struct faiss_index *ix)
{
    (void)guarded(nullptr, [&] {
        if (DotIvf *ivf = ix->ivf()) {
            auto lists = static_cast<faiss::ArrayInvertedLists *>(ivf->invlists);

            for (size_t i = 0; i < lists->nlist; i++) {
                lists->codes[i].shrink_to_fit();
                lists->ids[i].shrink_to_fit();
            }
        } else {
            const_cast<DotFlat *>(ix->flat())->codes.shrink_to_fit();
        }
    });
}

// HNSW of this version takes no selector: search more than k until k of them fit.
static void search_hnsw(const faiss::IndexHNSWFlat *hnsw, const float *q, faiss_hits *hits)
{
    std::vector<float> scores;
    std::vector<label_t> labels;

    for (size_t k = hits->k;; k *= 2) {
        k = std::min(k, (size_t)hnsw->ntotal);
        scores.resize(k);
        labels.resize(k);
        hnsw->search(1, q, k, scores.data(), labels.data());
        hits->n = 0;
        uint32_t n = count_hits(labels.data(), k);
        for (uint32_t i = 0; i < n && hits->n < hits->k; i++)
            if (!hits->fits || hits->fits(hits->arg, labels[i])) {
                hits->scores[hits->n] = scores[i];
                hits->labels[hits->n++] = labels[i];
            }
        if (hits->n == hits->k || k == (size_t)hnsw->ntotal)
            return;
    }
}

enum status faiss_index_search(const struct faiss_index *ix, const float *q,
                               struct faiss_hits *hits, struct buf *why)
{
    hits->n = 0;
    return guarded(why, [&] {
        Threads threads(nullptr);
        Fits fits(hits);
        faiss::SearchParameters params;

        if (ix->index->ntotal == 0 || hits->k == 0)
            return;
        if (ix->hnsw()) {
            search_hnsw(ix->hnsw(), q, hits);
            return;
        }
        params.sel = &fits;
        ix->index->search(1, q, hits->k, hits->scores, hits->labels, &params);
        hits->n = count_hits(hits->labels, hits->k);
    });
}

enum status faiss_index_lists(const struct faiss_index *ix, const float *q, uint32_t n,
                              int64_t *lists, float *scores, struct buf *why)
{
    return guarded(why, [&] {
        Threads threads(nullptr);
        faiss::SearchParametersHNSW wide;
        DotIvf *ivf = ix->ivf();
        bool is_graph = dynamic_cast<const faiss::IndexHNSW *>(ivf->quantizer) != nullptr;

        wide.efSearch = std::max(HNSW_EF_SEARCH, (int)n);
        ivf->quantizer->search(1, q, n, scores, lists, is_graph ? &wide : nullptr);
    });
}

enum status faiss_index_search_lists(const struct faiss_index *ix, const float *q,
                                     const int64_t *lists, const float *scores, uint32_t n_lists,
                                     struct faiss_hits *hits, struct buf *why)
{
    hits->n = 0;
    return guarded(why, [&] {
        Threads threads(nullptr);
        Fits fits(hits);
        faiss::SearchParametersIVF params;
        faiss::IndexIVFStats stats; // the global one would be a data race

        if (hits->k == 0 || n_lists == 0)
            return;
        params.nprobe = n_lists;
        params.sel = &fits;
        ix->ivf()->search_preassigned(1, q, hits->k, lists, scores, hits->scores, hits->labels,
                                      false, &params, &stats);
        hits->n = count_hits(hits->labels, hits->k);
    });
}

void faiss_index_copy(const struct faiss_index *ix, struct faiss_cursor *cursor, uint64_t n_max,
                      int64_t *labels, float *x, uint64_t *n)
{
    DotIvf *ivf = ix->ivf();
    size_t dim = (size_t)ix->index->d;

    *n = 0;
    if (!ivf) {
        const DotFlat *flat = ix->flat();
        uint64_t left = (uint64_t)flat->ntotal - std::min(cursor->at, (uint64_t)flat->ntotal);

        *n = std::min(n_max, left);
        for (uint64_t i = 0; i < *n; i++)
            labels[i] = (int64_t)(cursor->at + i);
        if (*n)
            memcpy(x, flat->get_xb() + cursor->at * dim, *n * dim * sizeof(float));
        cursor->at += *n;
        return;
    }
    while (*n < n_max && cursor->list < ivf->nlist) {
        uint64_t size = ivf->invlists->list_size(cursor->list);
        uint64_t some = std::min(n_max - *n, size - std::min(cursor->at, size));
        const float *codes = (const float *)ivf->invlists->get_codes(cursor->list);

        if (some) {
            memcpy(labels + *n, ivf->invlists->get_ids(cursor->list) + cursor->at,
                   some * sizeof *labels);
            memcpy(x + *n * dim, codes + cursor->at * dim, some * dim * sizeof *x);
        }
        *n += some;
        cursor->at += some;
        if (cursor->at >= size)
            *cursor = {cursor->list + 1, 0};
    }
}

enum status faiss_index_write(const struct faiss_index *ix,
                              bool (*write)(void *arg, const void *bytes, size_t n), void *arg,
                              struct buf *why)
{
    return guarded(why, [&] {
        const Output out = {write, arg};
        const DotIvf *ivf = ix->ivf();

        write_one(ivf ? ivf->quantizer : ix->index.get(), out);
        for (size_t i = 0; ivf && i < ivf->nlist; i++) {
            uint64_t n = ivf->invlists->list_size(i);

            out.put(n);
            out.put(ivf->invlists->get_ids(i), n * sizeof(label_t));
            out.put(ivf->invlists->get_codes(i), n * ivf->code_size);
        }
    });
}

enum status faiss_index_read(struct faiss_index **out, uint32_t dim, const char *factory,
                             const void *bytes, size_t n, struct buf *why)
{
    enum status s = faiss_index_create(out, dim, factory, 0, why);

    if (s == OK)
        s = guarded(why, [&] {
            Input in = {(const uint8_t *)bytes, n};

            if ((*out)->ivf())
                read_ivf((*out)->ivf(), in);
            else
                read_one((*out)->index.get(), in);
            Input::check(in.left == 0);
        });
    if (s != OK) {
        faiss_index_destroy(*out);
        *out = nullptr;
    }
    return s;
}
