// test_source.cpp — folders as users have them, and the errors for those that cannot be used.
#include "data/sources/dataset.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "data/sources/storage.h"
#include "data_files.h"
#include "src/base/check.h"
#include "support.h"
#include "tests/call_hooks.h"

using namespace convoy;
namespace fs = std::filesystem;

namespace {

void put_class(const std::string& folder, int n) {
    for (int i = 0; i < n; ++i) put(cat(folder, "/", i, ".jpg"), cat(folder, i));
}

std::vector<std::string> names(const Source& source) {
    std::vector<std::string> all;
    for (size_t i = 0; i < source.size(); ++i) all.push_back(source.name(i));
    return all;
}

std::shared_ptr<const Source> open_eval(const std::string& folder,
                                        const std::vector<std::string>& classes) {
    Quiet quiet;
    return open_for_classes({.train = folder}, classes, quiet.log);
}

}  // namespace

TEST_CASE("classes are sorted folder names, files are sorted, found in depth, by extension") {
    TempDir dir;
    for (const char* file : {"hat/b.JPG",     "hat/a.jpeg",        "hat/inside/deep/c.Png",
                             "hat/notes.txt", "hat/.hidden.jpg",   "hat/.thumbs/x.jpg",
                             "Dress/1.webp",  "Dress/2.tif",       "Dress/3.tiff",
                             "Dress/4.bmp",   "Dress/5.ppm",       "Dress/6.pgm",
                             "Dress/7.gif",   ".git/x.jpg",        "loose.jpg",
                             "hat/d.JFIF",    "hat/e.jpe",         "hat/f.jif",
                             "Dress/8.GIF",   "Dress/desktop.ini", "hat/none"})
        put(dir / file);
    const DataSet set = open({.train = dir.path()});
    CHECK(set.train->classes() == std::vector<std::string>{"Dress", "hat"});
    CHECK(set.val == nullptr);
    const auto at = [&](const char* name) { return dir / name; };
    CHECK(names(*set.train) ==
          std::vector<std::string>{at("Dress/1.webp"), at("Dress/2.tif"), at("Dress/3.tiff"),
                                   at("Dress/4.bmp"), at("Dress/5.ppm"), at("Dress/6.pgm"),
                                   at("hat/a.jpeg"), at("hat/b.JPG"), at("hat/d.JFIF"),
                                   at("hat/e.jpe"), at("hat/f.jif"), at("hat/inside/deep/c.Png")});
    CHECK(
        set.train->left_out() ==
        LeftOut{{".gif", 2}, {".txt", 1}, {"images in no class folder", 1}, {"of other names", 1}});
    std::string log;
    open({.train = dir.path(), .val_split = 0.3f}, &log);
    CHECK(contains(log, "2 .gif, 1 .txt"));
    CHECK(set.train->label(5) == 0);
    CHECK(set.train->label(6) == 1);
    std::vector<uint8_t> bytes = {1, 2, 3};
    set.train->read(7, bytes);
    CHECK(std::string(bytes.begin(), bytes.end()) == "bytes");
}

TEST_CASE("train/ beside val/ is validated there, and test/ is left alone") {
    TempDir dir, both;
    for (const char* part : {"train/a", "train/b", "val/b", "test/a"}) put_class(dir / part, 3);
    const DataSet set = open({.train = dir.path()});
    CHECK(set.train->size() == 6);
    REQUIRE(set.val != nullptr);
    CHECK(set.val->size() == 3);
    CHECK(set.val->name(0) == dir / "val/b/0.jpg");
    CHECK(set.val->label(0) == 1);  // as in training, though it lacks a class
    CHECK(contains(set.description, "2 classes, 6 images for training, 3 for validation"));
    refuses({.train = dir.path(), .val_split = 0.2f}, "validation set already there");
    // A --val of the user's own wins.
    CHECK(open({.train = dir.path(), .val = dir / "test"}).val->name(0) == dir / "test/a/0.jpg");
    for (const char* part : {"train", "val", "validation"}) put_class(both / cat(part, "/a"), 1);
    refuses({.train = both.path()}, "train, val, validation");
}

TEST_CASE("training, validation and test sets are recognised by all their usual names") {
    for (const auto& [train, val] : {std::pair("train", "val"),
                                     {"train", "validation"},
                                     {"train", "valid"},
                                     {"Train", "Test"},
                                     {"Training", "Testing"},
                                     {"train", "dev"},
                                     {"TRAIN", "eval"},
                                     {"train2017", "val2017"},
                                     {"training_set", "test_set"}}) {
        CAPTURE(train);
        TempDir dir;
        for (const char* name : {"a", "b"})
            put_class(dir / cat(train, "/", name), 2), put_class(dir / cat(val, "/", name), 1);
        const auto is_split = [&] {
            const DataSet set = open({.train = dir.path()});
            REQUIRE(set.val != nullptr);
            CHECK(set.train->classes() == std::vector<std::string>{"a", "b"});
            CHECK((set.train->size() == 4 && set.val->size() == 2));
        };
        is_split();
        // What holds no images is no class.
        put(dir / "docs/notes.txt"), put(dir / "lost+found/x.jpg"), put(dir / "README.md");
        fs::create_directories(dir / "validation");
        is_split();
        put_class(dir / "unlabelled", 3);
        is_split();
    }
}

TEST_CASE("folders that are parts of a set by their names do not become classes") {
    for (const auto& parts : {std::vector{"valid", "test"},
                              {"seg_train", "seg_test", "seg_pred"},
                              {"train", "Training"},
                              {"my-test", "my-train", "my-val"}}) {
        TempDir dir;
        for (const char* part : parts)
            if (part != std::string("seg_pred")) put_class(dir / cat(part, "/a"), 1);
        put_class(dir / cat(parts[0], "/b"), 1), put_class(dir / cat(parts.back(), "/b"), 1);
        refuses({.train = dir.path()}, "--val " + dir.path().native());
        refuses({.train = dir.path()}, parts[1]);
    }
    TempDir dir;  // words that classes may have
    for (const char* name : {"test tube", "dev board", "train"}) put_class(dir / name, 1);
    CHECK(open({.train = dir.path()}).train->classes().size() == 3);
}

TEST_CASE("folders of operating systems and folders without images are no classes") {
    TempDir dir;
    for (const char* name : {"cat", "dog", "__MACOSX/cat", "@eaDir", "$Recycle.Bin", "cat/@eaDir"})
        put_class(dir / name, 2);
    put(dir / "dog/Thumbs.db"), put(dir / "docs/notes.txt");
    std::string log;
    const DataSet set = open({.train = dir.path()}, &log);
    CHECK(set.train->classes() == std::vector<std::string>{"cat", "dog"});
    CHECK((set.train->size() == 4 && set.train->left_out().empty()));
    CHECK(contains(log, dir / "docs"));
    refuses({.train = dir.path(), .classes = {"cat", "docs"}}, "'docs'");
}

TEST_CASE("train/ beside test/ alone is validated on test/, and the log says so") {
    TempDir dir;
    for (const char* name : {"train/a", "train/b", "test/a"}) put_class(dir / name, 5);
    std::string log;
    const DataSet set = open({.train = dir.path()}, &log);
    REQUIRE(set.val != nullptr);
    CHECK(names(*set.val).front() == dir / "test/a/0.jpg");
    CHECK(set.val->size() == 5);
    CHECK(log == cat("validation set: '", dir / "test", "', as there is no val/ beside train/\n"));
    CHECK(set.description.ends_with(cat("5 for validation (", dir / "test", ")")));
    CHECK(open_eval(dir.path(), {"a", "b"})->name(0) == dir / "test/a/0.jpg");

    // What the user asks for comes first, and test/ is left alone.
    CHECK(open({.train = dir.path(), .val_split = 0.2f}, &log).val->size() == 2);
    CHECK(log.empty());
    CHECK(open({.train = dir.path(), .val = dir / "train"}, &log).val->size() == 10);
    CHECK(contains(log, "the same names and sizes"));
}

TEST_CASE("test/ whose folders are not the classes is left alone, and the log says so") {
    TempDir dir;
    for (const char* name : {"train/a", "train/b", "test/unknown"}) put_class(dir / name, 2);
    std::string log;
    CHECK(open({.train = dir.path()}, &log).val == nullptr);
    CHECK(log.starts_with(cat("'", dir / "test", "' is not used: its classes are not those of")));
    std::filesystem::remove_all(dir / "test/unknown");
    CHECK(open({.train = dir.path()}, &log).val == nullptr);
}

TEST_CASE("without a validation set the log says how to get one") {
    TempDir dir;
    for (const char* name : {"train/a", "train/b"}) put_class(dir / name, 2);
    for (const std::string& folder : {dir.path().native(), dir / "train"}) {
        std::string log;
        const DataSet set = open({.train = folder}, &log);
        CHECK(set.val == nullptr);
        CHECK(log == cat("no validation set: name one with --val DIR, or hold back a part of '",
                         dir / "train", "' with --val-split F\n"));
        CHECK(set.description.ends_with("none for validation"));
    }
}

TEST_CASE("--classes keeps those, in that order, in training and validation") {
    TempDir dir;
    for (const char* part : {"train", "val"})
        for (const char* name : {"a", "b", "c"}) put_class(dir / cat(part, "/", name), 2);
    std::string log;
    const DataSet set = open({.train = dir.path(), .classes = {"c", "a"}}, &log);
    CHECK(contains(log, "class 'b' of "));
    CHECK(set.train->classes() == std::vector<std::string>{"c", "a"});
    CHECK(set.train->name(0) == dir / "train/c/0.jpg");
    CHECK(set.train->label(0) == 0);
    CHECK(set.val->size() == 4);
    CHECK(set.val->label(2) == 1);
    refuses({.train = dir.path(), .classes = {"c", "x"}}, "no class 'x'");
    refuses({.train = dir.path(), .classes = {"c", "x"}}, "there are: a, b, c");
    refuses({.train = dir.path(), .classes = {"c"}}, "only one class, 'c'");
    refuses({.train = dir.path(), .classes = {"c", "c"}}, "named twice");
}

TEST_CASE("folders that will not do are refused in one sentence with a name in it") {
    TempDir dir;
    refuses({.train = dir / "nowhere"}, "nowhere': there is no such file or folder");
    put(dir / "file", "text");
    refuses({.train = dir / "file"}, "neither a shard nor a list");
    fs::create_directories(dir / "none");
    refuses({.train = dir / "none"}, "has neither class folders");
    put_class(dir / "one/cat", 2);
    refuses({.train = dir / "one"}, "only one class, 'cat'");
    put_class(dir / "empty/cat", 2);
    fs::create_directories(dir / "empty/dog");
    refuses({.train = dir / "empty"}, "only one class, 'cat'");
    put_class(dir / "good/cat", 2), put_class(dir / "good/dog", 2);
    put_class(dir / "odd/cat", 2), put_class(dir / "odd/cow", 2);
    refuses({.train = dir / "good", .val = dir / "odd"},
            "has a class 'cow' that training does not know; there are: cat, dog");
    refuses({.train = dir / "good", .val = dir / "nowhere"}, "there is no such file");
    refuses({.train = dir / "good", .val_split = 1.5f}, "1.5 is not between 0 and 1");
    refuses({.val = dir / "good"}, "--val needs --data");
    refuses({.train = dir / "good", .label_offset = 1}, "has class folders");
    refuses({.label_offset = 1}, "needs --data");
}

TEST_CASE(
    "a pipe, a device or standard input as a set is refused by name, and nothing waits for it") {
    TempDir dir;
    const std::string pipe = dir / "pipe", good = dir / "good";
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    put_class(good + "/cat", 2), put_class(good + "/dog", 2);
    Quiet quiet;
    for (const std::string& name : {pipe, std::string("/dev/null"), std::string("-")}) {
        const std::string why =
            cat("'", name, "' is neither a folder nor a file of a known format");
        refuses({.train = name}, why);
        refuses({.train = good, .val = name}, why);
        CHECK_FAILS(open_eval(name, {"cat", "dog"}), why);
        std::vector<std::string> faults;
        CHECK_FAILS(open_images({name}, {}, quiet.log, faults), why);
    }
}

TEST_CASE("--val-split holds back a part of each class, the same wherever the folder lies") {
    TempDir dir, elsewhere;
    for (TempDir* at : {&dir, &elsewhere}) {
        put_class(*at / "a", 40), put_class(*at / "b", 10), put_class(*at / "c", 1);
    }
    const auto held = [](TempDir& at, uint64_t seed) {
        const DataSet set = open({.train = at.path(), .val_split = 0.2f, .seed = seed});
        CHECK(set.train->size() == 41);
        REQUIRE(set.val->size() == 10);
        int counts[3] = {};
        std::set<std::string> all, val;
        for (const std::string& name : names(*set.train)) all.insert(name);
        for (size_t i = 0; i < 10; ++i) {
            ++counts[set.val->label(i)];
            CHECK(all.insert(set.val->name(i)).second);
            val.insert(set.val->name(i).substr(at.path().native().size()));
        }
        CHECK(all.size() == 51);
        CHECK((counts[0] == 8 && counts[1] == 2 && counts[2] == 0));
        return val;
    };
    CHECK(held(dir, 1) == held(elsewhere, 1));
    CHECK(held(dir, 1) != held(dir, 2));
}

TEST_CASE("the fingerprint knows names, sizes, classes and labels, but not the place") {
    TempDir one, two;
    for (TempDir* at : {&one, &two}) {
        put(*at / "a/1.jpg", "xy"), put(*at / "b/1.jpg", "z");
    }
    const auto print = [](TempDir& at, std::vector<std::string> classes = {}) {
        return open({.train = at.path(), .classes = std::move(classes)}).train->fingerprint();
    };
    CHECK(print(one) == print(two));
    CHECK(print(one, {"b", "a"}) != print(one));
    put(two / "b/1.jpg", "zz");
    CHECK(print(one) != print(two));
    put(two / "b/1.jpg", "z"), put(two / "b/2.jpg", "");
    CHECK(print(one) != print(two));
}

TEST_CASE("open_for_classes follows the model's order and refuses other classes") {
    TempDir dir;
    for (const char* name : {"train/a", "train/b", "val/a", "val/b", "val/z"})
        put_class(dir / name, 2);
    CHECK_FAILS(open_eval(dir.path(), {"b", "a", "q"}), "class 'z'");
    fs::remove_all(dir / "val/z");
    const auto source = open_eval(dir.path(), {"b", "a", "q"});
    CHECK(source->size() == 4);
    CHECK(source->name(0) == dir / "val/b/0.jpg");
    CHECK(source->label(3) == 1);
    CHECK(source->classes().size() == 3);
}

TEST_CASE("links that lead round in a circle are not followed, others are") {
    TempDir dir;
    put_class(dir / "a", 2), put_class(dir / "b", 2), put_class(dir / "elsewhere", 1);
    fs::create_directories(dir / "a/deep");
    fs::create_directory_symlink(".", dir / "a/loop");
    fs::create_directory_symlink("..", dir / "a/deep/up");
    fs::create_directory_symlink("../b", dir / "a/more");
    const auto source = open({.train = dir.path(), .classes = {"a", "b"}}).train;
    CHECK(names(*source) == std::vector<std::string>{dir / "a/0.jpg", dir / "a/1.jpg",
                                                     dir / "a/more/0.jpg", dir / "a/more/1.jpg",
                                                     dir / "b/0.jpg", dir / "b/1.jpg"});
}

TEST_CASE("a folder to which many links lead is listed once for each class; a signal ends it") {
    TempDir dir;
    const int kFolders = 4, kDeep = 12;
    for (int i = 0; i < kFolders; ++i) put_class(dir / cat(i), 2);
    for (int i = 0; i < kFolders; ++i)
        for (int k = 0; k < kFolders; ++k)
            fs::create_directory_symlink(cat("../", k), dir / cat(i, "/to", k));
    for (int i = 0; i < kDeep; ++i) {  // 2^12 ways to the last
        fs::create_directories(dir / cat(".chain/", i));
        for (const char* link : {"/x", "/y"})
            fs::create_directory_symlink(cat("../", i + 1), dir / cat(".chain/", i, link));
    }
    put_class(dir / cat(".chain/", kDeep), 1);
    fs::create_directory_symlink("0", dir / "link");  // a class of its own
    fs::create_directory_symlink(".chain/0", dir / "chain");
    const auto source = open({.train = dir.path()}).train;
    CHECK(source->size() == size_t(2 * kFolders * (kFolders + 1) + 1));
    CHECK(source->name(2) == dir / "0/to1/0.jpg");  // not 0/to2/to1/0.jpg
    int calls = 0;
    refuses({.train = dir.path(), .remote = {.stop = [&] { return ++calls < 20 ? 0 : 15; }}},
            "stopped by signal 15 while the images were listed");
    CHECK(calls == 20);
}

TEST_CASE("what is no file, or larger than any image, is a bad image; names cannot forge lines") {
    TempDir dir;
    put_class(dir / "a", 1), put_class(dir / "b", 1);
    REQUIRE(mkfifo((dir / "a/1 fifo.jpg").c_str(), 0600) == 0);
    put(dir / "a/2 sparse.jpg"), fs::resize_file(dir / "a/2 sparse.jpg", 1ull << 40);
    put(dir / "a/3 \n\x1b[31merror: x.jpg"), fs::create_symlink("gone", dir / "a/4.jpg");
    const auto source = open({.train = dir.path()}).train;
    const auto fault = [&](size_t i) -> std::string {
        std::vector<uint8_t> bytes;
        try {
            source->read(i, bytes);
        } catch (const Unreachable&) {
            return "not a fault of the image";
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    };
    CHECK(fault(0) == "");
    CHECK(fault(1) == dir / "a/1 fifo.jpg: not a file");
    CHECK(fault(2) == dir / "a/2 sparse.jpg: 1099511627776 bytes; the limit is 536870912");
    CHECK(fault(3) == "");
    CHECK(source->name(3) == dir / "a/3 \\x0a\\x1b[31merror: x.jpg");
    fs::remove(dir / "a/3 \n\x1b[31merror: x.jpg");
    CHECK(fault(3) == dir /
                          "a/3 \\x0a\\x1b[31merror: x.jpg: cannot be opened: No such file or "
                          "directory");
    CHECK(fault(4) == dir / "a/4.jpg: cannot be opened: No such file or directory");
    fs::remove_all(dir / "b");
    CHECK(fault(5) == "not a fault of the image");
    put_class(dir / "c\nd", 1);
    refuses({.train = dir.path()}, "'c\\x0ad' is not UTF-8 or holds control characters");
}

TEST_CASE("too many open files are no fault of an image") {
    TempDir dir;
    put(dir / "1.jpg");
    TightLimit limit(RLIMIT_NOFILE, 3);  // the standard streams have them
    const std::string why = dir / "1.jpg: cannot be opened: Too many open files";
    CHECK_THROWS_WITH_AS(open_local(dir / "1.jpg"), why.c_str(), Unreachable);
    limit.lift();
    CHECK(open_local(dir / "1.jpg")->size() == 5);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // call_hooks.h
TEST_CASE("a file that cannot be opened or read for a while is tried again, for two seconds") {
    TempDir dir;
    put(dir / "1.jpg");
    TightLimit limit(RLIMIT_NOFILE, 3);
    int waits = 0;
    on_wait = [&] {
        if (++waits == 3) limit.lift();
    };
    StoragePtr file;
    CHECK_NOTHROW(file = open_local(dir / "1.jpg"));
    limit.lift();
    CHECK(waits == 3);
    REQUIRE(file);
    for (const int error : {EIO, ENFILE, EMFILE})
        for (const int times : {3, 100}) {
            int calls = waits = 0;
            read_error = [&] { return ++calls <= times ? error : 0; };
            std::vector<uint8_t> bytes(5);
            if (times == 3)
                CHECK_NOTHROW(file->read(0, bytes));
            else
                CHECK_THROWS_AS(file->read(0, bytes), Unreachable);
            CHECK(waits == std::min(times, 20));
        }
    read_error = nullptr, on_wait = nullptr;
}
#endif

TEST_CASE("predict's files and folders are one source, in the order given; lists are another") {
    TempDir dir;
    put(dir / "z/2.jpg"), put(dir / "z/1.png"), put(dir / "z/deep/3.jpg"),
        put(dir / "odd.name", "BM345");
    put(dir / "list.txt", "z/2.jpg\t0\nz/1.png\t1\n"), put(dir / "empty.jpg", "");
    Quiet quiet;
    std::vector<std::string> faults;
    const auto open_files = [&](const std::vector<std::string>& paths) {
        const auto sources = open_images(paths, {}, quiet.log, faults);
        CHECK(sources.size() == 1);
        return sources.at(0);
    };
    CHECK(names(*open_files({dir / "list.txt"})) ==
          std::vector<std::string>{dir / "z/2.jpg", dir / "z/1.png"});
    CHECK(open_images({dir / "empty.jpg", dir / "list.txt", dir / "z"}, {}, quiet.log, faults)
              .size() == 3);
    put(dir / "bare.txt", "z/2.jpg\r\n\nz/1.png\t5\n");
    CHECK(names(*open_files({dir / "bare.txt"})) ==
          std::vector<std::string>{dir / "z/2.jpg", dir / "z/1.png"});
    CHECK(faults.empty());
    CHECK(open_images({dir / "z", dir / "gone.jpg", dir / "z"}, {}, quiet.log, faults).size() == 2);
    REQUIRE(faults.size() == 1);
    CHECK(contains(faults[0], "gone.jpg"));
    put(dir / "two\nlines.png");
    CHECK(open_files({dir / "two\nlines.png"})->title(0) == dir / "two\nlines.png");
    CHECK(open_files({dir / "two\nlines.png"})->name(0) == dir / "two\\x0alines.png");
    const auto source = open_files({dir / "z", dir / "odd.name"});
    CHECK(names(*source) == std::vector<std::string>{dir / "z/1.png", dir / "z/2.jpg",
                                                     dir / "z/deep/3.jpg", dir / "odd.name"});
    CHECK(source->label(0) == -1);
    CHECK(source->classes().empty());
    std::vector<uint8_t> bytes;
    source->read(3, bytes);
    CHECK(bytes.size() == 5);
    fs::create_directories(dir / "nothing");
    CHECK_FAILS(open_files({dir / "nothing"}), "has no images");
    put(dir / "nothing/1.heic");
    CHECK_FAILS(open_files({dir / "nothing"}), "1 .heic");
    CHECK_FAILS(open_files({dir / "gone.jpg"}), "no such file");
}
