"""What only torch can tell of a run: whether the weights fit the architecture that its config.json names (built without
memory, compared by shape), and whether a loss and an advantage of its own can be used.

Needs torch and transformers, and seconds to import them: for an owner's desk, not for a daemon. Blocking.
"""

import tempfile
from pathlib import Path

from node.run.file import CompiledRun
from node.run.problems import place_files


def check_architecture(run: CompiledRun) -> None:
    """Raises ModelError for an architecture that engines cannot build, and for a tensor that is missing or has another
    shape than the architecture's; TrainingError for an adapter to layers that it does not have."""
    from node.inference.start_weights import StartWeights
    from node.inference.torch_engine import build_model, image_names
    from node.training.lora import adapted_layers

    directory = run.files["model/config.json"].parent
    model = build_model(directory, device="meta")
    StartWeights(directory).check(image_names(model))
    if run.spec.recipe.lora:
        adapted_layers(model, run.spec.recipe.lora)


def check_functions(run: CompiledRun) -> None:
    """Loads the loss and the advantage that the run brings along, and tries them. Raises OwnCodeError."""
    from node.training.functions import functions_of

    if not run.spec.recipe.own_code():
        return
    with tempfile.TemporaryDirectory(prefix="intellect-run-") as folder:
        place_files(run, Path(folder))
        functions_of(run.spec.recipe.objective(), Path(folder))
