#!/usr/bin/env python3
"""Writes tests/golden_policy.h: what torchvision's augmentations and PyTorch's loss give.

    python3 -m venv env && env/bin/pip install torch torchvision
    env/bin/python tests/make_policy_goldens.py > tests/golden_policy.h

Run once, with torchvision 0.29, Pillow 13.0 and PyTorch 2.15; the tests need none of them.
"""
import struct

import torch
import torchvision.transforms.functional as F
from PIL import Image
from torchvision.transforms import InterpolationMode, RandAugment, TrivialAugmentWide
from torchvision.transforms.autoaugment import _apply_op

from goldens import emit_table, fnv, picture

FACTORS = ("Brightness", "Color", "Contrast", "Sharpness")


def image_of(H, W, C):
    """Grey is the red of it."""
    return Image.fromarray(picture(H, W) if C == 3 else picture(H, W)[:, :, 0])


def changed(name, image, magnitude):
    if name == "Hue":
        return F.adjust_hue(image, magnitude)
    return _apply_op(image, name, magnitude, InterpolationMode.NEAREST, None)


def amount(name, magnitude):
    """What _apply_op makes of a magnitude before it calls the operation."""
    return 1 + magnitude if name in FACTORS else int(magnitude) if "Translate" in name else magnitude


print("""// golden_policy.h — made by tests/make_policy_goldens.py with torchvision 0.29, Pillow 13.0,
// PyTorch 2.15.
#pragma once

// clang-format off
namespace golden {

// Four pictures after one operation (its place in PixelOp): hash_bytes() of the hashes of their pixels.
struct Changed {
    int op;
    double amount;
    unsigned long long hash;
};""")
names = list(TrivialAugmentWide()._augmentation_space(31)) + ["Hue"]
both = {"Rotate": [4.5, 90.0, 135.0], "Hue": [0.1, 0.5], "TranslateX": [9.6], "TranslateY": [32.0]}
one = {"Identity": [0], "Posterize": [2, 4, 7], "Solarize": [0.0, 76.5, 178.5, 255.0],
       "AutoContrast": [0], "Equalize": [0]}
rows = []
for number, name in enumerate(names):
    some = both.get(name, [0.09, 0.99])
    for magnitude in one.get(name, some + [-m for m in some]):
        hashes = [fnv(changed(name, image_of(H, W, C), magnitude).tobytes())
                  for H, W, C in [(37, 53, 3), (40, 40, 3), (37, 53, 1), (2, 5, 3)]]
        rows.append(f"{{{number}, {amount(name, magnitude)!r}, {fnv(struct.pack('<4Q', *hashes)):#x}}}")
emit_table("Changed kChanged", rows)

print("""// The amounts at the 31 magnitudes for an image of 60 rows and 83 columns, with a positive sign and
// then with a negative one: hash_bytes() of the doubles, by operation.""")
spaces = {"kRandAugment": RandAugment()._augmentation_space(31, (60, 83)),
          "kTrivial": TrivialAugmentWide()._augmentation_space(31)}
for table, space in spaces.items():
    rows = []
    for name, (values, signs) in space.items():
        values = values.tolist() if values.ndim else [0.0] * 31
        amounts = [amount(name, s * v) + 0.0 for s in (1, -1 if signs else 1) for v in values]
        rows.append(f"{fnv(struct.pack('<62d', *amounts)):#x}")
    emit_table(f"unsigned long long {table}", rows)

print("// Cross-entropy of three images with mixed labels: sum of the losses, gradient of the logits.")
logits = torch.tensor([[1.5, -0.25, 3, 0.5, -2], [0, 0, 0, 0, 0.125], [-4, 8, 7.5, 1, 0.0]],
                      dtype=torch.float64, requires_grad=True)
first, second, part = [2, 0, 1], [0, 4, 1], torch.tensor([0.75, 0.375, 0.5]).double()[:, None]
target = sum(p * torch.nn.functional.one_hot(torch.tensor(t), 5)
             for p, t in ((part, first), (1 - part, second)))
loss = torch.nn.functional.cross_entropy(logits, target, label_smoothing=0.1, reduction="sum")
loss.backward()
flat = lambda values: ", ".join(repr(v) for v in values)
print(f"constexpr float kLogits[] = {{{flat(logits.flatten().tolist())}}};")
print(f"constexpr int kFirst[] = {{{flat(first)}}}, kSecond[] = {{{flat(second)}}};")
print(f"constexpr float kParts[] = {{{flat(part.flatten().tolist())}}};")
print(f"constexpr double kMixedLoss = {loss.item()!r};")
print(f"constexpr double kMixedGrad[] = {{{flat(logits.grad.flatten().tolist())}}};")
print("\n}  // namespace golden")
