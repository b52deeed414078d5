"""What a user does with a model: simulate its hardware …"""

from chop.actions.simulate import simulate, synthesize

__all__ = ["simulate", "synthesize"]
