#!/usr/bin/env python3
"""Draws loss, accuracy, learning rate and, if logged, gradient norm of runs; dashed: validation.

    tools/recipes/curves.py runs/cifar10 runs/other >curves.svg
"""
import html
import json
import os
import sys

WIDTH, HEIGHT, COLOURS = 300, 200, ["#1f77b4", "#d62728", "#2ca02c", "#9467bd"]
PANELS = {"loss": "loss", "top1": "top1", "lr": "learning rate", "gradient_norm": "gradient norm"}
if len(sys.argv) < 2:
    sys.exit("usage: tools/recipes/curves.py RUN... >curves.svg")
runs, shapes, left = sys.argv[1:], [], 50
try:
    logs = [[json.loads(line) for line in open(os.path.join(run, "log.jsonl"))] for run in runs]
except (OSError, ValueError) as error:
    sys.exit(f"no log of a run: {error}")
for key, title in PANELS.items():
    lines = [([(e["step"], e[key]) for e in log if e.get("event") == kind and e.get(key) is not None], colour, dash)
             for log, colour in zip(logs, COLOURS) for kind, dash in (("step", "none"), ("val", "5 3"))]
    if not any(line for line, _, _ in lines):
        continue
    most_x, most_y = (max(p[axis] for line, _, _ in lines for p in line) or 1 for axis in (0, 1))
    shapes += [f'<text x="{left}" y="20">{title}: 0 to {most_y:.3g}, in {most_x} steps</text>',
               f'<path d="M{left} 30v{HEIGHT}h{WIDTH}" fill="none" stroke="#888"/>']
    for line, colour, dash in lines:
        at = " ".join(f"{left + WIDTH * x / most_x:.1f},{30 + HEIGHT * (1 - y / most_y):.1f}" for x, y in line)
        shapes.append(f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-dasharray="{dash}"/>')
    left += WIDTH + 50
shapes += [f'<text x="{50 + 200 * i}" y="{HEIGHT + 55}" fill="{colour}">{html.escape(os.path.basename(run))}</text>'
           for i, (run, colour) in enumerate(zip(runs, COLOURS))]
print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{left}" height="{HEIGHT + 70}" font-family="sans-serif" '
      f'font-size="12"><rect width="100%" height="100%" fill="white"/>{"".join(shapes)}</svg>')
