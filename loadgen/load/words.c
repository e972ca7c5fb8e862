#include "loadgen/load/words.h"

#include "base/check.h"
#include "loadgen/load/draw.h"

// clang-format off
static const char *const words[256] = {
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part",
    "place", "case", "week", "company", "system", "program", "question", "work", "night", "point",
    "home", "water", "room", "mother", "area", "money", "story", "fact", "month", "lot", "right",
    "study", "book", "eye", "job", "word", "business", "issue", "side", "kind", "head", "house",
    "service", "friend", "father", "power", "hour", "game", "line", "end", "member", "law", "car",
    "city", "name", "team", "minute", "idea", "body", "back", "parent", "face", "level", "office",
    "door", "health", "person", "art", "war", "history", "party", "result", "change", "morning",
    "reason", "research", "girl", "guy", "moment", "air", "teacher", "force", "foot", "boy",
    "age", "policy", "process", "music", "market", "sense", "nation", "plan", "college",
    "interest", "death", "course", "someone", "experience", "effect", "use", "class", "control",
    "field", "development", "role", "effort", "rate", "heart", "drug", "show", "leader", "light",
    "voice", "wife", "police", "mind", "price", "report", "decision", "son", "view", "town",
    "road", "arm", "difference", "value", "building", "action", "season", "society", "tax",
    "director", "position", "player", "record", "paper", "space", "ground", "form", "event",
    "matter", "center", "site", "project", "activity", "star", "table", "need", "court", "oil",
    "situation", "cost", "industry", "figure", "street", "image", "phone", "data", "picture",
    "practice", "piece", "land", "product", "doctor", "wall", "patient", "worker", "news", "test",
    "movie", "north", "love", "support", "technology", "step", "baby", "computer", "type",
    "attention", "film", "tree", "source", "red", "organization", "hair", "look", "window",
    "culture", "chance", "brother", "energy", "period", "summer", "blood", "scene", "bed",
    "order", "song", "river", "stone", "bridge", "island", "garden", "winter", "spring", "horse",
    "bird", "fish", "glass", "metal", "wood", "paint", "cloud", "storm", "forest", "green",
    "blue", "black", "white", "high", "low", "long", "short", "small", "large", "early", "late",
    "new", "old", "young", "great", "full", "open", "free", "strong", "clear", "hard", "soft",
    "warm", "cold", "fast", "slow", "deep", "wide", "close", "near",
};
// clang-format on

enum status words_write(struct buf *out, uint64_t id, uint32_t n_words)
{
    enum status s = buf_reserve(out, (size_t)n_words * 8); /* a blank and a word, on average */
    struct draw d;

    draw_init(&d, id, DRAW_WORDS, 0);
    for (uint32_t i = 0; s == OK && i < n_words;) {
        /* One draw makes eight words: building long prompts is what the generator does most. */
        uint64_t bits = draw_u64(&d);
        for (int k = 0; s == OK && k < 8 && i < n_words; k++, i++, bits >>= 8) {
            s = buf_putc(out, ' ');
            if (s == OK)
                s = buf_puts(out, words[bits & 255]);
        }
    }
    return s;
}

enum status words_write_ids(struct buf *out, uint64_t id, uint32_t n, uint32_t lo, uint32_t hi)
{
    enum status s = buf_reserve(out, (size_t)n * sizeof(uint32_t));
    struct draw d;

    ASSERT(lo < hi);
    draw_init(&d, id, DRAW_WORDS, 1);
    for (uint32_t i = 0; s == OK && i < n; i++)
        s = buf_u32(out, lo + (uint32_t)draw_below(&d, hi - lo));
    return s;
}
