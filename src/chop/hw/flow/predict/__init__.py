"""Predictions of LUTs, flip-flops, DSPs, block RAMs and MHz of a design, before any tool runs.

`chop.hw.flow.synth` measures cells, `chop.hw.flow.route` the clock.
"""

from chop.hw.flow.predict.model import Prediction as Prediction
from chop.hw.flow.predict.model import StagePrediction as StagePrediction
from chop.hw.flow.predict.model import predict as predict
