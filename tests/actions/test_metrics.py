import math

import numpy as np
import pytest
from sklearn import metrics as reference

from chop.actions.language import LANGUAGE_METRICS
from chop.actions.metrics import METRICS, compute_metrics
from chop.dataset.row_selection import IGNORED
from chop.errors import RegistryError

SCORES = np.random.default_rng(0).normal(size=(60, 3))
LABELS = np.random.default_rng(1).integers(0, 3, 60)
NUMBERS = np.random.default_rng(2).normal(size=60)


def averaged(function):
    def compute(scores, labels):
        average = "binary" if scores.shape[-1] == 2 else "macro"
        return function(labels, scores.argmax(-1), average=average)

    return compute


CLASSES = {
    "accuracy": lambda s, y: reference.accuracy_score(y, s.argmax(-1)),
    "precision": averaged(reference.precision_score),
    "recall": averaged(reference.recall_score),
    "f1": averaged(reference.f1_score),
    "matthews_correlation": lambda s, y: reference.matthews_corrcoef(y, s.argmax(-1)),
}
REGRESSIONS = {
    "mse": lambda s, y: reference.mean_squared_error(y, s[:, 0]),
    "mae": lambda s, y: reference.mean_absolute_error(y, s[:, 0]),
}


class Prediction:
    def __init__(self, predictions, label_ids):
        self.predictions, self.label_ids = predictions, label_ids


def test_every_metric_has_a_reference():
    assert set(METRICS) == {*CLASSES, *REGRESSIONS, *LANGUAGE_METRICS}  # test_language.py


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("size", [2, 3])
def test_a_metric_of_classes_equals_the_reference(name, size):
    scores, labels = SCORES[:, :size], LABELS % size
    assert math.isclose(METRICS[name](scores, labels), CLASSES[name](scores, labels))


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_metric_of_numbers_equals_the_reference(name):
    assert math.isclose(METRICS[name](SCORES[:, :1], NUMBERS), REGRESSIONS[name](SCORES, NUMBERS))


def test_rows_without_a_label_do_not_count():
    labels = SCORES.argmax(-1)
    labels[30:] = IGNORED
    assert METRICS["accuracy"](SCORES, labels) == 1.0


def test_a_constant_answer_has_no_correlation():
    scores = np.tile([1.0, 0.0], (4, 1))
    assert METRICS["matthews_correlation"](scores, np.array([0, 1, 0, 1])) == 0.0


def test_what_follows_the_scores_is_not_looked_at():
    compute = compute_metrics("accuracy")
    assert compute(Prediction((SCORES, "hidden states"), SCORES.argmax(-1))) == {"accuracy": 1.0}


def test_an_unknown_metric_names_the_nearest():
    with pytest.raises(RegistryError, match=r"Unknown metric 'acuracy'. Did you mean 'accuracy'"):
        compute_metrics("acuracy")
