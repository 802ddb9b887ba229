"""A learner that has begun and waits for a batch that never comes."""

import sys
import time
from pathlib import Path

(Path(sys.argv[sys.argv.index("--spool") + 1]) / "begun").touch()
time.sleep(600)
