"""A run that goes on with an adapter of PEFT's: it begins as PEFT has it, and leaves as PEFT has it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from node.errors import RunFileError
from node.inference.errors import ModelError
from node.inference.lora import start_policy
from node.inference.torch_engine import TorchEngine, build_model, image_names
from node.run.file import CompiledRun, compile_run
from node.run.problems import check_architecture, place_files
from node.training.errors import TrainingError
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.trainer import SpoolTrainer
from node.weights.export import write_adapter
from node.weights.merge import merge_adapter
from protocol.policy import bf16_values, decode_image
from protocol.run import RunError
from tests.node.training.test_trainer import batch

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
TARGETS = ["q_proj", "down_proj"]
PROMPT = [[3, 4, 12, 5, 7, 9]]
RUN = """
name = "on"
model = "{model}"
adapter = "adapter"
[environment]
name = "sort"
args = {{ digits = 3, held_back = 64 }}
[rollout]
group_size = 4
prompts_per_step = 4
prompts_per_file = 2
max_prompt_tokens = 8
max_output_tokens = 40
[recipe]
steps = 1
learning_rate = 1e-2
decay_steps = 0
"""


@pytest.fixture(scope="module")
def base(tiny_assets: Path) -> Path:
    return tiny_assets / "model"


def peft_model(base: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)


@pytest.fixture(scope="module")
def run_file(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside an adapter as PEFT saves one, with numbers in both of its matrices and a scale of its own."""
    folder = tmp_path_factory.mktemp("continued")
    torch.manual_seed(1)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=TARGETS, init_lora_weights=False, use_rslora=True, task_type="CAUSAL_LM"
    )
    peft.get_peft_model(peft_model(base), config).save_pretrained(folder / "adapter")
    (folder / "run.toml").write_text(RUN.format(model=base))
    return folder / "run.toml"


def logits_of(base: Path, adapter: Path) -> Tensor:
    """As PEFT computes them."""
    with torch.no_grad():
        return peft.PeftModel.from_pretrained(peft_model(base), adapter)(torch.tensor(PROMPT)).logits


def our_logits(base: Path, weights: Any) -> Tensor:
    """Of an engine, with a policy or an adapter merged as engines do."""
    engine = TorchEngine(base)
    engine.load(weights)
    model = build_model(base)
    from node.inference.lora import whole_weights

    whole = whole_weights(base, weights)
    model.load_state_dict({name: whole[name].float() for name in whole}, strict=False)
    with torch.no_grad():
        return model(torch.tensor(PROMPT)).logits


def test_it_begins_and_ends_with_what_peft_computes(base: Path, run_file: Path, tmp_path: Path) -> None:
    compiled = compile_run(run_file)
    lora = compiled.spec.recipe.lora
    assert lora and (lora.rank, set(lora.targets), lora.scale) == (4, set(TARGETS), 6 / 4**0.5)
    check_architecture(compiled)
    place_files(compiled, tmp_path / "assets")
    spool = Spool(tmp_path / "spool")
    spool.prepare(compiled.encoded, tmp_path / "assets")
    spool.write_batch(0, batch(0))
    SpoolTrainer(spool, TrainerSettings(device="cpu")).train()

    begun = start_policy(tmp_path / "assets", image_names(build_model(base, "meta")))
    first = decode_image(spool.policy_path(0).read_bytes())
    assert set(first) == set(begun)
    for name, tensor in begun.items():
        assert np.array_equal(bf16_values(first[name]), tensor.float().numpy()), name
    theirs, plain = logits_of(base, run_file.parent / "adapter"), peft_model(base)(torch.tensor(PROMPT)).logits
    assert torch.allclose(our_logits(base, begun), theirs, atol=0.02)
    assert not torch.allclose(plain, theirs, atol=0.2)

    # And what it became: the same numbers to the last bit in PEFT's hands.
    write_adapter(spool.policy_path(1), tmp_path / "left", base)
    last = decode_image(spool.policy_path(1).read_bytes())
    assert any(not np.array_equal(last[name], first[name]) for name in first)
    learnt = {name: torch.from_numpy(bf16_values(bits)) for name, bits in last.items()}
    assert torch.allclose(logits_of(base, tmp_path / "left"), our_logits(base, learnt), atol=1e-4)
    assert not torch.allclose(logits_of(base, tmp_path / "left"), theirs, atol=1e-3)


def test_the_adapter_is_part_of_what_a_run_is(run_file: Path, tmp_path: Path) -> None:
    """Whose numbers, scale or absence differ is another run."""
    before = compile_run(run_file)
    names = {asset.path for asset in before.spec.assets}
    assert {"adapter/adapter_config.json", "adapter/adapter_model.safetensors"} <= names
    roots = {before.root}
    file = run_file.parent / "adapter" / "adapter_model.safetensors"
    kept = file.read_bytes()
    try:
        file.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        roots.add(compile_run(run_file).root)
    finally:
        file.write_bytes(kept)
    lora = msgspec.structs.replace(before.spec.recipe, lora=None)
    with pytest.raises(RunError, match="recipe.lora"):
        msgspec.structs.replace(before.spec, recipe=lora).check()
    half = tuple(one for one in before.spec.assets if one.path != "adapter/adapter_config.json")
    with pytest.raises(RunError, match="recipe.lora"):
        msgspec.structs.replace(before.spec, assets=half).check()
    assert len(roots) == 2


def changed(run_file: Path, folder: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], None]) -> CompiledRun:
    import shutil

    shutil.copytree(run_file.parent, folder)
    config = folder / "adapter" / "adapter_config.json"
    told, tensors = json.loads(config.read_bytes()), load_file(folder / "adapter" / "adapter_model.safetensors")
    change(told, tensors)
    config.write_text(json.dumps(told))
    save_file(tensors, folder / "adapter" / "adapter_model.safetensors")
    compiled = compile_run(folder / "run.toml")
    check_architecture(compiled)
    return compiled


def one_layer_less(told: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if "layers.1." in name and "q_proj" in name]:
        del tensors[name]


def no_number(told: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    next(iter(tensors.values()))[0, 0] = float("nan")


def other_kind(told: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    told["use_dora"] = True


def other_width(told: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    name = next(name for name in tensors if "lora_A" in name)
    tensors[name] = tensors[name][:, :-1].contiguous()


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (one_layer_less, TrainingError, "layers.1.self_attn.q_proj.lora_a is missing"),
        (no_number, ModelError, "is not finite"),
        (other_kind, RunFileError, "use_dora"),
        (other_width, ModelError, "another shape"),
    ],
)
def test_one_that_cannot_be_gone_on_with_exactly_is_refused_by_name(
    run_file: Path, tmp_path: Path, change: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as caught:
        changed(run_file, tmp_path / "copy", change)
    assert said in getattr(caught.value, "why", "")


def test_a_run_file_that_says_another_rank_is_refused(run_file: Path) -> None:
    assert compile_run(run_file, sets=["recipe.lora.rank=4", f"recipe.lora.targets={TARGETS}", "recipe.lora.alpha=8"])
    with pytest.raises(RunFileError, match="not as the adapter is"):
        compile_run(run_file, sets=["recipe.lora.rank=8"])
    with pytest.raises(RunFileError, match="no adapter at"):
        compile_run(run_file, sets=["adapter=nowhere"])


def test_pickled_adapters_are_not_read(run_file: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    config = (run_file.parent / "adapter" / "adapter_config.json").read_bytes()
    (tmp_path / "adapter" / "adapter_config.json").write_bytes(config)
    (tmp_path / "adapter" / "adapter_model.bin").write_bytes(b"\x80\x02}")
    with pytest.raises(RunFileError) as caught:
        compile_run(run_file, sets=[f'adapter="{tmp_path / "adapter"}"'])
    assert "pickled" in caught.value.why


def test_a_merged_adapter_computes_as_peft_s_own_merge_does(base: Path, run_file: Path, tmp_path: Path) -> None:
    adapter = run_file.parent / "adapter"
    merge_adapter(base, adapter, tmp_path / "whole")
    theirs = peft.PeftModel.from_pretrained(peft_model(base), adapter).merge_and_unload().state_dict()
    ours = peft_model(tmp_path / "whole").state_dict()
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        assert torch.allclose(ours[name], tensor, rtol=2**-7, atol=1e-6), name
    with pytest.raises(ModelError, match="cannot be used"):
        merge_adapter(base, changed_rank(adapter, tmp_path / "odd"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def changed_rank(adapter: Path, folder: Path) -> Path:
    import shutil

    shutil.copytree(adapter, folder)
    told = json.loads((folder / "adapter_config.json").read_bytes())
    (folder / "adapter_config.json").write_text(json.dumps({**told, "rank_pattern": {"q_proj": 2}}))
    return folder
