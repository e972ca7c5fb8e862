/* test_params.c - request parameters: errors name the wrong field, valid values are read. */
#include "tests/unit/server/server_test.h"

#include "engine/run/vocab_mask.h"
#include "server/api/params.h"

static struct server_test t;

static void refuses(enum params_kind kind, const char *json, enum status s, const char *words)
{
    struct json *body = json_of(json);
    struct params p;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status got = params_parse(&p, &t.srv, body, kind, &why);
    if (got != s || strncmp(buf_str(&why), words, strlen(words)) != 0)
        fail_msg("%s: %s \"%s\" instead of %s \"%s\"", json, status_name(got), buf_str(&why),
                 status_name(s), words);
    params_fini(&p);
    js_unref(body);
    buf_fini(&why);
}

/* Parse a valid body and free it. Tests of stop strings, which borrow from it, keep it instead. */
static void takes(struct params *p, enum params_kind kind, struct json *body)
{
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (params_parse(p, &t.srv, body, kind, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
}

static void a_wrong_type_names_the_field(void **state)
{
    static const char *const numbers[] = {
        "temperature",      "top_p", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty"};
    static const char *const integers[] = {"top_k",    "max_tokens",   "max_completion_tokens",
                                           "n",        "seed",         "min_tokens",
                                           "priority", "top_logprobs", "cache_ttl"};
    static const char *const booleans[] = {
        "stream",           "ignore_eos", "skip_special_tokens", "include_stop_str_in_output",
        "return_token_ids", "logprobs",   "add_special_tokens"};
    char json[256], words[256];

    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(json, sizeof json, "{'%s':'x'}", numbers[i]);
        snprintf(words, sizeof words, "%s: expected a number, got a string", numbers[i]);
        refuses(PARAMS_CHAT, json, ERR_INVALID, words);
    }
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        snprintf(json, sizeof json, "{'%s':1.5}", integers[i]);
        snprintf(words, sizeof words, "%s: expected an integer", integers[i]);
        refuses(PARAMS_CHAT, json, ERR_INVALID, words);
    }
    for (size_t i = 0; i < sizeof booleans / sizeof *booleans; i++) {
        snprintf(json, sizeof json, "{'%s':[]}", booleans[i]);
        snprintf(words, sizeof words, "%s: expected a boolean, got an array", booleans[i]);
        refuses(PARAMS_CHAT, json, ERR_INVALID, words);
    }
    refuses(PARAMS_CHAT, "{'model':3}", ERR_INVALID, "model: expected a string");
    refuses(PARAMS_CHAT, "{'user':3}", ERR_INVALID, "user: expected a string");
    refuses(PARAMS_CHAT, "{'cache_salt':3}", ERR_INVALID, "cache_salt: expected a string");
    refuses(PARAMS_CHAT, "{'session_id':3}", ERR_INVALID, "session_id: expected a string");
    refuses(PARAMS_COMPLETION, "{'session_id':['a']}", ERR_INVALID,
            "session_id: expected a string");
    refuses(PARAMS_CHAT, "{'stop':3}", ERR_INVALID, "stop: expected a string or an array");
    refuses(PARAMS_CHAT, "{'stop':['a',1]}", ERR_INVALID, "stop[1]: expected a string");
    refuses(PARAMS_CHAT, "{'stop_token_ids':'a'}", ERR_INVALID,
            "stop_token_ids: expected an array");
    refuses(PARAMS_CHAT, "{'stop_token_ids':[1,'a']}", ERR_INVALID, "stop_token_ids[1]: expected");
    refuses(PARAMS_CHAT, "{'logit_bias':[1]}", ERR_INVALID, "logit_bias: expected an object");
    refuses(PARAMS_CHAT, "{'logit_bias':{'1':'a'}}", ERR_INVALID, "logit_bias: expected a number");
    refuses(PARAMS_CHAT, "{'logit_bias':{'x':1}}", ERR_INVALID, "logit_bias: \"x\" is no token id");
    refuses(PARAMS_CHAT, "{'stream':true,'stream_options':3}", ERR_INVALID, "stream_options: ");
    refuses(PARAMS_CHAT, "{'stream':true,'stream_options':{'include_usage':3}}", ERR_INVALID,
            "stream_options.include_usage: expected a boolean");
    refuses(PARAMS_COMPLETION, "{'logprobs':true}", ERR_INVALID, "logprobs: expected an integer");
    refuses(PARAMS_COMPLETION, "{'echo':1}", ERR_INVALID, "echo: expected a boolean");
}

static void a_nul_names_the_field(void **state)
{
    (void)state;
    refuses(PARAMS_CHAT, "{'model':'one\\u0000x'}", ERR_INVALID,
            "model: must not hold the character U+0000");
    refuses(PARAMS_CHAT, "{'user':'u\\u0000'}", ERR_INVALID, "user: must not hold");
    refuses(PARAMS_CHAT, "{'response_format':{'type':'text\\u0000'}}", ERR_INVALID,
            "response_format: type: must not hold");
    refuses(PARAMS_CHAT, "{'tool_choice':'none\\u0000'}", ERR_INVALID, "tool_choice: must not");
    refuses(PARAMS_CHAT, "{'modalities':['text\\u0000']}", ERR_UNSUPPORTED, "modalities: ");
}

static void a_value_out_of_range_names_the_field(void **state)
{
    (void)state;
    refuses(PARAMS_CHAT, "{'temperature':-0.1}", ERR_INVALID, "temperature: ");
    refuses(PARAMS_CHAT, "{'top_p':0}", ERR_INVALID, "top_p: ");
    refuses(PARAMS_CHAT, "{'top_p':1.01}", ERR_INVALID, "top_p: ");
    refuses(PARAMS_CHAT, "{'top_k':-2}", ERR_INVALID, "top_k: ");
    refuses(PARAMS_CHAT, "{'min_p':2}", ERR_INVALID, "min_p: ");
    refuses(PARAMS_CHAT, "{'repetition_penalty':0}", ERR_INVALID, "repetition_penalty: ");
    refuses(PARAMS_CHAT, "{'presence_penalty':3}", ERR_INVALID, "presence_penalty: ");
    refuses(PARAMS_CHAT, "{'n':0}", ERR_INVALID, "n: ");
    refuses(PARAMS_CHAT, "{'n':129}", ERR_INVALID, "n: ");
    refuses(PARAMS_CHAT, "{'max_tokens':-1}", ERR_INVALID, "max_tokens: ");
    refuses(PARAMS_CHAT, "{'max_tokens':0,'min_tokens':1}", ERR_INVALID, "min_tokens: ");
    refuses(PARAMS_COMPLETION, "{'best_of':129}", ERR_INVALID, "best_of: ");
    refuses(PARAMS_COMPLETION, "{'n':3,'best_of':2}", ERR_INVALID, "best_of: 2 is less than n");
    refuses(PARAMS_COMPLETION, "{'best_of':2,'stream':true}", ERR_INVALID, "best_of: ");
    refuses(PARAMS_CHAT, "{'best_of':2}", ERR_INVALID, "best_of: only /v1/completions");
    refuses(PARAMS_CHAT, "{'max_tokens':3,'min_tokens':4}", ERR_INVALID, "min_tokens: ");
    refuses(PARAMS_CHAT, "{'top_logprobs':21,'logprobs':true}", ERR_INVALID, "top_logprobs: ");
    refuses(PARAMS_CHAT, "{'top_logprobs':2}", ERR_INVALID, "top_logprobs: needs logprobs");
    refuses(PARAMS_CHAT, "{'stop':''}", ERR_INVALID, "stop: must not be empty");
    refuses(PARAMS_CHAT, "{'stop_token_ids':[258]}", ERR_INVALID, "stop_token_ids[0]: ");
    refuses(PARAMS_CHAT, "{'logit_bias':{'258':1}}", ERR_INVALID, "logit_bias: token id 258");
    refuses(PARAMS_CHAT, "{'logit_bias':{'1':101}}", ERR_INVALID, "logit_bias: 101");
    refuses(PARAMS_CHAT, "{'cache_salt':''}", ERR_INVALID, "cache_salt: ");
    refuses(PARAMS_CHAT, "{'cache_ttl':-1}", ERR_INVALID, "cache_ttl: ");
    refuses(PARAMS_COMPLETION, "{'cache_ttl':86401}", ERR_INVALID, "cache_ttl: ");
    refuses(PARAMS_CHAT, "{'stream_options':{}}", ERR_INVALID, "stream_options: needs stream");
}

static void a_session_has_1_to_256_bytes(void **state)
{
    static const size_t lengths[] = {0, 1, 255, 256, 257, 4000};
    char json[4096], words[96];
    struct params p;

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int n = (int)lengths[i];
        snprintf(json, sizeof json, "{'session_id':'%0*d'}", n, 0);
        if (n == 0) /* "%00d" would write a digit */
            snprintf(json, sizeof json, "{'session_id':''}");
        if (n >= 1 && n <= 256) {
            struct json *body = json_of(json);
            takes(&p, i % 2 ? PARAMS_CHAT : PARAMS_COMPLETION, body);
            assert_int_equal(p.session_len, n);
            params_fini(&p);
            js_unref(body);
        } else {
            snprintf(words, sizeof words, "session_id: expected 1 to 256 bytes, got %d", n);
            refuses(PARAMS_CHAT, json, ERR_INVALID, words);
        }
    }
    /* The limit counts bytes: 86 characters of three bytes exceed it. */
    size_t at = (size_t)snprintf(json, sizeof json, "{'session_id':'");
    for (int i = 0; i < 86; i++)
        at += (size_t)snprintf(json + at, sizeof json - at, "\u20ac");
    snprintf(json + at, sizeof json - at, "'}");
    refuses(PARAMS_CHAT, json, ERR_INVALID, "session_id: expected 1 to 256 bytes, got 258");
}

static void what_is_not_there_is_refused_by_name(void **state)
{
    (void)state;
    refuses(PARAMS_COMPLETION, "{'functions':[{}]}", ERR_UNSUPPORTED, "functions: only chats");
    refuses(PARAMS_COMPLETION, "{'function_call':'auto'}", ERR_UNSUPPORTED,
            "function_call: only chats");
    refuses(PARAMS_CHAT, "{'response_format':{'type':'grammar'}}", ERR_UNSUPPORTED,
            "response_format: type \"grammar\" is not supported");
    refuses(PARAMS_CHAT, "{'modalities':['text','audio']}", ERR_UNSUPPORTED, "modalities: ");
    refuses(PARAMS_COMPLETION, "{'suffix':'x'}", ERR_UNSUPPORTED, "suffix: ");
    refuses(PARAMS_COMPLETION, "{'prompt_logprobs':-1}", ERR_UNSUPPORTED, "prompt_logprobs: -1");
    refuses(PARAMS_COMPLETION, "{'logprobs':-1}", ERR_UNSUPPORTED, "logprobs: -1");
    refuses(PARAMS_CHAT, "{'logprobs':true,'top_logprobs':-1}", ERR_UNSUPPORTED,
            "top_logprobs: -1");
    refuses(PARAMS_CHAT, "{'stream':true,'stream_options':{'continuous_usage_stats':1}}",
            ERR_INVALID, "stream_options.continuous_usage_stats: ");
    refuses(PARAMS_CHAT, "{'return_tokens_as_token_ids':'yes'}", ERR_INVALID,
            "return_tokens_as_token_ids: ");
    refuses(PARAMS_CHAT, "{'chat_template':'x'}", ERR_UNSUPPORTED,
            "chat_template: not allowed; the server's operator sets a template with");
    refuses(PARAMS_CHAT, "{'model':'three'}", ERR_NOT_FOUND, "model: \"three\" is not served");
}

static void counts_of_answers_are_read(void **state)
{
    static const struct {
        const char *json;
        uint32_t n, best_of;
        bool logprob, scores;
    } cases[] = {
        {"{}", 1, 1, false, false},
        {"{'n':128}", 128, 128, false, false},
        {"{'n':2,'best_of':2,'stream':true}", 2, 2, false, false},
        {"{'n':2,'best_of':0}", 2, 2, false, false},
        {"{'n':2,'best_of':1}", 2, 2, false, false},
        {"{'best_of':128}", 1, 128, true, false},
        {"{'echo':true}", 1, 1, false, false},
        {"{'echo':true,'logprobs':0,'max_tokens':0}", 1, 1, true, true},
    };
    struct params p;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json *body = json_of(cases[i].json);
        takes(&p, PARAMS_COMPLETION, body);
        assert_int_equal(p.n, cases[i].n);
        assert_int_equal(p.best_of, cases[i].best_of);
        assert_int_equal(p.sampling.want_logprob, cases[i].logprob);
        assert_int_equal(p.sampling.want_prompt_logprobs, cases[i].scores);
        params_fini(&p);
        js_unref(body);
    }
}

static void forms_of_answers_are_named_when_they_are_faulty(void **state)
{
    (void)state;
    refuses(PARAMS_CHAT, "{'response_format':{'type':'json_schema'}}", ERR_INVALID,
            "response_format: json_schema.schema is missing");
    refuses(PARAMS_CHAT, "{'response_format':'json'}", ERR_INVALID,
            "response_format: expected an object");
    refuses(PARAMS_CHAT, "{'guided_choice':['a'],'guided_regex':'a'}", ERR_INVALID,
            "guided_choice");
    refuses(PARAMS_CHAT, "{'structured_outputs':{'regex':'a','json_object':true}}", ERR_INVALID,
            "structured_outputs");
}

#define TOOL(name) "{'type':'function','function':{'name':'" name "'}}"

static void faults_of_tools_are_named(void **state)
{
    static const struct {
        const char *body, *words;
        enum status status;
    } rows[] = {
        {"{'tools':{}}", "tools: expected an array, got an object", ERR_INVALID},
        {"{'tools':[3]}", "tools[0]: expected an object, got an integer", ERR_INVALID},
        {"{'tools':[{}]}", "tools[0].type: expected a string, got null", ERR_INVALID},
        {"{'tools':[{'type':'custom'}]}", "tools[0].type: \"custom\" is not", ERR_UNSUPPORTED},
        {"{'tools':[{'type':'function'}]}", "tools[0].function: expected an object", ERR_INVALID},
        {"{'tools':[{'type':'function','function':{}}]}", "tools[0].function.name: expected",
         ERR_INVALID},
        {"{'tools':[" TOOL("a\\u0022") "]}", "tools[0].function.name: expected 1 to", ERR_INVALID},
        {"{'tools':[" TOOL("") "]}", "tools[0].function.name: expected 1 to", ERR_INVALID},
        {"{'tools':[" TOOL("a") "," TOOL("a") "]}", "tools[1].function.name: another tool",
         ERR_INVALID},
        {"{'tools':[{'type':'function','function':{'name':'a','parameters':[]}}]}",
         "tools[0].function.parameters: expected an object", ERR_INVALID},
        {"{'tools':[{'type':'function','function':{'name':'a','strict':1}}]}",
         "tools[0].function.strict: expected a boolean", ERR_INVALID},
        {"{'tools':[{'type':'function','function':{'name':'a','description':1}}]}",
         "tools[0].function.description: expected a string", ERR_INVALID},
        {"{'tools':[" TOOL("a") "]}", "tools: this model's chat template does not",
         ERR_UNSUPPORTED},
        {"{'tool_choice':'auto'}", "tool_choice: needs tools", ERR_INVALID},
        {"{'tool_choice':'some'}", "tool_choice: \"some\" is none of", ERR_INVALID},
        {"{'tool_choice':{'type':'allowed_tools'}}", "tool_choice: type \"allowed_tools\" is not",
         ERR_UNSUPPORTED},
        {"{'tool_choice':{'type':'function','function':{'name':'b'}}}",
         "tool_choice.function.name: no tool has the name \"b\"", ERR_INVALID},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refuses(PARAMS_CHAT, rows[i].body, rows[i].status, rows[i].words);
    refuses(PARAMS_COMPLETION, "{'tools':[" TOOL("a") "]}", ERR_UNSUPPORTED, "tools: only chats");
}

static void rules_for_the_vocabulary_are_named_when_they_are_faulty(void **state)
{
    static char many[4000];

    (void)state;
    refuses(PARAMS_CHAT, "{'allowed_token_ids':3}", ERR_INVALID,
            "allowed_token_ids: expected an array");
    refuses(PARAMS_CHAT, "{'allowed_token_ids':[]}", ERR_INVALID,
            "allowed_token_ids: must not be empty");
    refuses(PARAMS_CHAT, "{'allowed_token_ids':[1,258]}", ERR_INVALID,
            "allowed_token_ids[1]: expected a token id below 258");
    refuses(PARAMS_CHAT, "{'allowed_token_ids':[-1]}", ERR_INVALID, "allowed_token_ids[0]: ");
    refuses(PARAMS_CHAT, "{'allowed_token_ids':[1.5]}", ERR_INVALID, "allowed_token_ids[0]: ");
    refuses(PARAMS_CHAT, "{'bad_words':'x'}", ERR_INVALID, "bad_words: expected an array");
    refuses(PARAMS_CHAT, "{'bad_words':['a',1]}", ERR_INVALID, "bad_words[1]: expected a string");
    refuses(PARAMS_CHAT, "{'bad_words':[' \\t']}", ERR_INVALID, "bad_words[0]: must not be empty");
    int n = snprintf(many, sizeof many, "{'bad_words':[''");
    for (int i = 0; i < 512; i++)
        n += snprintf(many + n, sizeof many - (size_t)n, ",''");
    snprintf(many + n, sizeof many - (size_t)n, "]}");
    refuses(PARAMS_CHAT, many, ERR_INVALID, "bad_words: 513 entries, at most 512");
    n = snprintf(many, sizeof many, "{'bad_words':['");
    memset(many + n, 'a', 1025);
    snprintf(many + n + 1025, sizeof many - (size_t)n - 1025, "']}");
    refuses(PARAMS_CHAT, many, ERR_INVALID, "bad_words[0]: longer than 1024 bytes");
    /* 65 is A, 257 the end-of-sequence id */
    refuses(PARAMS_CHAT, "{'allowed_token_ids':[65],'bad_words':['A']}", ERR_INVALID,
            "bad_words: forbid every token");
    refuses(PARAMS_CHAT, "{'allowed_token_ids':[257],'min_tokens':1}", ERR_INVALID,
            "min_tokens: every token");
    refuses(PARAMS_CHAT,
            "{'allowed_token_ids':[65,66,257],'bad_words':['A'],'stop_token_ids':[66],"
            "'min_tokens':1}",
            ERR_INVALID, "min_tokens: every token");
}

static void rules_for_the_vocabulary_are_read(void **state)
{
    struct json *body = json_of("{'allowed_token_ids':[65,65,66,257],'bad_words':['AB','  B'],"
                                "'min_tokens':1}");
    static const uint32_t ends[] = {2, 5, 6, 8}, ids[] = {'A', 'B', ' ', 'A', 'B', 'B', ' ', 'B'};
    struct params p;

    (void)state;
    takes(&p, PARAMS_CHAT, body);
    const struct vocab_rules *rules = &p.sampling.rules;
    for (uint32_t id = 0; id < FAKE_N_VOCAB; id++)
        assert_int_equal(vocab_mask_allows(rules->allowed, id),
                         id == 'A' || id == 'B' || id == FAKE_EOS);
    assert_int_equal(rules->n_words, 4);
    assert_memory_equal(rules->word_ends, ends, sizeof ends);
    assert_memory_equal(rules->word_ids, ids, sizeof ids);
    params_fini(&p);
    js_unref(body);
}

static void logprobs_of_prompts_and_their_cut_are_read(void **state)
{
    static const struct {
        const char *json;
        bool asked;
        uint32_t n_prompt_tops, n_tops, n_kept, n_truncated;
    } cases[] = {
        {"{}", false, 0, 0, 0, 0},
        {"{'prompt_logprobs':0}", true, 0, 0, 0, 0},
        {"{'prompt_logprobs':5,'logprobs':2}", true, 5, 2, 5, 0},
        {"{'prompt_logprobs':1,'logprobs':2}", true, 1, 2, 2, 0},
        {"{'truncate_prompt_tokens':7}", false, 0, 0, 0, 7},
        {"{'truncate_prompt_tokens':-1}", false, 0, 0, 0, 84},
        {"{'truncate_prompt_tokens':-1,'max_tokens':0}", false, 0, 0, 0, 100},
        {"{'truncate_prompt_tokens':-1,'max_tokens':5000}", false, 0, 0, 0, 99},
    };
    struct params p;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json *body = json_of(cases[i].json);
        takes(&p, PARAMS_COMPLETION, body);
        assert_int_equal(p.prompt_logprobs, cases[i].asked);
        assert_int_equal(p.sampling.want_prompt_logprobs, cases[i].asked);
        assert_int_equal(p.n_prompt_tops, cases[i].n_prompt_tops);
        assert_int_equal(p.n_tops, cases[i].n_tops);
        assert_int_equal(p.sampling.n_logprobs, cases[i].n_kept);
        assert_int_equal(p.n_truncated, cases[i].n_truncated);
        params_fini(&p);
        js_unref(body);
    }
    refuses(PARAMS_CHAT, "{'prompt_logprobs':21}", ERR_INVALID, "prompt_logprobs: ");
    refuses(PARAMS_CHAT, "{'prompt_logprobs':1,'stream':true}", ERR_INVALID,
            "prompt_logprobs: are not given in a stream");
    refuses(PARAMS_CHAT, "{'truncate_prompt_tokens':0}", ERR_INVALID, "truncate_prompt_tokens: ");
    refuses(PARAMS_CHAT, "{'truncate_prompt_tokens':101}", ERR_INVALID, "truncate_prompt_tokens: ");
    refuses(PARAMS_CHAT, "{'truncate_prompt_tokens':5,'documents':[{'text':'x'}]}", ERR_INVALID,
            "truncate_prompt_tokens: a prompt with documents");
}

static void harmless_forms_of_it_are_taken(void **state)
{
    struct json *body =
        json_of("{'model':'two','tools':[],'tool_choice':'none','response_format':{'type':'text'},"
                "'modalities':['text'],'best_of':1,'suffix':null,'never_heard_of':{'a':1},"
                "'stream':null,'temperature':null,'session_id':null,'store':null}");
    struct params p;

    (void)state;
    takes(&p, PARAMS_CHAT, body);
    assert_false(p.has_service_tier);
    assert_string_equal(p.model, "two");
    assert_false(p.stream);
    assert_null(p.session);
    params_fini(&p);
    js_unref(body);
}

static void fields_without_effect_are_taken_and_checked(void **state)
{
    static const char *const refused[][2] = {
        {"{'reasoning_effort':'very'}", "reasoning_effort: \"very\" is none of none|minimal|low"},
        {"{'reasoning_effort':3}", "reasoning_effort: expected a string, got an integer"},
        {"{'verbosity':'loud'}", "verbosity: \"loud\" is none of low|medium|high"},
        {"{'service_tier':'gold'}", "service_tier: \"gold\" is none of "},
        {"{'service_tier':'flex\\u0000'}", "service_tier: must not hold"},
        {"{'store':'yes'}", "store: expected a boolean"},
        {"{'metadata':'a'}", "metadata: expected an object, got a string"},
        {"{'safety_identifier':1}", "safety_identifier: expected a string"},
        {"{'prompt_cache_key':1}", "prompt_cache_key: expected a string"},
        {"{'prompt_cache_retention':1}", "prompt_cache_retention: expected a string"},
        {"{'prompt_cache_retention':'1h'}", "prompt_cache_retention: \"1h\" is none of in_memory"},
        {"{'prompt_cache_options':'x'}", "prompt_cache_options: expected an object"},
        {"{'prompt_cache_options':{'ttl':'2h'}}", "prompt_cache_options.ttl: \"2h\" is none of"},
        {"{'cache_control':{'type':'x'}}", "cache_control.type: expected \"ephemeral\""},
        {"{'prediction':'x'}", "prediction: expected an object"},
        {"{'parallel_tool_calls':0}", "parallel_tool_calls: expected a boolean"},
    };
    struct json *body = json_of(
        "{'reasoning_effort':'minimal','verbosity':'low','service_tier':'flex','store':true,"
        "'metadata':{'a':'b'},'user':'me','safety_identifier':'s','prompt_cache_key':'k',"
        "'prompt_cache_retention':'24h','prompt_cache_options':{'ttl':'30m'},"
        "'prediction':{'type':'content','content':'x'},'parallel_tool_calls':false}");
    struct params p;

    (void)state;
    takes(&p, PARAMS_CHAT, body);
    assert_true(p.has_service_tier);
    assert_int_equal(p.unknown.n, 0);
    params_fini(&p);
    js_unref(body);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        refuses(PARAMS_CHAT, refused[i][0], ERR_INVALID, refused[i][1]);
}

static void a_seed_has_64_bits(void **state)
{
    static const struct {
        const char *json;
        int64_t seed;
    } taken[] = {
        {"{'seed':9223372036854775807}", INT64_MAX},
        {"{'seed':-9223372036854775808}", INT64_MIN},
        {"{'seed':1e18}", INT64_C(1000000000000000000)},
        {"{'seed':5.0}", 5},
        {"{'seed':0}", 0},
    };
    struct params p;

    (void)state;
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        struct json *body = json_of(taken[i].json);
        takes(&p, PARAMS_COMPLETION, body);
        assert_true(p.sampling.seed == (uint64_t)taken[i].seed);
        params_fini(&p);
        js_unref(body);
    }
    refuses(PARAMS_CHAT, "{'seed':9223372036854775808.0}", ERR_INVALID,
            "seed: 9223372036854775808 is outside of [-9223372036854775808, 9223372036854775807]");
    refuses(PARAMS_CHAT, "{'seed':-1e300}", ERR_INVALID, "seed: -1.0000000000000000525e+300 is");
    refuses(PARAMS_CHAT, "{'n':1e30}", ERR_INVALID, "n: 1.0000000000000000199e+30 is outside");
}

static void unknown_fields_are_reported_with_the_probable_name(void **state)
{
    static const char *const expected[][2] = {
        {"temprature", "temperature"},
        {"maxTokens", "max_tokens"},
        {"xyzzy", NULL},
        {"a?b?_?", NULL},
        {"stream_options.include_usgae", "include_usage"},
    };
    struct json *body = json_of(
        "{'temprature':0,'stream':true,'stream_options':{'include_usgae':true},'maxTokens':1,"
        "'xyzzy':1,'a\\nb\\u001b_\\\"':1}");
    struct params p;

    (void)state;
    takes(&p, PARAMS_CHAT, body);
    assert_int_equal(p.unknown.n, 5);
    for (uint32_t i = 0; i < p.unknown.n; i++) {
        const struct unknown_field *f = &p.unknown.named[i];
        assert_string_equal(f->name, expected[i][0]);
        if (expected[i][1])
            assert_string_equal(f->near, expected[i][1]);
        else
            assert_null(f->near);
    }
    params_fini(&p);
    js_unref(body);
}

static void nothing_said_means_the_models_defaults(void **state)
{
    struct json *body = json_of("{}");
    struct params p, q;
    static const uint8_t zero[KV_SCOPE_BYTES];

    (void)state;
    takes(&p, PARAMS_CHAT, body);
    assert_float_equal(p.sampling.temperature, 0.75, 0);
    assert_float_equal(p.sampling.top_p, 0.9f, 0);
    assert_int_equal(p.sampling.top_k, 7);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.cache_ttl_s, 0);
    assert_null(p.session);
    assert_string_equal(p.model, "one");
    assert_int_equal(p.stopping.max_tokens, 100);
    assert_false(p.stopping.show_special);
    assert_memory_equal(p.scope.bytes, zero, sizeof zero);
    takes(&q, PARAMS_COMPLETION, body);
    assert_int_equal(q.stopping.max_tokens, 16);
    assert_true(q.add_special);
    assert_true(p.sampling.seed != q.sampling.seed); /* random */
    params_fini(&p);
    params_fini(&q);
    js_unref(body);
}

static void everything_said_is_read(void **state)
{
    struct json *body = json_of(
        "{'temperature':0,'top_p':0.5,'top_k':-1,'min_p':0.1,'repetition_penalty':1.5,"
        "'presence_penalty':-1,'frequency_penalty':2,'seed':-7,'n':3,'max_tokens':9,"
        "'max_completion_tokens':8,'min_tokens':2,'stop':['a','bc'],'stop_token_ids':[1,2],"
        "'logit_bias':{'5':-100,'6':1.5},'logprobs':true,'top_logprobs':4,'ignore_eos':true,"
        "'skip_special_tokens':false,'include_stop_str_in_output':true,'priority':-3,"
        "'return_token_ids':true,'stream':true,'stream_options':{'include_usage':true},"
        "'cache_salt':'pepper','cache_ttl':86400,'session_id':'agent \\u0000 7'}");
    struct params p;

    (void)state;
    takes(&p, PARAMS_CHAT, body);
    assert_float_equal(p.sampling.temperature, 0, 0);
    assert_int_equal(p.sampling.top_k, 0);
    assert_float_equal(p.sampling.repetition_penalty, 1.5, 0);
    assert_true(p.sampling.seed == (uint64_t)-7);
    assert_int_equal(p.sampling.n_logprobs, 4);
    assert_true(p.sampling.want_logprob);
    assert_int_equal(p.sampling.n_logit_bias, 2);
    assert_int_equal(p.sampling.logit_bias[1].id, 6);
    assert_int_equal(p.stopping.max_tokens, 8);
    assert_int_equal(p.stopping.min_tokens, 2);
    assert_int_equal(p.stopping.n_stops, 2);
    assert_int_equal(p.stopping.stops[1].len, 2);
    assert_int_equal(p.stopping.n_stop_ids, 2);
    assert_true(p.stopping.ignore_eos && p.stopping.show_special && p.stopping.include_stop);
    assert_int_equal(p.n, 3);
    assert_int_equal(p.priority, -3);
    assert_int_equal(p.cache_ttl_s, 86400);
    assert_int_equal(p.session_len, 9);
    assert_memory_equal(p.session, "agent \0 7", 9);
    assert_true(p.stream && p.include_usage && p.return_token_ids && p.logprobs);
    uint8_t sum = 0;
    for (int i = 0; i < KV_SCOPE_BYTES; i++)
        sum |= p.scope.bytes[i];
    assert_int_not_equal(sum, 0);
    params_fini(&p);
    js_unref(body);
}

static void a_model_is_known_by_each_of_its_names(void **state)
{
    struct server_test own;

    (void)state;
    server_test_open(&own, "");
    server_fini(&own.srv);
    own.config.served_model_name = (char *)(uintptr_t) " a ,b c,\td";
    assert_ok(server_init(&own.srv, &own.config, own.engine));
    assert_int_equal(own.srv.n_model_names, 3);
    assert_string_equal(server_find_model(&own.srv, "a"), "a");
    assert_string_equal(server_find_model(&own.srv, "b c"), "b c");
    assert_string_equal(server_find_model(&own.srv, "d"), "d");
    server_fini(&own.srv);
    own.config.served_model_name = (char *)(uintptr_t) "";
    own.config.model = (char *)(uintptr_t) "/models/x, y"; /* a comma in a path is no separator */
    assert_ok(server_init(&own.srv, &own.config, own.engine));
    assert_int_equal(own.srv.n_model_names, 1);
    assert_string_equal(own.srv.model_names[0], "/models/x, y");
    server_test_close(&own);
}

static int open_server(void **state)
{
    (void)state;
    server_test_open(&t, "");
    return 0;
}

static int close_server(void **state)
{
    (void)state;
    server_test_close(&t);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_type_names_the_field),
        cmocka_unit_test(a_nul_names_the_field),
        cmocka_unit_test(a_value_out_of_range_names_the_field),
        cmocka_unit_test(a_session_has_1_to_256_bytes),
        cmocka_unit_test(what_is_not_there_is_refused_by_name),
        cmocka_unit_test(counts_of_answers_are_read),
        cmocka_unit_test(forms_of_answers_are_named_when_they_are_faulty),
        cmocka_unit_test(faults_of_tools_are_named),
        cmocka_unit_test(rules_for_the_vocabulary_are_named_when_they_are_faulty),
        cmocka_unit_test(rules_for_the_vocabulary_are_read),
        cmocka_unit_test(logprobs_of_prompts_and_their_cut_are_read),
        cmocka_unit_test(harmless_forms_of_it_are_taken),
        cmocka_unit_test(fields_without_effect_are_taken_and_checked),
        cmocka_unit_test(a_seed_has_64_bits),
        cmocka_unit_test(unknown_fields_are_reported_with_the_probable_name),
        cmocka_unit_test(a_model_is_known_by_each_of_its_names),
        cmocka_unit_test(nothing_said_means_the_models_defaults),
        cmocka_unit_test(everything_said_is_read),
    };
    return cmocka_run_group_tests(tests, open_server, close_server);
}
