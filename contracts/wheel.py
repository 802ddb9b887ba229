"""What a wheel takes along besides the modules: the contracts' sources and all they import, for `contract source`.

A checkout reads them where they are written and where npm puts OpenZeppelin's. An installed program has neither, so the
build writes the compiler's whole input into the wheel. pyproject.toml names this class.
"""

import json
import sys
from pathlib import Path

from setuptools.command.build_py import build_py


class BuildPy(build_py):
    """The usual build, and then artifacts/sources.json. Without npm the wheel lacks it, and says so."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        # pip builds where the project itself is in no path
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        from contracts.build import SOURCES, standard_input
        from protocol.errors import IntellectError

        try:
            text = json.dumps(standard_input(), separators=(",", ":"))
        except IntellectError as error:
            print(f"without {SOURCES.name}: {error.what}: {error.why}; {error.remedy}", file=sys.stderr)
            return
        target = Path(self.build_lib) / "contracts" / "artifacts" / SOURCES.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
