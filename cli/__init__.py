"""The command line. First of all it looks whether this system has what the program is made of."""

import sys

from node.platforms import refusal

if told := refusal(sys.platform):
    what, why, remedy = told
    # By hand: what prints errors otherwise is not imported here.
    print(f"error: {what}\n  why: {why}\n  do:  {remedy}", file=sys.stderr)
    raise SystemExit(3)
