"""Usage: tensorboard_check.py RUN. TensorBoard's own reader on RUN/tb: each step once, in order, with
the numbers that RUN/log.jsonl has last for it; hyper-parameters, text and pictures are there. Exit
status 77: the package is not there."""
import json
import sys

try:
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.plugins.hparams import plugin_data_pb2
except ImportError:
    sys.exit(77)
run = sys.argv[1]
events = [json.loads(line) for line in open(f"{run}/log.jsonl")]
readers = {}
for split, name in ("train", "step"), ("val", "val"):
    reader = event_accumulator.EventAccumulator(
        f"{run}/tb/{split}", {event_accumulator.TENSORS: 0, event_accumulator.SCALARS: 0, event_accumulator.HISTOGRAMS: 0})
    reader.Reload()
    readers[split] = reader
    for tag in "loss", "top1":
        want = {event["step"]: event[tag] for event in events if event["event"] == name}
        got = [(scalar.step, scalar.value) for scalar in reader.Scalars(tag)]
        assert [step for step, _ in got] == sorted(want), (split, tag, got, want)
        assert all(abs(value - want[step]) < 1e-6 * (1 + abs(value)) for step, value in got), got
train = readers["train"]
assert {"learning_rate", "speed/images_per_second", "wait/data", "wait/network"} <= set(train.Tags()["scalars"])
for tag in "settings", "model", "ranks":
    assert b"|" in train.Tensors(tag)[0].tensor_proto.string_val[0] or tag == "model"
for tag, signature in ("images", b"\xff\xd8"), ("confusion", b"\x89PNG"):
    for image in train.Images(tag):
        assert image.encoded_image_string.startswith(signature) and image.width > 0, tag
start = plugin_data_pb2.HParamsPluginData.FromString(
    train.SummaryMetadata("_hparams_/session_start_info").plugin_data.content)
assert start.session_start_info.hparams["model"].string_value == "tiny"
assert start.session_start_info.hparams["batch"].number_value == 8
experiment = plugin_data_pb2.HParamsPluginData.FromString(
    train.SummaryMetadata("_hparams_/experiment").plugin_data.content).experiment
assert {info.name for info in experiment.hparam_infos} == set(start.session_start_info.hparams)
tensors = [tag[8:] for tag in train.Tags()["histograms"] if tag.startswith("weights/")]
assert len(tensors) > 3
for kind in "weights/", "gradients/":
    for tensor in tensors:
        (shown,) = train.Histograms(kind + tensor)
        histogram = shown.histogram_value
        assert sum(histogram.bucket) == histogram.num > 0, (kind, tensor)
        assert len(histogram.bucket) == len(histogram.bucket_limit)
        assert sorted(set(histogram.bucket_limit)) == list(histogram.bucket_limit)
        assert histogram.bucket_limit[-1] >= histogram.max >= histogram.min
        mean = histogram.sum / histogram.num
        assert histogram.sum_squares / histogram.num >= mean * mean * (1 - 1e-9)
print(f"tensorboard: {len(train.Scalars('loss'))} steps")
