"""Answers with proofs: honest ones are accepted, and each way of falsifying one is found."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")
from node.inference.answer_proofs import AnswerProof, BadAnswerProof, look_again, model_root, read_proofs
from node.inference.answering import Answerer, AnswerQuestion, opened
from node.inference.engine import Weights
from node.inference.settings import EngineSettings
from node.inference.torch_engine import TorchEngine, build_model, image_names
from node.training.evaluator import beside
from node.training.warmstart import create_model
from tests.node.inference.test_adapters import adapter

ANSWERS, TOKENS = 20, 40


class Model:
    def __init__(self, folder: Path) -> None:
        create_model(folder, "0123456789=", seed=3, hidden=64, layers=2)
        self.folder = folder
        self.adapters: dict[str, Weights] = {"tuned": adapter(image_names(build_model(folder, "cpu")), 1, 3, size=0.3)}
        self.engine = TorchEngine(folder, beside(EngineSettings(), self.adapters.values()))
        self.answerer: Answerer = opened(folder, self.engine, self.engine.tokenizer, self.adapters)

    def proofs(self, model: str) -> list[AnswerProof]:
        prompt = self.engine.tokenizer.encode("4127=")
        question = AnswerQuestion(prompt, TOKENS, model, seed=11, count=ANSWERS)
        given = self.answerer.answer(question, self.answerer.call())
        found = [self.answerer.proven(question, number, one) for number, one in enumerate(given)]
        return [msgspec.convert(one, AnswerProof) for one in found if len(one["output"]) > 3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    made = Model(tmp_path_factory.mktemp("model"))
    yield made
    made.answerer.close()


@pytest.mark.parametrize("name", ["", "tuned"])
def test_what_is_served_is_accepted(model: Model, name: str) -> None:
    proofs, root = model.proofs(name), model_root(model.folder, model.adapters.get(name))
    looked = [look_again(one, model.engine, root, name.encode()) for one in proofs]
    assert len(looked) > ANSWERS / 2 and all(one.accepted for one in looked), looked
    assert all(one.exponent_mismatches == 0 and one.same_class for one in looked)


def other_token(proof: AnswerProof) -> AnswerProof:
    place = len(proof.output) // 2
    changed = 2 + (proof.output[place] - 1) % 11
    return msgspec.structs.replace(proof, output=[*proof.output[:place], changed, *proof.output[place + 1 :]])


def other_proofs(proof: AnswerProof) -> AnswerProof:
    return msgspec.structs.replace(proof, proofs=proof.proofs[:8] + "AAAA" + proof.proofs[12:])


FALSIFIED: dict[str, Callable[[AnswerProof], AnswerProof]] = {
    "an edited token": other_token,
    "a shorter prompt": lambda proof: msgspec.structs.replace(proof, prompt=proof.prompt[1:]),
    "another seed": lambda proof: msgspec.structs.replace(proof, seed=proof.seed + 1),
    "another of the answers": lambda proof: msgspec.structs.replace(proof, number=proof.number + 1),
    "another temperature": lambda proof: msgspec.structs.replace(proof, temperature=0.3),
    "edited proofs": other_proofs,
    "another model's root": lambda proof: msgspec.structs.replace(proof, model="0" * 64),
    "tokens outside the vocabulary": lambda proof: msgspec.structs.replace(proof, output=[*proof.output[:-1], 999]),
}  # fmt: skip


@pytest.mark.parametrize("how", FALSIFIED)
def test_what_was_falsified_is_refused(model: Model, how: str) -> None:
    root = model_root(model.folder)
    changed = [FALSIFIED[how](one) for one in model.proofs("")]
    accepted = [look_again(one, model.engine, root).accepted for one in changed]
    assert not any(accepted), f"{sum(accepted)} of {len(accepted)}"


def test_an_answer_that_was_cut_says_that_it_ended_early(model: Model) -> None:
    """Its beginning is the model's own; only its end tells."""
    root = model_root(model.folder)
    whole = [look_again(one, model.engine, root).ended for one in model.proofs("")]
    assert set(whole) <= {"end token", "limit"}
    cut = [msgspec.structs.replace(one, output=one.output[:-2]) for one in model.proofs("")]
    assert all(look_again(one, model.engine, root).ended == "early" for one in cut)


def test_another_models_answers_are_refused_though_the_root_is_copied(model: Model) -> None:
    """An adapter's answers, said to be the base's."""
    root = model_root(model.folder)
    said = [msgspec.structs.replace(one, model=root) for one in model.proofs("tuned")]
    assert not any(look_again(one, model.engine, root).accepted for one in said)


def test_a_saved_answer_is_read_and_what_is_none_is_refused(model: Model) -> None:
    (proof, *_) = model.proofs("")
    told = json.loads(msgspec.json.encode({"choices": [{"index": 0, "proof": proof}]}))
    assert read_proofs(told) == [proof] == read_proofs(told["choices"][0]["proof"])
    bad: list[Any] = [None, [], {"choices": [{"index": 0}]}, {"choices": [{"proof": {"model": 3}}]}]
    fields: list[dict[str, Any]] = [
        {"prompt": []}, {"output": []}, {"k": 0}, {"k": 10**9}, {"temperature": -1}, {"seed": 1 << 63}, {"engine": "x"},
        {"most": len(proof.output) - 1},
    ]  # fmt: skip
    bad += [msgspec.to_builtins(proof) | field for field in fields]
    for one in bad:
        with pytest.raises(BadAnswerProof):
            read_proofs(one)


def test_a_root_is_of_every_file_that_decides_and_of_the_adapter(model: Model, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(model.folder, tmp_path / "copy")
    assert model_root(copy) == model_root(model.folder) != model_root(model.folder, model.adapters["tuned"])
    (copy / "picture.png").write_bytes(b"x")
    assert model_root(copy) == model_root(model.folder)
    (copy / "generation_config.json").write_text("{}")
    assert model_root(copy) != model_root(model.folder)


def test_whoever_closes_it_waits_for_the_engines_thread(tmp_path: Path) -> None:
    """Python ends such a thread while it ends itself, and the program dies of that."""
    model = Model(tmp_path)
    model.answerer.close()
    assert not model.answerer._thread.is_alive()
