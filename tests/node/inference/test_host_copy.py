"""The policy that an engine's process has in memory: it moves by patches, and is never what nobody compared."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3

from node.inference import host_copy
from node.inference.errors import EngineError
from node.inference.host_copy import HostCopy
from node.inference.image import ImageFile, PatchedWeights
from node.inference.layers import LayeredImage
from node.inference.room import GIB, has_room_for_copy
from node.inference.session import KeptPolicies
from protocol.blobs import describe
from protocol.delta import PatchError
from protocol.policy import describe_tensors, encode_image
from tests.node.inference.test_layers import Steps, few_steps, laid_out

always, never = lambda size: True, lambda size: False


@pytest.fixture
def steps() -> Steps:
    return few_steps()


class Passes:
    """Counts the patches that are applied where tensors lie, and tensors that are put together from a base."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.found = {"forth": 0, "back": 0, "whole": 0}
        in_place, whole = host_copy.patch_in_place, LayeredImage.put_together

        def count(tensor, patches, *, before=0, back=False):
            self.found["back" if back else "forth"] = max(len(patches), self.found["back" if back else "forth"])
            return in_place(tensor, patches, before=before, back=back)

        def count_whole(image, *given):
            self.found["whole"] += 1
            return whole(image, *given)

        patch.setattr(host_copy, "patch_in_place", count)
        patch.setattr(LayeredImage, "put_together", count_whole)

    def since(self) -> dict[str, int]:
        found, self.found = self.found, dict.fromkeys(self.found, 0)
        return {what: count for what, count in found.items() if count}


def images(folder: Path, steps: Steps) -> list[LayeredImage]:
    """Of each step but the first, on the base of all."""
    base, patches, _ = laid_out(folder, steps)
    digests = [b"".join(info.digest for info in describe_tensors(one)) for one in steps]
    return [LayeredImage(base, patches[:count], digests[count]) for count in range(1, len(steps))]


def has(copy: HostCopy, image: LayeredImage, step: dict[str, np.ndarray]) -> bool:
    """Whether the copy becomes a policy, as a blob and to who reads it."""
    with copy.at(image) as there:
        data = encode_image(step)
        read = ImageFile(there.path, image.weights_root)
        return there.path.read_bytes() == data and there.root == describe(data).root and read.keys() == step.keys()


def test_it_moves_by_the_patches_between_two_policies_and_by_no_others(
    tmp_path: Path, steps: Steps, monkeypatch
) -> None:
    made, passes, copy = images(tmp_path, steps), Passes(monkeypatch), HostCopy(always)
    told = []
    for at in (0, 1, 2, 3, 2, 0, 3, 3):
        assert has(copy, made[at], steps[at + 1])
        told.append(passes.since())
    count = len(steps[0])
    assert told[0] == {"whole": count}
    assert told[1] == told[3] == {"forth": 1}
    assert told[2] == {}, "nothing changed in that step"
    assert told[4] == {"back": 1} and told[5] == {"back": 2} and told[6] == {"forth": 3} and told[7] == {}
    copy.close()


def test_policies_of_two_terms_are_led_to_over_what_they_have_in_common(
    tmp_path: Path, steps: Steps, monkeypatch
) -> None:
    other = [*steps[:3], {name: bits + np.uint16(1) for name, bits in steps[2].items()}]
    (tmp_path / "other").mkdir()
    one, two = images(tmp_path, steps)[3], images(tmp_path / "other", other)[2]
    # Roots are given by place here; the branches must not have those of one another.
    two.patches = (*two.patches[:2], type(two.patches[2])(two.patches[2].path, two.patches[2].base_root, b"\xff" * 32))
    copy, passes = HostCopy(always), Passes(monkeypatch)
    assert has(copy, one, steps[4]) and passes.since()["whole"]
    assert has(copy, two, other[3]) and passes.since() == {"back": 2, "forth": 1}
    assert has(copy, one, steps[4]) and passes.since() == {"back": 1, "forth": 2}


def test_where_nothing_is_in_common_it_begins_with_the_base(tmp_path: Path, steps: Steps, monkeypatch) -> None:
    (tmp_path / "new").mkdir()
    first, copy, passes = images(tmp_path, steps)[0], HostCopy(always), Passes(monkeypatch)
    after = images(tmp_path / "new", steps[2:])[0]
    after.patches = tuple(type(one)(one.path, b"\xfe" * 32, b"\xfd" * 32) for one in after.patches)
    assert has(copy, first, steps[1]) and has(copy, after, steps[3])
    assert passes.since() == {"whole": 2 * len(steps[0])}


def test_new_bits_that_cannot_be_taken_back_are_put_together_from_the_base(
    tmp_path: Path, steps: Steps, monkeypatch
) -> None:
    random = np.random.default_rng(3)
    wild = steps[2] | {"z": random.integers(0, 1 << 16, steps[2]["z"].shape, dtype=np.uint16)}
    made, passes, copy = images(tmp_path, [*steps[:3], wild]), Passes(monkeypatch), HostCopy(always)
    assert has(copy, made[2], wild) and passes.since()["whole"] == len(wild)
    assert has(copy, made[1], steps[2]) and passes.since()["whole"] == 1


def test_a_patch_that_leads_elsewhere_is_refused_and_the_copy_is_of_no_policy_then(
    tmp_path: Path, steps: Steps, monkeypatch
) -> None:
    made, copy, passes = images(tmp_path, steps), HostCopy(always), Passes(monkeypatch)
    assert has(copy, made[1], steps[2])
    lie = LayeredImage(made[2].base, made[2].patches, b"".join([*made[2].digests[:-1], bytes(32)]))
    with pytest.raises(PatchError, match="z is not the tensor that was signed for"), copy.at(lie):
        pytest.fail("it was given out")
    assert passes.since()["whole"] > len(steps[0]), "it was made from the base again before it was refused"
    with copy.glance(made[1]) as body:
        assert body is None
    assert has(copy, made[2], steps[3]) and passes.since() == {"whole": len(steps[0])}


def test_memory_that_is_not_what_it_was_is_found_at_the_next_step(tmp_path: Path, steps: Steps, monkeypatch) -> None:
    made, copy, passes = images(tmp_path, steps), HostCopy(always), Passes(monkeypatch)
    with copy.at(made[0]):
        copy._memory.tensors[0][7] ^= 1
    passes.since()
    assert has(copy, made[1], steps[2]) and passes.since() == {"forth": 1, "whole": 1}


def test_who_no_longer_waits_ends_a_move(tmp_path: Path, steps: Steps) -> None:
    made, copy = images(tmp_path, steps), HostCopy(always)
    assert has(copy, made[0], steps[1])
    with pytest.raises(InterruptedError), copy.at(made[1], lambda: (_ for _ in ()).throw(InterruptedError)):
        pytest.fail("it was given out")
    assert has(copy, made[1], steps[2])


def test_it_stays_what_it_is_while_somebody_reads_it(tmp_path: Path, steps: Steps) -> None:
    made, copy = images(tmp_path, steps), HostCopy(always)
    with copy.at(made[0]) as there:
        other = threading.Thread(target=lambda: has(copy, made[1], steps[2]))
        other.start()
        other.join(0.1)
        assert other.is_alive() and there.path.read_bytes() == encode_image(steps[1])
        with copy.glance(made[0]) as body:
            assert body is None, "whoever may read elsewhere does not wait"
    other.join()
    with copy.glance(made[1]) as body:
        assert encode_image(steps[2]).endswith(bytes(body))


def test_another_process_reads_it_as_an_image_and_nobody_else_writes_there(tmp_path: Path, steps: Steps) -> None:
    made, copy = images(tmp_path, steps), HostCopy(always)
    program = "import sys, blake3; print(blake3.blake3(open(sys.argv[1], 'rb').read()).hexdigest())"
    with copy.at(made[0]) as there:
        told = subprocess.run([sys.executable, "-c", program, there.path], capture_output=True, text=True, check=True)
        with pytest.raises(PermissionError):
            os.pwrite(os.open(there.path, os.O_RDWR), b"x", 0)
    assert told.stdout.strip() == blake3(encode_image(steps[1])).hexdigest()


@pytest.mark.parametrize("has_room", [always, never])
def test_a_policy_is_compared_before_it_is_kept_with_a_copy_and_without(tmp_path: Path, steps: Steps, has_room) -> None:
    made = images(tmp_path, steps)
    kept = KeptPolicies(PatchedWeights, 4, HostCopy(has_room))

    def keep(at: int, digests: bytes | None = None, root: bytes | None = None) -> None:
        whole = b"".join(made[at].digests) if digests is None else digests
        blob = describe(encode_image(steps[at + 1])).root if root is None else root
        kept.keep(bytes([at]), str(made[at].base), made[at].patches, whole, blob)

    keep(0)
    for wrong, why in (({"digests": bytes(32 * len(steps[0]))}, "signed for"), ({"root": bytes(32)}, "another root")):
        with pytest.raises(EngineError, match=why):
            keep(1, **wrong)
        assert kept.roots() == [b"\0"]
    keep(1)
    for at in (0, 1):
        assert kept.get(bytes([at])).answer(b"k" * 32) == made[at].answer(b"k" * 32)
        with kept.get(bytes([at])).at_hand() as weights:
            assert isinstance(weights, PatchedWeights) == (has_room is never)
            assert {name: weights[name].shape for name in weights} == dict(made[at].forms)
            found = {name: weights[name].flatten().view(torch.uint16).numpy() for name in weights}
        assert all(np.array_equal(found[name], steps[at + 1][name].reshape(-1)) for name in found)


def test_a_copy_is_kept_where_there_is_memory_for_the_engine_as_well() -> None:
    image = 10 * GIB
    assert has_room_for_copy(image, 15 * GIB, "bfloat16", gpu=True)
    assert not has_room_for_copy(image, 14 * GIB, "bfloat16", gpu=True)
    assert has_room_for_copy(image, 35 * GIB, "float32", gpu=False)
    assert not has_room_for_copy(image, 34 * GIB, "float32", gpu=False)
