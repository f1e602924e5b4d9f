#!/usr/bin/env python3
"""Compares Convoy with PyTorch on the same model: speed, memory, time to start, losses.

    tools/compare_pytorch.py [--model vgg16 --batch 16 --steps 5 --rounds 3 --threads 2]
    tools/compare_pytorch.py --forward --model vgg16 --batch 16
    tools/compare_pytorch.py --device cuda --model resnet18 --batch 512 --steps 20
    tools/compare_pytorch.py --losses 20 --model resnet18 --batch 8

Speed: the two take turns training on one batch of random images that stays in memory, by SGD with
momentum (--forward: the forward pass alone, in inference mode). PyTorch runs in the fastest of its two
memory formats and torch.compile; all are tried first. --precision bf16 is its autocast. Prints medians of the rounds, the ratio, peak memory, and when the first
step begins and ends, counted from the begin of the program (the Python interpreter is up by then).
On a GPU PyTorch runs in channels_last, as it is and by torch.compile. It waits for the GPU once after all timed steps, Convoy after each.

Losses: both start from the weights that PyTorch drew and train the same batches of the same image
files in the same order, without augmentation and dropout.

Needs torch and torchvision, for --losses numpy too. Convoy needs none of them.
"""
import argparse
import json
import math
import os
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time

STARTED = time.time()
import torch
import torchvision


def torch_model(options):
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    heads = {"aux_logits": False, "init_weights": False} if options.model == "googlenet" else {}
    return getattr(torchvision.models, options.model)(num_classes=3, **heads)


def torch_run(options, form):
    """One process of PyTorch: prints a JSON line like `bench train --json`."""
    on_gpu = options.device == "cuda"
    if on_gpu:
        torch.backends.cudnn.benchmark = True
        tf32 = options.precision != "fp32"
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    layout = torch.contiguous_format if form == "default" else torch.channels_last
    model = torch_model(options).to(options.device, memory_format=layout)
    x = torch.randn(options.batch, 3, options.size, options.size)
    x = x.to(options.device, memory_format=layout)
    labels = torch.randint(0, 3, (options.batch,)).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)
    if options.forward:
        model.eval()
    predict = torch.compile(model) if form == "compiled" else model

    def loss():
        with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
            return torch.nn.functional.cross_entropy(predict(x), labels)

    def step():
        if options.forward:
            with torch.inference_mode():
                return loss()
        optimizer.zero_grad()
        now = loss()
        now.backward()
        optimizer.step()
        return now

    def seconds_of(steps):
        begin = time.time()
        for _ in range(steps):
            last = step()
        last.item()  # waits for the GPU
        return time.time() - begin

    start = time.time() - STARTED
    first = start + seconds_of(1)
    if on_gpu:
        for _ in range(3):  # algorithms are tried, graphs settle
            seconds_of(1)
        seconds = seconds_of(options.steps) / options.steps
    else:
        seconds = statistics.median(seconds_of(1) for _ in range(options.steps))
    print(json.dumps({
        "images_per_second": options.batch / seconds, "start_seconds": start, "first_step_seconds": first,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "device_memory_mb": torch.cuda.max_memory_reserved() / 2**20 if on_gpu else 0}))


def draw64(key, epoch, index):
    """The first 64 bits of Random(key, epoch, index, kOrder) in src/base/random.h: Philox 4x32-10."""
    mask = 0xFFFFFFFF
    c, k = [0, index & mask, epoch, 1 | index >> 32 << 16], [key & mask, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c[0] | c[1] << 32


def epoch_order(n, seed, epoch):
    """The permutation of data/order.h: Feistel on a grid of rows x columns."""
    key = draw64(seed, epoch, 0)
    rows = math.isqrt(n - 1) + 1
    columns = -(-n // rows)

    def moved(i):
        row, column = divmod(i, columns)
        for turn in range(0, 8, 2):
            row = (row + (draw64(key, turn, column) * rows >> 64)) % rows
            column = (column + (draw64(key, turn + 1, row) * columns >> 64)) % columns
        i = row * columns + column
        return i if i < n else moved(i)

    return [moved(i) for i in range(n)]


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + 4 * t.numel()]}
        at += 4 * t.numel()
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            file.write(t.contiguous().numpy().tobytes())


def convoy_losses(options, images, labels, weights, seed):
    with tempfile.TemporaryDirectory() as folder:
        for i, (pixels, label) in enumerate(zip(images, labels)):
            os.makedirs(f"{folder}/set/class{label}", exist_ok=True)
            torchvision.io.write_png(pixels, f"{folder}/set/class{label}/{i:06}.png", compression_level=1)
        write_safetensors(f"{folder}/start.safetensors", weights)
        text = output_of([options.trainer, "models", options.model])
        with open(f"{folder}/model.txt", "w") as file:
            file.writelines(line for line in text.splitlines(True) if "dropout" not in line)
        words = (f"--data {folder}/set --val-split 0 --model {folder}/model.txt --size {options.size} "
                 f"--batch {options.batch} --epochs 1 --augment none --init {folder}/start.safetensors "
                 f"--lr {options.lr} --schedule constant --warmup 0 --weight-decay 5e-4 --bn-group 0 --seed {seed} "
                 f"--threads {options.threads} --precision {options.precision} --log-every 1 --save-every 0 "
                 f"--out {folder}/run")
        output_of([options.trainer] + words.split())
        with open(f"{folder}/run/log.jsonl") as file:
            events = [json.loads(line) for line in file]
    return [event["loss"] for event in events if event["event"] == "step"]


def torch_losses(options, model, images, labels, seed):
    edge = options.size // 14  # Convoy takes the middle: 224 of 256
    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.SGD([{"params": decayed, "weight_decay": 5e-4}, {"params": plain}],
                                lr=options.lr, momentum=0.9)
    order, losses = epoch_order(len(images), seed, 0), []
    for at in range(0, len(images), options.batch):
        batch = order[at:at + options.batch]
        x = torch.stack([images[i][:, edge:-edge, edge:-edge] for i in batch])
        x = (x.float() / 255 - mean) / std
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"):
            logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits.float(), torch.tensor([labels[i] for i in batch]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare_losses(options):
    if options.size % 56:
        sys.exit("--losses needs a --size that 56 divides: its images are then cropped, not resized")
    model = torch_model(options)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    # Noise over a class colour; saved as PNG, so that both read the same to the last bit.
    seed, count, side = 7, options.losses * options.batch, options.size * 8 // 7
    labels = [i * 3 // count for i in range(count)]
    images = [torch.randint(0, 200, (3, side, side), dtype=torch.uint8) for _ in labels]
    for pixels, label in zip(images, labels):
        pixels[label] += 55
    weights = {name: t for name, t in model.state_dict().items() if t.dtype == torch.float32}
    ours = convoy_losses(options, images, labels, weights, seed)
    theirs = torch_losses(options, model, images, labels, seed)
    if len(ours) != options.losses or not all(map(math.isfinite, ours + theirs)):
        sys.exit(f"not {options.losses} finite losses on both sides: {ours}, {theirs}")
    off = [abs(a - b) / abs(b) for a, b in zip(ours, theirs)]
    if options.json:
        print(json.dumps({"model": options.model, "convoy": ours, "pytorch": theirs, "largest": max(off)}))
        return
    print(f"{options.model}, {options.losses} steps of {options.batch} images {options.size}x{options.size}, "
          f"lr {options.lr:g}\nstep    Convoy      PyTorch     relative difference")
    for step, (a, b, d) in enumerate(zip(ours, theirs, off)):
        print(f"{step + 1:4}    {a:.6f}    {b:.6f}    {d:.1e}")
    print(f"largest relative difference {max(off):.1e}")


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def compare_speeds(options):
    on_gpu = options.device == "cuda"
    names = ["model", "batch", "size", "steps", "threads", "device", "precision"]
    same = [f"--{name}={getattr(options, name)}" for name in names] + ["--forward"] * options.forward

    def run(side):
        command = ([options.trainer, "bench", "train", "--json"] if side == "convoy"
                   else [sys.executable, __file__, f"--as-torch={side}"])
        return json.loads(output_of(command + same).splitlines()[-1])

    forms = [options.form] if options.form else ["channels_last", "compiled"] + ["default"] * (not on_gpu)
    if not on_gpu and not options.form:
        forms = [max(forms, key=lambda form: run(form)["images_per_second"])]
    rounds = [{side: run(side) for side in ["convoy"] + forms} for _ in range(options.rounds)]
    ratios = {form: sorted(one["convoy"]["images_per_second"] / one[form]["images_per_second"]
                           for one in rounds) for form in forms}
    titles = {"images_per_second": "img/s",
              "device_memory_mb" if on_gpu else "peak_rss_mb": "memory, MB",
              "start_seconds": "step 1 begins after, s", "first_step_seconds": "step 1 ends after, s"}
    medians = {side: {field: statistics.median(one[side][field] for one in rounds) for field in titles}
               for side in rounds[0]}
    if options.json:
        print(json.dumps({"model": options.model, "batch": options.batch, "device": options.device,
                          "precision": options.precision,
                          "threads": options.threads, "ratios": ratios, **medians}))
        return
    where = ("on the GPU" if on_gpu else f"{options.threads} threads") + f" in {options.precision}"
    print(f"{options.model}, batch {options.batch}, {options.size}x{options.size}, {where}, "
          f"{options.rounds} alternating rounds, PyTorch in " + " and ".join(forms))
    print(f"  {'':<22} {'Convoy':>9}" + "".join(f" {form:>14}   ratio" + " " * 12 for form in forms))
    for field, title in titles.items():
        mine = medians["convoy"][field]
        line = f"  {title:<22} {mine:9.2f}"
        for form in forms:
            r, theirs = ratios[form], medians[form][field]
            spread = f"({r[0]:.2f}-{r[-1]:.2f})" if field == "images_per_second" else ""
            line += f" {theirs:14.2f}   {mine / theirs:5.2f} {spread:11}"
        print(line.rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--trainer", default="./trainer")
    add("--model", default="resnet18")
    for name, default in {"batch": 32, "size": 224, "steps": 5, "rounds": 3,
                          "threads": len(os.sched_getaffinity(0))}.items():
        add(f"--{name}", type=int, default=default)
    add("--forward", action="store_true", help="the forward pass alone")
    add("--losses", type=int, metavar="STEPS", help="compare losses instead of speed")
    add("--lr", type=float, default=0.0001, help="of --losses")
    add("--json", action="store_true")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--precision", choices=["fp32", "tf32", "bf16"], help="default: bf16 on a GPU, fp32 on a CPU")
    add("--form", choices=["channels_last", "default", "compiled"], help="of PyTorch: only this one")
    add("--as-torch", choices=["channels_last", "default", "compiled"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.precision = options.precision or ("bf16" if options.device == "cuda" else "fp32")
    if options.losses is not None and options.losses < 1:
        parser.error("--losses takes a number of steps")
    if options.losses and options.device == "cuda":
        parser.error("--losses compares on the CPU")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"--device cuda: torch {torch.__version__} of {sys.executable} finds no GPU (built for CUDA "
                 f"{torch.version.cuda}); https://pytorch.org/get-started has builds with CUDA")
    if options.as_torch:
        torch_run(options, options.as_torch)
    elif options.losses:
        compare_losses(options)
    else:
        compare_speeds(options)


if __name__ == "__main__":
    main()
