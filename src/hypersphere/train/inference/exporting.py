"""Export a trained network to formats that need no hypersphere: ONNX, torch.export, safetensors."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from ..._internal import checks
from ..._internal.modules import import_extra
from ..._internal.safe_files import write_bytes
from ..._internal.tensors import unshared
from ..._internal.text import one_line
from ...data.augment import Normalize
from ..networks import Classifier
from ..storage import layout
from .run import Run

_WRONG = 1e-2  # relative difference above rounding errors
_EXAMPLES = 3  # batch size for tracing: sizes 0 and 1 become constants


class _Embeddings(nn.Module):
    """Return embeddings of length 1, as :meth:`Run.embed` does."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, inputs: Tensor) -> Tensor:
        return F.normalize(self.classifier.embed(inputs), dim=-1)


def format_of(path: str | os.PathLike[str], to: str | None = None) -> str:
    """Return the format to export to: `to`, or by the file's ending."""
    if to is None:
        to = next((name for name, ending in layout.EXPORTS.items() if ending == Path(path).suffix.lower()), None)
        if to is None:
            endings = ", ".join(layout.EXPORTS.values())
            raise ValueError(f"the file must end in {endings}, or give the format (to=, --to); got {path}")
    checks.choice("to", to, layout.EXPORTS)
    return to


def export(run: Run, path: str | os.PathLike[str], to: str | None = None, embeddings: bool = False) -> float | None:
    """Write the network of a run, merged and in eval mode, for any batch size.

    The input is called ``inputs`` and is what ``run.preprocess`` returns; the output is called ``logits``,
    ``embeddings`` (of length 1) or ``images`` (of a generator). The metadata of ONNX and safetensors, and the extra
    files of torch.export, have ``labels``, the class names in JSON, and ``inputs``, the text of :func:`inputs_of`. With
    an angular loss the safetensors have the head's tensors too, as ``head.weight``.

    Args:
        path: the file; replaced if it is there.
        to: onnx | torch | safetensors; None: by the ending, .onnx, .pt2 or .safetensors.
        embeddings: what comes out are embeddings; not for safetensors, which have no output.

    Returns:
        The largest difference between the file's output and the network's, measured; None for safetensors, and for
        ONNX without onnxruntime.

    Example:
        >>> import tempfile
        >>> from hypersphere.train import Config, fit, load_run
        >>> run = load_run(fit(Config(steps=2, out=tempfile.mkdtemp()), progress=False).path)
        >>> export(run, run.path / "model.pt2")
        0.0
    """
    to, path = format_of(path, to), Path(path)
    own = [run.path / layout.FINAL / layout.weights(part) for part in layout.PARTS]
    if path.resolve() in [file.resolve() for file in (*own, run.source / layout.TENSORS)]:
        raise ValueError(f"path must not be a file of the run, got {path}")
    if to == "safetensors":
        if embeddings:
            raise ValueError("embeddings go with onnx and torch: a file of tensors has no output")
        write_bytes(path, _safetensors(run))
        return None
    if run.spec.kind == "graph":
        raise ValueError(f"{to} cannot hold the network of a graph, which takes its edges: export to safetensors")
    name = "embeddings" if embeddings else "images" if not run.labels else "logits"
    if embeddings:
        run.check_labels()
    module = _Embeddings(run.classifier).eval() if embeddings else run.model
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    examples = _examples(run).to(device)
    with torch.no_grad():
        expected = module(examples)
    data, given = (_onnx if to == "onnx" else _torch)(run, module, examples, name)
    expected = expected.cpu()
    difference = None if given is None else float((given - expected).abs().max())
    if difference is not None and not difference <= _WRONG * (1 + float(expected.abs().max())):
        raise ValueError(f"the exported file gives different {name}, off by {difference:.2g}; nothing is written")
    write_bytes(path, data)
    return difference


def _examples(run: Run) -> Tensor:
    shape = run.preprocess.spec.shape
    if run.spec.kind == "text":
        return torch.arange(_EXAMPLES * shape[0]).view(_EXAMPLES, shape[0]) % len(run.labels)
    return torch.randn(_EXAMPLES, *shape, generator=torch.Generator().manual_seed(0))


def _metadata(run: Run) -> dict[str, str]:
    """Return the metadata of an exported file."""
    named = {"labels": json.dumps(run.labels), "model": run.config.model.name, "step": str(run.step)}
    return named | {"inputs": inputs_of(run)}


def inputs_of(run: Run) -> str:
    """Describe the input of the exported network: type, layout, channels, range."""
    spec = run.preprocess.spec
    shape = f"({', '.join(['B', *map(str, spec.shape)])})"
    if not run.labels:
        return f"float32 {shape}: noise, standard normal"
    if spec.kind == "text":
        return f"int64 {shape}: numbers of characters, their places in labels"
    if spec.kind == "graph":
        return f"float32 {shape}: features of the nodes, of sum 1 each; and the adjacency, sparse (B, B)"
    if spec.kind == "points":
        return f"float32 {shape}: x, y, z of points"
    what = "numbers"
    if spec.kind == "images":
        what = {1: "grey", 3: "channels red, green, blue"}.get(spec.shape[0], f"{spec.shape[0]} channels")
    scale = "(x - 127.5) / 128 of pixels x from 0 to 255" if _is_normalized(run) else "scaled as in the training data"
    return f"float32 {shape}: {what}, {scale}"


def _is_normalized(run: Run) -> bool:
    """Return whether pixels are scaled as by :class:`Normalize`; a user's augmentation may differ."""
    if run.preprocess.spec.dtype != "uint8":
        return False
    pixels = torch.tensor([0, 200], dtype=torch.uint8)
    shown = [run.preprocess(pixel.expand(1, *run.preprocess.spec.shape)) for pixel in pixels]
    return all(bool((x == y).all()) for x, y in zip(shown, Normalize()(pixels), strict=True))


def _safetensors(run: Run) -> bytes:
    tensors = run.model.state_dict()
    if isinstance(run.model, Classifier):  # restore the network's own names
        tensors = {name.removeprefix("network."): value for name, value in tensors.items()}
    kept, aliases = unshared(tensors)
    return save(kept, _metadata(run) | ({"aliases": json.dumps(aliases)} if aliases else {}))


def _torch(run: Run, module: nn.Module, examples: Tensor, name: str) -> tuple[bytes, Tensor]:
    program = _traced(lambda: torch.export.export(module, (examples,), dynamic_shapes=_any_batch()), "torch")
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={**_metadata(run), "output": name})
    with torch.no_grad():
        return file.getvalue(), program.module()(examples).cpu()


def _onnx(run: Run, module: nn.Module, examples: Tensor, name: str) -> tuple[bytes, Tensor | None]:
    for package in ("onnx", "onnxscript"):
        without = ", or export to torch (--to torch), which needs no other package"
        import_extra(package, package, "exporting to ONNX", "export", without)

    def make() -> bytes:
        program = torch.onnx.export(
            module,
            (examples,),
            input_names=["inputs"],
            output_names=[name],
            dynamo=True,
            verbose=False,
            dynamic_shapes=_any_batch(),
        )
        assert program is not None
        program.model.metadata_props.update(_metadata(run))
        return program.model_proto.SerializeToString()

    with _quiet():
        data: bytes = _traced(make, "onnx")
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        return data, None
    session = _traced(lambda: onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]), "onnx")
    (given,) = session.run([name], {"inputs": examples.cpu().numpy()})
    return data, torch.from_numpy(given)


def _any_batch() -> tuple[dict[int, Any]]:
    return ({0: torch.export.Dim("batch")},)


def _traced(make: Any, to: str) -> Any:
    try:
        return make()
    except Exception as error:  # torch raises many types
        raise ValueError(f"this network cannot be exported to {to}: {one_line(error)[:300]}") from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch and onnxscript: logs below errors, warnings and stdout."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
