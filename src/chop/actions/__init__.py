"""What a user does with a model: build, simulate and synthesise its hardware …"""

from chop.actions.build_hardware import HardwareBuild, build_hardware
from chop.actions.simulate import simulate, synthesize

__all__ = ["HardwareBuild", "build_hardware", "simulate", "synthesize"]
