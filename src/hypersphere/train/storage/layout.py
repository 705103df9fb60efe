"""Name every file of a run. Nothing else in the package spells these names.

RUN/
    config.json                the config as it was run
    metrics.jsonl              one JSON object per line
    events.out.tfevents.*      the same for TensorBoard
    .lock                      while a process trains here
    checkpoints/<step>/        state.json, tensors.safetensors
    final/                     model.json, model.safetensors; head or discriminator .safetensors;
                               rotations.safetensors if another network was rotated (init_from)
    result.json                written last, with checksums of the other files
    predictions/               <split>.json: confused classes and worst images, by the training and by `evaluate`
    landscape/                 <direction>-<split>.json and .svg by `hypersphere landscape`, .part.json until complete
"""

from __future__ import annotations

import re

from ..._internal.safe_files import TEMPORARY

CONFIG, METRICS, RESULT, LOCK = "config.json", "metrics.jsonl", "result.json", ".lock"
EVENTS = "events.out.tfevents."  # then the time and the host

CHECKPOINTS = "checkpoints"
STATE, TENSORS = "state.json", "tensors.safetensors"
REPLACED = ".old"  # suffix of a checkpoint while another one takes its place
STEP = re.compile(rf"(0|[1-9][0-9]*)({re.escape(REPLACED)})?")
UNFINISHED = re.compile(rf"\.[0-9]+\.{TEMPORARY}")  # a checkpoint that was being written

FINAL, MODEL = "final", "model.json"
ADAPTER = f"{FINAL}/rotations.safetensors"  # for load_rotations
PARTS = ("model", "head", "discriminator")  # whose weights final/ may hold

LANDSCAPES = "landscape"
LANDSCAPE = re.compile(r"[a-z]+-[a-z]+(\.part)?\.json")

PREDICTIONS = "predictions"
PREDICTIONS_FILE = re.compile(r"(train|validation|test)\.json")

#: format of an export → ending of its file
EXPORTS = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}

FORMAT = 2  # of result.json, model.json, landscapes and predictions
CHECKPOINT_FORMAT = 2

#: names in a run folder
OURS = re.compile(
    rf"{'|'.join(map(re.escape, (CONFIG, RESULT, METRICS, FINAL, CHECKPOINTS, LANDSCAPES, PREDICTIONS, LOCK)))}"
    rf"|{re.escape(EVENTS)}.*|\..*\.tmp"
)


def weights(part: str) -> str:
    """Return the file of one of :data:`PARTS` in final/."""
    return f"{part}.safetensors"


def landscape(direction: str, split: str) -> str:
    """Return the file of a landscape in landscape/."""
    return f"{direction}-{split}.json"
