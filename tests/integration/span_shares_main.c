/* tarn-span-shares - how often tokenizing documents apart gives other ids than tokenizing them
 * whole.
 *
 *   tarn-span-shares TOKENIZER_DIR DOCUMENTS.jsonl
 *
 * For each pair of neighbours in the file, "### title\ntext\n" twice: the ids of the two texts
 * joined, against those of each apart. Prints: boundaries, how many differ, and how many tokens
 * apart has more. A test program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/text/tokenizer/tokenizer.h"

#define LINE_BYTES_MAX (1 << 20)

static void check(enum status s, const char *what)
{
    if (s == OK)
        return;
    fprintf(stderr, "tarn-span-shares: %s: %s\n", what, status_name(s));
    exit(1);
}

static void read_document(struct buf *out, const char *line)
{
    const char *title = "", *text = "";
    struct json *j;

    check(js_parse(&j, line, strlen(line), NULL), "a line is no JSON");
    check(js_get_str(j, "title", &title, NULL, NULL), "title");
    check(js_get_str(j, "text", &text, NULL, NULL), "text");
    buf_reset(out);
    check(buf_printf(out, "### %s\n%s\n", title, text), "document");
    js_unref(j);
}

static void encode(const struct tokenizer *t, const struct buf *text, unsigned flags,
                   struct buf *ids)
{
    check(tokenizer_encode(t, buf_str(text), text->len, flags, ids), "encode");
}

int main(int argc, char **argv)
{
    struct buf why, last, here, joined, whole, apart;
    struct buf *all[] = {&last, &here, &joined, &whole, &apart};
    uint64_t n = 0, n_differ = 0;
    int64_t n_more = 0;
    struct tokenizer *t;
    char *line = malloc(LINE_BYTES_MAX);
    FILE *f = argc == 3 ? fopen(argv[2], "r") : NULL;

    if (!f || !line) {
        fprintf(stderr, "usage: tarn-span-shares TOKENIZER_DIR DOCUMENTS.jsonl\n");
        return 1;
    }
    buf_init(&why, BUF_WHY_MAX);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buf_init(all[i], 1u << 26);
    if (tokenizer_load(&t, argv[1], &why) != OK) {
        fprintf(stderr, "tarn-span-shares: %s\n", buf_str(&why));
        return 1;
    }
    while (fgets(line, LINE_BYTES_MAX, f)) {
        read_document(&here, line);
        if (last.len > 0) {
            buf_reset(&joined);
            buf_reset(&whole);
            buf_reset(&apart);
            check(buf_append(&joined, last.data, last.len), "join");
            check(buf_append(&joined, here.data, here.len), "join");
            encode(t, &joined, TOKENIZE_CONTINUES, &whole);
            encode(t, &last, TOKENIZE_CONTINUES, &apart);
            encode(t, &here, TOKENIZE_CONTINUES, &apart);
            n++;
            n_differ += whole.len != apart.len || memcmp(whole.data, apart.data, whole.len);
            n_more += (int64_t)(apart.len / 4) - (int64_t)(whole.len / 4);
        }
        buf_reset(&last);
        check(buf_append(&last, here.data, here.len), "keep");
    }
    printf("%llu %llu %lld\n", (unsigned long long)n, (unsigned long long)n_differ,
           (long long)n_more);
    tokenizer_destroy(t);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buf_fini(all[i]);
    buf_fini(&why);
    fclose(f);
    free(line);
    return 0;
}
