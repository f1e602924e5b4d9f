#!/usr/bin/env python3
"""Training steps of the same model in Convoy and in PyTorch, alternating in one run.

    tools/compare_pytorch.py [--model vgg16 --batch 16 --steps 5 --rounds 3 --threads 2]

Both train on one batch of random images that stays in memory, SGD with momentum, so what is timed is
forward, backward and update. PyTorch runs in its better memory format (channels_last is tried beside
the default in a first round). Needs torch and torchvision beside the project; Convoy needs neither.
Prints medians of the rounds, the ratio, peak memory, and the time from start to the first step's end.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time


def torch_run(options, channels_last):
    """One process of PyTorch: prints a JSON line like `bench train --json`."""
    started = time.time()
    import torch
    import torchvision

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = getattr(torchvision.models, options.model)(num_classes=3)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)
    x = torch.randn(options.batch, 3, options.size, options.size).to(memory_format=layout)
    labels = torch.randint(0, 3, (options.batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)
    speeds, first = [], 0.0
    for step in range(options.steps + 1):
        begin = time.time()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
        if step == 0:
            first = time.time() - started
        else:
            speeds.append(options.batch / (time.time() - begin))
    print(json.dumps({"images_per_second": statistics.median(speeds), "first_step_seconds": first,
                      "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def run(command):
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainer", default="./trainer")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--as-torch", choices=["channels_last", "default"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_torch:
        return torch_run(options, options.as_torch == "channels_last")

    same = [f"--{name}={getattr(options, name)}" for name in ("model", "batch", "size", "steps", "threads")]
    ours = [options.trainer, "bench", "train", "--json"] + same
    theirs = {layout: [sys.executable, __file__, f"--as-torch={layout}"] + same
              for layout in ("channels_last", "default")}
    tries = {layout: run(command)["images_per_second"] for layout, command in theirs.items()}
    layout = max(tries, key=tries.get)
    rounds = [(run(ours), run(theirs[layout])) for _ in range(options.rounds)]

    def median(side, field):
        return statistics.median(pair[side][field] for pair in rounds)

    ratios = sorted(a["images_per_second"] / b["images_per_second"] for a, b in rounds)
    row = {"model": options.model, "batch": options.batch, "threads": options.threads,
           "convoy": median(0, "images_per_second"), "pytorch": median(1, "images_per_second"),
           "pytorch_layout": layout, "ratio": statistics.median(ratios),
           "ratio_min": ratios[0], "ratio_max": ratios[-1],
           "convoy_rss_mb": median(0, "peak_rss_mb"), "pytorch_rss_mb": median(1, "peak_rss_mb"),
           "convoy_first_s": median(0, "first_step_seconds"),
           "pytorch_first_s": median(1, "first_step_seconds")}
    if options.json:
        print(json.dumps(row))
        return
    print(f"{options.model}, batch {options.batch}, {options.size}x{options.size}, "
          f"{options.threads} threads, {options.rounds} alternating rounds, PyTorch in {layout}")
    print(f"  img/s       {row['convoy']:9.2f} {row['pytorch']:9.2f}   ratio {row['ratio']:.2f} "
          f"({ratios[0]:.2f}-{ratios[-1]:.2f})")
    for name, unit in (("rss_mb", "MB"), ("first_s", "s")):
        a, b = row[f"convoy_{name}"], row[f"pytorch_{name}"]
        print(f"  {name:<10} {a:10.2f} {b:9.2f}   ratio {a / b:.2f}  ({unit})")


if __name__ == "__main__":
    main()
