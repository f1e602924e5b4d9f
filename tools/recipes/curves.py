#!/usr/bin/env python3
"""Draws loss, accuracy and learning rate of run folders as one picture.

    tools/recipes/curves.py runs/a runs/b >curves.svg

A thin line shows training, from every line of the log; a thick line shows validation, after each epoch.
"""
import json
import os
import sys

COLOURS = ["#c0392b", "#2471a3", "#229954", "#b9770e", "#7d3c98"]
WIDTH, HEIGHT, EDGE = 300, 200, 40  # of a panel


def read(folder):
    """Points (images seen, value) by the name of a curve."""
    with open(f"{folder}/log.jsonl") as file:
        events = [json.loads(line) for line in file]
    batch = int(events[0]["batch"])
    points = {}
    for event in events:
        for name in ("loss", "top1", "lr"):
            if event["event"] in ("step", "val") and name in event:
                points.setdefault((name, event["event"]), []).append((event["step"] * batch, event[name]))
    return points


def panel(title, left, curves):
    """curves: (points, colour, thickness)"""
    xs, ys = ([p[i] for points, _, _ in curves for p in points] for i in (0, 1))
    right, low, high = max(xs), min(ys + [0] if title != "loss" else ys), max(ys)
    if title == "top1":
        high = 1
    x_of = lambda x: left + EDGE + (WIDTH - EDGE) * x / right
    y_of = lambda y: HEIGHT + 20 - (HEIGHT - 20) * (y - low) / ((high - low) or 1)
    parts = [f'<text x="{left + EDGE}" y="16">{title}</text>']
    for i in range(5):
        value = low + (high - low) * i / 4
        y = y_of(value)
        parts.append(f'<path d="M{left + EDGE} {y:.1f}H{left + WIDTH}" stroke="#ddd"/>'
                     f'<text x="{left + EDGE - 4}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    parts.append(f'<text x="{left + WIDTH}" y="{HEIGHT + 36}" text-anchor="end">{right:,} images</text>')
    for points, colour, thickness in curves:
        places = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{thickness}"/>')
    return "".join(parts)


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    runs = [read(folder) for folder in sys.argv[1:]]
    parts = []
    for i, name in enumerate(("loss", "top1", "lr")):
        curves = [(run[name, kind], colour, thickness) for run, colour in zip(runs, COLOURS)
                  for kind, thickness in (("step", 1), ("val", 2.5)) if (name, kind) in run]
        parts.append(panel(name, i * (WIDTH + 20), curves))
    for i, (folder, colour) in enumerate(zip(sys.argv[1:], COLOURS)):
        parts.append(f'<text x="{EDGE + 160 * i}" y="{HEIGHT + 56}" fill="{colour}">'
                     f'{os.path.basename(folder.rstrip("/"))}</text>')
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {3 * (WIDTH + 20)} {HEIGHT + 64}" '
          f'font-size="11" font-family="sans-serif"><rect width="100%" height="100%" fill="#fff"/>')
    print("\n".join(parts) + "\n</svg>")


if __name__ == "__main__":
    main()
