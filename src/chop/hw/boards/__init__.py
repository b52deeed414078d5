"""Boards: a project for an FPGA board, its host program and a simulation of the whole board."""
