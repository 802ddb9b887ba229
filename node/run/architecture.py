"""Whether a run's weights fit the architecture that its config.json names: built without memory, compared by shape.

Needs torch and transformers, and seconds to import them: for an owner's desk, not for a daemon. Blocking.
"""

from node.run.file import CompiledRun


def check_architecture(run: CompiledRun) -> None:
    """Raises ModelError for an architecture that engines cannot build, TrainingError for a tensor that is missing or
    has another shape than the architecture's."""
    from node.inference.torch_engine import build_model, image_names
    from node.training.start_weights import StartWeights

    directory = run.files["model/config.json"].parent
    StartWeights(directory).check(image_names(build_model(directory, device="meta")))
