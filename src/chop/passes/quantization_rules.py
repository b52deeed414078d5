"""Rules of the quantise passes: their arguments, and the config of each layer or node.

Precedence, from strong to weak: name, regular expression, type, default.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from chop.compat.old_configs import modern_quantize_args
from chop.config import REST
from chop.errors import ConfigError
from chop.ir.ops import OPS
from chop.log import get_logger
from chop.nn.quantized.call_operands import is_unquantized
from chop.nn.quantizers.operands import SPELLED, plain_names
from chop.patterns import check_pattern, fullmatch
from chop.registry import suggest

logger = get_logger(__name__)

By = Literal["name", "regex_name", "type"]
PRECEDENCE: tuple[By, ...] = ("name", "regex_name", "type")


def quantizable_ops() -> tuple[str, ...]:
    """Return the op names that a rule by type may have."""
    return tuple(op.name for op in OPS.values() if op.compute is not None)


@dataclass(frozen=True)
class Rule:
    """Settings for the matches of a key; without a format name in `config` these stay unchanged."""

    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class QuantizeArgs:
    """Rules of a quantise pass.

    `by`: how keys are read: "type" (op names: linear, conv2d, add …), "name" (of the node, or the
    path of its module), "regex_name" (an expression for the whole name), or several of them. The
    strongest match decides: name, then regular expression, then type, then `default`; of several
    matching expressions, the first. All other keys are rules.
    """

    by: By | tuple[By, ...] = "type"
    default: Rule = field(default_factory=Rule)
    rules: dict[str, Rule] = field(default_factory=dict, metadata=REST)

    modern: ClassVar[Any] = staticmethod(modern_quantize_args)

    @property
    def rule_args(self) -> QuantizeArgs:
        """Only the rules, of a pass with more arguments."""
        return QuantizeArgs(self.by, self.default, self.rules)

    @property
    def kinds(self) -> tuple[By, ...]:
        """Readings of keys, strongest first."""
        readings = (self.by,) if isinstance(self.by, str) else self.by
        return tuple(kind for kind in PRECEDENCE if kind in readings)


def require_rules(args: QuantizeArgs) -> None:
    """Raise if the arguments name nothing to quantise."""
    if not args.rules and not args.default.config:
        raise ConfigError(
            "quantize: nothing was done: no rule is given. Give one for an op or a name, such as "
            '{"linear": {"config": {"name": "mxint", "width": 8}}}, or a default.'
        )


def modern_beside(own: Sequence[str]) -> Callable[[Any], Any]:
    """Return a converter of older rules for a pass with further arguments `own`."""

    def modern(args: Any) -> Any:
        if not isinstance(args, Mapping):
            return args
        mine = {key: args[key] for key in own if key in args}
        return {**modern_quantize_args({k: v for k, v in args.items() if k not in mine}), **mine}

    return modern


@dataclass(frozen=True)
class Candidate:
    """A layer or node that rules may match: its names and op, and whether it can be quantised.

    `role`: another op whose rules match it, as `experts` for the linear layer of one expert.
    """

    names: tuple[str, ...]
    op: str
    is_quantizable: bool
    role: str = ""


@dataclass(frozen=True)
class FormatChoice:
    """Config of a rule, and the place where the rule is written."""

    config: Mapping[str, Any]
    where: str


def choose(
    args: QuantizeArgs, candidates: Sequence[Candidate], where: str
) -> list[FormatChoice | None]:
    """Return the config of each candidate, None for unchanged ones; raise for a rule in vain."""
    for key in args.rules if "regex_name" in args.kinds else ():
        check_pattern(key, where, ConfigError)
    keys = [_find_key(args, candidate) for candidate in candidates]
    _check_used(args, candidates, {key for key in keys if key is not None}, where)
    pairs = zip(candidates, keys, strict=True)
    return [_choice(args, candidate, key, where) for candidate, key in pairs]


MATCHERS: dict[By, Callable[[str, Candidate], bool]] = {
    "name": lambda key, candidate: key in candidate.names,
    "regex_name": lambda key, candidate: any(fullmatch(key, name) for name in candidate.names),
    "type": lambda key, candidate: key in (candidate.op, candidate.role),
}


def names_one_expert(args: QuantizeArgs, path: str, experts: int) -> bool:
    """Return True if a rule names an expert of the stacked weights at `path`, and not all."""
    paths = [f"{path}.{expert}" for expert in range(experts)]
    stacked = Candidate((path,), "experts", True)
    return any(
        MATCHERS[kind](key, Candidate((each,), "linear", True)) and not MATCHERS[kind](key, stacked)
        for kind in args.kinds
        if kind != "type"
        for key in args.rules
        for each in paths
    )


def _find_key(args: QuantizeArgs, candidate: Candidate) -> str | None:
    kinds = args.kinds if candidate.is_quantizable else [k for k in args.kinds if k == "name"]
    matching = (key for k in kinds for key in args.rules if MATCHERS[k](key, candidate))
    return next(matching, None)


def _choice(
    args: QuantizeArgs, candidate: Candidate, key: str | None, where: str
) -> FormatChoice | None:
    rule = args.default if key is None else args.rules[key]
    path = f"{where}.{'default' if key is None else key}.config"
    if is_unquantized(rule.config) or (key is None and not candidate.is_quantizable):
        # settings without a format are a mistake, unless the format is left out explicitly
        has_format = {"name", SPELLED} & rule.config.keys() or rule.config.get("bypass")
        if rule.config and not has_format:
            raise ConfigError(f"{path}: key 'name' is missing: it names the number format.")
        return None
    if not candidate.is_quantizable:
        raise ConfigError(
            f"{path}: '{candidate.names[0]}' ({candidate.op}) cannot be quantised. "
            f"Quantisable ops: {', '.join(quantizable_ops())}."
        )
    return FormatChoice(plain_names(rule.config, path), path)


def _check_used(
    args: QuantizeArgs, candidates: Sequence[Candidate], used: set[str], where: str
) -> None:
    """Raise for a rule in vain.

    Only warn of a type that this model lacks if other rules match, and of a name if rules are not
    by name.
    """
    for key in args.rules:
        if key in used:
            continue
        if "type" in args.kinds and key in quantizable_ops() and used:
            logger.warning("%s.%s: the model has no %s to quantise.", where, key, key)
            continue
        if "name" not in args.kinds and any(key in candidate.names for candidate in candidates):
            kinds = " and ".join(args.kinds)
            logger.warning("%s.%s: is a name, and rules are by %s: no effect.", where, key, kinds)
            continue
        raise ConfigError(f"{where}.{key}: {_reason(key, args, candidates)}")


def _reason(key: str, args: QuantizeArgs, candidates: Sequence[Candidate]) -> str:
    """Return the reason why a key matches nothing, and the nearest keys that would."""
    if "type" in args.kinds and key in quantizable_ops():
        return f"the model has no {key} to quantise."
    if "type" in args.kinds and key in OPS:
        return f"op '{key}' cannot be quantised. Quantisable ops: {', '.join(quantizable_ops())}."
    names = [name for c in candidates if c.is_quantizable for name in c.names]
    near = difflib.get_close_matches(key, names, n=8, cutoff=0.0)
    near = [] if args.kinds == ("type",) else near
    types = quantizable_ops() if "type" in args.kinds else ()
    return f"matches nothing by {' or '.join(args.kinds)}. {suggest(key, [*near, *types])}"
