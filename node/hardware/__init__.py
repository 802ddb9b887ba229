"""This machine: what it is (machine), which role fits it (roles), how it multiplies when others ask (multiplier)."""

from node.hardware.machine import Gpu, Hardware, inspect_hardware
from node.hardware.roles import choose_role, reason_for

__all__ = ["Gpu", "Hardware", "choose_role", "inspect_hardware", "reason_for"]
