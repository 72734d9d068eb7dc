"""A run for other people's tools: TensorBoard's event files, and a run of MLflow's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.core.files import make_folder
from holdfast.record import Record
from holdfast.report.run_data import Story
from holdfast.runs.export import need
from holdfast.runs.records import scalars


def write_tensorboard(story: Story, folder: Path) -> None:
    """Event files for `tensorboard --logdir FOLDER`, in a folder of the run's name."""
    need("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    target = folder / story.folder.resolve().name
    make_folder(folder)
    if target.exists() and any(target.iterdir()):
        raise HoldfastError(f"{target} is not empty; choose another folder, or remove it first.")
    names = list(story.class_names)
    with SummaryWriter(str(target)) as writer:
        writer.add_text("experiment", "```\n" + json.dumps(story.experiment.as_json(), indent=1) + "\n```")
        for record in story.records:
            for name, value in scalars(record, names):
                writer.add_scalar(name, value, record.round)


def write_mlflow(story: Story, uri: str) -> str:
    """A run in the MLflow store of this address, in the experiment `holdfast`; gives the run's id."""
    need("mlflow")
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("holdfast")
        home = experiment.experiment_id if experiment else client.create_experiment("holdfast")
        place = story.folder.resolve()
        tags = {"method": story.experiment.method, "folder": str(place)}
        run = client.create_run(home, run_name=place.name, tags=tags)
        id: str = run.info.run_id
        parameters = [Param(key, str(value)) for key, value in story.experiment.as_json().items()]
        client.log_batch(id, params=parameters)
        for record in story.records:
            client.log_batch(id, metrics=metrics_of(record, list(story.class_names), Metric))
        if story.final is not None:
            client.log_metric(id, f"final_{story.history.measure.name}", story.final)
        client.set_terminated(id, "FINISHED" if story.finished else "KILLED")
    except (MlflowException, OSError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise HoldfastError(f"MLflow at {uri} does not take the run: {reason}") from error
    return id


def metrics_of(record: Record, class_names: list[str], kind: Any) -> list[Any]:
    """At most a thousand at a time is what MLflow takes; names may hold letters, digits, and - _ . / or a blank."""
    found = []
    for name, value in list(scalars(record, class_names))[:1000]:
        plain = "".join(c if c.isalnum() or c in "-_./ " else "_" for c in name)
        found.append(kind(plain, value, 0, record.round))
    return found
