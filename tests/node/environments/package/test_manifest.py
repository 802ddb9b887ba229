"""What a package says of itself."""

import pytest

from node.environments.errors import PackageError
from node.environments.package.manifest import Manifest, read_manifest
from node.sandbox import SandboxLimits

HEAD = '# /// environment\n# name = "capitals"\n# class = "exact"\n{more}# ///\nimport os\n'


def head(more: str = "") -> dict[str, bytes]:
    return {"environment.py": HEAD.format(more=more).encode()}


def test_the_head_of_a_module_and_a_file_beside_it_say_the_same() -> None:
    expected = Manifest(name="capitals", determinism="exact", turns=3, limits=SandboxLimits(memory_mib=64))
    assert read_manifest(head("# turns = 3\n#\n# [limits]\n# memory_mib = 64\n")) == expected
    settings = b'name = "capitals"\nclass = "exact"\nturns = 3\nlimits = {memory_mib = 64}\n'
    assert read_manifest({"environment.py": b"", "environment.toml": settings}) == expected


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "environment.py"),
        ({"environment.py": b""}, "does not describe itself"),
        (head() | {"environment.toml": b""}, "2 descriptions"),
        ({"environment.py": b"#\n" * 9000 + head()["environment.py"]}, "does not describe itself"),
        (head("# turnz = 2\n"), "did you mean 'turns'"),
        (head("# [limits]\n# feul = 2\n"), "did you mean 'fuel'"),
        (head("# [limits]\n# fuel = 0\n"), "fuel is 0"),
        (head("# turns = 65\n"), "use 1 to 64"),
        (head('# turns = "x"\n'), "int"),
        (head("# turns = \n"), "Invalid value"),
        (head("# turns = " + "[" * 5000 + "\n"), "recursion"),
        ({"environment.py": b'# /// environment\n# class = "exact"\n# ///\n'}, "name"),
        ({"environment.py": b'# /// environment\n# name = "x"\n# class = "sure"\n# ///\n'}, "sure"),
        ({"environment.py": b'# /// environment\n# name = "sort"\n# class = "exact"\n# ///\n'}, "built-in"),
        ({"environment.py": b'# /// environment\n# name = "../x"\n# class = "exact"\n# ///\n'}, "lower-case"),
    ],
)
def test_a_head_that_is_wrong_is_told_with_its_remedy(files: dict[str, bytes], says: str) -> None:
    with pytest.raises(PackageError) as caught:
        read_manifest(files)
    assert says in f"{caught.value.why} {caught.value.remedy}"
