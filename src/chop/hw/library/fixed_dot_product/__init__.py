"""Dot product of signed numbers: multipliers and a registered adder tree."""
