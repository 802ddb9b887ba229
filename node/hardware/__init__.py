"""This machine: what it is and which role fits it (machine), how it multiplies when others ask (multiplier)."""

from node.hardware.machine import Gpu, Hardware, choose_role, inspect_hardware, reason_for

__all__ = ["Gpu", "Hardware", "choose_role", "inspect_hardware", "reason_for"]
