"""What a design will take of a part before any tool has run: LUTs, flip-flops, DSPs, RAMs, MHz.

Everything here is predicted. `chop.hw.synth` measures cells, `chop.hw.route` the clock.
"""

from chop.hw.predict.model import Prediction as Prediction
from chop.hw.predict.model import StagePrediction as StagePrediction
from chop.hw.predict.model import predict as predict
