"""The teacher of a training, from the options of a command."""

from __future__ import annotations

import dataclasses
from dataclasses import fields
from typing import Any

from chop.actions.distillation import Distillation
from chop.cli.shared_options import TeacherOptions
from chop.cli.source import find_source
from chop.errors import ConfigError


def load_teacher(config: Any) -> Distillation | None:
    """Return the teacher that `config` names; None without one."""
    if config.teacher is None:
        _check_unused(config)
        return None
    options = dataclasses.replace(config, model=config.teacher)
    source = find_source(options, is_alone=False)
    teacher = source.model if source.graph is None else source.graph.model
    assert teacher is not None, "a source has a model or a graph"
    return Distillation(
        teacher.eval(),
        temperature=config.temperature,
        modules=config.follow,
        module_weight=config.follow_weight,
        label_weight=config.label_weight,
    )


def _check_unused(config: Any) -> None:
    """Raise for an option that has no effect without a teacher."""
    for field in fields(TeacherOptions):
        if getattr(config, field.name) != field.default:
            raise ConfigError(f"{field.name}: it is an option of --teacher, and none is given.")
