#!/usr/bin/env python3
"""Writes small images of awkward kinds, and what Pillow makes of pictures.

    python3 -m venv env && env/bin/pip install pillow numpy
    env/bin/python tests/make_goldens.py > tests/golden_resized.h     # and tests/golden_images.json.gz

Run once, with Pillow 13.0 and libjpeg-turbo 3.2; the tests need neither Python nor Pillow.
Pillow before 13 always resizes the width first, so some pixels differ by one.
"""
import base64
import gzip
import io
import json
import struct
import zlib

import numpy as np
from PIL import Image

from goldens import emit_table, fnv, picture


def shaded(H, W):
    """Smooth, so that a JPEG of it stays small."""
    h, w, c = np.meshgrid(np.arange(H), np.arange(W), np.arange(3), indexing="ij")
    return (np.stack([h * 9 + 20, w * 8 + 40, 250 - h * 4 - w * 5], -1)[:, :, 0]).astype(np.uint8)


def of_modes():
    """JPEGs and PNGs of 11x9 and 7x5: a name, a file, and the image it was made of."""
    rgb, five = Image.fromarray(shaded(9, 11)), picture(5, 7)
    best = {"quality": 90, "optimize": True}  # 4:2:0
    yield "jpeg colour", saved(rgb, "JPEG", **best), None
    yield "jpeg progressive", saved(rgb, "JPEG", quality=85, progressive=True, subsampling=0), None
    yield "jpeg grey", saved(rgb.convert("L"), "JPEG", **best), None
    yield "jpeg CMYK", saved(rgb.convert("CMYK"), "JPEG", **best), None  # Adobe's marker: inks inverted
    sixteen = np.arange(5 * 7, dtype=np.uint16).reshape(5, 7) * 1873
    high = Image.fromarray((sixteen >> 8).astype(np.uint8))  # Pillow would cut at 255
    yield "png grey of 16 bits", saved(Image.fromarray(sixteen), "PNG"), high
    palette = Image.fromarray(five).quantize(11)
    yield "png palette", saved(palette, "PNG"), palette
    rgba = Image.fromarray(np.dstack([five, five[:, :, 0] // 2]))
    yield "png alpha", saved(rgba, "PNG"), rgba  # which is dropped


def saved(image, form, **how):
    file = io.BytesIO()
    image.save(file, form, **how)
    return file.getvalue()


def resized(image, W, H):
    return image.resize((W, H), Image.BILINEAR)


def tiff(strips, H, W, big=False, bits=8, count=3, tile=0, **tags):
    """A little-endian TIFF, or BigTIFF, whose directory stands in front."""
    tags = {int(tag[1:]): value for tag, value in tags.items()}
    where, lengths = (324, 325) if tile else (273, 279)
    tags = {256: W, 257: H, 258: [bits] * count, 259: 1, 262: 2, 277: count, where: [0] * len(strips),
            lengths: [len(strip) for strip in strips],
            **({322: tile, 323: tile} if tile else {278: H // len(strips)}), **tags}
    number, form = ("Q", "<HHQ") if big else ("I", "<HHI")
    width = struct.calcsize("<" + number)
    directory = struct.calcsize("<Q" if big else "<H") + len(tags) * (4 + 2 * width) + width
    begin = 16 if big else 8

    def written(first):
        tags[where] = [first + sum(map(len, strips[:i])) for i in range(len(strips))]
        out, tail = struct.pack("<Q" if big else "<H", len(tags)), b""
        for tag, value in sorted(tags.items()):
            value = value if isinstance(value, list) else [value]
            kind = "H" if tag in (258, 320) or len(value) == 1 and tag != where else "I"
            data = struct.pack(f"<{len(value)}{kind}", *value)
            out += struct.pack(form, tag, 3 if kind == "H" else 4, len(value))
            if len(data) > width:
                out += struct.pack("<" + number, begin + directory + len(tail))
                tail += data
            else:
                out += data.ljust(width, b"\0")
        return out + bytes(width) + tail

    head = struct.pack("<2sHHHQ", b"II", 43, 8, 0, 16) if big else struct.pack("<2sHI", b"II", 42, 8)
    return head + written(begin + len(written(0))) + b"".join(strips)


def bmp(H, W, bits, masks, header):
    v = np.zeros((H, W), np.uint32)
    for c, mask in enumerate(masks):
        ones = bin(mask).count("1")
        low = (mask & -mask).bit_length() - 1
        v |= (picture(H, W)[:, :, c % 3].astype(np.uint32) >> (8 - ones)) << low if mask else 0
    rows = v[::-1].astype("<u4" if bits == 32 else "<u2")
    data = b"".join(row.tobytes().ljust(-(-W * bits // 32) * 4, b"\0") for row in rows)
    info = struct.pack("<IiiHHIIiiII4I", header, W, H, 1, bits, 3, *[0] * 5, *masks)
    info = info[:max(header, 52)].ljust(header, b"\0")
    return struct.pack("<2sIHHI", b"BM", 14 + len(info) + len(data), 0, 0, 14 + len(info)) + info + data


def png(H, W, bits, kind, interlaced, window=15):
    """Of random samples, with filters of all kinds."""
    random = np.random.default_rng(1)
    count = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2),
              (1, 0, 2, 1)] if interlaced else [(0, 0, 1, 1)]
    rows = b""
    for top, left, down, across in passes:
        width = -(-(W - left) // across)
        for y in range(top, H, down) if width > 0 else []:
            n = -(-width * bits * count // 8)
            rows += bytes([y % 5]) + bytes(random.integers(0, 256, n, np.uint8))

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    data = zlib.compress(rows)
    first = (window - 8) << 4 | 8
    data = bytes([first, 31 - first * 256 % 31]) + data[2:]
    return (b"\x89PNG\r\n\x1a\n" +
            chunk(b"IHDR", struct.pack(">IIBBBBB", W, H, bits, kind, 0, 0, interlaced)) +
            (chunk(b"PLTE", bytes(random.integers(0, 256, 3 << bits, np.uint8))) if kind == 3 else b"") +
            chunk(b"IDAT", data[:5]) + chunk(b"IDAT", data[5:]) + chunk(b"IEND", b""))


def kinds():
    """Pairs of a name and a file that Pillow reads, or that it refuses."""
    a = picture(5, 7)
    four = np.dstack([a, a[:, :, :1] // 2])

    for mode in "1", "L", "P", "RGBA", "CMYK", "LA":
        yield f"tiff {mode}", saved(Image.fromarray(a).convert(mode), "TIFF")
    for how in "tiff_lzw", "tiff_adobe_deflate", "packbits":
        yield f"tiff {how}", saved(Image.fromarray(picture(12, 20)), "TIFF", compression=how, strip_size=240)
    for how in "group3", "group4", "tiff_ccitt":
        yield f"tiff {how}", saved(Image.fromarray(picture(9, 30)).convert("1"), "TIFF", compression=how)
    for turn in range(1, 9):
        yield f"tiff turned {turn}", tiff([a[:3, :2].tobytes()], 3, 2, _274=turn)
    wide = np.tile(a, (4, 3, 1))[:18, :20]
    padded = np.pad(wide, ((0, 14), (0, 12), (0, 0)))
    yield "tiff tiles", tiff([padded[y:y + 16, x:x + 16].tobytes() for y in (0, 16) for x in (0, 16)],
                             18, 20, tile=16, _259=1)
    yield "tiff planes", tiff([a[:, :, c].tobytes() for c in range(3)], 5, 7, _284=2, _278=5)
    yield "tiff big", tiff([a.tobytes()], 5, 7, big=True)
    for extra in 0, 1, 2:
        yield f"tiff alpha {extra}", tiff([four.tobytes()], 5, 7, count=4, _338=extra)
        yield f"tiff alpha {extra} of 16 bits", tiff([(four.astype("<u2") * 256 + 77).tobytes()], 5, 7,
                                                     bits=16, count=4, _338=extra)
    yield "tiff five channels", tiff([np.dstack([four, a[:, :, 1]]).tobytes()], 5, 7, count=5, _338=[0, 0])
    yield "tiff 16 bits", tiff([(a.astype("<u2") * 255 + 9).tobytes()], 5, 7, bits=16)
    for bits in 1, 2, 4, 8:
        rows = a[:, :-(-7 * bits // 8), 0].tobytes()
        for light in 0, 1, 3:
            colours = {"_320": list(range(99, 65536, 65536 // (3 << bits)))[:3 << bits]} if light == 3 else {}
            yield f"tiff of {bits} bits, {light}", tiff([rows], 5, 7, bits=bits, count=1, _262=light, **colours)
    for bits, masks in [(32, (0xFF, 0xFF00, 0xFF0000, 0xFF000000)), (32, (0xFF000000, 0xFF0000, 0xFF00, 0xFF)),
                        (32, (0xFF0000, 0xFF00, 0xFF, 0)), (16, (0xF800, 0x7E0, 0x1F, 0)),
                        (16, (0x7C00, 0x3E0, 0x1F, 0))]:
        for header in 40, 56, 124:
            if header > 40 or masks[3] == 0:
                yield f"bmp of {bits} bits, {masks[0]:x}, {header}", bmp(5, 7, bits, masks, header)
    for mode in "1", "P", "RGB":
        yield f"bmp {mode}", saved(Image.fromarray(a).quantize(9) if mode == "P" else
                                   Image.fromarray(a).convert(mode), "BMP")
    runs = b"\4\7\3\1\0\0\0\3\2\1\5\0\0\2\1\0\3\2\0\0\7\6\0\1"
    for bits in 4, 8:
        yield f"bmp runs of {bits}", struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 0, 0, 0, 54 + 32, 40, 7, 3, 1, bits,
                                                 bits == 8 or 2, 0, 0, 0, 8, 0) + a.tobytes()[:32] + runs
    for bits, kind in [(1, 0), (2, 0), (4, 0), (8, 0), (8, 2), (16, 2), (1, 3), (4, 3), (8, 3), (8, 4), (16, 4),
                       (8, 6), (16, 6)]:
        for interlaced in 0, 1:
            yield f"png {kind} of {bits} bits, {interlaced}", png(9, 11, bits, kind, interlaced)
    yield "png window", png(30, 40, 8, 2, 0, window=9)
    for letters in "P1", "P4":
        yield letters, b"%s\n11 2\n" % letters.encode() + (b"0110 11001 01\n1110 0 01 0011" if letters == "P1"
                                                           else b"\xa5\x40\x5a\x80")


# Versions of libjpeg round differently, so the pixels of JPEGs are stored.
everything = []
for name, data, made_of in [(*one, None) for one in kinds()] + list(of_modes()):
    image = (made_of or Image.open(io.BytesIO(data))).convert("RGB")
    pixels = image.tobytes()
    everything.append({"name": name, "file": base64.b64encode(data).decode(), "H": image.height, "W": image.width,
                       "hash": fnv(pixels),
                       "pixels": base64.b64encode(pixels).decode() if name.startswith("jpeg") else ""})
with gzip.GzipFile("tests/golden_images.json.gz", "wb", 9, mtime=0) as out:
    out.write(json.dumps(everything).encode())

print("""// golden_resized.h — made by tests/make_goldens.py with Pillow 13.0.
#pragma once

// clang-format off
namespace golden {
""")
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
