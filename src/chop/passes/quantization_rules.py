"""Which config a layer or node gets: the arguments of the quantise passes, and how keys match.

Precedence, from strong to weak: name, regular expression, type, default.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from chop.compat.old_configs import modern_quantize_args
from chop.config import REST
from chop.errors import ConfigError
from chop.ir.ops import OPS
from chop.log import get_logger
from chop.nn.quantized.operands import is_unquantized
from chop.nn.quantizers.operands import SPELLED, plain_names
from chop.patterns import check_pattern, fullmatch
from chop.registry import suggest

logger = get_logger(__name__)

By = Literal["name", "regex_name", "type"]
PRECEDENCE: tuple[By, ...] = ("name", "regex_name", "type")


def quantizable_ops() -> tuple[str, ...]:
    """The op names that a rule by type may have."""
    return tuple(op.name for op in OPS.values() if op.compute is not None)


@dataclass(frozen=True)
class Rule:
    """What to do with what a key matches; a `config` without a format name leaves it alone."""

    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class QuantizeArgs:
    """How keys are read, and a rule for each.

    `by`: "type" (op names: linear, conv2d, add …), "name" (of the node, or the path of its
    module), "regex_name" (an expression that matches the whole name), or several of them, of which
    the strongest that matches decides: name, then regular expression, then type, then `default`.
    Of several expressions that match, the first decides. All other keys are rules.
    """

    by: By | tuple[By, ...] = "type"
    default: Rule = field(default_factory=Rule)
    rules: dict[str, Rule] = field(default_factory=dict, metadata=REST)

    modern: ClassVar[Any] = staticmethod(modern_quantize_args)

    @property
    def rule_args(self) -> QuantizeArgs:
        """The rules alone, of a pass that has more arguments."""
        return QuantizeArgs(self.by, self.default, self.rules)

    @property
    def kinds(self) -> tuple[By, ...]:
        """The ways keys are read, strongest first."""
        given = (self.by,) if isinstance(self.by, str) else self.by
        return tuple(kind for kind in PRECEDENCE if kind in given)


def require_rules(args: QuantizeArgs) -> None:
    """Raise where the arguments name nothing to quantise."""
    if not args.rules and not args.default.config:
        raise ConfigError(
            "quantize: nothing was done: no rule is given. Give one for an op or a name, such as "
            '{"linear": {"config": {"name": "mxint", "width": 8}}}, or a default.'
        )


def modern_beside(own: Sequence[str]) -> Callable[[Any], Any]:
    """Gives rules in today's layout where the arguments `own` of a pass stand beside them."""

    def modern(given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        kept = {key: given[key] for key in own if key in given}
        return {**modern_quantize_args({k: v for k, v in given.items() if k not in kept}), **kept}

    return modern


@dataclass(frozen=True)
class Candidate:
    """A layer or node that rules may speak of: its names, its op, whether it can be quantised."""

    names: tuple[str, ...]
    op: str
    is_quantizable: bool


@dataclass(frozen=True)
class FormatChoice:
    """The config that a rule gives, and where the rule is written."""

    config: Mapping[str, Any]
    where: str


def _by_name(keys: Iterable[str], candidate: Candidate) -> str | None:
    return next((key for key in keys if key in candidate.names), None)


def _by_regex(keys: Iterable[str], candidate: Candidate) -> str | None:
    names = candidate.names
    return next((k for k in keys if any(fullmatch(k, name) for name in names)), None)


def _by_type(keys: Iterable[str], candidate: Candidate) -> str | None:
    return next((key for key in keys if key == candidate.op), None)


FINDERS: dict[By, Callable[[Iterable[str], Candidate], str | None]] = {
    "name": _by_name,
    "regex_name": _by_regex,
    "type": _by_type,
}


def choose(
    args: QuantizeArgs, candidates: Sequence[Candidate], where: str
) -> list[FormatChoice | None]:
    """The config of each candidate, None for those left alone; a rule in vain is an error."""
    _check_patterns(args, where)
    keys = [_find_key(args, candidate) for candidate in candidates]
    _check_used(args, candidates, {key for key in keys if key is not None}, where)
    pairs = zip(candidates, keys, strict=True)
    return [_choice(args, candidate, key, where) for candidate, key in pairs]


def _find_key(args: QuantizeArgs, candidate: Candidate) -> str | None:
    for kind in args.kinds:
        key = FINDERS[kind](args.rules, candidate)
        if key is not None and (candidate.is_quantizable or kind == "name"):
            return key
    return None


def _choice(
    args: QuantizeArgs, candidate: Candidate, key: str | None, where: str
) -> FormatChoice | None:
    rule = args.default if key is None else args.rules[key]
    path = f"{where}.{'default' if key is None else key}.config"
    if is_unquantized(rule.config) or (key is None and not candidate.is_quantizable):
        _check_nameless(rule.config, path)
        return None
    if not candidate.is_quantizable:
        raise ConfigError(
            f"{path}: '{candidate.names[0]}' ({candidate.op}) cannot be quantised. "
            f"Quantisable ops: {', '.join(quantizable_ops())}."
        )
    return FormatChoice(plain_names(rule.config, path), path)


def _check_nameless(config: Mapping[str, Any], where: str) -> None:
    """Settings without a format are a mistake; a format left out on purpose is spelt out."""
    if config and not {"name", SPELLED} & config.keys() and not config.get("bypass"):
        raise ConfigError(f"{where}: key 'name' is missing: it names the number format.")


def _check_patterns(args: QuantizeArgs, where: str) -> None:
    for key in args.rules if "regex_name" in args.kinds else ():
        check_pattern(key, where, ConfigError)


def _check_used(
    args: QuantizeArgs, candidates: Sequence[Candidate], used: set[str], where: str
) -> None:
    """A rule in vain is an error, but for a type that this model lacks beside rules that match,
    and for a name where rules are not by name."""
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
    """Why a key matches nothing, and what would."""
    if "type" in args.kinds and key in quantizable_ops():
        return f"the model has no {key} to quantise."
    if "type" in args.kinds and key in OPS:
        return f"op '{key}' cannot be quantised. Quantisable ops: {', '.join(quantizable_ops())}."
    names = [name for c in candidates if c.is_quantizable for name in c.names]
    near = difflib.get_close_matches(key, names, n=8, cutoff=0.0)
    known = [*(near if args.kinds != ("type",) else ()), *_types(args)]
    return f"matches nothing by {' or '.join(args.kinds)}. {suggest(key, known)}"


def _types(args: QuantizeArgs) -> tuple[str, ...]:
    return quantizable_ops() if "type" in args.kinds else ()
