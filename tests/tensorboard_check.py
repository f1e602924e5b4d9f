"""Usage: tensorboard_check.py RUN. TensorBoard's own reader on RUN/tb: each step once, in order, with
the numbers that RUN/log.jsonl has last for it. Exit
status 77: the package is not there."""
import json
import sys

try:
    from tensorboard.backend.event_processing import event_accumulator
except ImportError:
    sys.exit(77)
run = sys.argv[1]
events = [json.loads(line) for line in open(f"{run}/log.jsonl")]
readers = {}
for split, name in ("train", "step"), ("val", "val"):
    reader = event_accumulator.EventAccumulator(
        f"{run}/tb/{split}", {event_accumulator.TENSORS: 0, event_accumulator.SCALARS: 0})
    reader.Reload()
    readers[split] = reader
    for tag in "loss", "top1":
        want = {event["step"]: event[tag] for event in events if event["event"] == name}
        got = [(scalar.step, scalar.value) for scalar in reader.Scalars(tag)]
        assert [step for step, _ in got] == sorted(want), (split, tag, got, want)
        assert all(abs(value - want[step]) < 1e-6 * (1 + abs(value)) for step, value in got), got
train = readers["train"]
assert {"learning_rate", "speed/images_per_second", "wait/data", "wait/network"} <= set(train.Tags()["scalars"])
print(f"tensorboard: {len(train.Scalars('loss'))} steps")
