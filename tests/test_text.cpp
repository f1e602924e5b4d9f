#include "src/base/text.h"

#include <fstream>

#include "src/base/clock.h"
#include "src/base/table.h"
#include "src/config/config.h"
#include "src/model/model.h"
#include "src/session/job_session.h"
#include "support.h"
#include "tests/process.h"

using namespace convoy;

TEST_CASE("text: UTF-8 is told from what is not") {
    for (const char* good :
         {"", "hat", "caf\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x91\x9F", "\xED\x9F\xBF"})
        CHECK(is_utf8(good));
    // Latin-1, a lone continuation, a cut sequence, overlong forms of '/', a byte that never
    // occurs, a surrogate, a number above the last character.
    for (const char* bad : {"caf\xE9", "\x80", "\xE2\x82", "\xC0\xAF", "\xE0\x80\xAF",
                            "\xF0\x80\x80\xAF", "\xFF", "\xED\xA0\x80", "\xF4\x90\x80\x80"})
        CHECK(!is_utf8(bad));
}

TEST_CASE("text: numbers that follow each other are a range") {
    CHECK(ranges_text({}) == "");
    CHECK(ranges_text({7, 12, 13, 20, 21, 22, 40}) == "7, 12-13, 20-22, 40");
}

TEST_CASE("text: a byte order mark at the start of a file is not read") {
    const std::string mark = "\xEF\xBB\xBF";
    CHECK(without_bom(mark + "a" + mark) == "a" + mark);
    CHECK(without_bom("\xEF\xBB") == "\xEF\xBB");
    TempDir dir;
    const auto put = [&](const char* name, const std::string& text) {
        std::ofstream(dir / name) << mark << text;
        std::filesystem::permissions(dir / name, std::filesystem::perms::owner_read);
        return dir / name;
    };
    CHECK(model_text(put("net.txt", "input 8x8\n")) == "input 8x8\n");
    CHECK(read_settings(put("settings.txt", "batch 64\r\nseed 3\r\n")) ==
          std::map<std::string, std::string>{{"batch", "64"}, {"seed", "3"}});
    Config config;
    config.token_file = put("token", "secret\n");
    CHECK(access_of(config).token == "secret");
    config.token_file = put("none", "");
    CHECK_THROWS_AS(access_of(config), Error);
}

TEST_CASE("the median of an even count is the mean of the two in the middle") {
    CHECK(median({7, 1, 5}) == 5);
    CHECK(median({9, 1, 2, 4}) == 3);
    CHECK(median({3}) == 3);
    CHECK_THROWS_AS(median({}), Error);
}

TEST_CASE("text from outside: what moves the cursor, turns the text or is no UTF-8 is escaped") {
    CHECK(printable("déjà vu: 图 🙂") == "déjà vu: 图 🙂");
    CHECK(printable("a\nb\x1b[31m\x7f") == "a\\x0ab\\x1b[31m\\x7f");
    CHECK(printable("\u0085\u009b31m\u00a0") == "\\xc2\\x85\\xc2\\x9b31m\u00a0");
    CHECK(printable("\u202etxt.exe\u2066") == "\\xe2\\x80\\xaetxt.exe\\xe2\\x81\\xa6");
    CHECK(printable("\x9b"
                    "31m\xe2\x80") == "\\x9b31m\\xe2\\x80");
    Quiet quiet;
    quiet.log.notice("two\nlines of \u202e");
    quiet.log.error("\x1b[31merror:\x1b[0m ", "bad\x1b[0m\nfile");
    CHECK(quiet.text() ==
          "two\nlines of \\xe2\\x80\\xae\n\x1b[31merror:\x1b[0m bad\\x1b[0m\nfile\n");
}

TEST_CASE("text: durations and counts as people write them") {
    CHECK(clock_text(190) == "3:10");
    CHECK(clock_text(7507) == "2:05:07");
    CHECK(clock_text(-1) == "0:00");
    CHECK(count_text(316) == "316");
    CHECK(count_text(57.02e6) == "57.02 M");
}

TEST_CASE("text: --max-bad allows a few bad images of a small set, and none if it is 0") {
    const auto most = [](uint64_t all, double part) {  // bad images that are allowed
        uint64_t bad = 0;
        while (bad < all && too_many_bad(bad + 1, all, part, "images").empty()) ++bad;
        return bad;
    };
    for (const auto& [all, want] :
         std::vector<std::pair<uint64_t, uint64_t>>{{1, 0}, {4, 1}, {8, 2}, {40, 5}, {900, 9}})
        CHECK(most(all, 0.01) == want);
    CHECK(most(40, 0.5) == 20);
    CHECK(most(1'000, 0) == 0);
    CHECK(contains(too_many_bad(7, 40, 0.01, "images"), "7 of 40"));
}

TEST_CASE("table: rows are aligned, and JSON lines hold every value that has a key") {
    const auto print = [](bool json) {
        Quiet out;
        Table table(json, out.file);
        for (const int bytes : {1, 1000})
            table.row({{"bench", "x"},
                       {"bytes", bytes, "bytes", "{:4}"},
                       {"name", cat("n", bytes), "name", "{:<6}"},
                       {"part", 0.5, "of all", "{:.2f}"},
                       {"", bytes / 10, "tenth"},
                       {"slow", bytes > 1, "", "slow"}});
        return out.text();
    };
    CHECK(print(false) ==
          "bytes  name    of all  tenth\n"
          "    1  n1        0.50      0\n"
          " 1000  n1000     0.50    100  slow\n");
    CHECK(print(true) ==
          "{\"bench\":\"x\",\"bytes\":1,\"name\":\"n1\",\"part\":0.5,\"slow\":false}\n"
          "{\"bench\":\"x\",\"bytes\":1000,\"name\":\"n1000\",\"part\":0.5,\"slow\":true}\n");
}
