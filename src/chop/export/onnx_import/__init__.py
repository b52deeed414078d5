"""Reader of ONNX files; `reader` has the public functions.

`onnx_file` reads and checks a file. `rewrites` computes constants and fuses patterns into one node.
`onnx_model` is a module that runs the nodes by the operators of the table (`call` and its users)
and creates layers on the first run. MaseGraph captures that module, and `onnx_formats` turns
roundings into formats.
"""
