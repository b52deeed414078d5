"""From emitted RTL to a placed and routed design on a part, with its clock and its bitstream."""
