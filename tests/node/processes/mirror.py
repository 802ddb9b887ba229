"""Says what it sees of itself, in one line, and ends with its input, by the status in argv."""

import json
import os
import sys

here = {"session": os.getsid(0), "directory": os.getcwd()}
seen = {"name": __name__, "argv": sys.argv[1:], "environment": dict(os.environ), **here}
print(json.dumps(seen), flush=True)
sys.stdin.read()
sys.exit(int(sys.argv[1]))
