"""What a template says here is what transformers says, and what only transformers can know is asked of transformers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError

from node.inference.chat_template import load_template, stated
from node.inference.errors import ModelError
from node.inference.tokenizer import LocalTokenizer
from node.training.warmstart import write_config, write_tokenizer

CHATML = "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}"
TALKS = (
    [("system", "sum"), ("user", 'h\u00e9 "q" <b>&\n x')],
    [("user", " a "), ("assistant", "b"), ("user", "c")],
    [("assistant", "b"), ("user", "a")],
)
HERE = {
    "blocks that leave no lines": "a\n  {% for m in messages %}\n  {{ m.content }}\n  {% endfor %}\nb\n",
    "json": "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}",
    "loop controls": "{% for m in messages %}{{ m.content }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}",
    "no tools": "{{ tools is defined }}{{ tools }}{{ documents }}{{ others is defined }}{{ add_generation_prompt }}",
    "tokens by name": "{{ bos_token }}{{ messages[0].content | trim }}{{ eos_token }}",
    "namespace": "{% set n = namespace(x=0) %}{% for m in messages %}{% set n.x = n.x + 1 %}{% endfor %}{{ n.x }}",
    "macro": "{% macro say(m) -%}[{{ m.role }}] {{ m.content }}\n{%- endmacro %}{{ say(messages[-1]) }}",
    "refusal": "{% if messages[0].role == 'assistant' %}{{ raise_exception('user first') }}{% endif %}ok",
    "sandbox": "{{ messages.append('x') }}",
    "what the assistant says": "{% generation %}{% set x = 1 %}{{ eos_token }}{% endgeneration %}{{ x is defined }}"
    + CHATML,
}
THERE = {
    "a token that only the tokenizer's class may know": "{{ unk_token }}" + CHATML,
}
DATED = "{{ strftime_now('%d %b %Y') if strftime_now is defined else 'some day' }}" + CHATML
TOKENS = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "<eos>", "special": True}}


def model(place: Path, **settings: Any) -> Path:
    write_tokenizer(place, "ab")
    write_config(place, 4, hidden=64, layers=1)
    (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", **settings}))
    return place


def by_transformers(directory: Path, talk: list[dict[str, str]]) -> str:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    return tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)


def said(render: Any, talk: list[dict[str, str]]) -> str:
    """The text, or why there is none."""
    try:
        return render(talk)
    except TemplateError as error:
        return repr(error)


@pytest.mark.parametrize("template", HERE.values(), ids=HERE)
def test_a_template_says_what_transformers_makes_of_it(tmp_path: Path, template: str) -> None:
    directory = model(tmp_path, chat_template=template, **TOKENS)
    assert stated(directory) is not None
    render = load_template(directory)
    for talk in TALKS:
        messages = [{"role": role, "content": content} for role, content in talk]
        assert said(render, messages) == said(lambda told: by_transformers(directory, told), messages)


@pytest.mark.parametrize("template", THERE.values(), ids=THERE)
def test_what_only_transformers_knows_it_is_asked_for(tmp_path: Path, template: str) -> None:
    directory = model(tmp_path, chat_template=template, **TOKENS)
    assert stated(directory) is None
    messages = [{"role": "user", "content": "a"}]
    assert load_template(directory)(messages) == by_transformers(directory, messages)


def test_a_common_template_is_rendered_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = model(tmp_path)
    (directory / "chat_template.jinja").write_text(CHATML)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert load_template(directory)([{"role": "user", "content": "a"}]) == "<user>a"


def test_a_model_without_a_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_template(model(tmp_path))


def test_a_template_of_brackets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_template(model(tmp_path, chat_template="{{ " + "(" * 5000 + " }}"))


@pytest.mark.parametrize("asks_transformers", [False, True])
def test_a_prompt_is_the_same_on_every_day(tmp_path: Path, asks_transformers: bool) -> None:
    text = DATED + ("{{ unk_token }}" if asks_transformers else "")
    directory = model(tmp_path, chat_template=text, unk_token="?", **TOKENS)
    if asks_transformers:
        (directory / "special_tokens_map.json").write_text("{}")
    assert (stated(directory) is None) == asks_transformers
    assert load_template(directory)([]).startswith("26 Jul 2024")


@pytest.mark.parametrize("template", ["{{ messages | random }}", "{{ lipsum() }}"])
def test_a_template_draws_nothing(tmp_path: Path, template: str) -> None:
    directory = model(tmp_path, chat_template=template)
    with pytest.raises((ModelError, TemplateError), match="random|lipsum"):
        load_template(directory)([{"role": "user", "content": "a"}])


def test_a_description_that_nobody_could_count_is_refused_before_transformers_counts(tmp_path: Path) -> None:
    """Asked for a template it reads the model's description as well, and lists a kind for each of its layers."""
    write_tokenizer(tmp_path, "ab")
    write_config(tmp_path, 4, hidden=64, layers=1)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1 << 40}))
    with pytest.raises(ModelError, match="num_hidden_layers must be a whole number"):
        LocalTokenizer(tmp_path).encode_chat("a")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="has none"):
        LocalTokenizer(tmp_path).encode_chat("a")
