#!/usr/bin/env python3
"""Writes tests/golden_shards.h: small shards of each format, made by tools that are not ours.

    python3 -m venv env && env/bin/pip install numpy pillow protobuf google-crc32c
    env/bin/python tests/make_shard_goldens.py > tests/golden_shards.h

tar is by Python's tarfile; tf.train.Example by Google's protobuf, with the checksums of Google's
crc32c; IDX after the description on its authors' page. Run once, with Python 3.11, protobuf 7.36
and Pillow 13.0. Shards are stored gzipped: tar is mostly zeros.
"""
import gzip
import io
import struct
import tarfile

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from PIL import Image

from goldens import emit


def png(i):
    """4 x 3 pixels of one colour that says which it is."""
    file = io.BytesIO()
    Image.new("RGB", (4, 3), (i * 20, 255 - i * 20, 7)).save(file, "PNG")
    return file.getvalue()


def emit_zipped(name, data, comment):
    emit(name, gzip.compress(data, 9, mtime=0), comment)


def tar(members, format):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if data is None or name.endswith("/"):
                info.type = tarfile.DIRTYPE
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def offsets(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [m.offset_data for m in archive if m.name.lower().endswith((".png", ".jpg"))]


def emit_tar(name, members, format, comment):
    data = tar(members, format)
    emit_zipped(name, data, comment)
    print(f"constexpr uint64_t {name}Offsets[] = {{{', '.join(map(str, offsets(data)))}}};\n")


def example_class():
    """The messages of tensorflow/core/example, declared by hand."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")

    def message(name, *fields):
        m = file.message_type.add(name=name)
        for number, (field, label, type, of) in enumerate(fields, 1):
            m.field.add(name=field, number=number, label=label, type=type, type_name=of)
        return m

    message("BytesList", ("value", 3, 12, None))
    message("FloatList", ("value", 3, 2, None))
    message("Int64List", ("value", 3, 3, None))
    message("Feature", ("bytes_list", 1, 11, ".t.BytesList"), ("float_list", 1, 11, ".t.FloatList"),
            ("int64_list", 1, 11, ".t.Int64List"))
    features = message("Features", ("feature", 3, 11, ".t.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=11, type_name=".t.Feature")
    entry.options.map_entry = True
    message("Example", ("features", 1, 11, ".t.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


def example(image, label=None, text=None):
    one = example_class()()
    feature = one.features.feature
    feature["image/height"].int64_list.value.append(3)
    feature["image/colorspace"].bytes_list.value.append(b"RGB")
    feature["image/object/bbox/xmin"].float_list.value.extend([0.25, 0.5])
    if image is not None:
        feature["image/encoded"].bytes_list.value.append(image)
    if label is not None:
        feature["image/class/label"].int64_list.value.append(label)
    if text is not None:
        feature["image/class/text"].bytes_list.value.append(text)
    return one.SerializeToString(deterministic=True)


def masked(data):
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecord(examples):
    out = b""
    for data in examples:
        length = struct.pack("<Q", len(data))
        out += length + masked(length) + data + masked(data)
    return out


print("""// golden_shards.h — made by tests/make_shard_goldens.py; gzipped bytes in base64.
#pragma once

#include <cstdint>

// clang-format off
namespace golden {
""")

# One sample of each way to say a label, in WebDataset's layout; "__" and other members between.
emit_tar("kTarUstar", [
    ("./", b""), ("__meta__", b"{}"), ("a/0001.png", png(1)), ("a/0001.cls", b"3\n"),
    ("a/0002.cls", b"0"), ("a/0002.txt", b"a caption"), ("a/0002.PNG", png(2)),
    ("b/0003.json", b'{"label": 1, "width": 4}'), ("b/0003.png", png(3)),
], tarfile.USTAR_FORMAT, "labels by number: 3, 0, 1; keys a/0001, a/0002, b/0003")
long_name = "set/" + "long/" * 60 + "Mütze/0001.png"
emit_tar("kTarPax", [(long_name, png(4)), ("set/hat/0002.seg.txt", b"x"), ("set/hat/0002.png", png(5))],
         tarfile.PAX_FORMAT, "folders as classes: Mütze (a name of 319 bytes), hat")
emit_tar("kTarGnu", [(long_name, png(4)), ("set/hat/0002.png", png(5))], tarfile.GNU_FORMAT,
         "the same with GNU's long names")
emit_zipped("kTfrecord", tfrecord([example(png(1), 3, b"hat"), example(png(2), 1, b"shoe"),
                                   example(None, 1, b"shoe"), example(png(3), 3, b"hat")]),
            "labels 3 (hat), 1 (shoe), one without an image, 3")
emit_zipped("kTfrecordFromOne", tfrecord([example(png(i), i) for i in (1, 2, 3)]), "labels 1, 2, 3")
emit_zipped("kIdxImages", struct.pack(">4I", 0x803, 3, 5, 4) + bytes(range(60)), "3 images, 5 rows of 4")
emit_zipped("kIdxLabels", struct.pack(">2I", 0x801, 3) + bytes([7, 0, 1]), "7, 0, 1")
print("}  // namespace golden\n// clang-format on")
