"""What the scripts make_*goldens.py share."""
import base64
import textwrap

import numpy as np


def picture(H, W):
    """The same formula as picture() in tests/pictures.h."""
    h, w, c = np.meshgrid(np.arange(H), np.arange(W), np.arange(3), indexing="ij")
    return ((h * 5 + w * 3 + c * 60 + (h * w * (c + 1)) % 41 * 4) % 256).astype(np.uint8)


def fnv(data):
    """hash_bytes() of src/base/random.h."""
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return value


def emit(name, data, comment):
    text = base64.b64encode(bytes(data)).decode()
    lines = [f'    "{text[i:i + 92]}"' for i in range(0, len(text), 92)]
    print(f"// {comment}\nconstexpr const char* {name} =\n" + "\n".join(lines) + ";\n")


def emit_table(declaration, rows):
    """As many rows in a line as fit."""
    text = ", ".join(row.replace(" ", "~") for row in rows)
    lines = textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    ")
    print(f"constexpr {declaration}[] = {{\n{lines.replace('~', ' ')}}};\n")
