#!/usr/bin/env python3
"""The same model in Convoy and in PyTorch: speed, memory, start, and whether they learn the same.

    tools/compare_pytorch.py [--model vgg16 --batch 16 --steps 5 --rounds 3 --threads 2]
    tools/compare_pytorch.py --forward --model vgg16 --batch 16
    tools/compare_pytorch.py --device cuda --model resnet18 --batch 512 --steps 20
    tools/compare_pytorch.py --losses 20 --model resnet18 --batch 8

Speed: the two take turns, training on one batch of random images that stays in memory, SGD with
momentum, so what is timed is forward, backward and update (--forward: the forward pass alone, in
inference mode). PyTorch runs in its better memory format: channels_last and the default are both
tried first. Prints medians of the rounds, the ratio, peak memory, and the times from the begin of the
program's own work (the interpreter is up by then) to the begin and the end of the first step.

On a GPU: `bench train --device cuda --precision bf16` beside PyTorch in channels_last under autocast
(--precision bf16; tf32 and fp32 without), as it is and by torch.compile. PyTorch waits for the GPU
once after all timed steps, Convoy after each. Memory is what each took of the GPU's.

Losses: both start from the weights that PyTorch drew and train the same batches of the same image
files in the same order, without augmentation and dropout; prints both losses of every step and the
largest relative difference.

Needs torch and torchvision beside the project (and Pillow for --losses); Convoy needs none of them.
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


def check_torch_has_gpu():
    import torch

    if torch.version.cuda is None:
        sys.exit(f"--device cuda: the torch of {sys.executable} ({torch.__version__}) is built without CUDA; "
                 "it takes one from https://pytorch.org/get-started that is built with it")
    if not torch.cuda.is_available():
        sys.exit(f"--device cuda: torch {torch.__version__} finds no GPU that it can use; "
                 "nvidia-smi shows what there is")


def torch_run(options, form):
    """One process of PyTorch: prints a JSON line like `bench train --json`."""
    started = time.time()
    import torch
    import torchvision

    on_gpu = options.device == "cuda"
    if on_gpu:
        check_torch_has_gpu()
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = options.precision != "fp32"
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = getattr(torchvision.models, options.model)(num_classes=3)
    layout = torch.contiguous_format if form == "default" else torch.channels_last
    model = model.to(options.device, memory_format=layout)
    x = torch.randn(options.batch, 3, options.size, options.size).to(options.device, memory_format=layout)
    labels = torch.randint(0, 3, (options.batch,)).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)
    if options.forward:
        model.eval()
    predict = torch.compile(model) if form == "compiled" else model

    def loss():
        with torch.autocast(options.device, torch.bfloat16, enabled=on_gpu and options.precision == "bf16"):
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

    start = time.time() - started
    step().item()
    first = time.time() - started
    if on_gpu:
        for _ in range(3):  # algorithms are tried, graphs settle
            step().item()
        begin = time.time()
        for _ in range(options.steps):
            last = step()
        last.item(), torch.cuda.synchronize()
        speed = options.batch * options.steps / (time.time() - begin)
    else:
        speeds = []
        for _ in range(options.steps):
            begin = time.time()
            step().item()
            speeds.append(options.batch / (time.time() - begin))
        speed = statistics.median(speeds)
    print(json.dumps({"images_per_second": speed, "start_seconds": start, "first_step_seconds": first,
                      "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                      "device_memory_mb": torch.cuda.max_memory_reserved() / 2**20 if on_gpu else 0}))


def philox(counter, key):
    """Philox 4x32-10 (Salmon et al. 2011), as src/base/random.h."""
    c, k, mask = list(counter), list(key), 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def epoch_order(n, seed, epoch):
    """The permutation of data/order.h: Fisher-Yates with draws of (seed, epoch, purpose 1)."""
    words = (word for block in range(n)
             for word in philox([block, 0, epoch, 1], [seed & 0xFFFFFFFF, seed >> 32]))
    order = list(range(n))
    for i in range(n, 1, -1):
        low, high = next(words), next(words)
        j = (low | high << 32) * i >> 64
        order[i - 1], order[j] = order[j], order[i - 1]
    return order


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


def compare_losses(options):
    import numpy
    import torch
    import torchvision
    from PIL import Image

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = getattr(torchvision.models, options.model)(num_classes=3)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    if options.size % 56:
        sys.exit("--losses needs a --size that 56 divides: its images are then cropped, not resized")
    side, edge = options.size * 8 // 7, options.size // 14  # Convoy cuts the middle out of 256/224
    seed, count = 7, options.losses * options.batch
    with tempfile.TemporaryDirectory() as folder:
        # Coloured noise over a class colour, as PNG: what both read is equal to the last bit.
        numbers, images, labels = numpy.random.default_rng(5), [], []
        for c in range(3):
            os.makedirs(f"{folder}/set/class{c}")
        for i in range(count):
            c = i * 3 // count
            pixels = numbers.integers(0, 200, (side, side, 3), dtype=numpy.uint8)
            pixels[:, :, c] += 55
            Image.fromarray(pixels).save(f"{folder}/set/class{c}/{i:06}.png", compress_level=1)
            images.append(pixels[edge:-edge, edge:-edge])
            labels.append(c)
        write_safetensors(f"{folder}/start.safetensors",
                          {name: t for name, t in model.state_dict().items() if t.dtype == torch.float32})
        text = subprocess.run([options.trainer, "models", options.model], check=True,
                              capture_output=True, text=True).stdout
        with open(f"{folder}/model.txt", "w") as file:
            file.writelines(line for line in text.splitlines(True) if "dropout" not in line)
        trained = subprocess.run(
            [options.trainer, "--data", f"{folder}/set", "--val-split", "0", "--model", f"{folder}/model.txt",
             "--size", str(options.size), "--batch", str(options.batch), "--epochs", "1", "--augment", "none",
             "--init", f"{folder}/start.safetensors", "--lr", str(options.lr), "--schedule", "constant",
             "--warmup", "0", "--weight-decay", "5e-4", "--bn-group", "0", "--seed", str(seed), "--log-every", "1",
             "--threads", str(options.threads), "--save-every", "0", "--out", f"{folder}/run"],
            capture_output=True, text=True)
        if trained.returncode:
            sys.exit(f"the trainer failed:\n{trained.stdout}{trained.stderr}")
        with open(f"{folder}/run/log.jsonl") as file:
            events = [json.loads(line) for line in file]
    ours = [event["loss"] for event in events if event["event"] == "step"]

    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.SGD([{"params": decayed, "weight_decay": 5e-4}, {"params": plain}],
                                lr=options.lr, momentum=0.9)
    order, theirs = epoch_order(count, seed, 0), []
    for step in range(options.losses):
        slice_ = order[step * options.batch:(step + 1) * options.batch]
        x = torch.from_numpy(numpy.stack([images[i] for i in slice_])).permute(0, 3, 1, 2)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model((x.float() / 255 - mean) / std),
                                                 torch.tensor([labels[i] for i in slice_]))
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
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


def run(command):
    """The JSON line that the command prints last."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainer", default="./trainer")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--forward", action="store_true", help="the forward pass alone")
    parser.add_argument("--losses", type=int, metavar="STEPS", help="compare losses instead of speed")
    parser.add_argument("--lr", type=float, default=0.0001, help="of --losses")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="bf16", help="on a GPU")
    parser.add_argument("--as-torch", choices=["channels_last", "default", "compiled"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_torch:
        return torch_run(options, options.as_torch)

    if options.losses is not None and options.losses < 1:
        parser.error("--losses takes a number of steps")
    on_gpu = options.device == "cuda"
    if options.losses and on_gpu:
        parser.error("--losses compares on the CPU")
    if options.losses:
        return compare_losses(options)
    if on_gpu:
        check_torch_has_gpu()

    names = ("model", "batch", "size", "steps", "threads") + (("device", "precision") if on_gpu else ())
    same = [f"--{name}={getattr(options, name)}" for name in names]
    same += ["--forward"] if options.forward else []
    sides = {"convoy": [options.trainer, "bench", "train", "--json"] + same}
    theirs = {form: [sys.executable, __file__, f"--as-torch={form}"] + same
              for form in (("channels_last", "compiled") if on_gpu else ("channels_last", "default"))}
    if not on_gpu:
        tries = {form: run(command)["images_per_second"] for form, command in theirs.items()}
        better = max(tries, key=tries.get)
        theirs = {better: theirs[better]}
    sides.update(theirs)
    rounds = [{side: run(command) for side, command in sides.items()} for _ in range(options.rounds)]

    def median(side, field):
        return statistics.median(one[side][field] for one in rounds)

    def ratios(form):
        return sorted(one["convoy"]["images_per_second"] / one[form]["images_per_second"] for one in rounds)

    memory = "device_memory_mb" if on_gpu else "peak_rss_mb"
    fields = (("images_per_second", "img/s"), (memory, "memory, MB"),
              ("start_seconds", "step 1 begins after, s"), ("first_step_seconds", "step 1 ends after, s"))
    if options.json:
        print(json.dumps({"model": options.model, "batch": options.batch, "device": options.device,
                          "precision": options.precision if on_gpu else "fp32", "threads": options.threads,
                          "ratios": {form: ratios(form) for form in theirs},
                          **{side: {field: median(side, field) for field, _ in fields} for side in sides}}))
        return
    where = f"on the GPU in {options.precision}" if on_gpu else f"{options.threads} threads"
    print(f"{options.model}, batch {options.batch}, {options.size}x{options.size}, {where}, "
          f"{options.rounds} alternating rounds, PyTorch in " + " and ".join(theirs))
    print(f"  {'':<22} {'Convoy':>9}" + "".join(f" {form:>14}   ratio" + " " * 12 for form in theirs))
    for field, text in fields:
        mine = median("convoy", field)
        line = f"  {text:<22} {mine:9.2f}"
        for form in theirs:
            r = ratios(form)
            spread = f"({r[0]:.2f}-{r[-1]:.2f})" if field == "images_per_second" else ""
            line += f" {median(form, field):14.2f}   {mine / median(form, field):5.2f} {spread:11}"
        print(line.rstrip())


if __name__ == "__main__":
    main()
