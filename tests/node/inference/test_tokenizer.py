"""What a chat template says between two turns."""

import base64
import json
import re
from pathlib import Path
from types import GetSetDescriptorType

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from node.inference.errors import ModelError
from node.inference.tokenizer import MAX_GROWTH, LocalTokenizer, _growth, check_draws_nothing
from node.training.warmstart import write_config, write_tokenizer

ROOT = Path(__file__).resolve().parents[3]
CHATML = (
    "{% for m in messages %}{{ '[' + m.role + ']' + m.content + '<eos>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)
NO_END = "{% for m in messages %}{{ m.role + ':' + m.content + ' ' }}{% endfor %}assistant:"
LAST_ONLY = "{{ messages[-1].content }}"
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEF-[]: "


def tokenizer(place: Path, template: str) -> LocalTokenizer:
    write_tokenizer(place, ALPHABET)
    write_config(place, len(ALPHABET) + 2, hidden=64, layers=1)
    settings = place / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": template}))
    return LocalTokenizer(place)


def test_a_reply_stands_between_the_end_of_one_turn_and_the_next(tmp_path: Path) -> None:
    """With the first message and the answer before it, it is what the template makes of the whole conversation."""
    tokens = tokenizer(tmp_path, CHATML)
    (end,) = tokens.eos
    whole = "[user]ab<eos>[assistant]cd<eos>[user]ef<eos>[assistant]"
    assert [*tokens.encode_chat("ab"), *tokens.encode("cd"), end, *tokens.encode_reply("ef")] == tokens.encode(whole)


def test_a_template_without_end_tokens_gives_up_nothing(tmp_path: Path) -> None:
    tokens = tokenizer(tmp_path, NO_END)
    assert tokens.decode(tokens.encode_reply("ef")) == " user:ef assistant:"


KNOWN = {
    "BPE": {"byte_fallback", "continuing_subword_prefix", "dropout", "end_of_word_suffix", "fuse_unk", "ignore_merges"}
    | {"unk_token"},
    "Unigram": {"alpha", "nbest_size"},
    "WordLevel": {"unk_token"},
    "WordPiece": {"continuing_subword_prefix", "max_input_chars_per_word", "unk_token"},
}
"""The settings of the library's models. Of a new one somebody has to say whether it draws (`DRAWS`)."""


def test_every_setting_of_the_librarys_models_is_known() -> None:
    kinds = {name: kind for name, kind in vars(models).items() if isinstance(kind, type) and kind is not models.Model}
    found = {
        name: {key for key, one in vars(kind).items() if isinstance(one, GetSetDescriptorType)}
        for name, kind in kinds.items()
    }
    assert found == KNOWN


def test_a_tokenizer_that_draws_is_refused(tmp_path: Path) -> None:
    tokenizer(tmp_path, CHATML)
    draws = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")], dropout=0.5)).to_str()
    (tmp_path / "tokenizer.json").write_text(draws)
    with pytest.raises(ModelError, match=r"dropout = 0.5 cuts a text at random"):
        LocalTokenizer(tmp_path)
    for settled in ("null", "0.0"):
        (tmp_path / "tokenizer.json").write_text(draws.replace('"dropout":0.5', f'"dropout":{settled}'))
        assert {tuple(LocalTokenizer(tmp_path).encode("ab")) for _ in range(9)} == {(2,)}


def test_a_model_that_samples_its_pieces_is_refused() -> None:
    pieces = [("<unk>", 0.0), ("a", -1.0), ("aa", -1.1)]
    with pytest.raises(ValueError, match="alpha"):
        check_draws_nothing(Tokenizer(models.Unigram(vocab=pieces, unk_id=0, alpha=0.1)))
    check_draws_nothing(Tokenizer(models.Unigram(vocab=pieces, unk_id=0)))


LETTERS = {"a": 0, "b": 1}


def local(place: Path, made: Tokenizer) -> LocalTokenizer:
    write_config(place, 2, hidden=64, layers=1)
    made.save(str(place / "tokenizer.json"))
    return LocalTokenizer(place)


@pytest.mark.parametrize(
    ("steps", "refused"),
    [
        ([normalizers.Replace("a", "a" * 10)] * 6, True),  # ten letters took 3 s, and 100 would have taken 10 GB
        ([normalizers.Prepend("a" * 100)], True),
        ([normalizers.ByteLevel()] * 5, True),
        ([normalizers.ByteLevel()], False),
        ([normalizers.BertNormalizer()] * 1000, True),
        ([normalizers.Sequence([normalizers.Replace("a", "a" * 10)] * 3)], True),
        ([normalizers.Prepend("a"), normalizers.Replace(" ", "\u2581"), normalizers.NFKC()], False),
    ],
)
def test_a_tokenizer_that_makes_much_of_little_is_refused(
    tmp_path: Path, steps: list[normalizers.Normalizer], refused: bool
) -> None:
    made = Tokenizer(models.BPE(vocab=LETTERS, merges=[]))
    made.normalizer = normalizers.Sequence(steps)
    if refused:
        with pytest.raises(ModelError, match="characters of one|64 steps"):
            local(tmp_path, made)
    else:
        assert local(tmp_path, made).encode("ab")


def test_a_token_or_a_decoder_that_says_much_is_refused(tmp_path: Path) -> None:
    made = Tokenizer(models.BPE(vocab=LETTERS, merges=[]))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel()] * 5)
    with pytest.raises(ModelError, match="characters of one"):
        local(tmp_path, made)
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.decoder = decoders.Sequence([decoders.Replace("a", "a" * 10)] * 2)
    with pytest.raises(ModelError, match="characters of one"):
        local(tmp_path, made)
    with pytest.raises(ModelError, match="a token has more than"):
        local(tmp_path, Tokenizer(models.WordLevel(vocab={"a" * 2000: 0}, unk_token="a")))


def test_a_map_of_letters_is_measured(tmp_path: Path) -> None:
    """As sentencepiece writes it: a table, and the texts that stand for others."""
    for longest, fits in (("a" * 60, True), ("a" * 100, False)):
        texts = b"b\0" + longest.encode() + b"\0"
        state = {
            "type": "Precompiled",
            "precompiled_charsmap": base64.b64encode(b"\x04\0\0\0" + bytes(4) + texts).decode(),
        }
        assert (_growth({"type": "Sequence", "normalizers": [state]}) <= MAX_GROWTH) == fits


def test_a_pattern_that_runs_into_its_limit_ends_no_process(tmp_path: Path) -> None:
    made = Tokenizer(models.BPE(vocab=LETTERS, merges=[]))
    made.normalizer = normalizers.Replace(Regex("(a+)+c"), "bb")
    with pytest.raises(ModelError, match="the tokenizer cannot be used"):
        local(tmp_path, made).encode("a" * 30)
    assert local(tmp_path, made).encode("") == []


def test_a_texts_tokens_do_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    """A tokenizer.json may ask for padding up to the longest text, and for an end after so many tokens."""
    plain = tokenizer(tmp_path, CHATML).encode_all(["ab", "abcdef"])
    asks = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    asks.enable_padding()
    asks.enable_truncation(4)
    asks.save(str(tmp_path / "tokenizer.json"))
    assert LocalTokenizer(tmp_path).encode_all(["ab", "abcdef"]) == plain
    assert [found.ids for found in asks.encode_batch(["ab", "abcdef"])] != plain


def test_only_one_module_reads_tokenizers() -> None:
    """`LocalTokenizer` looks at what it reads; whoever reads one elsewhere does not."""
    readers = {
        str(path)
        for path in (
            path.relative_to(ROOT) for room in ("node", "cli", "protocol") for path in (ROOT / room).rglob("*.py")
        )
        if re.search(
            r"Tokenizer\.from_|AutoTokenizer|tiktoken|sentencepiece", (ROOT / path).read_text(encoding="utf-8")
        )
    }
    assert readers == {"node/inference/tokenizer.py", "node/inference/chat_template.py"}  # the second for its template


def test_a_template_that_forgets_earlier_turns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="several turns"):
        tokenizer(tmp_path, LAST_ONLY).encode_reply("ef")


@pytest.mark.parametrize("said", ["generation_config.json", "tokenizer_config.json", "chat_template"])
def test_an_answer_ends_where_any_of_the_files_says_that_it_does(tmp_path: Path, said: str) -> None:
    """A base model tuned on chats keeps its base's generation_config.json, and would never stop."""
    write_tokenizer(tmp_path, ALPHABET)
    write_config(tmp_path, len(ALPHABET) + 3, hidden=64, layers=1)
    file = tmp_path / "tokenizer.json"
    known = json.loads(file.read_text())
    (end,) = {one["id"] for one in known["added_tokens"] if one["content"] == "<eos>"} or {1}
    turn = {**known["added_tokens"][0], "id": len(ALPHABET) + 2, "content": "<turn>"}
    file.write_text(json.dumps({**known, "added_tokens": [*known["added_tokens"], turn]}))
    assert LocalTokenizer(tmp_path).eos == {end}  # a control
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    if said == "generation_config.json":
        (tmp_path / said).write_text(json.dumps({"eos_token_id": [end, turn["id"]]}))
    elif said == "tokenizer_config.json":
        (tmp_path / said).write_text(
            json.dumps({**settings, "eos_token": {"__type": "AddedToken", "content": "<turn>"}})
        )
    else:
        template = CHATML.replace("<eos>", "<turn>")
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    found = LocalTokenizer(tmp_path)
    assert found.eos == {end, turn["id"]}
    assert found.end == end, "what is put behind a text of its own stays the model's own"


def test_a_directory_that_names_no_end_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, ALPHABET)
    write_config(tmp_path, len(ALPHABET) + 2, hidden=64, layers=1)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        told = json.loads((tmp_path / name).read_text())
        (tmp_path / name).write_text(json.dumps({k: v for k, v in told.items() if not k.startswith("eos_token")}))
    with pytest.raises(ModelError, match="which token ends"):
        LocalTokenizer(tmp_path)


def test_a_tokenizer_that_its_library_panics_over_is_refused_like_any_other(tmp_path: Path) -> None:
    """A panic is no Exception of Python's: it would end whoever reads a stranger's run."""
    write_config(tmp_path, 16, hidden=64, layers=1)
    pieces = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    told = json.loads(pieces.to_str())
    told["model"]["continuing_subword_prefix"] = "longer than any piece"
    (tmp_path / "tokenizer.json").write_text(json.dumps(told))
    with pytest.raises(ModelError, match="out of range"):
        LocalTokenizer(tmp_path)
