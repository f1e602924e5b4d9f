// photos.cpp — made-up photos for tests/lab/exercises/README.md: FOLDER/class0/00.jpg and so on.
// The width of the waves in a photo tells its class. usage: photos FOLDER COUNT
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <jpeglib.h>  // after <cstdio>

static void write_jpeg(const std::string& path, int height, int width, JSAMPLE* pixels) {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (!file) std::perror(path.c_str()), std::exit(1);
    jpeg_compress_struct jpeg;
    jpeg_error_mgr errors;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_stdio_dest(&jpeg, file);
    jpeg.image_height = JDIMENSION(height), jpeg.image_width = JDIMENSION(width);
    jpeg.input_components = 3, jpeg.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_start_compress(&jpeg, TRUE);
    for (JSAMPROW row = pixels; jpeg.next_scanline < jpeg.image_height; row += 3 * width)
        jpeg_write_scanlines(&jpeg, &row, 1);
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    std::fclose(file);
}

int main(int argc, char** argv) {
    if (argc != 3) return std::fputs("usage: photos FOLDER COUNT\n", stderr), 2;
    std::mt19937 random(1);  // the same photos each time, on every machine
    const auto below = [&](uint32_t n) { return int(random() % n); };
    for (int i = 0; i < std::atoi(argv[2]); ++i) {
        const std::string folder = std::string(argv[1]) + "/class" + std::to_string(i % 3);
        const int height = 70 + below(60), width = 70 + below(60), phase = below(60);
        std::vector<JSAMPLE> pixels;
        for (int h = 0; h < height; ++h)
            for (int w = 0; w < 3 * width; ++w) {
                const double wave = std::sin((h + phase) / (2.0 + 2 * (i % 3))) * std::cos(w / 9.0);
                pixels.push_back(JSAMPLE(118 + 90 * wave + below(20)));
            }
        std::filesystem::create_directories(folder);
        const std::string number = std::to_string(i);
        write_jpeg(folder + (i < 10 ? "/0" : "/") + number + ".jpg", height, width, pixels.data());
    }
}
