"""Held-back problems, answered by the engine that samplers use, and scored."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from node.environments.registry import load_environment
from node.inference.engine import Weights, generate
from node.inference.evaluation import EvaluatedAnswer, Evaluation
from node.inference.image import read_image
from node.inference.lora import expected_tensors, read_peft, start_policy
from node.inference.room import adapter_columns
from node.inference.settings import DEFAULT, EngineSettings
from node.inference.torch_engine import TorchEngine, build_model, image_names
from node.training.settings import TrainerSettings
from protocol.engines import LORA
from protocol.lora import LORA_A
from protocol.run import MODEL, RunSpec


def evaluation_engine(settings: TrainerSettings) -> EngineSettings:
    """How the evaluator computes: on a GPU that no process of the learner has, or else on the first."""
    place = settings.evaluation_device if settings.evaluation_device != "auto" else settings.device
    gpus = torch.cuda.device_count() if place != "cpu" else 0
    if gpus == 0 and place != "cuda":
        device, natural = "cpu", "float32"
    else:
        learners = settings.world_size if settings.device != "cpu" else 0
        device, natural = f"cuda:{learners if gpus > learners else 0}", "bfloat16"
    dtype = natural if settings.evaluation_dtype == "auto" else settings.evaluation_dtype
    return EngineSettings(device=device, dtype=dtype, most=settings.evaluation_bytes if device != "cpu" else 0)


def read_adapters(model: Path, sources: Mapping[str, Path]) -> dict[str, Weights]:
    """Name -> adapter to a model directory. sources: directories in PEFT's format, and images of policies. Raises
    ModelError."""
    parameters = image_names(build_model(model, "meta"))
    found: dict[str, Weights] = {}
    for name, source in sources.items():
        if source.is_dir():
            found[name] = read_peft(source, partial(expected_tensors, parameters=parameters))
        else:
            found[name] = read_image(str(source), parameters)
    return found


def beside(engine: EngineSettings, adapters: Iterable[Weights]) -> EngineSettings:
    """The same with adapters kept apart, and room for these."""
    ranks = [max(len(one[name]) for name in one if name.endswith(LORA_A)) for one in adapters]
    return replace(engine, attention=LORA, columns=adapter_columns(len(ranks), max(ranks)))


class Evaluator:
    """An engine of its own, and the environments of a run.

    The engine that samples would have other batches with an evaluation in between, and so other last bits in its
    rollouts: the curve of a run at a desk would depend on timing.
    """

    def __init__(
        self,
        run: RunSpec,
        assets: Path,
        settings: EngineSettings = DEFAULT,
        on_progress: Callable[[], object] = lambda: None,
    ) -> None:
        """on_progress: hears of each answer."""
        self._assets = assets
        self._engine = TorchEngine(assets / MODEL, settings)
        tokenizer = self._engine.tokenizer
        environment = load_environment(run.environment, assets, tokenizer)
        others = {one.title: load_environment(one, assets, tokenizer) for one in run.evaluation.environments}
        self._environments = (environment, *others.values())
        self._evaluation = Evaluation(
            run, environment, others, partial(generate, self._engine, on_progress=on_progress)
        )

    def read(self, image: Path) -> Weights:
        """A policy's weights. Raises ModelError."""
        return self._engine.read(str(image))

    def evaluate(self, weights: Weights, step: int) -> dict[str, Any]:
        """The figures of node.inference.evaluation for these weights."""
        self._engine.load(weights)
        return self._evaluation.figures(step)

    def start(self) -> Weights:
        """Policy 0. Raises ModelError."""
        return start_policy(self._assets, image_names(build_model(self._assets / MODEL, "meta")))

    def answered(self, weights: Weights, draws: int) -> list[list[EvaluatedAnswer]]:
        """What the held-back problems of each draw are answered with these weights."""
        self._engine.load(weights)
        return [self._evaluation.answered_in(draw) for draw in range(draws)]

    def answered_beside(self, adapters: Mapping[str, Weights], draws: int) -> dict[str, list[list[EvaluatedAnswer]]]:
        """The same of the start model (under the name "") and of adapters to it, all of them in one batch. Only with an
        engine that keeps adapters apart. Raises EngineError."""
        names = {name: name.encode() for name in adapters}
        for name, weights in adapters.items():
            self._engine.hold(names[name], weights, [*names.values()])
        found: dict[str, list[list[EvaluatedAnswer]]] = {"": [], **{name: [] for name in names}}
        for draw in range(draws):
            # Both begin with the start model, whose adapter is the empty name.
            for own, answered in zip(
                found.values(), self._evaluation.answered_by([b"", *names.values()], draw), strict=True
            ):
                own.append(answered)
        return found

    @property
    def adapter_bytes(self) -> int:
        """That adapters take beside the model."""
        return self._engine.adapter_bytes

    def answers(self) -> list[dict[str, Any]]:
        """Some answers of the last evaluation, for people."""
        return self._evaluation.answers(self._engine.tokenizer.decode)

    def close(self) -> None:
        for environment in self._environments:
            environment.close()
