#!/usr/bin/env python3
"""Writes tests/golden_images.h: small images of awkward kinds, and what Pillow makes of pictures.

    python3 -m venv env && env/bin/pip install pillow numpy
    env/bin/python tests/make_goldens.py > tests/golden_images.h

Run once, with Pillow 13.0 and libjpeg-turbo 3.2; the tests need neither Python nor Pillow.
Resizing is done in two calls, first the width and then the height: in this order every Pillow
before 13 resizes, while 13 itself starts with the height where that is much cheaper.
"""
import io

import numpy as np
from PIL import Image

from goldens import emit, emit_table, fnv, picture


def shaded(H, W):
    """Smooth, so that a JPEG of it stays small."""
    h, w, c = np.meshgrid(np.arange(H), np.arange(W), np.arange(3), indexing="ij")
    return (np.stack([h * 9 + 20, w * 8 + 40, 250 - h * 4 - w * 5], -1)[:, :, 0]).astype(np.uint8)


def encoded(name, image, comment, **options):
    file = io.BytesIO()
    image.save(file, **options)
    emit(name, file.getvalue(), comment)
    expected = image if options["format"] == "PNG" else Image.open(file)
    if expected.mode.startswith("I;16"):  # Pillow would cut at 255; the high byte is meant
        expected = Image.fromarray((np.asarray(expected) >> 8).astype(np.uint8))
    rgb = expected.convert("RGB")
    if options["format"] == "PNG":
        print(f"constexpr unsigned long long {name}Pixels = {fnv(rgb.tobytes()):#x};\n")
    else:  # versions of libjpeg round differently
        emit(name + "Pixels", rgb.tobytes(), "what it holds, as RGB")


def resized(image, W, H):
    return image.resize((W, image.height), Image.BILINEAR).resize((W, H), Image.BILINEAR)


print("""// golden_images.h — made by tests/make_goldens.py with Pillow 13.0; bytes in base64.
#pragma once

// clang-format off
namespace golden {
""")

rgb = Image.fromarray(shaded(9, 11))
encoded("kColourJpeg", rgb, "11x9, 4:2:0, quality 90", format="JPEG", quality=90, optimize=True)
encoded("kProgressiveJpeg", rgb, "11x9, progressive, 4:4:4", format="JPEG", quality=85,
        progressive=True, subsampling=0)
encoded("kGreyJpeg", rgb.convert("L"), "11x9, grey", format="JPEG", quality=90, optimize=True)
encoded("kCmykJpeg", rgb.convert("CMYK"), "11x9, CMYK with Adobe's marker: inks inverted",
        format="JPEG", quality=90, optimize=True)
sixteen = np.arange(5 * 7, dtype=np.uint16).reshape(5, 7) * 1873
encoded("kGrey16Png", Image.fromarray(sixteen), "7x5, 16-bit grey", format="PNG")
encoded("kPalettePng", Image.fromarray(picture(5, 7)).quantize(11), "7x5, palette of 11 colours",
        format="PNG")
rgba = Image.fromarray(picture(5, 7)).convert("RGBA")
rgba.putalpha(Image.fromarray((picture(5, 7)[:, :, 0] // 2).astype(np.uint8)))
encoded("kAlphaPng", rgba, "7x5, RGB with alpha, which is dropped", format="PNG")

print("""// picture(H, W) resized from top/left/h/w of it to size x size: exactly these pixels.
struct Resized {
    int H, W, top, left, h, w, out_H, out_W;
    unsigned long long hash;  // of the pixels, by hash_bytes()
};""")
rows = []
for H, W, top, left, h, w, oH, oW in [
    (37, 29, 0, 0, 37, 29, 8, 8), (6, 5, 0, 0, 6, 5, 9, 7), (50, 20, 0, 0, 50, 20, 5, 9),
    (20, 50, 0, 0, 20, 50, 9, 5), (1, 1, 0, 0, 1, 1, 3, 3), (1, 40, 0, 0, 1, 40, 4, 4),
    (40, 1, 0, 0, 40, 1, 4, 4), (9, 9, 0, 0, 9, 9, 9, 9), (33, 41, 5, 7, 20, 13, 8, 8),
    (33, 41, 12, 20, 21, 21, 6, 6), (100, 130, 3, 1, 97, 128, 4, 6)]:
    part = Image.fromarray(picture(H, W)).crop((left, top, left + w, top + h))
    rows.append(f"{{{H}, {W}, {top}, {left}, {h}, {w}, {oH}, {oW}, "
                f"{fnv(resized(part, oW, oH).tobytes()):#x}}}")
emit_table("Resized kResized", rows)

print("""// Validation of picture(H, W) at size 14: torchvision's Resize(16), CenterCrop(14).
struct Validated {
    int H, W;
    unsigned long long hash;  // of the pixels, by hash_bytes()
};""")
rows = []
for H, W in [(30, 47), (47, 30), (16, 16), (5, 9), (61, 20)]:
    image = Image.fromarray(picture(H, W))
    short, long = min(H, W), max(H, W)
    longer = int(16 * long / short)
    nW, nH = (16, longer) if W <= H else (longer, 16)
    image = resized(image, nW, nH)
    top, left = int(round((nH - 14) / 2.0)), int(round((nW - 14) / 2.0))
    part = image.crop((left, top, left + 14, top + 14))
    rows.append(f"{{{H}, {W}, {fnv(part.tobytes()):#x}}}")
emit_table("Validated kValidated", rows)

print("// The grey picture(H, W) at 14x7: torchvision's Grayscale(), Resize((16, 8)), CenterCrop((14, 7)).")
rows = []
for H, W in [(30, 47), (47, 30), (16, 8), (5, 9), (61, 20)]:
    image = resized(Image.fromarray(picture(H, W)).convert("L"), 8, 16)
    left = int(round((8 - 7) / 2.0))
    part = image.crop((left, 1, left + 7, 1 + 14))
    rows.append(f"{{{H}, {W}, {fnv(part.tobytes()):#x}}}")
emit_table("Validated kValidatedGrey", rows)
print("}  // namespace golden")
