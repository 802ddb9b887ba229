"""A last look at a run before it is opened: what every member would stumble over, found at its owner's desk.

Loads the model's description and the problems exactly as an engine does. Blocking: call from a thread.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from node.environments.registry import check_prompts, load_environment
from node.errors import RunFileError
from node.inference.tokenizer import LocalTokenizer
from node.runfile import CompiledRun


def check_run(run: CompiledRun) -> None:
    """Raise RunFileError, ModelError or DatasetError (file and line) if the run's files cannot be worked with."""
    _check_model(run)
    with tempfile.TemporaryDirectory(prefix="intellect-run-") as folder:
        assets = Path(folder)
        place_files(run, assets)
        try:
            _check_problems(run, assets)
        except Exception as error:
            raise _with_real_paths(error, run, assets) from error


def place_files(run: CompiledRun, assets: Path) -> None:
    """Lay the run's files out below `assets` as a member of the run finds them."""
    for name, file in run.files.items():
        _place(file, assets / name)


def _place(file: Path, target: Path) -> None:
    """The file under another name: a data set must really lie among the assets, so no symbolic link."""
    target.parent.mkdir(exist_ok=True)
    try:
        os.link(file.resolve(), target)
    except OSError:
        shutil.copyfile(file, target)


def _check_problems(run: CompiledRun, assets: Path) -> None:
    environment = load_environment(run.spec.environment, assets, LocalTokenizer(assets / "model"))
    try:
        check_prompts(environment, run.spec.rollout.max_prompt_tokens)
    finally:
        environment.close()


def _with_real_paths(error: Exception, run: CompiledRun, assets: Path) -> Exception:
    """The same error with the user's own file names in it."""
    for part in ("what", "why", "remedy"):
        text = getattr(error, part, None)
        if isinstance(text, str):
            for name, file in run.files.items():
                text = text.replace(str(assets / name), str(file))
            setattr(error, part, text)
    return error


def _check_model(run: CompiledRun) -> None:
    config = run.files["model/config.json"]
    try:
        hidden = json.loads(config.read_bytes())["hidden_size"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFileError(
            f"cannot read {config}", f"no hidden_size in it: {error}", "export the model in Hugging Face format"
        ) from error
    if not isinstance(hidden, int) or hidden < run.spec.verification.toploc_k:
        raise RunFileError(
            "the activation proofs do not fit the model",
            f"a row has {hidden} values, verification.toploc_k asks for {run.spec.verification.toploc_k}",
            f"set toploc_k to at most {hidden} in [verification]",
        )
    for name, file in run.files.items():
        if name.endswith(".safetensors"):
            _check_weights(file)


def _check_weights(file: Path) -> None:
    try:
        with safe_open(file, framework="np") as weights:
            count = len(list(weights.keys()))
    except (SafetensorError, OSError) as error:
        raise RunFileError(f"cannot read the weights {file}", str(error), "restore or export the file again") from error
    if count == 0:
        raise RunFileError(f"cannot use the weights {file}", "there are no tensors in it", "export the model again")
