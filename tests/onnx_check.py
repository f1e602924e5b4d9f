"""Usage: onnx_check.py FOLDER N SHAPE DTYPE. ONNX Runtime on FOLDER/model.onnx: its logits of
FOLDER/input.bin (N images of SHAPE, as 3x224x224) must be within 1e-4 of FOLDER/logits.bin, relative
to the largest. Exit status 77: the packages are not there."""
import sys

try:
    import numpy
    import onnxruntime
except ImportError:
    sys.exit(77)
folder, shape = sys.argv[1], [int(n) for n in [sys.argv[2], *sys.argv[3].split("x")]]
x = numpy.fromfile(f"{folder}/input.bin", sys.argv[4]).reshape(shape)
want = numpy.fromfile(f"{folder}/logits.bin", "float32").reshape(shape[0], -1)
try:
    import onnx
    onnx.checker.check_model(f"{folder}/model.onnx", full_check=True)
except ImportError:
    pass
session = onnxruntime.InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"])
values = session.run(None, {session.get_inputs()[0].name: x})
one = session.run(None, {session.get_inputs()[0].name: x[:1]})  # N is free
off = max(abs(values[0] - want).max(), abs(one[0] - want[:1]).max()) / max(1, abs(want).max())
print(f"onnxruntime {onnxruntime.__version__}: off by {off:.1e}")
if len(values) > 1:
    exp = numpy.exp(want - want.max(1, keepdims=True))
    off = max(off, abs(values[1] - exp / exp.sum(1, keepdims=True)).max())
sys.exit(not off < 1e-4)
