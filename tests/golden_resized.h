// golden_resized.h — made by tests/make_goldens.py with Pillow 13.0.
#pragma once

// clang-format off
namespace golden {

// picture(H, W) resized from top/left/h/w of it to size x size: exactly these pixels.
struct Resized {
    int H, W, top, left, h, w, out_H, out_W;
    unsigned long long hash;  // of the pixels, by hash_bytes()
};
constexpr Resized kResized[] = {
    {37, 29, 0, 0, 37, 29, 8, 8, 0xc060f80347854068}, {6, 5, 0, 0, 6, 5, 9, 7, 0xa856003dcc945c4e},
    {50, 20, 0, 0, 50, 20, 5, 9, 0x47570f537fa563c0},
    {20, 50, 0, 0, 20, 50, 9, 5, 0xeeff60a40509290f}, {1, 1, 0, 0, 1, 1, 3, 3, 0xde52cfaf350711b3},
    {1, 40, 0, 0, 1, 40, 4, 4, 0x262c8599a0887a9d}, {40, 1, 0, 0, 40, 1, 4, 4, 0x58835ea146be2ae9},
    {9, 9, 0, 0, 9, 9, 9, 9, 0x45d9b62be49478eb}, {33, 41, 5, 7, 20, 13, 8, 8, 0xb274ec90582052de},
    {33, 41, 12, 20, 21, 21, 6, 6, 0xcf4886a6b58ea6b5},
    {100, 130, 3, 1, 97, 128, 4, 6, 0xb16b8f69b0b5be4a}};

// Validation of picture(H, W) at size 14: torchvision's Resize(16), CenterCrop(14).
struct Validated {
    int H, W;
    unsigned long long hash;  // of the pixels, by hash_bytes()
};
constexpr Validated kValidated[] = {
    {30, 47, 0x460b1b34a86167d6}, {47, 30, 0x4a160aaf87020475}, {16, 16, 0x932c5d7cf267d3c5},
    {5, 9, 0x176302b123124e7a}, {61, 20, 0xae13f99e810bf167}};

// The grey picture(H, W) at 14x7: torchvision's Grayscale(), Resize((16, 8)), CenterCrop((14, 7)).
constexpr Validated kValidatedGrey[] = {
    {30, 47, 0xd797ba1bd2850b55}, {47, 30, 0xced3ef5d1bc84c51}, {16, 8, 0x8f3c107cb443493},
    {5, 9, 0xd43b73828b16eb3a}, {61, 20, 0xf2bfa840373a5210}};

}  // namespace golden
