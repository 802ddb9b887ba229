"""`contract source`: what explorers want before they show a contract's sources."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cli.contract.groups import app
from cli.errors import CommandError
from cli.output import console
from node.state.files import write_whole


@app.command("source", epilog="Example:  intellect-node contract source --out intellect.json")
def source(
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Default: standard output.")] = None,
) -> None:
    """The contracts' sources and the compiler's settings as standard JSON, for explorers that verify contracts.

    Compiled by solc 0.8.37 it gives the bytecode that `contract deploy` sends. Contract names: src/Swarm.sol:Swarm and
    so on.
    """
    from contracts.build import standard_input

    text = json.dumps(standard_input(), indent=1)
    if out is None:
        print(text)
        return
    try:
        write_whole(out, text.encode())
    except OSError as error:
        raise CommandError(f"cannot write {out}", error.strerror or str(error), "check the path") from None
    console().print(f"{out}: give it to the explorer as Solidity standard JSON input", soft_wrap=True, markup=False)
