"""Ops that move elements."""

from __future__ import annotations

from chop.ir.ops.by_name import tensor_op

ROWS = (
    tensor_op("cat", "cat concat concatenate", dims="cat", rtl="stream_concat"),
    tensor_op("stack", "stack hstack vstack dstack", dims="stack"),
    tensor_op("gather", "gather take_along_dim"),
    tensor_op(
        "scatter", "scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_"
    ),
    tensor_op("index_select"),
    tensor_op(
        "index_add",
        "index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_put index_put_",
    ),
    tensor_op("masked_select", "masked_select masked_scatter masked_scatter_"),
    tensor_op("topk", "topk sort argsort kthvalue"),
    tensor_op("roll", dims="along_dimension"),
    tensor_op("flip", "flip fliplr flipud rot90", dims="along_dimension"),
    tensor_op("repeat_interleave"),
    tensor_op("tril", "tril triu tril_ triu_"),
    tensor_op("bucketize", "bucketize searchsorted histc bincount unique"),
    tensor_op("meshgrid", "meshgrid cartesian_prod"),
    tensor_op("nonzero", "nonzero count_nonzero"),
    tensor_op("as_strided"),
)
