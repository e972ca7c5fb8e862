/* test_auth.c - lookup of keys, reloading, scopes, the installation secret. */
#include "tests/unit/server/server_test.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/auth/auth.h"
#include "server/auth/secret.h"

static char dir[] = "/tmp/tarn-test-auth-XXXXXX";
static char file[64];

static void write_keys(const char *text)
{
    char temporary[80];

    snprintf(temporary, sizeof temporary, "%s.new", file);
    FILE *f = fopen(temporary, "w");
    assert_non_null(f);
    for (const char *c = text; *c; c++)
        fputc(*c == '\'' ? '"' : *c, f);
    fclose(f);
    assert_int_equal(chmod(temporary, 0600), 0);
    assert_int_equal(rename(temporary, file), 0);
}

static struct auth *create(const char *keys, const char *key_file, const char *admin)
{
    struct config config = {.api_key = (char *)(uintptr_t)keys,
                            .api_key_file = (char *)(uintptr_t)key_file,
                            .admin_api_key = (char *)(uintptr_t)admin,
                            .cache_dir = dir};
    struct auth *auth;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (auth_create(&auth, &config, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
    return auth;
}

/* Look up a key. NULL: it is refused. */
static struct account *find(struct auth *auth, const char *key)
{
    struct account *a;

    assert_true((auth_find(auth, NULL, key, &a, NULL) == OK) == (a != NULL));
    return a;
}

static void scope_of(struct auth *auth, const char *key, const char *salt, struct kv_scope *out)
{
    struct account *a = find(auth, key);
    struct kv_scope narrow = {{0}};

    assert_non_null(a);
    if (salt)
        hash_blake2b(narrow.bytes, sizeof narrow.bytes, salt, strlen(salt), NULL, 0);
    account_scope(a, salt ? &narrow : NULL, out);
    account_unref(a);
}

static bool same_scope(struct auth *x, const char *key_x, const char *salt_x, struct auth *y,
                       const char *key_y, const char *salt_y)
{
    struct kv_scope a, b, none = {{0}};

    scope_of(x, key_x, salt_x, &a);
    scope_of(y, key_y, salt_y, &b);
    assert_memory_not_equal(&a, &none, sizeof a); /* zeros are the public scope */
    return memcmp(&a, &b, sizeof a) == 0;
}

static const char two_teams[] =
    "{'keys': [{'name': 'a', 'key': 'sk-aaaaaaaa', 'tenant': 'red'},"
    "{'name': 'b', 'key': 'sk-bbbbbbbb', 'tenant': 'blue'},"
    "{'name': 'c', 'key': 'sk-cccccccc', 'tenant': 'red'},"
    "{'name': 'd', 'key': 'sk-dddddddd'}, {'name': 'e', 'key': 'sk-eeeeeeee'}]}";

static void tenants_have_scopes_of_their_own(void **state)
{
    (void)state;
    write_keys(two_teams);
    struct auth *x = create("flag-one,flag-two", file, "boss");
    struct auth *y = create("flag-two", file, ""); /* after a restart */
    static const char *const apart[] = {"sk-aaaaaaaa", "sk-bbbbbbbb", "sk-dddddddd", "sk-eeeeeeee",
                                        "flag-one",    "flag-two",    "boss"};
    for (size_t i = 0; i < 7; i++)
        for (size_t k = 0; k < 7; k++)
            assert_int_equal(same_scope(x, apart[i], NULL, x, apart[k], NULL), i == k);
    assert_true(same_scope(x, "sk-aaaaaaaa", NULL, x, "sk-cccccccc", NULL));
    /* A salt narrows, and only inside the tenant. */
    assert_false(same_scope(x, "sk-aaaaaaaa", "s", x, "sk-aaaaaaaa", NULL));
    assert_false(same_scope(x, "sk-aaaaaaaa", "s", x, "sk-aaaaaaaa", "t"));
    assert_true(same_scope(x, "sk-aaaaaaaa", "s", x, "sk-cccccccc", "s"));
    assert_false(same_scope(x, "sk-aaaaaaaa", "s", x, "sk-bbbbbbbb", "s"));
    /* In the same installation the scopes are the same, whatever the order of the flags. */
    for (size_t i = 0; i < 4; i++)
        assert_true(same_scope(x, apart[i], NULL, y, apart[i], NULL));
    assert_true(same_scope(x, "flag-two", NULL, y, "flag-two", NULL));
    auth_destroy(x);
    auth_destroy(y);
}

/* Copy the owner of a key. */
static void owner_of(struct auth *auth, const char *key, char out[ACCOUNT_OWNER_BYTES])
{
    struct account *a = find(auth, key);

    assert_non_null(a);
    snprintf(out, ACCOUNT_OWNER_BYTES, "%s", a->owner);
    account_unref(a);
}

static void owners_are_equal_where_scopes_are(void **state)
{
    static const char *const keys[] = {"sk-aaaaaaaa", "sk-bbbbbbbb", "sk-cccccccc", "sk-dddddddd",
                                       "sk-eeeeeeee", "flag-one",    "flag-two",    "boss"};
    char a[ACCOUNT_OWNER_BYTES], b[ACCOUNT_OWNER_BYTES];

    (void)state;
    write_keys(two_teams);
    struct auth *x = create("flag-one,flag-two", file, "boss");
    struct auth *y = create("flag-two,flag-one", file, "boss"); /* numbered the other way round */
    for (size_t i = 0; i < 8; i++) {
        owner_of(x, keys[i], a);
        assert_true(a[0] && a[1] == '/' && a[2]);
        for (size_t k = 0; k < 8; k++) {
            owner_of(y, keys[k], b);
            assert_int_equal(strcmp(a, b) == 0, same_scope(x, keys[i], NULL, y, keys[k], NULL));
        }
        struct account *found = auth_find_owner(y, a);
        assert_non_null(found);
        assert_string_equal(found->owner, a);
        account_unref(found);
    }
    assert_null(auth_find_owner(x, "t/green"));
    assert_null(auth_find_owner(x, ""));
    auth_destroy(x);
    auth_destroy(y);
}

static void another_installation_has_other_scopes(void **state)
{
    struct config config = {.api_key = (char *)(uintptr_t) ""};
    struct auth *x, *y;

    (void)state;
    assert_ok(auth_create(&x, &config, NULL)); /* without cache_dir each has a random secret */
    assert_ok(auth_create(&y, &config, NULL));
    assert_false(same_scope(x, NULL, NULL, y, NULL, NULL));
    assert_true(same_scope(x, NULL, NULL, x, "whatever", NULL)); /* no keys: one tenant */
    auth_destroy(x);
    auth_destroy(y);
}

static void admins_are_told_apart(void **state)
{
    (void)state;
    struct auth *auth = create("plain", "", "boss");
    struct account *plain = find(auth, "plain"), *boss = find(auth, "boss");
    assert_false(plain->admin);
    assert_true(boss->admin);
    assert_null(find(auth, "bosss"));
    assert_null(find(auth, ""));
    assert_null(find(auth, NULL));
    account_unref(plain);
    account_unref(boss);
    auth_destroy(auth);
    auth = create("", "", "boss"); /* with an admin key alone, all endpoints need a key */
    assert_true(auth_needs_key(auth));
    assert_null(find(auth, NULL));
    auth_destroy(auth);
}

static void a_reload_is_all_or_nothing(void **state)
{
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    write_keys("{'keys': [{'name': 'a', 'key': 'sk-aaaaaaaa', 'tokens_per_minute': 100},"
               "{'name': 'b', 'key': 'sk-bbbbbbbb'}]}");
    struct auth *auth = create("flag-one", file, "");
    struct account *a = find(auth, "sk-aaaaaaaa");
    uint64_t wait;
    assert_int_equal(bucket_take(&a->limiter.tokens, 100, clock_now_ns(), &wait), VERDICT_YES);
    /* A file with a mistake: b is missing and c is new, but the old keys stay in force. */
    write_keys("{'keys': [{'name': 'c', 'key': 'sk-cccccccc'}, {'name': 'd'}]}");
    assert_int_equal(auth_reload(auth, &why), ERR_INVALID);
    assert_non_null(strstr(why.data, "keys[1].key: is missing"));
    assert_null(find(auth, "sk-cccccccc"));
    account_unref(find(auth, "sk-bbbbbbbb"));
    assert_int_equal(auth_n_reloads(auth, true), 1);
    /* A correct file: the key of a changes, and its account keeps what it used. */
    write_keys("{'keys': [{'name': 'a', 'key': 'sk-new-aaaaaaaa', 'tokens_per_minute': 150,"
               "'weight': 3}, {'name': 'c', 'key': 'sk-cccccccc'}]}");
    assert_ok(auth_reload(auth, &why));
    assert_null(find(auth, "sk-aaaaaaaa"));
    assert_null(find(auth, "sk-bbbbbbbb"));
    struct account *again = find(auth, "sk-new-aaaaaaaa");
    assert_ptr_equal(a, again);
    assert_float_equal(a->weight, 3, 0);
    assert_in_range(bucket_look(&a->limiter.tokens, clock_now_ns()).remaining, 50, 140);
    account_unref(again);
    again = find(auth, "flag-one"); /* keys of the command line stay */
    assert_non_null(again);
    account_unref(again);
    /* With another tenant the key gets a new account; the old one lives until its last
     * reference. */
    write_keys("{'keys': [{'name': 'a', 'key': 'sk-new-aaaaaaaa', 'tenant': 'red'}]}");
    assert_ok(auth_reload(auth, &why));
    again = find(auth, "sk-new-aaaaaaaa");
    assert_ptr_not_equal(a, again);
    assert_string_equal(a->tenant_name, "a");
    assert_string_equal(again->tenant_name, "red");
    account_unref(again);
    account_unref(a);
    unlink(file);
    assert_int_equal(auth_reload(auth, &why), ERR_NOT_FOUND);
    auth_destroy(auth);
    buf_fini(&why);
}

struct race {
    struct auth *auth;
    atomic_bool stop;
};

static void *look_up(void *arg)
{
    struct race *race = arg;

    while (!atomic_load(&race->stop)) {
        struct account *a = find(race->auth, "sk-aaaaaaaa"), *b = find(race->auth, "sk-xxxxxxxx");
        assert_non_null(a); /* the key is in every file */
        assert_string_equal(a->name, "a");
        account_unref(a);
        account_unref(b);
    }
    return NULL;
}

static void reloading_while_asking_is_safe(void **state)
{
    struct race race = {.auth = NULL};
    pthread_t threads[3];

    (void)state;
    write_keys("{'keys': [{'name': 'a', 'key': 'sk-aaaaaaaa'}]}");
    race.auth = create("", file, "");
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, look_up, &race), 0);
    for (int i = 0; i < 100; i++) {
        write_keys(i % 2 ? "{'keys': [{'name': 'a', 'key': 'sk-aaaaaaaa'}]}"
                         : "{'keys': [{'name': 'x', 'key': 'sk-xxxxxxxx'},"
                           "{'name': 'a', 'key': 'sk-aaaaaaaa', 'tenant': 'other'}]}");
        assert_ok(auth_reload(race.auth, NULL));
    }
    atomic_store(&race.stop, true);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    auth_destroy(race.auth);
}

static void count_one(void *arg, const struct tenant *t)
{
    (void)t;
    ++*(unsigned *)arg;
}

static void tenants_in_metrics_are_bounded(void **state)
{
    struct buf text;
    unsigned n = 0;

    (void)state;
    buf_init(&text, 1 << 20);
    assert_ok(buf_puts(&text, "{'keys': ["));
    for (int i = 0; i < 200; i++)
        assert_ok(buf_printf(&text, "%s{'name': 'n%d', 'key': 'sk-%08d'}", i ? "," : "", i, i));
    assert_ok(buf_puts(&text, "]}"));
    write_keys(text.data);
    struct auth *auth = create("", file, "");
    auth_each_tenant(auth, count_one, &n);
    assert_int_equal(n, AUTH_N_TENANTS_MAX + 1);
    struct account *last = find(auth, "sk-00000199");
    assert_string_equal(last->tenant->name, "_other");
    assert_string_equal(last->tenant_name, "n199");
    account_unref(last);
    auth_destroy(auth);
    buf_fini(&text);
}

/* --- numbers of tenants and sessions for the scheduler --- */

static void a_session_belongs_to_its_tenant(void **state)
{
    struct account *a[4];

    (void)state;
    write_keys("{'keys':[{'name':'a1','key':'sk-00000001','tenant':'a'},"
               "{'name':'a2','key':'sk-00000002','tenant':'a'},"
               "{'name':'b1','key':'sk-00000003','tenant':'b'},"
               "{'name':'c','key':'sk-00000004'}]}");
    struct auth *auth = create("", file, "");
    for (int i = 0; i < 4; i++) {
        char key[24];
        snprintf(key, sizeof key, "sk-0000000%d", i + 1);
        assert_non_null(a[i] = find(auth, key));
    }
    assert_true(a[0]->tenant_id == a[1]->tenant_id);
    assert_true(account_session(a[0], "s", 1) == account_session(a[1], "s", 1));
    assert_true(account_session(a[0], "s", 1) != account_session(a[0], "t", 1));
    assert_true(account_session(a[0], "s", 1) != account_session(a[0], "s\0", 2));
    assert_true(account_session(a[0], "s", 1) != a[0]->tenant_id);
    assert_true(account_session(a[0], "", 0) != a[0]->tenant_id);
    /* The last key is a tenant of its own. */
    for (int i = 2; i < 4; i++) {
        assert_true(a[i]->tenant_id != a[0]->tenant_id);
        assert_true(account_session(a[i], "s", 1) != account_session(a[0], "s", 1));
    }
    assert_true(a[2]->tenant_id != a[3]->tenant_id);
    for (int i = 0; i < 4; i++)
        account_unref(a[i]);
    auth_destroy(auth);
}

static void a_pool_has_the_same_scopes_in_all_installations(void **state)
{
    char pool[] = "redis://h", elsewhere[96];
    struct config one = {.api_key = (char *)(uintptr_t) "flag-one", .pool = pool, .cache_dir = dir};
    struct config two = one, stranger = one, alone = one;
    struct auth *x, *y, *z, *w;

    (void)state;
    write_keys(two_teams);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", dir);
    one.api_key_file = two.api_key_file = stranger.api_key_file = alone.api_key_file = file;
    two.cache_dir = elsewhere; /* another machine */
    memset(one.pool_scope, 7, sizeof one.pool_scope);
    memset(two.pool_scope, 7, sizeof two.pool_scope);
    memset(stranger.pool_scope, 8, sizeof stranger.pool_scope);
    alone.pool = NULL;
    assert_ok(auth_create(&x, &one, NULL));
    assert_ok(auth_create(&y, &two, NULL));
    assert_ok(auth_create(&z, &stranger, NULL));
    assert_ok(auth_create(&w, &alone, NULL));
    static const char *const keys[] = {"sk-aaaaaaaa", "sk-bbbbbbbb", "sk-dddddddd", "flag-one"};
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < 4; k++) {
            assert_int_equal(same_scope(x, keys[i], NULL, y, keys[k], NULL), i == k);
            assert_int_equal(same_scope(x, keys[i], "s", y, keys[k], "s"), i == k);
            assert_false(same_scope(x, keys[i], NULL, z, keys[k], NULL));
            assert_false(same_scope(x, keys[i], NULL, w, keys[k], NULL));
        }
    auth_destroy(x);
    auth_destroy(y);
    auth_destroy(z);
    auth_destroy(w);
}

/* --- the installation secret --- */

static void the_secret_is_kept_and_private(void **state)
{
    char deep[96], path[160];
    uint8_t one[SECRET_BYTES], two[SECRET_BYTES];
    struct stat st;

    (void)state;
    snprintf(deep, sizeof deep, "%s/not/there/yet", dir);
    snprintf(path, sizeof path, "%s/installation-secret", deep);
    secret_load(one, deep);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_size, 65);
    assert_int_equal(stat(deep, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    secret_load(two, deep);
    assert_memory_equal(one, two, SECRET_BYTES);
    secret_load(two, NULL);
    assert_memory_not_equal(one, two, SECRET_BYTES);
    /* A damaged file is neither used nor overwritten. */
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("damaged", f);
    fclose(f);
    secret_load(one, deep);
    secret_load(two, deep);
    assert_memory_not_equal(one, two, SECRET_BYTES);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 7);
    /* A folder that cannot be made. */
    secret_load(one, "/proc/no/such/place");
    secret_load(two, "/proc/no/such/place");
    assert_memory_not_equal(one, two, SECRET_BYTES);
}

static void default_places_follow_xdg(void **state)
{
    char cache[96], path[160];
    uint8_t one[SECRET_BYTES], two[SECRET_BYTES];

    (void)state;
    snprintf(cache, sizeof cache, "%s/xdg", dir);
    setenv("XDG_CACHE_HOME", cache, 1);
    secret_load(one, "");
    snprintf(path, sizeof path, "%s/tarn/installation-secret", cache);
    assert_int_equal(access(path, R_OK), 0);
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", dir, 1);
    secret_load(two, "");
    snprintf(path, sizeof path, "%s/.cache/tarn/installation-secret", dir);
    assert_int_equal(access(path, R_OK), 0);
    assert_memory_not_equal(one, two, SECRET_BYTES);
}

static int start(void **state)
{
    (void)state;
    if (!mkdtemp(dir) || hash_init() != OK)
        return 1;
    snprintf(file, sizeof file, "%s/keys.json", dir);
    return 0;
}

static int end(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tenants_have_scopes_of_their_own),
        cmocka_unit_test(owners_are_equal_where_scopes_are),
        cmocka_unit_test(another_installation_has_other_scopes),
        cmocka_unit_test(admins_are_told_apart),
        cmocka_unit_test(a_reload_is_all_or_nothing),
        cmocka_unit_test(reloading_while_asking_is_safe),
        cmocka_unit_test(tenants_in_metrics_are_bounded),
        cmocka_unit_test(a_session_belongs_to_its_tenant),
        cmocka_unit_test(a_pool_has_the_same_scopes_in_all_installations),
        cmocka_unit_test(the_secret_is_kept_and_private),
        cmocka_unit_test(default_places_follow_xdg),
    };
    return cmocka_run_group_tests(tests, start, end);
}
