/* test_catalog_scripts.c - words of scripts that write no blanks between them, and the catalogs of
 * earlier versions, whose index took a run of Chinese for one word. */
#include "tests/unit/engine/retrieval/catalog_world.h"

#include "base/store.h"
#include "tests/temp_dir.h"

static const struct row {
    const char *id, *title, *text, *question;
} rows[] = {
    {"zh1", "北京", "北京是中华人民共和国的首都，位于华北平原北部，故宫和天安门都在这里。",
     "故宫在哪座城市？"},
    {"zh2", "上海", "上海位于长江入海口，是中国最大的经济中心城市，外滩是著名的景点。",
     "外滩在哪里？"},
    {"zh3", "西安", "西安古称长安，是十三朝古都，秦始皇兵马俑在其东郊。", "兵马俑在什么地方？"},
    {"zh4", "成都", "成都是四川省的省会，以大熊猫和麻辣火锅闻名。", "哪里可以看到大熊猫？"},
    {"zh5", "杭州", "杭州是浙江省的省会，西湖被列入世界文化遗产，龙井茶也产于此。",
     "龙井茶产自哪里？"},
    {"zh6", "广州", "广州是广东省的省会，早茶和粤菜非常有名，珠江穿城而过。",
     "粤菜在哪个城市有名？"},
    {"zh7", "哈尔滨", "哈尔滨是黑龙江省的省会，冬季举办国际冰雪节。", "国际冰雪节什么时候举办？"},
    {"zh8", "拉萨", "拉萨是西藏自治区的首府，布达拉宫建在红山之上。", "布达拉宫建在什么山上？"},
    {"ja1", "東京", "東京は日本の首都で、皇居と国会議事堂があります。",
     "国会議事堂はどこにありますか"},
    {"ja2", "京都", "京都は千年以上にわたり都が置かれ、金閣寺や清水寺などの寺院が多い。",
     "金閣寺がある町は？"},
    {"ja3", "大阪", "大阪はたこ焼きとお好み焼きで知られる商業の町です。",
     "たこ焼きで有名なのはどこ"},
    {"ja4", "富士山", "富士山は日本で最も高い山で、標高は三千七百七十六メートルです。",
     "一番高い山の標高は何メートルですか"},
    {"ja5", "北海道", "北海道では冬に札幌雪まつりが開かれ、ラーメンも人気があります。",
     "雪まつりが開かれるのはどこですか"},
    {"ja6", "奈良", "奈良の東大寺には大仏があり、公園には鹿がいます。", "鹿がいる公園"},
    {"ja7", "広島", "広島の厳島神社は海の上に鳥居が立っています。", "海の上の鳥居"},
    {"ja8", "沖縄", "沖縄はかつて琉球王国で、首里城がありました。", "首里城はどの県にありましたか"},
    {"th1", "กรุงเทพมหานคร", "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย มีพระบรมมหาราชวังและแม่น้ำเจ้าพระยา",
     "แม่น้ำเจ้าพระยาอยู่ที่ไหน"},
    {"th2", "เชียงใหม่", "เชียงใหม่เป็นจังหวัดในภาคเหนือ มีดอยสุเทพและประเพณียี่เป็ง", "ดอยสุเทพอยู่จังหวัดอะไร"},
    {"th3", "ภูเก็ต", "ภูเก็ตเป็นเกาะที่ใหญ่ที่สุดของประเทศไทย มีชายหาดสวยงาม", "เกาะที่ใหญ่ที่สุดคือเกาะอะไร"},
    {"th4", "อยุธยา", "อยุธยาเคยเป็นราชธานีเก่า มีวัดและโบราณสถานมากมาย", "ราชธานีเก่าอยู่ที่ไหน"},
    {"th5", "ขอนแก่น", "ขอนแก่นเป็นจังหวัดในภาคอีสาน มีพิพิธภัณฑ์ไดโนเสาร์", "พิพิธภัณฑ์ไดโนเสาร์อยู่ที่ใด"},
    {"th6", "เชียงราย", "เชียงรายมีวัดร่องขุ่นซึ่งเป็นวัดสีขาว และสามเหลี่ยมทองคำ", "วัดสีขาวชื่ออะไร"},
    {"th7", "กาญจนบุรี", "กาญจนบุรีมีสะพานข้ามแม่น้ำแควและน้ำตกเอราวัณ", "น้ำตกเอราวัณสูงเท่าไร"},
    {"th8", "สุโขทัย", "สุโขทัยเป็นอาณาจักรแรก และพ่อขุนรามคำแหงประดิษฐ์อักษรไทย", "ใครประดิษฐ์อักษรไทย"},
};
#define N_ROWS (sizeof rows / sizeof *rows)

static const struct catalog_scope scope = {.tenant = "t", .own = true, .public = true};

/* The place of the document among the hits of the question, from 1; 0: not among the first 5. */
static uint32_t place_of(struct catalog *c, const char *question, const char *id)
{
    struct catalog_hit hits[5];
    uint32_t n, place = 0;
    struct document d;

    document_init(&d);
    assert_ok(catalog_search_text(c, &scope, question, strlen(question), NULL, 5, hits, &n, NULL));
    for (uint32_t i = 0; i < n && !place; i++) {
        assert_ok(catalog_get_row(c, hits[i].row, &d, NULL));
        place = strcmp(d.id, id) == 0 ? i + 1 : 0;
    }
    document_fini(&d);
    return place;
}

static uint32_t n_first(struct catalog *c, const char *language)
{
    uint32_t n = 0;

    for (size_t i = 0; i < N_ROWS; i++)
        if (strncmp(rows[i].id, language, 2) == 0) {
            uint32_t place = place_of(c, rows[i].question, rows[i].id);

            assert_true(place > 0);
            n += place == 1;
        }
    print_message("%s: %u of 8 first\n", language, n);
    return n;
}

static void check_questions(struct catalog *c)
{
    assert_true(n_first(c, "zh") >= 7); /* a word of a question may be in another document */
    assert_true(n_first(c, "ja") >= 7);
    assert_true(n_first(c, "th") >= 7);
}

static void questions_find_documents_of_unspaced_scripts(void **state)
{
    struct catalog *c;

    (void)state;
    assert_ok(catalog_open(&c, NULL, 0, NULL));
    for (size_t i = 0; i < N_ROWS; i++)
        put_with(c, "t", rows[i].id, rows[i].title, rows[i].text, "", 0);
    check_questions(c);
    catalog_close(c);
}

static void words_beside_and_between_are_found(void **state)
{
    struct catalog *c;

    (void)state;
    assert_ok(catalog_open(&c, NULL, 0, NULL));
    put(c, "t", "mixed", "日本語のGPUとVRAM、256GB");
    put(c, "t", "one", "a 猫 b");
    put(c, "t", "marks", "ก\xe0\xb9\x88\xe0\xb9\x88\xe0\xb9\x88\xe0\xb9\x88\xe0\xb9\x88ข");
    put(c, "t", "city", "東京");
    assert_int_equal(place_of(c, "gpu?", "mixed"), 1);
    assert_int_equal(place_of(c, "vram", "mixed"), 1);
    assert_int_equal(place_of(c, "256GB", "mixed"), 1);
    assert_int_equal(place_of(c, "日本", "mixed"), 1);
    assert_int_equal(place_of(c, "本日", "mixed"), 0);
    assert_int_equal(place_of(c, "猫", "one"), 1);
    assert_int_equal(place_of(c, "\xe6\x97 \xff 東京\xe6\x97", "city"), 1);
    put(c, "t", "city", "京都"); /* the old words are gone */
    assert_int_equal(place_of(c, "東京", "city"), 0);
    catalog_close(c);
}

/* --- a file of version 2 --- */

/* The parts of the schema of version 2 (November 2026) that the migration needs. */
static const char *const old_schema[] = {
    "CREATE TABLE tenants (no INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,"
    " n_rows INTEGER NOT NULL DEFAULT 0, n_documents INTEGER NOT NULL DEFAULT 0,"
    " n_words INTEGER NOT NULL DEFAULT 0, n_changes INTEGER NOT NULL DEFAULT 0);"
    "INSERT INTO tenants (no, name) VALUES (0, ''), (1, 't');"
    "CREATE TABLE documents (row INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, id TEXT NOT NULL,"
    " title TEXT NOT NULL, metadata TEXT NOT NULL, is_pinned INTEGER NOT NULL,"
    " prefill INTEGER NOT NULL, version INTEGER NOT NULL, created_s INTEGER NOT NULL,"
    " updated_s INTEGER NOT NULL, expires_s INTEGER NOT NULL, n_uses INTEGER NOT NULL DEFAULT 0,"
    " n_words INTEGER NOT NULL, UNIQUE (tenant, id));"
    "CREATE INDEX documents_expiry ON documents (expires_s) WHERE expires_s > 0;"
    "CREATE INDEX documents_pinned ON documents (tenant) WHERE is_pinned;"
    "CREATE TABLE texts (row INTEGER PRIMARY KEY, text TEXT NOT NULL);"
    "CREATE TABLE embeddings (row INTEGER PRIMARY KEY, vector BLOB NOT NULL);"
    "CREATE VIRTUAL TABLE words USING fts5 (title, text, content='',"
    " tokenize='unicode61 remove_diacritics 2');"
    "CREATE TABLE preambles (row INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, id TEXT NOT NULL,"
    " body TEXT NOT NULL, version INTEGER NOT NULL, created_s INTEGER NOT NULL,"
    " updated_s INTEGER NOT NULL, UNIQUE (tenant, id));"
    "CREATE TABLE paths (row INTEGER NOT NULL, key BLOB NOT NULL, version INTEGER NOT NULL,"
    " place INTEGER NOT NULL, n_tokens INTEGER NOT NULL, preamble TEXT NOT NULL,"
    " used_s INTEGER NOT NULL, PRIMARY KEY (row, key)) WITHOUT ROWID;"
    "CREATE INDEX paths_key ON paths (key);"
    "CREATE TABLE orphans (key BLOB PRIMARY KEY, version INTEGER NOT NULL, place INTEGER NOT NULL,"
    " n_tokens INTEGER NOT NULL, preamble TEXT NOT NULL, used_s INTEGER NOT NULL) WITHOUT ROWID;",

    "CREATE TABLE stamps (name BLOB PRIMARY KEY, counter INTEGER NOT NULL,"
    " writer INTEGER NOT NULL, deleted_s INTEGER NOT NULL, kind INTEGER NOT NULL,"
    " row INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX stamps_counter ON stamps (counter);"
    "CREATE INDEX stamps_deleted ON stamps (deleted_s) WHERE deleted_s > 0;"
    "CREATE TABLE counters (counter INTEGER NOT NULL, key_tag INTEGER NOT NULL,"
    " is_stamped INTEGER NOT NULL);"
    "INSERT INTO counters VALUES (0, 0, 0);"
    "CREATE TABLE digests (bucket INTEGER PRIMARY KEY, digest INTEGER NOT NULL);"
    "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 255)"
    " INSERT INTO digests SELECT i, 0 FROM n;",
};

enum { PUT_DOCUMENT, PUT_TEXT, PUT_WORDS, COUNT };
static const char *const old_statements[] = {
    "INSERT INTO documents VALUES (?1, 1, ?2, ?3, '', 0, 0, 1, 1, 1, 0, 0, 1)",
    "INSERT INTO texts VALUES (?1, ?2)",
    "INSERT INTO words (rowid, title, text) VALUES (?1, ?2, ?3)",
    "UPDATE tenants SET n_rows = n_rows + 1, n_documents = n_documents + 1, n_words = n_words + 1"
    " WHERE no = 1",
};

static void put_old(struct store_link *link, int64_t row, const struct row *r)
{
    assert_ok(store_run(link, PUT_DOCUMENT,
                        STORE_VALUES(store_int(row), store_str(r->id), store_str(r->title)), NULL));
    assert_ok(store_run(link, PUT_TEXT, STORE_VALUES(store_int(row), store_str(r->text)), NULL));
    assert_ok(store_run(link, PUT_WORDS,
                        STORE_VALUES(store_int(row), store_str(r->title), store_str(r->text)),
                        NULL));
    assert_ok(store_run(link, COUNT, NULL, 0, NULL));
}

static void make_old_file(const char *file)
{
    const struct store_config config = {.file = file,
                                        .noun = "the documents",
                                        .application_id = 0x5461726e,
                                        .migrations = old_schema,
                                        .n_migrations = 2,
                                        .statements = old_statements,
                                        .n_statements = 4,
                                        .n_readers = 1};
    struct store_link *link;
    struct store *st;

    assert_ok(store_open(&st, &config, NULL));
    assert_ok(store_begin(st, &link, NULL));
    for (size_t i = 0; i < N_ROWS; i++)
        put_old(link, (int64_t)1 << 32 | (int64_t)(i + 1), &rows[i]);
    assert_ok(store_commit(st, NULL));
    store_close(st);
}

static void an_older_file_gets_new_words_even_at_its_bound(void **state)
{
    char file[128];
    struct temp_dir dir;
    struct catalog *c;

    (void)state;
    temp_dir_make(&dir);
    snprintf(file, sizeof file, "%s/documents.db", dir.path);
    make_old_file(file);
    for (int i = 0; i < 2; i++) { /* the second time nothing is left to do */
        assert_ok(catalog_open(&c, file, i == 0 ? 4096 : 0, NULL));
        check_questions(c);
        assert_ok(catalog_check(c, NULL));
        catalog_close(c);
    }
    assert_ok(catalog_open(&c, file, 0, NULL));
    put(c, "t", "zh1", "没有");
    assert_int_equal(place_of(c, "故宫", "zh1"), 0);
    assert_int_equal(place_of(c, "没有", "zh1"), 1);
    assert_ok(catalog_check(c, NULL));
    catalog_close(c);
    temp_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(questions_find_documents_of_unspaced_scripts),
        cmocka_unit_test(words_beside_and_between_are_found),
        cmocka_unit_test(an_older_file_gets_new_words_even_at_its_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
