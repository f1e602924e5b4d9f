// test_classes.cpp — what looks like classes and is none: parts of a set, masks, folders around a
// set, files of other formats; and sets that look odd but are right.
#include <filesystem>

#include "tests/data_files.h"

using namespace convoy;
namespace fs = std::filesystem;

namespace {

// Makes files 0, 1 and 2 of each of these folders: "cat/in/" for .jpg, "mask/_mask.png" for others.
void put_files(TempDir& dir, const std::vector<std::string>& folders) {
    for (const std::string& name : folders)
        for (int i = 0; i < 3; ++i) {
            const size_t slash = name.rfind('/');
            const std::string end = slash + 1 < name.size() ? name.substr(slash + 1) : ".jpg";
            put(dir / cat(name.substr(0, slash + 1), i, end), name + cat(i));
        }
}

}  // namespace

TEST_CASE("parts, masks, copies and folders around a set are no classes, and the error says what") {
    const std::pair<std::vector<std::string>, const char*> sets[] = {
        {{"cat/", "dog/", "val/cat/", "val/dog/"}, "--classes cat,dog"},
        {{"cat/", "dog/", "pig/", "test/x/cat/", "test/x/dog/", "val/pig/"}, "test, val"},
        {{"rose/", "tulip/", "flowers/rose/", "flowers/tulip/"}, "flowers"},
        {{"cars_train/", "cars_test/"}, "cars_train, cars_test"},
        {{"trainA/", "trainB/", "testA/", "testB/"}, "trainA"},
        {{"query/", "gallery/", "box_train/", "box_test/"}, "box_train, box_test"},
        {{"Training/0/", "Training/1/", "Final_Test/Images/"}, "--val"},
        {{"fold1/a/", "fold2/a/", "fold1/b/", "fold2/b/"}, "fold1, fold2"},
        {{"x_images_part_1/", "x_images_part_2/"}, "path, tab, label"},
        {{"augmented/a/", "original/a/", "augmented/b/", "original/b/"}, "augmented, original"},
        {{"train/a/", "train/b/", "extra/a/", "extra/b/"}, "/train --val"},
        {{"red/a/", "red/b/", "red/c/", "grey/a/", "grey/b/", "grey/c/"}, "grey, red"},
        {{"run1/a/", "run1/b/", "run2/a/", "run2/b/", "run3/a/", "run3/b/"}, "run1, run2, run3"},
        {{"w/images/a/", "w/images/b/", "x/images/a/", "x/images/b/"}, "w, x"},
        {{"images/", "annotations/trimaps/.png"}, "images, annotations"},
        {{"images/a/", "images/b/", "segmentations/a/.png"}, "images"},
        {{"JPEGImages/", "SegmentationClass/.png", "SegmentationObject/.png"}, "JPEGImages"},
        {{"CXR_png/.png", "masks/_mask.png"}, "masks"},
        {{"photo_set/", "manual truth/.gif", "truth/.png"}, "truth"},
        {{"cat/", "cat_mask/", "dog/", "dog_mask/"}, "cat_mask"},
        {{"benign/", "benign/_mask.png", "normal/"}, "benign"},
        {{"ill/images/", "ill/masks/", "well/images/", "well/masks/"}, "images, masks"},
        {{"cup/train/", "cup/val/", "pen/train/", "pen/val/"}, "train, val"},
    };
    for (const auto& [folders, why] : sets) {
        CAPTURE(folders[0]);
        TempDir dir;
        put_files(dir, folders);
        refuses({.train = dir.path()}, why);
        refuses({.train = dir.path()}, "--classes all");
        std::string log;  // the option is obeyed
        const DataSet set = open({.train = dir.path(), .classes = {"all"}}, &log);
        CHECK(set.train->size() == 3 * folders.size() - std::ranges::count_if(folders, [](auto& s) {
                                                            return s.ends_with(".gif");
                                                        }) * 3);
        CHECK(!contains(log, "hold the same folders"));
    }
    TempDir dir;  // the command that helps can be copied, also with blanks in the path
    put_files(dir,
              {"my set's/train/a/", "my set's/train/b/", "my set's/extra/a/", "my set's/extra/b/"});
    refuses({.train = dir / "my set's"}, "my set'\\''s/train' --val '");
}

TEST_CASE("classes with odd names, equal names of files or equal folders in them are classes") {
    const std::vector<std::string> sets[] = {
        {"train/", "car/", "plane/"},
        {"train/", "test/", "mask/.png", "hat/", "glove/"},
        {"test tube/", "dev board/", "train/"},
        {"with_mask/", "without_mask/", "mask_weared_incorrect/"},
        {"mask/", "cap/"},
        {"raw/", "cooked/"},
        {"button/", "image/", "label/", "text/", "icon/"},
        {"apple/", "pear/.png"},
        {"cats/cats/", "dogs/dogs/"},
        {"cat/in/", "cat/out/", "dog/in/", "dog/out/"},
        {"good/40X/", "good/100X/", "good/200X/", "bad/40X/", "bad/100X/", "bad/200X/"},
        {"0/1/", "0/2/", "1/1/", "1/2/", "2/1/", "2/2/"},
        {"hats/caps/", "hats/other/", "shoes/boots/", "other/"},
        {"class1/", "class2/"},
        {"Ford GT Coupe 2006/", "Ford Mustang Coupe 2007/"},
        {"猫_train/", "狗_train/"},
        {"n01/images/", "n02/images/"},
    };
    for (const std::vector<std::string>& folders : sets) {
        CAPTURE(folders[0]);
        TempDir dir;
        put_files(dir, folders);
        CHECK(open({.train = dir.path()}).train->size() == 3 * folders.size());
    }
}

TEST_CASE(
    "what stays doubtful is told: a class val, equal folders, validation on training images") {
    TempDir dir;
    put_files(dir, {"a/cat/", "a/dog/", "a/val/", "b/cat/in/", "b/cat/out/", "b/dog/in/",
                    "b/dog/out/", "c/cat/", "c/dog/"});
    std::string log;
    open({.train = dir / "a", .val_split = 0.4f}, &log);
    CHECK(contains(log, dir / "a/val"));
    open({.train = dir / "b", .val_split = 0.4f}, &log);
    CHECK(contains(log, "cat, dog hold the same folders (in, out)"));
    open({.train = dir / "c", .val = dir / "c/."}, &log);
    CHECK(contains(log, "the same names and sizes"));
    put(dir / "a/cat/0.jpg", "another one");
    open({.train = dir / "c", .val = dir / "a", .classes = {"cat", "dog"}, .part = true}, &log);
    CHECK(!contains(log, "the same names and sizes"));
}

TEST_CASE("links to folders above a class bring no images of other classes") {
    TempDir dir;
    put_files(dir, {"set/a/", "set/b/", "beside/"});
    fs::create_directory_symlink("..", dir / "set/a/up");
    fs::create_directory_symlink("../..", dir / "set/b/up");
    fs::create_directory_symlink(".", dir / "set/c");
    fs::create_directory_symlink("set", dir / "link");
    for (const char* name : {"set", "link"}) CHECK(open({.train = dir / name}).train->size() == 6);
}

TEST_CASE("labels of shards and lists are no parts of a set") {
    TempDir dir;
    put(dir / "a.txt", "1.jpg\ttrain\n2.jpg\tval\n");
    refuses({.train = dir / "a.txt"}, "train, val");
    CHECK(open({.train = dir / "a.txt", .classes = {"all"}}).train->size() == 2);
}

TEST_CASE("a folder around a set is named with the folder to give, and other files by their kind") {
    TempDir dir;
    put_files(dir, {"food/images/pie/", "food/images/cake/", "deep/x/set/a/", "deep/x/set/b/",
                    "flat/", "celeb/img/", "tiny/train/a/images/", "tiny/train/b/images/",
                    "tiny/val/images/", "places/train/a/", "places/train/b/", "places/val/"});
    put(dir / "food/meta/train.txt"), put(dir / "deep/x/Annotations/1.xml");
    refuses({.train = dir / "food"}, "--data " + dir / "food/images");
    refuses({.train = dir / "deep"}, "--data " + dir / "deep/x/set");
    refuses({.train = dir / "flat"}, "3 .jpg");
    refuses({.train = dir / "celeb"}, "only one class, 'img'");
    refuses({.train = dir / "tiny"}, "a class 'images'");
    refuses({.train = dir / "places"}, dir / "places/val");
    put(dir / "MNIST/raw/train-images-idx3-ubyte", std::string("\0\0\x08\x03", 4) + "1234567890ab");
    refuses({.train = dir / "MNIST"}, "--data " + dir / "MNIST/raw");

    const std::string zeros(600, '\0');
    for (const auto& [bytes, kind] : {std::pair<std::string, const char*>{"PK\3\4", "zip"},
                                      {"PAR1", "Parquet"},
                                      {"\x89HDF\r\n\x1a\n", "HDF5"},
                                      {"\x80\2}q", "pickle"},
                                      {zeros.substr(0, 16) + "\xDE\xC0\xEF\xBE", "LMDB"},
                                      {zeros.substr(0, 4) + "ftypisom", "video"},
                                      {"\x93NUMPY", "NumPy"},
                                      {"\x1F\x8B\x08", "gzip"},
                                      {"\xFF\xFE"
                                       "a",
                                       "UTF-16"}}) {
        CAPTURE(kind);
        TempDir other;
        put(other / "set/data/1.bin", bytes + zeros);
        refuses({.train = other / "set/data/1.bin"}, kind);
        refuses({.train = other / "set"}, other / "set/data/1.bin' is ");
        refuses({.train = other / "set/data"}, kind);
        put_files(other, {"good/a/", "good/b/"});  // beside classes they do not matter
        put(other / "good/1.bin", bytes + zeros);
        CHECK(open({.train = other / "good"}).train->size() == 6);
    }
    put(dir / "lmdb/lock.mdb", zeros),
        put(dir / "lmdb/data.mdb", zeros.substr(0, 16) + "\xDE\xC0\xEF\xBE");
    refuses({.train = dir / "lmdb"}, "LMDB");
    put(dir / "windows/cat\\1.jpg"), put(dir / "windows/dog\\1.jpg");
    refuses({.train = dir / "windows"}, "backslashes");
}

TEST_CASE("a list with a header, commas, blanks, backslashes or another encoding is refused") {
    TempDir dir;
    put(dir / "cat/1.jpg");
    for (const auto& [text, why] : {std::pair("image\tlabel\ncat/1.jpg\tcat\n", "header"),
                                    {"cat\tcat/1.jpg\n", "'cat'"},
                                    {"id,label\ncat/1.jpg,cat\n", "comma"},
                                    {"cat/1.jpg 3\n", "tab in front"},
                                    {"cat/1.jpg\tcat\ncat\\1.jpg\tcat\n", "line 2"},
                                    {"cat/1.jpg\tcaf\xe9\n", "UTF-8"}}) {
        CAPTURE(text);
        put(dir / "list.txt", text);
        refuses({.train = dir / "list.txt"}, why);
    }
    // A missing image is a bad image, and a file without an extension is an image.
    put(dir / "2"), put(dir / "list.txt", "2\ta\n3.jpg\tb\n4\tb\ncat/1.jpg\tb\n");
    CHECK(open({.train = dir / "list.txt"}).train->size() == 4);
}
