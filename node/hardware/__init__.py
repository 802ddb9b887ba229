"""This machine: what it is (machine), what role fits it (roles), how fast it multiplies when others ask (multiplier)."""

from node.hardware.machine import Gpu, Hardware, inspect_hardware
from node.hardware.roles import choose_role, reason_for

__all__ = ["Gpu", "Hardware", "choose_role", "inspect_hardware", "reason_for"]
