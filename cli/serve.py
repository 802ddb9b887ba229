"""`intellect-node chat` and `intellect-node serve`: what was trained answers, at a terminal or over HTTP."""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import CONFIGURATION, RUN, USAGE, CommandError
from cli.output import asking, clean, console
from cli.places import state_dir_option

if TYPE_CHECKING:
    from node.inference.answering import Answerer
    from node.inference.engine import Weights

CHAT_EXAMPLES = (
    "Examples:  intellect-node chat runs/sums   |   intellect-node chat Qwen/Qwen3-0.6B --system 'Be brief.'   |   "
    "intellect-node chat models/base --adapter runs/sums@20   |   echo '1+1?' | intellect-node chat runs/sums"
)
EXAMPLES = (
    "Examples:  intellect-node serve runs/sums   |   "
    "intellect-node serve Qwen/Qwen3-0.6B --adapter sums=runs/sums --listen 127.0.0.1:8000   |   "
    "intellect-node serve models/mine --listen 0.0.0.0:8000 --key key.txt   |   "
    "intellect-node serve --state-dir ~/nodes/a"
)
BASE = "base"
Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="A directory, a name on the hub, or RUN or RUN@STEP of `train`.")
]
Trainer = Annotated[
    list[str] | None,
    typer.Option("--trainer", help="NAME=VALUE: evaluation_device, evaluation_dtype. May be repeated."),
]


def chat(
    source: Source,
    adapter: Annotated[
        list[str] | None, typer.Option("--adapter", help="An adapter beside it: PEFT's directory, RUN or RUN@STEP.")
    ] = None,
    system: Annotated[str, typer.Option(help="The first message.")] = "",
    tokens: Annotated[int, typer.Option(min=1, max=65536, help="Most tokens of an answer.")] = 512,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="1: as it was trained; 0: the likeliest.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the random numbers; each answer takes the next.")] = 0,
    trainer: Trainer = None,
) -> None:
    """Talk to a model; where it is an adapter, the model that it began as answers beside it.

    A line is a question. An empty line begins anew, and the end of the input ends it. A model without a chat template
    goes on with the text.
    """
    from cli.run import require_training

    require_training("a model answers by torch, which is not installed", "install")
    held = _held([source], {}, adapter or [], trainer or [])
    with closing(held.answerer):
        _talk(held, system, tokens, temperature, seed)


def serve(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SOURCE...]", help="A directory, a name on the hub, or RUN or RUN@STEP of `train`."),
    ] = None,
    state_dir: Annotated[
        Path | None,
        state_dir_option("Of a running node: its newest policy, by its own engine, as time is left over."),
    ] = None,
    adapter: Annotated[
        list[str] | None, typer.Option("--adapter", help="NAME=DIR of PEFT, or NAME=RUN@STEP. May be repeated.")
    ] = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT. Elsewhere than on loopback only with --key.")] = (
        "127.0.0.1:8000"
    ),
    key: Annotated[Path | None, typer.Option(help="A file of mode 0600 with the key that clients must show.")] = None,
    trainer: Trainer = None,
) -> None:
    """Serve a model and adapters to it by OpenAI's endpoints: chat, texts, streaming, seeds, log-probabilities.

    Several policies of one base are models beside each other in one batch. Sampling is the protocol's: from the whole
    distribution, at one temperature, by a seed; what would be another sampling is refused by name.
    """
    import trio

    from cli.invocation import until_signalled
    from cli.run import require_training

    require_training("a model answers by torch, which is not installed", "install")
    secret = _secret(key, listen)
    from node.web.host import bind

    # Before the model is loaded: a port that is taken is told at once.
    with closing(bind(listen, "the model", "--listen")) as bound:
        if (state_dir is None) == (not sources):
            why = "name models, or a node by --state-dir"
            raise CommandError("what is to be served?", why, "intellect-node serve --help shows examples", USAGE)
        if state_dir is not None:
            held = _of_node(state_dir, adapter or [])
        else:
            named, alone = _named(adapter or [])
            held = _held(sources or [], named, alone, trainer or [])

        async def served() -> None:
            from node.web.listener import HttpListener
            from node.web.openai import OpenAi

            listener = HttpListener(bound)
            listener.mount(OpenAi(held.answerer, held.names, secret).routes())
            async with trio.open_nursery() as nursery:
                await nursery.start(listener.run)
                print(f"serving {', '.join(held.names)} at http://{listener.place}/v1; Ctrl-C ends it", flush=True)

        with closing(held.answerer):
            trio.run(until_signalled, served)


def _of_node(state_dir: Path, adapters: Sequence[str]) -> "_Held":
    from cli.serve_node import answerer_of

    if adapters:
        why = "its engine computes with the run's policies"
        raise CommandError("a node serves no adapters of others", why, "leave --adapter out", USAGE)
    answerer, name = answerer_of(state_dir)
    return _Held(answerer, {name: ""})


class _Held:
    """names: served name -> adapter, empty for the base."""

    def __init__(self, answerer: Any, names: dict[str, str]) -> None:
        self.answerer, self.names = answerer, names


def _held(sources: Sequence[str], named: dict[str, str], alone: Sequence[str], words: Sequence[str]) -> _Held:
    """One base in memory with its adapters. Raises CommandError, ModelError, EngineError."""
    from cli.evaluate import beside_of, place_of
    from cli.run_directory import trainer_settings
    from node.inference.answering import opened
    from node.inference.torch_engine import TorchEngine
    from node.training.evaluator import beside, evaluation_engine, read_adapters
    from node.training.spool import image_of
    from node.weights.export import holds_adapter

    bases: dict[Path, tuple[str, Path | None]] = {}
    images: dict[str, Path] = {}
    for text in sources:
        path, number = place_of(text)
        if (path / "spool").is_dir():
            step, image = image_of(path / "spool", number)
            model = path / "spool" / "assets" / "model"
            if holds_adapter(image):
                images[f"{path}@{step}" if number is not None else str(path)] = image
                bases.setdefault(model.resolve(), (BASE, None))
            else:
                bases[image] = (text, image)
        elif number is None and (path / "config.json").is_file():
            bases[path.resolve()] = (text, None)
        else:
            why = "there is no config.json there, and no spool of `train`"
            raise CommandError(f"no model at {path}", why, "name a model, or RUN or RUN@STEP of `train`", RUN)
    if len(bases) > 1:
        why = f"{', '.join(name for name, _ in bases.values())} have weights of their own"
        raise CommandError("one base is served at a time", why, "serve each by a program of its own", USAGE)
    ((place, (title, image)),) = bases.items()
    model = place if image is None else image.parents[1] / "assets" / "model"
    if image is not None and (named or alone):
        raise CommandError("adapters are to a start model", f"{title} is a whole policy", f"name {model}", RUN)
    for name, text in [*named.items(), *(("", text) for text in alone)]:
        for found, weights in beside_of([text], model).items():
            images[name or found] = weights
    adapters: dict[str, Weights] = read_adapters(model, images) if images else {}
    settings = evaluation_engine(trainer_settings(words))
    engine = TorchEngine(model, beside(settings, adapters.values()) if adapters else settings)
    answerer = opened(model, engine, engine.tokenizer, adapters, image)
    return _Held(answerer, {**{name: name for name in adapters}, title: ""})


def _named(adapters: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    pairs = [text.partition("=") for text in adapters]
    if bad := [text for text, (name, equals, place) in zip(adapters, pairs, strict=True) if not (name and place)]:
        raise CommandError(f"--adapter {bad[0]}", "it is not NAME=DIR", "for example --adapter sums=runs/sums", USAGE)
    return {name: place for name, _, place in pairs}, []


def _secret(key: Path | None, listen: str) -> str:
    """Raises CommandError for an address that others reach, where there is no key, and KeyError_ for a key that others
    may read."""
    # Without a host it is this machine only: `bind` opens no port to others for what was left out.
    host = listen.rpartition(":")[0].strip("[]")
    if key is None:
        if host not in ("", "127.0.0.1", "::1", "localhost"):
            why = "whoever reaches it could have this machine compute"
            raise CommandError(f"{listen} is for others, too", why, "give --key FILE, or listen on 127.0.0.1", USAGE)
        return ""
    from node.state.keystore import require_private

    try:
        text = key.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {key}", str(error), "name a file with the key", CONFIGURATION) from None
    require_private(key)
    if len(text) < 16:
        raise CommandError(f"the key in {key} is short", "it has fewer than 16 characters", "make another", USAGE)
    return text


def _talk(held: _Held, system: str, tokens: int, temperature: float, seed: int) -> None:
    from node.inference.answering import AnswerQuestion, Spelling

    answerer, tokenizer = held.answerer, held.answerer.tokenizer
    chats = _has_template(answerer)
    begun = [("system", system)] if system and chats else []
    # Each its own: what the one has answered is no word of the other's conversation.
    histories: dict[str, list[tuple[str, str]]] = {name: [*begun] for name in held.names}
    for line in _lines():
        if not line:
            histories = {name: [*begun] for name in held.names}
            console().print("[dim]a new conversation[/]")
            continue
        for name, adapter in held.names.items():
            history = histories[name]
            history.append(("user", line))
            prompt = tokenizer.encode_messages(history) if chats else tokenizer.encode(line)
            most = min(tokens, answerer.positions - len(prompt))
            if most < 1 or not prompt:
                why = f"the conversation has {len(prompt)} tokens, and the model {answerer.positions} positions"
                raise CommandError("there is no room for an answer", why, "begin anew with an empty line", USAGE)
            if len(held.names) > 1:
                print(f"{clean(name, 60)}: ", end="", flush=True)
            spelling = Spelling(tokenizer)
            text = _answered(answerer, AnswerQuestion(prompt, most, adapter, temperature, seed), spelling)
            history.append(("assistant", text))
        seed += 1


def _answered(answerer: "Answerer", question: Any, spelling: Any) -> str:
    from dataclasses import replace

    parts: list[str] = []

    def heard(answer: int, token: int) -> bool:
        parts.append(spelling.add(token))
        print(shown(parts[-1]), end="", flush=True)
        return False

    call = answerer.call()
    try:
        answerer.answer(replace(question, on_progress=heard), call)
    except BaseException:
        answerer.cancel(call)
        raise
    parts.append(spelling.end())
    print(shown(parts[-1]), flush=True)
    return "".join(parts)


def shown(text: str) -> str:
    """What a terminal may be given of what a model says: its control characters would be commands."""
    return "".join(one for one in text if one.isprintable() or one in "\n\t")


def _has_template(answerer: "Answerer") -> bool:
    from node.inference.errors import ModelError

    try:
        answerer.tokenizer.encode_chat("?")
    except ModelError:
        return False
    return True


def _lines() -> Any:
    """What is typed, or piped in."""
    terminal = sys.stdin.isatty()
    while True:
        if terminal:
            print("> ", end="", flush=True)
        with asking():
            line = sys.stdin.readline()
        if not line:
            return
        yield line.rstrip("\n")
