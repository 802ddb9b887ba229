"""`python -m cli` is `intellect-node`."""

from cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
