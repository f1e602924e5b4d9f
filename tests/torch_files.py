"""Usage: torch_files.py FOLDER. Writes NAME.pth and NAME.safetensors of the same tensors, with
NAME.old in the format from before PyTorch 1.6, and files that must be refused: bomb.pth, script.pth.
Exit status 77: the packages are not there."""
import argparse
import collections
import os
import pathlib
import random
import sys
import zipfile

try:
    import torch
    from safetensors.torch import save_file
except ImportError:
    sys.exit(77)
folder = sys.argv[1]
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(),
                            torch.nn.Linear(4, 5))
state = model.state_dict()


def pair(name, saved, tensors=None, **options):
    torch.save(saved, f"{folder}/{name}.pth", **options)
    torch.save(saved, f"{folder}/{name}.old", _use_new_zipfile_serialization=False, **options)
    tensors = saved if tensors is None else tensors
    save_file({k: v.detach().contiguous().clone() for k, v in tensors.items()},
              f"{folder}/{name}.safetensors")


pair("state", state)
for kind in (torch.float16, torch.bfloat16, torch.float64):
    pair(str(kind), {k: v if v.dtype == torch.int64 else (v * 3.3).to(kind) for k, v in state.items()})
pair("channels_last", model.to(memory_format=torch.channels_last).state_dict())
base = torch.arange(60.0)
pair("views", {"a": base[7:31].view(2, 3, 4).permute(2, 0, 1), "b": base, "c": base[::5], "d": base[3],
               "e": base[:0], "f": base[:4].expand(3, 4)})
pair("state_dict", {"epoch": 3, "lr": 0.1, "best": None, "done": True, "log": [1, (2, "x")],
                    "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}}, "state_dict": state}, state)
pair("model", {"model": state, "n": 1 << 40}, state)
pair("parameters", collections.OrderedDict(model.named_parameters()))
pair("protocol4", state, pickle_protocol=4)
others = {f"of {t}": torch.ones(3, 2).to(getattr(torch, t)) for t in (
    "bool", "int8", "uint8", "int16", "int32", "complex64", "complex128", "uint16", "float8_e4m3fn")}
others["quantized"] = torch.quantize_per_tensor(base, 0.1, 3, torch.qint8)
pair("others", {**others, "w": base}, {"w": base})
rest = {"best_acc1": torch.tensor(3.0), "rng": torch.get_rng_state(), "size": torch.Size([1, 2]),
        "device": torch.device("cpu"), "dtype": torch.float16, "args": argparse.Namespace(lr=0.1),
        "milestones": collections.Counter([30, 60]), "mask": torch.tensor([True]),
        "random": random.getstate(), "large": 1 << 700, "set": {1, 2}, "bytes": b"x" * 300,
        "path": pathlib.Path("a")}
for protocol in (2, 3, 4, 5):
    pair(f"rest{protocol}", {**rest, "state_dict": state}, state, pickle_protocol=protocol)
pair("optimizer", {"net": state, "optimizer": torch.optim.Adam(model.parameters()).state_dict()}, state)
for wrapper in ("_orig_mod.", "module.model."):
    pair(wrapper, {"model": {wrapper + k: v for k, v in state.items()}}, state)
pair("module", {"module." + k: v for k, v in state.items()}, state)
# The same members with the records of zip64, as files beyond 4 GB have them.
zipfile.ZIP64_LIMIT = 0
with zipfile.ZipFile(f"{folder}/state.pth") as source, zipfile.ZipFile(f"{folder}/zip64.pth", "w") as to:
    for member in source.infolist():
        to.writestr(zipfile.ZipInfo(member.filename), source.read(member))
os.link(f"{folder}/state.safetensors", f"{folder}/zip64.safetensors")
torch.save({"w": torch.zeros(10_000_000)}, f"{folder}/zeros.pth")
for name, to in ("state", "deflated"), ("zeros", "bomb"):
    with zipfile.ZipFile(f"{folder}/{name}.pth") as source, zipfile.ZipFile(
            f"{folder}/{to}.pth", "w", zipfile.ZIP_DEFLATED) as packed:
        for member in source.infolist():
            packed.writestr(member.filename, source.read(member))
os.link(f"{folder}/state.safetensors", f"{folder}/deflated.safetensors")


class Evil:
    def __reduce__(self):
        return os.system, (f"touch {folder}/was-run",)


pair("evil", {"w": base, "x": Evil()}, {"w": base})
torch.jit.script(model).save(f"{folder}/script.pth")
