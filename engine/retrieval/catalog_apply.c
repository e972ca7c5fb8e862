/* catalog_apply.c - records of other catalogs: read one from here, enter one there. */
#include "engine/retrieval/catalog_inner.h"

#include <stdio.h>

enum status catalog_get_record(struct catalog *c, const uint8_t name[CATALOG_NAME_BYTES],
                               struct catalog_record *out, struct buf *why)
{
    struct store_link *link = store_reader(c->store);
    struct stamped stamped;
    bool found = false;
    enum status s = catalog_find_stamp(link, name, &stamped, why);

    if (s == OK && stamped.stamp.is_deletion)
        found = true;
    else if (s == OK && stamped.stamp.counter > 0 && stamped.kind == CATALOG_DOCUMENT)
        s = catalog_read_document_row(c, link, stamped.row, &out->document, &found, why);
    else if (s == OK && stamped.stamp.counter > 0)
        s = catalog_read_preamble_row(link, stamped.row, &out->preamble, &found, why);
    store_put_back(c->store, link);
    memcpy(out->entry.name, name, sizeof out->entry.name);
    out->entry.stamp = stamped.stamp;
    out->kind = stamped.kind;
    out->deleted_s = stamped.deleted_s;
    return s == OK && !found ? ERR_NOT_FOUND : s;
}

/* --- documents --- */

/* A text whose version this catalog has given to another text gets a new row. */
static enum status make_room(struct store_link *link, const struct document *d,
                             struct old_document *old, struct catalog_applied *out, struct buf *why)
{
    bool is_same = old->text.len == d->text.len && old->title.len == d->title.len &&
                   memcmp(buf_str(&old->text), buf_str(&d->text), d->text.len) == 0 &&
                   memcmp(buf_str(&old->title), buf_str(&d->title), d->title.len) == 0;

    if (old->row == 0 || is_same || d->version > old->version)
        return OK;
    enum status s = catalog_drop(link, old, why);
    out->dropped_row = old->row;
    catalog_old_fini(old);
    *old = (struct old_document){0};
    return s;
}

static enum status put_document(struct store_link *link, const struct document *d,
                                struct catalog_applied *out, struct buf *why)
{
    struct old_document old = {0};
    int64_t tenant;
    enum status s = catalog_add_tenant(link, d->tenant, &tenant, why);

    if (s == OK)
        s = catalog_find_old(link, tenant, d->id, &old, why);
    if (s == OK)
        s = make_room(link, d, &old, out, why);
    if (s == OK)
        s = catalog_put_over(link, d, tenant, &old, true, &out->change, why);
    catalog_old_fini(&old);
    out->row = out->change.row;
    snprintf(out->owner, sizeof out->owner, "%s", d->tenant);
    snprintf(out->id, sizeof out->id, "%s", d->id);
    return s;
}

static enum status drop_document(struct store_link *link, int64_t row, struct catalog_applied *out,
                                 struct buf *why)
{
    struct old_document old;
    enum status s = catalog_find_old_row(link, row, &old, why);

    if (s == OK && old.row != 0) {
        s = catalog_drop(link, &old, why);
        out->row = row;
        snprintf(out->owner, sizeof out->owner, "%s", old.owner);
        snprintf(out->id, sizeof out->id, "%s", old.id);
    }
    catalog_old_fini(&old);
    return s;
}

/* --- preambles --- */

static enum status put_preamble(struct store_link *link, const struct preamble_record *p,
                                int64_t *row, struct catalog_applied *out, struct buf *why)
{
    bool is_new;

    snprintf(out->owner, sizeof out->owner, "%s", p->tenant);
    snprintf(out->id, sizeof out->id, "%s", p->id);
    return catalog_put_preamble_in(link, p, true, row, &is_new, why);
}

static enum status drop_preamble(struct store_link *link, int64_t row, struct catalog_applied *out,
                                 struct buf *why)
{
    struct preamble_record p;
    bool found;

    preamble_record_init(&p);
    enum status s = catalog_read_preamble_row(link, row, &p, &found, why);
    if (s == OK && found) {
        s = store_run(link, DROP_PREAMBLE, STORE_VALUES(store_int(row)), why);
        snprintf(out->owner, sizeof out->owner, "%s", p.tenant);
        snprintf(out->id, sizeof out->id, "%s", p.id);
    }
    preamble_record_fini(&p);
    return s;
}

/* --- both --- */

static enum status check(struct store_link *link, const struct catalog_record *r, struct buf *why)
{
    const struct catalog_stamp *stamp = &r->entry.stamp;
    int64_t counter = 0;
    enum status s = store_run_int(link, GET_COUNTER, NULL, 0, &counter, why);

    if (s == OK && (stamp->counter == 0 || stamp->counter >= CATALOG_COUNTER_MAX ||
                    stamp->counter > (uint64_t)counter + CATALOG_COUNTER_JUMP_MAX))
        s = buf_why(why, ERR_INVALID, "counter: out of range");
    if (s != OK || stamp->is_deletion)
        return s;
    if (r->kind == CATALOG_PREAMBLE)
        return catalog_check_preamble(&r->preamble, why);
    return catalog_check_document(&r->document, why);
}

/* Change the tables: `old` is what the name has, *new gets its row. */
static enum status change(struct store_link *link, const struct catalog_record *r,
                          const struct stamped *old, struct stamped *new,
                          struct catalog_applied *out, struct buf *why)
{
    enum status s = OK;

    out->is_deletion = r->entry.stamp.is_deletion;
    out->kind = out->is_deletion && old->stamp.counter > 0 ? old->kind : r->kind;
    if (!out->is_deletion && r->kind == CATALOG_PREAMBLE) {
        s = put_preamble(link, &r->preamble, &new->row, out, why);
    } else if (!out->is_deletion) {
        s = put_document(link, &r->document, out, why);
        new->row = out->row;
    } else if (old->row != 0 && old->kind == CATALOG_PREAMBLE) {
        s = drop_preamble(link, old->row, out, why);
    } else if (old->row != 0) {
        s = drop_document(link, old->row, out, why);
    }
    new->kind = out->kind;
    return s;
}

static enum status apply(struct catalog *c, struct store_link *link, const struct catalog_record *r,
                         struct catalog_applied *out, struct buf *why)
{
    struct stamped old, new = {.stamp = r->entry.stamp};
    int64_t now = catalog_now_s();
    enum status s = check(link, r, why);

    if (s == OK)
        s = catalog_find_stamp(link, r->entry.name, &old, why);
    if (s != OK || catalog_stamp_compare(&r->entry.stamp, &old.stamp) <= 0)
        return s;
    if (r->entry.stamp.is_deletion) {
        /* The clock of the sender may be ahead; 0 is no time of a deletion. */
        new.deleted_s = r->deleted_s < now ? r->deleted_s : now;
        if (new.deleted_s <= now - CATALOG_DELETION_S || new.deleted_s <= 0)
            return OK; /* forgotten here already */
    }
    s = change(link, r, &old, &new, out, why);
    if (s == OK)
        s = catalog_put_stamp(c, link, r->entry.name, &new, why);
    if (s == OK)
        s = store_run(link, RAISE_COUNTER, STORE_VALUES(store_int((int64_t)r->entry.stamp.counter)),
                      why);
    out->is_applied = s == OK;
    return s;
}

enum status catalog_apply(struct catalog *c, const struct catalog_record *r,
                          struct catalog_applied *out, struct buf *why)
{
    struct store_link *link;
    enum status s = store_begin(c->store, &link, why);

    *out = (struct catalog_applied){0};
    if (s != OK)
        return s;
    s = catalog_finish(c, apply(c, link, r, out, why), why);
    if (s != OK)
        *out = (struct catalog_applied){0};
    return s;
}
