/* list.h - a doubly linked list through links inside its items: a ring that begins and ends at the
 * list's head.
 *
 * Owns    nothing; a link belongs to its item.
 * Thread  one at a time.
 * Errors  none.
 * Units   none. */
#ifndef TARN_BASE_LIST_H
#define TARN_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* A head, or a place in an item; link_init() before any other use but link_append(). */
struct link {
    struct link *prev, *next;
};

/* The item of type `struct type` that has the link in `member`. */
#define LINK_ITEM(link, type, member)                                                              \
    ((struct type *)(void *)((char *)(link)-offsetof(struct type, member)))

static inline void link_init(struct link *l)
{
    l->prev = l->next = l;
}

static inline void link_append(struct link *head, struct link *l)
{
    l->prev = head->prev;
    l->next = head;
    head->prev->next = l;
    head->prev = l;
}

/* Fine for a link that is in no list. */
static inline void link_remove(struct link *l)
{
    l->prev->next = l->next;
    l->next->prev = l->prev;
    link_init(l);
}

static inline bool link_is_empty(const struct link *head)
{
    return head->next == head;
}

#endif
