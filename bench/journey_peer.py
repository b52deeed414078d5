"""Run a file in another program: onnxruntime for ONNX, llama.cpp for GGUF.

PYTHON bench/journey_peer.py onnx|gguf FILE INPUTS.npz OUTPUTS.npz

Needs numpy and onnxruntime or xllamacpp, and nothing of this project. ONNX: inputs and outputs are
arrays by position. GGUF: the input has rows of tokens; outputs are the next token of each row and
the logarithm of its probability. Exit code 3: the program is not installed.
"""

from __future__ import annotations

import sys

import numpy as np

ABSENT = 3


def run_onnx(file: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of an ONNX file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # compute with float activations, as the file says, and not with 8-bit ones
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return list(session.run(None, dict(zip(names, inputs, strict=True))))


def run_gguf(file: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Return the most likely next token of each row, and the logarithm of its probability."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path, settings.n_ctx, settings.n_parallel = file, 512, 1
    server = xllamacpp.Server(settings)
    tokens, logarithms = [], []
    for row in inputs[0].tolist():
        request = {"prompt": row, "max_tokens": 1, "temperature": 0.0, "logprobs": 1}
        answer = server.handle_completions(request)
        (first,) = answer["choices"][0]["logprobs"]["content"]
        tokens.append(first["id"])
        logarithms.append(first["logprob"])
    return [np.array(tokens), np.array(logarithms)]


RUNNERS = {"onnx": run_onnx, "gguf": run_gguf}


def main() -> None:
    """Run one file on stored inputs and store its outputs."""
    kind, file, source, target = sys.argv[1:]
    stored = np.load(source)
    try:
        outputs = RUNNERS[kind](file, [stored[name] for name in stored.files])
    except ModuleNotFoundError as error:
        print(error)
        sys.exit(ABSENT)
    np.savez(target, *outputs)


if __name__ == "__main__":
    main()
