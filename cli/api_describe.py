"""`intellect-node api`: what a node answers, for other programs."""

import typer

app = typer.Typer(help="What a node answers over HTTP, for other programs.", no_args_is_help=True)


@app.command("describe", epilog="Example:  intellect-node api describe > openapi.json")
def describe() -> None:
    """Print an OpenAPI 3.1 document of control socket, page, gateway and OpenAI's endpoints, made from their routes."""
    import msgspec

    from node.api import describe as document

    print(msgspec.json.format(msgspec.json.encode(document()), indent=2).decode())
