"""Inside the sandbox: compiles a module of a package to what this interpreter imports without compiling."""

import base64
import importlib.util
import marshal


def compiled(path: str, source: str) -> str:
    """The .pyc of a module, base64. Its header says that it need not be compared with a source."""
    code = compile(source, path, "exec", dont_inherit=True)
    header = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
    return base64.b64encode(header + marshal.dumps(code)).decode()
