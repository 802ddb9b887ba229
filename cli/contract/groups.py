"""The command groups of `intellect-node contract`, empty; the other files fill them."""

import typer

app = typer.Typer(help="Look at the chain, and act on it with your own key.", no_args_is_help=True)
pool_app = typer.Typer(help="Pools: where a run's members, rules and money stand.", no_args_is_help=True)
provider_app = typer.Typer(help="Providers: who stakes for nodes and receives their rewards.", no_args_is_help=True)
node_app = typer.Typer(help="Nodes: the keys that work, and the provider that answers for each.", no_args_is_help=True)
earnings_app = typer.Typer(help="Earnings: what a quorum says that everybody has earned.", no_args_is_help=True)
case_app = typer.Typer(help="What was taken from whom, and frozen stakes: look, appeal, finish.", no_args_is_help=True)
attest_app = typer.Typer(help="Attested units: validators sign them, anybody carries them.", no_args_is_help=True)

app.add_typer(provider_app, name="provider")
app.add_typer(node_app, name="node")
app.add_typer(pool_app, name="pool")
app.add_typer(earnings_app, name="earnings")
app.add_typer(case_app, name="case")
app.add_typer(attest_app, name="attest")
