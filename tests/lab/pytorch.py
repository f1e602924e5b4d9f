#!/usr/bin/env python3
"""Trains a recipe (tools/recipes) with PyTorch, to compare accuracy and time with Convoy's.

    tests/lab/pytorch.py tools/recipes/cifar10.txt FOLDER [--seed 1] [--epochs E]

Reads the same texts as Convoy: settings, and layers (src/model/model_text.h; of a built-in model they come
from ./trainer models). FOLDER holds train/ and val/, or test/, with a folder for each class; all images
have the size of the model's input and are kept in memory. Supports what the recipes use. The fastest of
PyTorch's two memory formats is tried first. Prints a line for each epoch: seconds of training so far,
loss, accuracy. Needs torch and torchvision.
"""
import argparse
import math
import os
import subprocess
import time

import torch
import torchvision
from torch import nn
from torch.nn import functional

MEAN, STD = (torch.tensor(v).view(1, 3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))


def read_settings(path):
    with open(path) as file:
        lines = (line.split("#")[0].split(maxsplit=1) for line in file)
        return {words[0]: words[1].strip() for words in lines if words}


class Residual(nn.Module):
    def __init__(self, body, shortcut):
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x):
        return functional.relu(self.body(x) + self.shortcut(x))


def layers_of(lines, shape, classes, until=()):
    """The layers of a model's text up to a line of `until`, for images of `shape` (channels, height, width)."""
    layers = []
    for line in lines:
        kind, *words = line.split("#")[0].split() or [""]
        if kind in until:
            break
        if kind in ("", "input", "flatten"):
            continue
        first = 1 if kind in ("conv2d", "linear", "batchnorm", "residual", "avgpool") else 0
        options = dict(zip(words[first::2], words[first + 1::2]))
        if unknown := options.keys() - {"out", "size", "stride", "pad", "bias", "init"}:
            raise SystemExit(f"'{unknown.pop()}' of {kind} is not supported here")
        size, stride, pad = (int(options.get(*option)) for option in (("size", 1), ("stride", 1), ("pad", 0)))
        out = classes if options.get("out") == "classes" else int(options.get("out", 0))
        bias = options.get("bias") != "no"
        if kind == "conv2d":
            layer = nn.Conv2d(shape[0], out, size, stride, pad, bias=bias)
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            layer.whitens = options.get("init") == "whiten"
        elif kind == "linear":
            layer = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), out, bias))
        elif kind == "batchnorm":
            layer = nn.BatchNorm2d(shape[0])
        elif kind == "relu":
            layer = nn.ReLU()
        elif kind == "maxpool":
            layer = nn.MaxPool2d(size, int(options.get("stride", size)), pad)
        elif kind == "avgpool":
            layer = nn.AdaptiveAvgPool2d(int(words[0]))
        elif kind == "residual":
            body, kind = layers_of(lines, shape, classes, ("shortcut", "end"))
            shortcut = layers_of(lines, shape, classes, ("end",))[0] if kind == "shortcut" else nn.Identity()
            layer = Residual(body, shortcut)
        else:
            raise SystemExit(f"'{kind}' is not supported here")
        layers.append(layer)
        with torch.no_grad():
            shape = tuple(layer.eval()(torch.zeros(1, *shape)).shape[1:])
    return nn.Sequential(*layers), kind


def set_whitening(layer, images):
    """data/whiten.h"""
    patches = images.unfold(2, layer.kernel_size[0], 1).unfold(3, layer.kernel_size[1], 1)
    patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, layer.weight[0].numel()).double()
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    filters = (vectors / (values + 5e-4).sqrt()).T.flip(0).float()
    layer.weight.data = torch.cat([filters, -filters]).view_as(layer.weight)
    layer.weight.requires_grad = False


class Muon(torch.optim.Optimizer):
    """src/step/muon.cpp"""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
            for p in (p for p in group["params"] if p.grad is not None):
                v = self.state[p].setdefault("v", torch.zeros_like(p))
                v.mul_(momentum).add_(p.grad)
                if p.dim() == 1:
                    p.sub_(v, alpha=lr)
                    continue
                x = p.grad.add(v, alpha=momentum).flatten(1)
                x = x / x.norm().clamp(min=1e-7)
                tall = x.size(0) > x.size(1)
                x = x.T if tall else x
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                x = x.T if tall else x
                p.mul_(1 - lr * decay)
                p.sub_(x.reshape(p.shape), alpha=lr * math.sqrt(max(1, x.size(0) / x.size(1))))


def read_images(folder):
    names = [name for name in ("train", "val", "test") if os.path.isdir(f"{folder}/{name}")]
    sets = [torchvision.datasets.ImageFolder(f"{folder}/{name}") for name in names[:2]]
    read = lambda path: torchvision.io.decode_image(path, torchvision.io.ImageReadMode.RGB)
    return [(torch.stack([read(path) for path, _ in one.samples]), torch.tensor(one.targets)) for one in sets]


def normalised(images):
    return (images.float() / 255 - MEAN) / STD


def moved(x, reach):
    """Each image moved by up to `reach` pixels each way, reflected at the edge."""
    padded = functional.pad(x, [reach] * 4, mode="reflect")
    n, _, height, width = x.shape
    down, right = (torch.randint(0, 2 * reach + 1, (n, 1)) for _ in range(2))
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    picked = padded.permute(0, 2, 3, 1)[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)


def learning_rate(settings, step, total, per_epoch):
    base, warmup = float(settings["lr"]), float(settings.get("warmup", 0.5)) * per_epoch
    if step < warmup:
        return base * min((step + 1) / warmup, 1)
    return base * 0.5 * (1 + math.cos(math.pi * min((step - warmup) / max(total - warmup, 1), 1)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    settings = read_settings(options.recipe)
    augment = settings["augment"].split(",")
    reach = next((int(word[10:]) for word in augment if word.startswith("translate=")), 0)
    epochs, batch = options.epochs or int(settings["epochs"]), int(settings["batch"])
    (train_x, train_y), (val_x, val_y) = read_images(options.folder)
    known = not os.path.exists(settings["model"])
    command = ["./trainer", "models"] if known else ["cat"]
    text = subprocess.check_output([*command, settings["model"]], text=True)
    model, _ = layers_of(iter(text.splitlines()), tuple(train_x.shape[1:]), int(train_y.max()) + 1)
    for layer in model:
        if getattr(layer, "whitens", False):
            set_whitening(layer, normalised(train_x[::max(len(train_x) // 5000, 1)]))
    decayed = [p for p in model.parameters() if p.dim() > 1]
    groups = [{"params": decayed, "weight_decay": float(settings.get("weight-decay", 5e-4))},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0}]
    make = {"muon": Muon, "sgd": torch.optim.SGD}[settings["optimizer"]]
    defaults = {"lr": 0.1, "momentum": float(settings.get("momentum", 0.9))}
    optimizer = make(groups, defaults) if make is Muon else make(groups, **defaults)
    smoothing = float(settings.get("label-smoothing", 0))

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y, label_smoothing=smoothing)
        loss.backward()
        return loss.item()

    def seconds_in(layout):
        model.to(memory_format=layout).train()
        x = normalised(train_x[:batch]).contiguous(memory_format=layout)
        step(x, train_y[:batch])
        begin = time.time()
        step(x, train_y[:batch])
        return time.time() - begin

    state = {name: t.clone() for name, t in model.state_dict().items()}
    layout = min((torch.contiguous_format, torch.channels_last), key=seconds_in)
    model.load_state_dict(state)
    model.to(memory_format=layout)
    per_epoch, seconds = -(-len(train_x) // batch), 0.0
    coins = torch.rand(len(train_x)) < 0.5
    for epoch in range(epochs):
        begin, losses = time.time(), []
        model.train()
        for i, part in enumerate(torch.randperm(len(train_x)).split(batch)):
            x = normalised(train_x[part])
            if "flip" in augment or "flip=alternating" in augment:
                flips = coins[part] != (epoch % 2 == 1) if "flip=alternating" in augment else (
                    torch.rand(len(part)) < 0.5)
                x = torch.where(flips.view(-1, 1, 1, 1), x.flip(3), x)
            if reach:
                x = moved(x, reach)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(settings, epoch * per_epoch + i, epochs * per_epoch, per_epoch)
            losses.append(step(x.contiguous(memory_format=layout), train_y[part]))
            optimizer.step()
        seconds += time.time() - begin
        model.eval()
        with torch.inference_mode():
            right = sum((model(normalised(x)).argmax(1) == y).sum().item()
                        for x, y in zip(val_x.split(500), val_y.split(500)))
        print(f"epoch {epoch + 1}/{epochs}  {seconds:.0f} s  {len(train_x) * (epoch + 1) / seconds:.0f} img/s  "
              f"loss {sum(losses) / len(losses):.4f}  top1 {100 * right / len(val_x):.2f} %", flush=True)


if __name__ == "__main__":
    main()
