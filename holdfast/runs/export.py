"""The final model of a run, to be used elsewhere: from raw samples to the probability of each class, or to a number.

import holdfast.runs.export, numpy
model = holdfast.runs.export.load_model("runs/mine")            # or its model.safetensors alone
x = numpy.load("new.npz")["x"]                             # images (N, H, W) or (N, H, W, C), or vectors (N, D)
probabilities = model.predict(x)                           # (N, classes)
print([model.class_names[i] for i in probabilities.argmax(1)])
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast.absence import ABSENCES
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError, brief
from holdfast.core.files import Store, load_tensors, read_metadata, write_file
from holdfast.core.modules import import_path, path_of, search
from holdfast.core.tables import parse_table
from holdfast.core.types import Tensors
from holdfast.data.kinds import KINDS, Classes, kind_of
from holdfast.data.metrics import values_of
from holdfast.data.tables.new_records import as_table
from holdfast.data.tables.schema import Schema, schema_from
from holdfast.data.task import Kind, Metric, Samples, Task
from holdfast.encoders import resolved
from holdfast.learning.device import choose_device, device_of
from holdfast.models.networks import fill
from holdfast.models.scaling import in_range
from holdfast.runs.choose_model import choose_model, name_model, target_range
from holdfast.runs.experiment import Experiment, from_table, own_modules
from holdfast.runs.new_samples import New, holds_texts, read_new, samples_of
from holdfast.runs.plan import Plan
from holdfast.runs.store import Run

BATCH = 500
IN_RANGE, TEXTS = "range", "texts"  # what a model's file says of its output, and of its samples


@dataclass(frozen=True)
class Trained:
    """A trained model with all that it needs, its public encoder included."""

    class_names: tuple[str, ...]  # none of a task without classes
    shape: tuple[int, ...]  # of one sample: (channels, height, width), or (length,)
    network: Whole  # float samples, images in [0, 1] -> what the kind reads out: probabilities (N, classes), ...
    kind: Kind = field(default_factory=Classes)
    metrics: tuple[Metric, ...] = ()  # that the model was measured by, the leading one first
    schema: Schema | None = None  # of a table's records
    texts: bool = False  # whether samples are texts

    def predict(self, x: NDArray[Any] | Sequence[str] | str | Path, where: str = "x") -> NDArray[np.float32]:
        """What the model says of each sample, as its kind reads it out: the probabilities of classes, a number, ...

        Samples are an array, a list of texts, or what `holdfast predict` takes: a file, or a folder of pictures.
        """
        if isinstance(x, str | Path):
            where, x = str(x), self.read(Path(x)).x
        found = self.kind.readout(torch.from_numpy(self.outputs(x, where)))
        return np.asarray(found.numpy(), dtype=np.float32)

    def read(self, path: Path) -> New:
        """New samples from a file or a folder, as this model reads them."""
        return read_new(path, self.shape, self.kind, self.class_names, self.schema, self.texts)

    def measure(self, outputs: NDArray[np.float32], labels: NDArray[Any]) -> dict[str, float]:
        """The metrics of a model's outputs, by name."""
        return values_of(self.metrics, torch.from_numpy(outputs), torch.from_numpy(labels))

    def outputs(self, x: NDArray[Any] | Sequence[str], where: str = "x") -> NDArray[np.float32]:
        """The network's own output, before it is read out: images (N, H, W) or (N, H, W, C), series, vectors, texts."""
        samples = samples_of(x, self.shape, self.texts, where)
        if tuple(samples.shape[1:]) != self.shape:
            raise HoldfastError(
                f"{where}: its samples have shape {tuple(samples.shape[1:])}, but the model was trained on "
                f"{self.shape} (channels first); bring them to that shape."
            )
        found = [self._some(part) for part in samples.split(BATCH)]
        return np.asarray(torch.cat(found).numpy(), dtype=np.float32)

    @torch.inference_mode()
    def _some(self, samples: Tensor) -> Tensor:
        batch, _ = Samples((samples,), torch.zeros(len(samples))).batch(torch.arange(len(samples)))
        return self.network.raw(batch[0].to(device_of(self.network))).cpu()


class Whole(nn.Module):
    """Encoder, model and what its kind makes of the output (softmax) in one."""

    def __init__(self, model: nn.Module, encoder: nn.Module | None, reads: tuple[str, ...], kind: Kind) -> None:
        super().__init__()
        self.model, self.encoder, self.reads, self.kind = model, encoder, reads, kind

    def forward(self, x: Tensor) -> Tensor:
        return self.kind.readout(self.raw(x))

    def raw(self, x: Tensor) -> Tensor:
        """The model's output, before it is read out."""
        parts = {"image": x}
        if self.encoder is not None:
            parts["features"] = self.encoder(x)
        output: Tensor = self.model(*(parts[name] for name in self.reads))
        return output


def about_model(plan: Plan) -> dict[str, str]:
    """What a model's file says of itself, so that it can be used without the run, its task and its data."""
    experiment, task = plan.experiment, plan.task
    model = name_model(experiment, task, plan.method.absence)
    if model.name == "auto" and task.model is not None:  # the task's own, if it can be imported
        model = Choice(path_of(task.model) or "auto")
    known = type(task.kind) is KINDS.get(task.kind.name)
    encoder = plan.method.bench.about.encoder
    recipe = {"model": model.as_json()}
    if experiment.scaling != "schema":
        recipe["scaling"] = experiment.scaling
    if encoder:  # "auto" may mean another one where the model is used
        recipe["encoder"] = resolved(experiment.encoder, task.train.inputs[0], task.schema).as_json()
    return {
        "task": task.name,
        "model": str(experiment.model),
        "kind": task.kind.spec if known else path_of(type(task.kind)) or task.kind.name,
        "metrics": "\n".join(metric.name for metric in task.metrics),
        "classes": "\n".join(task.class_names),
        "shape": json.dumps(list(task.shape)),
        "recipe": json.dumps(recipe),
        "encoder_fingerprint": encoder,
        **({} if task.schema is None else {"schema": json.dumps(as_table(task.schema))}),
        **({} if target_range(experiment, task) is None else {"output": IN_RANGE}),
        **({"samples": TEXTS} if holds_texts(task.train.inputs[0]) else {}),
    }


def load_model(
    source: Path | str,
    device: str = "auto",
    modules: Path | str | None = None,
    network: Callable[[], nn.Module] | None = None,
) -> Trained:
    """The model of a finished run, or of a model.safetensors alone, on a device of this machine.

    Where its network or kind is code of its makers, `modules` is the folder in which that lies; `network` makes the
    network where it has no import path.
    """
    source = Path(source)
    path, data = read_model(source)
    facts = read_metadata(data)
    lacking = [key for key in ("recipe", "shape", "classes") if key not in facts]
    if lacking:
        raise HoldfastError(
            f"{path} does not say how it is built ({', '.join(lacking)} is missing): it is not a model of Holdfast's."
        )
    table = parse_table(f'{{"shape": {facts["shape"]}, "recipe": {facts["recipe"]}}}'.encode(), f"{path}: its recipe")
    sides, names = table["shape"], tuple(facts["classes"].split("\n")) if facts["classes"] else ()
    if not isinstance(sides, list) or not all(type(side) is int and 0 < side < 1 << 20 for side in sides):
        raise HoldfastError(f"{path} does not say what shape its samples have: it is not a model of Holdfast's.")
    if not isinstance(table["recipe"], dict):
        raise HoldfastError(f"{path} does not say how it is built: it is not a model of Holdfast's.")
    if modules is None and source.is_dir() and (source / "experiment.json").is_file():
        modules = Run.open(source).experiment.modules
    table["recipe"].pop("task", None)  # of older files
    experiment = from_table({**table["recipe"], "modules": modules and str(modules)}, str(path))
    kind = facts.get("kind", Classes.name)
    trust_code(experiment, kind, path, source.is_dir())
    shape = tuple(sides)
    nothing = Samples((torch.zeros(0, *shape),), torch.zeros(0, dtype=torch.long))
    told = f"{path}: its schema"
    schema = schema_from(parse_table(facts["schema"].encode(), told), told) if "schema" in facts else None
    task = Task(facts.get("task", ""), nothing, nothing, names, network, kind=find_kind(kind, path), schema=schema)
    whole = rebuild(facts, experiment, task, load_tensors(data, path), path)
    network_on = whole.eval().to(choose_device(device))
    texts = facts.get("samples") == TEXTS
    return Trained(names, shape, network_on, whole.kind, measured_by(facts, task), schema, texts)


def measured_by(facts: dict[str, str], task: Task) -> tuple[Metric, ...]:
    """The metrics that a model's file names, as far as the kind has them; else its usual ones."""
    known = {metric.name: metric for metric in (*task.kind.all_metrics(task.classes), *task.metrics)}
    named = [known[name] for name in facts.get("metrics", "").split("\n") if name in known]
    return tuple(named) or task.metrics


def trust_code(experiment: Experiment, kind: str, path: Path, of_run: bool) -> None:
    """Let the code that a model names be imported: that of a run, and of a file only what the user points at.

    A file from a stranger must not run what happens to lie around.
    """
    own = [*own_modules(experiment), *([kind.partition(":")[0]] if ":" in kind and not is_known(kind) else [])]
    if not of_run and experiment.modules is None and (strange := [name for name in own if name not in sys.modules]):
        raise HoldfastError(
            f"{path} is built with {strange[0]!r}, code of its makers; if you trust that, name the folder where it "
            f"lies (--modules DIR)."
        )
    if own and experiment.modules is not None:
        search(experiment.modules)


def is_known(kind: str) -> bool:
    """Whether a kind is Holdfast's, not code of a model's makers."""
    return kind.partition(":")[0] in KINDS


def find_kind(name: str, path: Path) -> Kind:
    """The kind of target that a model's file names, or a user's own by import path."""
    if is_known(name):
        return kind_of(name, str(path))
    if ":" in name:
        kind = import_path(name, "kind")
        if isinstance(kind, type) and issubclass(kind, Kind):
            return kind()
    raise HoldfastError(f"{path} is of kind {brief(name)}, which this version does not know.")


def rebuild(facts: dict[str, str], experiment: Experiment, task: Task, state: Tensors, path: Path) -> Whole:
    """The model's network with its weights; the encoder is made anew and must be the same as in training."""
    if experiment.model.name == "auto" and task.model is None and "absence" not in facts["recipe"]:
        raise HoldfastError(
            f"{path} was trained with a network that has no import path; in Python, load_model(..., network=...) takes "
            "the function that made it."
        )
    absence = choose(ABSENCES, experiment.absence, "absence")
    build, reads, encoder, _ = choose_model(experiment, task, absence)
    if facts.get("output") == IN_RANGE and (unit := target_range(experiment, task)):
        build = partial(in_range, build, unit)
    if encoder is not None and encoder.fingerprint != facts.get("encoder_fingerprint"):
        raise HoldfastError(
            f"{path} was trained on features of another encoder than the {experiment.encoder} of this version."
        )
    model = build()
    wanted = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if {n: t.shape for n, t in wanted.items()} != {n: t.shape for n, t in state.items()}:
        raise HoldfastError(
            f"{path} does not fit the model {facts.get('model')} it names: weights differ in name or shape."
        )
    fill(model, state, state)
    return Whole(model, encoder.network if encoder else None, reads, task.kind)


def read_model(source: Path) -> tuple[Path, bytes]:
    """The bytes of a model's file, checked against the run's manifest where there is one."""
    path = source / "model.safetensors" if source.is_dir() else source
    if source.is_dir() and not path.exists():
        what = "is not finished" if (source / "experiment.json").exists() else "is not a run"
        raise HoldfastError(f"{source} {what}: it has no model.safetensors; `holdfast resume` finishes a run.")
    if not path.is_file():
        raise HoldfastError(f"{path} does not exist; name a run, or the model.safetensors of one.")
    data = Store(source).read(path.name) if source.is_dir() else path.read_bytes()
    load_tensors(data, path)
    return path, data


def export_safetensors(source: Path, out: Path) -> None:
    """Copy the final model, checked, to one file that `holdfast predict` and any safetensors reader can use."""
    write_file(out, read_model(source)[1])


def export_onnx(source: Path, out: Path, modules: Path | None = None) -> None:
    """Write the model, encoder and softmax included, as ONNX: x (N, *shape) float32 -> probabilities, or values."""
    need("onnx", "onnxscript")
    import onnx

    model = load_model(source, "cpu", modules)
    sample = torch.zeros(2, *model.shape)  # two, for one would be taken for a constant
    with quiet("torch.onnx._internal.exporter._registration"):
        batch = torch.export.Dim("batch", min=1)
        program = torch.onnx.export(
            model.network,
            (sample,),
            input_names=["x"],
            output_names=[model.kind.answer],
            dynamic_shapes={"x": {0: batch}},
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise HoldfastError(f"{source}: PyTorch could not write this model as ONNX.")
    proto = program.model_proto
    names = {"class_names": "\n".join(model.class_names), "shape": json.dumps(list(model.shape))}
    onnx.helper.set_model_props(proto, names)
    onnx.checker.check_model(proto)
    write_file(out, proto.SerializeToString())


@contextmanager
def quiet(logger: str) -> Iterator[None]:
    """Leave out what a library says of packages that we do not need."""
    log = logging.getLogger(logger)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def need(*packages: str) -> None:
    """Refuse, with what to do, where a package is not installed."""
    from importlib.util import find_spec

    if missing := [name for name in packages if find_spec(name) is None]:
        raise HoldfastError(f"This needs {' and '.join(missing)}: pip install {' '.join(missing)}.")
