// What people see: on terminals of any width and elsewhere; exit statuses; --quiet, --verbose and
// --json. src/base/terminal.h, src/cli/main.cpp.
#include "src/base/terminal.h"

#include <sys/ioctl.h>

#include <set>
#include <sstream>

#include "src/base/text.h"
#include "src/run/run_log.h"
#include "tests/jobs.h"

using namespace convoy;
using nlohmann::json;

namespace {

// A terminal: what is written to `slave` comes out of it.
struct Terminal {
    explicit Terminal(int columns) : master(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
        REQUIRE((master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0));
        slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
        REQUIRE(slave >= 0);
        const winsize size{24, static_cast<unsigned short>(columns), 0, 0};
        REQUIRE(ioctl(slave, TIOCSWINSZ, &size) == 0);
    }
    ~Terminal() { close(master), close(slave); }
    // What has come so far; does not wait.
    std::string there() {
        std::string text;
        char bytes[4096];
        int count = 0;
        while (ioctl(master, FIONREAD, &count) == 0 && count > 0)
            text.append(bytes, size_t(std::max<ssize_t>(read(master, bytes, sizeof bytes), 0)));
        return text;
    }
    // All that was written so far, which the kernel may hand over late.
    std::string take() {
        REQUIRE(write(slave, "\1", 1) == 1);
        std::string text;
        while (!text.ends_with('\1')) text += there();
        text.pop_back();
        return text;
    }
    const int master;
    int slave;
};

// One run with both streams on a terminal, or standard output where `out` is.
std::pair<int, std::string> on_terminal(int columns, Words words, const Words& variables = {},
                                        int out = -1) {
    Terminal terminal(columns);
    words.insert(words.begin(), trainer_path());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        dup2(out < 0 ? terminal.slave : out, STDOUT_FILENO);
        dup2(terminal.slave, STDERR_FILENO);
        setenv("TERM", "xterm", 1), unsetenv("NO_COLOR");
        for (const std::string& one : variables) putenv(const_cast<char*>(one.c_str()));
        execv(argv[0], argv.data());
        _exit(127);
    }
    std::string text;
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        text += terminal.there();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    text += terminal.take();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text};
}

Words lines_of(const std::string& text) {
    Words lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

int columns_of(const std::string& line) {
    return int(std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80 && c != '\r'; }));
}

// The standard error of this process on a terminal, for as long as this lives.
struct OwnStderr {
    explicit OwnStderr(const Terminal& terminal) : before(dup(STDERR_FILENO)) {
        dup2(terminal.slave, STDERR_FILENO);
        setenv("TERM", "xterm", 1);
    }
    ~OwnStderr() { dup2(before, STDERR_FILENO), close(before); }
    const int before;
};

}  // namespace

TEST_CASE("text: lines are broken at blanks below their second column, or cut, by characters") {
    CHECK(wrapped("a bb ccc\n  --x  one two three\n", 0) == "a bb ccc\n  --x  one two three\n");
    CHECK(wrapped("aa bb ccc", 6) == "aa bb\n  ccc");
    CHECK(wrapped("  --x  one two three\nnext", 14) == "  --x  one two\n       three\nnext");
    CHECK(wrapped("äöü äöü", 5) == "äöü\n  äöü");
    CHECK(wrapped("/a/path/as/long/as/this one", 9) == "/a/path/as/long/as/this one");
    CHECK(cut_text("äbc", 2) == "äb");
    CHECK(bar_text(0.5, 4) == "[==  ]");
    CHECK(bar_text(7, 4) == "[====]");
}

TEST_CASE(
    "progress: a bar is drawn on a terminal, no wider than it, and erased; elsewhere nothing") {
    Quiet quiet;
    Log& log = quiet.log;
    {
        Terminal terminal(60);
        const OwnStderr own(terminal);
        std::string text;
        {  // not asked for: --quiet, and ranks but the first
            ProgressBar bar(log, "work", 100);
            log.draw(0.5, "half");
        }
        CHECK(terminal.take() == "");
        log.set_draws(true);
        {
            ProgressBar bar(log, "work with a name that alone is wider than the whole terminal is",
                            4);
            for (bar.add(1); text.empty(); text += terminal.take()) bar.add(0);
        }
        CHECK(text.starts_with("\r\033[K[==       ] work with a name"));
        CHECK(columns_of(text.substr(4)) == 59);
        CHECK(terminal.take() == "\r\033[K");
        log.draw(1, "all");
        log.info("a line");
        CHECK(terminal.take().ends_with("all\r\033[K"));
        setenv("TERM", "dumb", 1);
        log.draw(1, "all");
        CHECK(terminal.take() == "");
    }
    CHECK(quiet.text() == "a line\n");
    log.set_verbose(true);
    log.detail("a decision");
    CHECK(quiet.text().ends_with(" s  a decision\n"));
}

TEST_CASE("run log: a bar without images shows no loss, the line after it does") {
    Quiet quiet;
    quiet.log.set_draws(true);
    Terminal terminal(120);
    std::string text;
    {
        const OwnStderr own(terminal);
        RunLog run_log(quiet.log, "", 0, /*log_every=*/2, 3);
        run_log.plan(1, 4, 4, 0, {});
        for (; text.empty(); text = terminal.take())
            run_log.step({0, 8, 1}, 1, Sums{}, true, 0.1, {});
        run_log.step({0, 16, 2}, 2, Sums{3, 1, 2, 2, 0}, false, 0.1, {});
    }
    CHECK(contains(text, "] epoch 1/1  step 1/4  waits: data "));
    const std::string line = quiet.text();
    CHECK(line.starts_with("epoch 1/1  step 2/4  loss 1.5000  top1 50.0 %"));
    CHECK(!contains(line, "network"));  // of one rank
}

TEST_CASE("program: colours and widths are those of the terminal; a pipe gets neither") {
    const Words wrong = {"--bach", "8"};
    CHECK(on_terminal(80, wrong).second.starts_with("\033[1;31merror:\033[0m there is no option"));
    CHECK(on_terminal(80, wrong, {"NO_COLOR=1"}).second.starts_with("error: there is"));
    CHECK(on_terminal(80, wrong, {"TERM=dumb"}).second.starts_with("error: there is"));
    CHECK(run_trainer(wrong).second.starts_with("error: there is"));
    for (const int columns : {60, 120, 200})
        for (const Words& words : {Words{"--help"}, Words{"train", "--help"}}) {
            CAPTURE(columns);
            const auto [status, text] = on_terminal(columns, words);
            CHECK(status == 0);
            const Words lines = lines_of(text);
            CHECK(lines.size() > 30);
            for (const std::string& line : lines) {
                CAPTURE(line);
                CHECK(columns_of(line) < columns);
            }
        }
    const std::string piped = run_trainer({"doctor"}).second;
    CHECK(piped.find('\033') == piped.npos);
}

TEST_CASE("program: --help-all has every exit status that there is, and no other") {
    TempDir folder;
    const std::string run = folder / "run";
    const Words small =
        typed("--generated 48 --batch 8 --size 16 --epochs 1 --threads 1 --out") + Words{run};
    std::set<std::string> seen;
    const auto saw = [&](int status, int wanted) {
        CHECK(status == wanted);
        seen.insert(status > 128 ? "128+n" : std::to_string(status));
    };
    saw(run_trainer(small).first, 0);
    saw(run_trainer({"eval", "--from", run, "--min-top1", "1", "--generated", "48"}).first, 3);
    Process train(folder, "train",
                  typed("--generated 48 --size 16 --epochs 100000 --log-every 1 --threads 1 "
                        "--save-every 0 --out") +
                      Words{folder / "endless"});
    REQUIRE(train.wait_for("epoch 2/"));
    train.kill(SIGTERM);
    saw(train.wait(), 128 + SIGTERM);
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    close(ends[0]);
    const auto [status, message] = on_terminal(80, {"--help-all"}, {}, ends[1]);  // nobody reads it
    saw(status, 128 + SIGPIPE);
    CHECK(message == "");
    CHECK(on_terminal(80, {"models"}, {}, ends[1]).first == 128 + SIGPIPE);
    close(ends[1]);
    if (const int full = open("/dev/full", O_WRONLY | O_CLOEXEC); full >= 0) {
        const auto [failed, why] = on_terminal(80, {"--help-all"}, {}, full);
        saw(failed, 1);
        CHECK(contains(why, "error:"));
        close(full);
    }

    std::set<std::string> told;
    const std::string page = run_trainer({"--help-all"}).second;
    const size_t begin = page.find("Exit status:\n");
    REQUIRE(begin != page.npos);
    for (const std::string& line : lines_of(page.substr(begin)))
        if (line.starts_with("  ") && line[2] != ' ')
            told.insert(line.substr(2, line.find(' ', 2) - 2));
    CHECK(told == seen);
}

TEST_CASE("program: --quiet leaves the answer, --verbose tells times") {
    TempDir folder;
    const std::string run = folder / "run";
    const Words words =
        typed("--generated 48 --batch 8 --size 16 --epochs 1 --threads 1 --verbose --out") +
        Words{run};
    const auto [status, output] = on_terminal(100, words, {"CONVOY_SEED=3"});
    CAPTURE(output);
    CHECK(status == 0);
    for (const char* text : {"--seed is from CONVOY_SEED", " written in ", " s  took "})
        CHECK(contains(output, text));
    CHECK(run_trainer({"export", "--from", run, "--out", folder / "a.onnx", "--quiet"}) ==
          std::pair(0, std::string()));
    const std::string quiet = run_trainer({"eval", "--from", run, "--quiet"}).second;
    CHECK(quiet.starts_with("loss "));
    CHECK(lines_of(quiet).size() == 1);
}

TEST_CASE("program: --json is JSON line by line, wherever a command prints a table") {
    TempDir folder;
    const std::string run = folder / "run";
    const auto events = [&](const Words& words) {
        // Notices go to the other stream, which is a terminal here.
        const std::string file = folder / "out";
        const int out = open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
        const auto [status, text] = on_terminal(100, words, {}, out);
        close(out);
        CAPTURE(text);
        CHECK(status == 0);
        std::vector<json> all;
        for (const std::string& line : lines_of(read_file(file))) all.push_back(json::parse(line));
        return all;
    };
    const Words train =
        typed("--generated 48 --batch 8 --size 16 --epochs 2 --threads 1 --device cpu --json");
    // With a notice, that there are no graphs here.
    const auto trained = events(train + Words{"--out", run}), logged = read_log(run);
    CHECK(trained == logged);
    CHECK(logged.size() > 5);
    std::filesystem::create_directory(folder / "full");
    std::filesystem::create_symlink("/dev/full", folder / "full/log.jsonl");
    const auto without = events(train + Words{"--out", folder / "full"});
    REQUIRE(!without.empty());
    CHECK(without.back()["event"] == "done");
    const auto models = events({"models", "--json"});
    CHECK(models.size() > 5);
    CHECK(models[0]["model"].is_string());
    const auto found = events(typed("tune --lr --generated 48 --batch 8 --size 16 --threads 1 "
                                    "--steps 40 --json --out") +
                              Words{folder / "lr"});
    REQUIRE(!found.empty());
    CHECK(found.back()["event"] == "lr-find");
    CHECK(found.back().contains("steepest"));
    const auto doctor = events({"doctor", "--json", "--coord", "127.0.0.1:1"});
    CHECK(doctor.size() > 5);
}
