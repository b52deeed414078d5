"""The components of the library, a folder each: `<name>.sv` and what Python knows of it.

A folder has the component (integers, parameters, memories, cost), its cycle model, the lowering
that makes it from a node, the op by its definition in exact arithmetic, and its test cases. Folders
with RTL alone are parts that several components use. `chop.hw.library` lists the others.
"""
