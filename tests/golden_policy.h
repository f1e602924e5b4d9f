// golden_policy.h — made by tests/make_policy_goldens.py with torchvision 0.29, Pillow 13.0,
// PyTorch 2.15.
#pragma once

// clang-format off
namespace golden {

// Four pictures after one operation (its place in PixelOp): hash_bytes() of the hashes of their pixels.
struct Changed {
    int op;
    double amount;
    unsigned long long hash;
};
constexpr Changed kChanged[] = {
    {0, 0, 0xd23c52d0d4a97d57}, {1, 0.09, 0xf25f420058d88f10}, {1, 0.99, 0xdb06c7f3f0a45000},
    {1, -0.09, 0x4af232c703240ff5}, {1, -0.99, 0xa3aabdda5a55a9c4}, {2, 0.09, 0x25f0c34e2f18b078},
    {2, 0.99, 0x64153d2e4dc92638}, {2, -0.09, 0xea09709f2c95d213}, {2, -0.99, 0x5337363a18d77f4d},
    {3, 9, 0xbe7e5a423f60f2c3}, {3, -9, 0x94feb4835d2a750e}, {4, 32, 0x3b2e12a8993c82f4},
    {4, -32, 0x8be481e9cc1c4aec}, {5, 4.5, 0x87a490eefe234642}, {5, 90.0, 0xf8c5419596cbe9fa},
    {5, 135.0, 0xbb6e3ab68a4b7ad2}, {5, -4.5, 0xa95a9a1fe8c8b48d}, {5, -90.0, 0xbb10d3ff63d1e5e4},
    {5, -135.0, 0xe8a73bbd29f9ea89}, {6, 1.09, 0x7eb77dc2c2e5e080}, {6, 1.99, 0x381f11dbd799719b},
    {6, 0.91, 0x1b01601a972a4c36}, {6, 0.010000000000000009, 0xa5b0d5710bb3dbde},
    {7, 1.09, 0xba9fa07512da22ef}, {7, 1.99, 0x5561c1bbfce4d115}, {7, 0.91, 0x9c6a4f5d9cf354bb},
    {7, 0.010000000000000009, 0x13654bfeb743e894}, {8, 1.09, 0xf9dc4acf6d5a218d},
    {8, 1.99, 0xd27dfa7fe189407c}, {8, 0.91, 0xd2a9c4fb183b4e54},
    {8, 0.010000000000000009, 0xd5070fffc44a8b00}, {9, 1.09, 0x7063e781b445023a},
    {9, 1.99, 0x736b23a477c066d7}, {9, 0.91, 0xfdafd11b57262837},
    {9, 0.010000000000000009, 0xc8a27eec94fdf434}, {10, 2, 0xbbe2d9c4b33d4b49},
    {10, 4, 0xe38fc7ca06d6c1b7}, {10, 7, 0x913a7aca793a2bbd}, {11, 0.0, 0x819e3829473f0c1e},
    {11, 76.5, 0x3e50dc4c0d2c092}, {11, 178.5, 0x2b959fd091371252}, {11, 255.0, 0x4910dac7aafff56b},
    {12, 0, 0xc3559423387a4ede}, {13, 0, 0xb0b25e1be5efc591}, {14, 0.1, 0x88428035aaf3d746},
    {14, 0.5, 0xf06a8ba6064995ab}, {14, -0.1, 0x7d72c6d60012c5f3}, {14, -0.5, 0x314c5f6d9328fd09}};

// The amounts at the 31 magnitudes for an image of 60 rows and 83 columns, with a positive sign and
// then with a negative one: hash_bytes() of the doubles, by operation.
constexpr unsigned long long kRandAugment[] = {
    0x9fa66592e7b859e5, 0xf74d6d06974bea45, 0xf74d6d06974bea45, 0x7ea153c2b9bf7325,
    0x29075c4e4d6ad7d5, 0xeb69721c9434c779, 0x3d545670c8158f1f, 0x3d545670c8158f1f,
    0x3d545670c8158f1f, 0x3d545670c8158f1f, 0x58f26cecbd958e65, 0x411c7c50d323fa45,
    0x9fa66592e7b859e5, 0x9fa66592e7b859e5};
constexpr unsigned long long kTrivial[] = {
    0x9fa66592e7b859e5, 0x14c37735cbcdd145, 0x14c37735cbcdd145, 0xa820038ff466cbf9,
    0xa820038ff466cbf9, 0x170c9e5df79a8f65, 0xa693c53b6d48b65c, 0xa693c53b6d48b65c,
    0xa693c53b6d48b65c, 0xa693c53b6d48b65c, 0x471f43c94fe1eb25, 0x411c7c50d323fa45,
    0x9fa66592e7b859e5, 0x9fa66592e7b859e5};

// Cross-entropy of three images with mixed labels: sum of the losses, gradient of the logits.
constexpr float kLogits[] = {1.5, -0.25, 3.0, 0.5, -2.0, 0.0, 0.0, 0.0, 0.0, 0.125, -4.0, 8.0, 7.5, 1.0, 0.0};
constexpr int kFirst[] = {2, 0, 1}, kSecond[] = {0, 4, 1};
constexpr float kParts[] = {0.75, 0.375, 0.5};
constexpr double kMixedLoss = 3.4709068284102447;
constexpr double kMixedGrad[] = {-0.0798073975396126, 0.008706169958383223, 0.04534188094741898, 0.040770962278783546, -0.015011615644973048, -0.16268778890905747, 0.17481221109094258, 0.17481221109094258, 0.17481221109094258, -0.3617488443637704, -0.01999617845942878, -0.2980259614317696, 0.35724632393691974, -0.019432833091186524, -0.019791350954534763};

}  // namespace golden
