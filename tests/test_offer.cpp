// What a newcomer is told of a job, by a stranger perhaps.
#include "src/session/rank_json.h"

#include "tests/support.h"

using namespace convoy;

TEST_CASE("a value of another rank with any damaged byte is called damaged, with advice") {
    const std::string text = sealed(R"({"speed":25,"name":"x"})");
    CHECK(unsealed(text, 3)["speed"] == 25);
    for (size_t i = 0; i < text.size(); ++i) {
        std::string damaged = text;
        damaged[i] ^= 4;
        CHECK_FAILS(unsealed(damaged, 3), "rank 3");
        CHECK_FAILS(unsealed(damaged, 3), "--token-file");
        CHECK_FAILS(unsealed(text.substr(0, i), 3), "rank 3");
    }
}

TEST_CASE(
    "an offer is read as it was written, and one that lacks or mistypes anything is an error") {
    const Offer offer{{{"batch", "8"}}, {"input 8\n", {"a", "b"}, false}, {"1", "", "x"}, 7, 2.5};
    const std::string text = offer_text(offer);
    const Offer read = parse_offer(text);
    CHECK(read.settings == offer.settings);
    CHECK(read.model.text == offer.model.text);
    CHECK(read.model.classes == offer.model.classes);
    CHECK(!read.model.fresh);
    CHECK(read.data.description == "x");
    CHECK(read.bucket == 7);
    CHECK(read.speed == 2.5);
    const auto refused = [](const std::string& wrong) {
        CAPTURE(wrong);
        CHECK_FAILS(parse_offer(wrong), "newcomers cannot be read");
    };
    for (size_t n = 0; n < text.size(); ++n) refused(text.substr(0, n));
    for (const auto& [from, to] :
         std::map<std::string, std::string>{{"\"batch\":\"8\"", "\"batch\":8"},
                                            {"\"speed\":2.5", "\"speed\":-1"},
                                            {"\"classes\":[", "\"classes\":[[],"},
                                            {"\"fresh\":false", "\"fresh\":0"},
                                            {"\"description\":\"x\",", ""},
                                            {"\"bucket\":7", "\"bucket\":\"7\""}}) {
        std::string wrong = text;
        REQUIRE(contains(wrong, from));
        refused(wrong.replace(wrong.find(from), from.size(), to));
    }
    for (const char* bucket : {"0", "-1", "7.5", "1e300", "18446744073709551615"}) {
        std::string wrong = text;
        refused(wrong.replace(wrong.find("\"bucket\":7"), 10, cat("\"bucket\":", bucket)));
    }
    refused(std::string(100'000, '['));
}
