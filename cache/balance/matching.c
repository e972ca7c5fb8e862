#include "cache/balance/matching.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/check.h"

/* Rows and columns count from 1 here; row 0 and column 0 mean none. */
struct matching {
    const double *gain;
    uint32_t n_rows, n_columns;
    const uint32_t *row_of;         /* [n_rows] row of `gain` that a row stands for; NULL: itself */
    double u[MATCHING_MAX + 1];     /* potentials of rows */
    double v[MATCHING_MAX + 1];     /* of columns */
    uint32_t row[MATCHING_MAX + 1]; /* of a column */
    uint32_t way[MATCHING_MAX + 1]; /* the column before it on the shortest path */
};

static double cost(const struct matching *m, uint32_t row, uint32_t column)
{
    uint32_t r = m->row_of ? m->row_of[row - 1] : row - 1;

    return -m->gain[(size_t)r * m->n_columns + column - 1];
}

/* Find the shortest augmenting path from a row; returns the free column at its end. */
static uint32_t find_path(struct matching *m, uint32_t row)
{
    double least[MATCHING_MAX + 1];
    bool is_done[MATCHING_MAX + 1] = {false};
    uint32_t at = 0;

    for (uint32_t j = 0; j <= m->n_columns; j++)
        least[j] = INFINITY;
    m->row[0] = row;
    do {
        uint32_t next = 0;
        double delta = INFINITY;
        is_done[at] = true;
        for (uint32_t j = 1; j <= m->n_columns; j++) {
            if (is_done[j])
                continue;
            double reduced = cost(m, m->row[at], j) - m->u[m->row[at]] - m->v[j];
            if (reduced < least[j]) {
                least[j] = reduced;
                m->way[j] = at;
            }
            if (least[j] < delta) {
                delta = least[j];
                next = j;
            }
        }
        for (uint32_t j = 0; j <= m->n_columns; j++)
            if (is_done[j]) {
                m->u[m->row[j]] += delta;
                m->v[j] -= delta;
            } else {
                least[j] -= delta;
            }
        at = next;
    } while (m->row[at] != 0);
    return at;
}

static double solve(struct matching *m, uint32_t *column)
{
    double sum = 0;

    ASSERT(m->n_rows <= m->n_columns && m->n_columns <= MATCHING_MAX);
    for (uint32_t i = 1; i <= m->n_rows; i++) {
        uint32_t at = find_path(m, i);
        while (at != 0) {
            m->row[at] = m->row[m->way[at]];
            at = m->way[at];
        }
    }
    for (uint32_t j = 1; j <= m->n_columns; j++)
        if (m->row[j] != 0) {
            column[m->row[j] - 1] = j - 1;
            sum -= cost(m, m->row[j], j);
        }
    return sum;
}

double matching_best(const double *gain, uint32_t n_rows, uint32_t n_columns, uint32_t *column)
{
    struct matching m = {.gain = gain, .n_rows = n_rows, .n_columns = n_columns};

    return solve(&m, column);
}

double matching_dispatch(const double *gain, const uint32_t *n_each, uint32_t n_batches,
                         uint32_t n_instances, uint32_t *batch_of)
{
    uint32_t row_of[MATCHING_MAX], column[MATCHING_MAX];
    struct matching m = {.gain = gain, .n_columns = n_instances, .row_of = row_of};

    for (uint32_t b = 0; b < n_batches; b++)
        for (uint32_t k = 0; k < n_each[b]; k++) {
            ASSERT(m.n_rows < MATCHING_MAX);
            row_of[m.n_rows++] = b;
        }
    double sum = solve(&m, column);
    memset(batch_of, 0xff, n_instances * sizeof *batch_of);
    for (uint32_t i = 0; i < m.n_rows; i++)
        batch_of[column[i]] = row_of[i];
    return sum;
}
