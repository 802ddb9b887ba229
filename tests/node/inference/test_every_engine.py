"""What every engine of the registry must do alike: decoding and prefill tell the same story, whoever decodes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from node.inference.engine import Engine, FinishedSequence, generate
from node.inference.errors import EngineError, ModelError
from node.inference.host_copy import HostCopy
from node.inference.proofs import compare_all, prove_all
from node.inference.session import KeptPolicies
from node.inference.torch_engine import TorchEngine
from protocol import toploc
from protocol.blobs import describe
from protocol.policy import decode_image, describe_tensors, encode_image
from protocol.sampling import distance
from tests.node.inference.engine_kinds import KINDS, open_engine, outputs, requests
from tests.node.inference.test_layers import laid_out

K = 32


@pytest.fixture(scope="module", params=KINDS)
def engine(request: pytest.FixtureRequest, tiny_assets: Path) -> Engine:
    return open_engine(request.param, tiny_assets / "model")


@pytest.fixture(scope="module")
def reference(tiny_assets: Path) -> TorchEngine:
    engine = TorchEngine(tiny_assets / "model")
    engine.load(engine.read(str(tiny_assets / "model" / "model.safetensors")))
    return engine


@pytest.fixture
def restored(engine: Engine, tiny_assets: Path) -> Iterator[Engine]:
    """For tests that load other weights."""
    yield engine
    engine.load(engine.read(str(tiny_assets / "model" / "model.safetensors")))


@pytest.mark.parametrize("lengths", [[5] * 12, [1, 2, 3, 5, 8, 8, 13, 3]])
def test_prefill_gives_the_rows_and_intervals_that_decoding_had(
    engine: Engine, reference: TorchEngine, lengths: list[int]
) -> None:
    asked = requests(lengths, 70)
    completions = generate(engine, asked, 0.9)
    assert len({len(c.output) for c in completions}) > 3, "the test wants outputs of different lengths"
    for looking in (engine,) if isinstance(engine, TorchEngine) else (engine, reference):
        checked = looking.prefill(
            [FinishedSequence(r.prompt, c.output) for r, c in zip(asked, completions, strict=True)], 0.9
        )
        for request, completion, prefill in zip(asked, completions, checked, strict=True):
            n = len(completion.output)
            assert completion.heads.shape == prefill.heads.shape == (n, 64) and len(completion.rows) == n - 1
            assert distance(request.uniforms[:n], prefill.lo, prefill.hi).max() < 1e-6
            assert np.allclose(np.log(prefill.hi - prefill.lo), prefill.logprobs, atol=1e-4)
        proofs = prove_all([c.rows for c in completions], K, 32)
        parsed = [
            toploc.split_proofs(p, K, toploc.proof_count(len(c.output)))
            for p, c in zip(proofs, completions, strict=True)
        ]
        errors = compare_all(parsed, [p.rows for p in checked], 32)
        assert max(e.exponent_mismatches for e in errors) <= 1
        assert max(e.mantissa_mean for e in errors) < 0.1


def test_only_what_was_sampled_is_looked_at(engine: Engine) -> None:
    [request] = requests([4], 12)
    [whole] = engine.prefill([FinishedSequence(request.prompt, [3, 4, 5, 6, 7, 8])], 0.9)
    [parts] = engine.prefill([FinishedSequence(request.prompt, [3, 4, 5, 6, 7, 8], segments=[2, 3, 1])], 0.9)
    kept = [0, 1, 5]
    assert np.array_equal(parts.heads, whole.heads[kept])
    assert np.allclose(parts.lo, whole.lo[kept], atol=1e-12) and np.allclose(parts.hi, whole.hi[kept], atol=1e-12)


def test_an_output_ends_at_its_first_end_token_or_at_the_limit(engine: Engine) -> None:
    for completion in generate(engine, requests([4] * 32, 12), 1.0):
        ends = [i for i, token in enumerate(completion.output) if token in engine.eos]
        assert completion.finished == bool(ends)
        assert ends == [len(completion.output) - 1] if ends else len(completion.output) == 12


def test_a_completion_does_not_depend_on_its_neighbours(engine: Engine) -> None:
    asked = requests([2, 9, 4, 4, 6], 30)
    together = generate(engine, asked, 1.0)
    alone = [generate(engine, [request], 1.0)[0] for request in asked]
    assert [c.output for c in together] == [c.output for c in alone]


def test_requests_come_and_go_while_others_are_in_flight(engine: Engine) -> None:
    asked = requests([3, 5, 4, 6], 40)
    expected = generate(engine, asked, 0.9)
    decoder = engine.decoder(0.9)
    first, unwanted = decoder.submit(asked[0]), decoder.submit(asked[1])
    done = dict(decoder.step())
    decoder.cancel(unwanted)
    decoder.cancel(unwanted)
    decoder.cancel(10**9)
    later = [decoder.submit(request) for request in asked[2:]]
    while len(decoder):
        done |= dict(decoder.step())
    assert unwanted not in done
    for number, wanted in zip([first, *later], [expected[0], *expected[2:]], strict=True):
        assert done[number].output == wanted.output and done[number].finished == wanted.finished
        assert np.mean(done[number].heads == wanted.heads) > 0.99
    assert decoder.step() == []


def test_weights_stay_while_requests_are_in_flight(engine: Engine, tiny_assets: Path) -> None:
    decoder = engine.decoder(1.0)
    number = decoder.submit(requests([4], 40)[0])
    with pytest.raises(EngineError, match="in flight"):
        engine.load(engine.read(str(tiny_assets / "model" / "model.safetensors")))
    decoder.cancel(number)
    engine.load(engine.read(str(tiny_assets / "model" / "model.safetensors")))


def test_other_weights_are_the_ones_in_use_once_they_are_loaded(
    restored: Engine, reference: TorchEngine, tiny_assets: Path
) -> None:
    asked = requests([3, 5, 8], 30)
    own = restored.read(str(tiny_assets / "model" / "model.safetensors"))
    other = {name: tensor + 0.05 * torch.randn(tensor.shape).to(tensor.dtype) for name, tensor in own.items()}
    before = outputs(restored, asked)
    restored.load(other)
    other_reference = TorchEngine(tiny_assets / "model")
    other_reference.load(other)
    assert outputs(restored, asked) == outputs(other_reference, asked) != before
    restored.load(own)
    assert outputs(restored, asked) == before


@pytest.mark.parametrize("copied", [False, True], ids=["each from the base", "moved in memory"])
def test_what_patches_make_of_an_image_computes_as_the_whole_of_it(
    restored: Engine, reference: TorchEngine, tiny_assets: Path, tmp_path: Path, copied: bool
) -> None:
    first = dict(decode_image((tiny_assets / "model" / "model.safetensors").read_bytes()))
    chosen, asked, expected = np.random.default_rng(3), requests([3, 5, 8], 30), list[list[list[int]]]()
    steps = [first]
    for _ in range(2):  # the lower bits of a fifth of the weights: 6 % of a weight at most
        flips = {name: chosen.integers(0, 8, bits.shape, dtype=np.uint16) for name, bits in first.items()}
        steps.append(
            {n: b ^ (flips[n] * (chosen.random(b.shape) < 0.2)).astype(np.uint16) for n, b in steps[-1].items()}
        )
    base, patches, _ = laid_out(tmp_path, steps)
    whole = [tmp_path / f"whole-{at}" for at in (1, 2)]
    for path, step in zip(whole, steps[1:], strict=True):
        path.write_bytes(encode_image(step))
        reference.load(reference.read(str(path)))
        expected.append(outputs(reference, asked))
    reference.load(reference.read(str(tiny_assets / "model" / "model.safetensors")))
    copy = HostCopy(lambda size: True) if copied else None
    policies = KeptPolicies(restored.read, 2, copy)
    for at in (1, 2, 1):  # and back, as who looks at older work goes
        digests = b"".join(info.digest for info in describe_tensors(steps[at]))
        image_root = describe(whole[at - 1].read_bytes()).root
        policies.keep(bytes([at]) * 32, str(base), patches[:at], digests, image_root)
        with policies.get(bytes([at]) * 32).at_hand() as weights:
            restored.load(weights)
        assert outputs(restored, asked) == expected[at - 1]
    assert expected[0] != expected[1]
    if copy is not None:
        copy.close()


def test_logits_that_are_no_numbers_are_said_to_be_the_policys_fault(restored: Engine, tiny_assets: Path) -> None:
    own = restored.read(str(tiny_assets / "model" / "model.safetensors"))
    restored.load({**own, "model.norm.weight": torch.full_like(own["model.norm.weight"], torch.nan)})
    with pytest.raises(EngineError, match="not finite"):
        generate(restored, requests([4], 3), 1.0)
    restored.load(own)
    assert outputs(restored, requests([4], 3))


def test_an_image_of_another_shape_or_with_other_names_is_refused(
    engine: Engine, tiny_assets: Path, tmp_path: Path
) -> None:
    tensors = dict(decode_image((tiny_assets / "model" / "model.safetensors").read_bytes()))
    path = tmp_path / "other.safetensors"
    path.write_bytes(encode_image({**tensors, "model.norm.weight": tensors["model.norm.weight"][:-1]}))
    with pytest.raises(ModelError, match="model.norm.weight"):
        engine.read(str(path))
    tensors.pop("model.norm.weight")
    path.write_bytes(encode_image(tensors))
    with pytest.raises(ModelError, match="model.norm.weight"):
        engine.read(str(path))
    path.write_bytes(b"garbage")
    with pytest.raises(ModelError):
        engine.read(str(path))
