#include "loadgen/bench/retrieval/options.h"

#include "base/check.h"
#include "base/option_rows.h"
#include "engine/retrieval/vectors.h"

#define OPTIONS_OF struct retrievalbench_options

static const struct option_row rows[] = {
    COUNT("Vectors", "vectors", vectors, 100, 100000000, "100000", "in the index"),
    COUNT(NULL, "dim", dim, 1, VECTORS_DIM_MAX, "384", "entries of a vector"),
    COUNT(NULL, "clusters", clusters, 1, 1000000, "1000", "around which the vectors lie"),
    COUNT(NULL, "seed", seed, 0, UINT32_MAX, "1", "of the vectors"),
    TEXT(NULL, "file", file, "", "FILE",
         "vectors, queries and exact answers, also for faiss_peer.py: read, or made and written"),
    TEXT("Index", "factories", factories, "Flat;auto;HNSW16", "F;G;...",
         "indexes to build, one after another"),
    COUNT(NULL, "n-probe", n_probe, 0, 1000000, "0", "lists that a search visits; 0: chosen"),
    COUNT(NULL, "threads", threads, 1, 1024, "1", "that build an inverted file"),
    TEXT(NULL, "keep", keep, "", "DIR", "keep built indexes here; those found here are not built"),
    COUNT("Search", "queries", queries, 10, 1000000, "500", "one after another, on one thread"),
    COUNT(NULL, "top-k", top_k, 1, 1000, "10", "hits of a query"),
    COUNT(NULL, "stages", stages, 1, 64, "4", "of a staged search"),
    SWITCH("Output", "json", json, "JSON instead of text"),
    SWITCH(NULL, "quiet", quiet, "no progress on the standard error"),
};

static const struct option_table table = {
    .rows = rows,
    .n_rows = ARRAY_SIZE(rows),
    .help = OPTION_AT(want_help),
    .version = OPTION_AT(want_version),
};

enum status retrievalbench_options_parse(struct retrievalbench_options *o, int argc, char **argv,
                                         struct buf *why)
{
    *o = (struct retrievalbench_options){0};
    enum status s = option_table_presets(&table, o, why);

    if (s == OK)
        s = option_table_read_args(&table, o, argc, argv, 1, why);
    if (s == OK && o->top_k > o->vectors)
        s = buf_why(why, ERR_INVALID, "--top-k: more than --vectors");
    return s;
}

void retrievalbench_options_fini(struct retrievalbench_options *o)
{
    option_table_fini(&table, o);
}

void retrievalbench_options_help(FILE *f)
{
    fputs("tarn-retrievalbench [options]\n\n"
          "Measures the vector search of the documents: time to build an index, its memory, the\n"
          "share of the exact nearest vectors that a search finds, and its latency.\n"
          "--some-name V is also --some-name=V. Defaults are in [ ].\n",
          f);
    option_table_help(&table, f);
}
