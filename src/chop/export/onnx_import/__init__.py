"""Graphs from ONNX files: `reader` is the way in, `file` the door.

A file is read and checked (`file`), what is constant is computed and patterns are made one node
(`rewrites`), a module runs the nodes by the operators of the table (`call` and its users) and makes
layers as it goes (`model`), MaseGraph captures that module, and roundings become formats
(`formats`).
"""
