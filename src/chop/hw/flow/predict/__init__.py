"""What a design will take of a part before any tool has run: LUTs, flip-flops, DSPs, RAMs, MHz.

Everything here is predicted. `chop.hw.flow.synth` measures cells, `chop.hw.flow.route` the clock.
"""

from chop.hw.flow.predict.model import Prediction as Prediction
from chop.hw.flow.predict.model import StagePrediction as StagePrediction
from chop.hw.flow.predict.model import predict as predict
