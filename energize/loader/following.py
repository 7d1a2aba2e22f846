"""Weights from outside the mix: of a policy that follows the loss, and of a file."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import yaml
from pydantic import TypeAdapter

from energize.core.blends import (
    Change,
    blend_called,
    blends_in,
    checked_request,
    chosen_blend,
    same_shares,
)
from energize.core.checks import checked_whole, real_number
from energize.core.dataset import Dataset
from energize.core.lanes import Ranks
from energize.core.stream import counter_field, state_field
from energize.core.validation import Model, load_yaml, safe_loader, short, validated
from energize.data.files import files_at
from energize.errors import (
    ConfigError,
    EmptyDatasetError,
    EnergizeError,
    StateError,
    WeightError,
    nearest,
)
from energize.loader.agreement import Agreement
from energize.report.levels import source_names

if TYPE_CHECKING:
    from energize.mixing import MixingPolicy

_log = logging.getLogger("energize")

_FILE_LENGTH = 2**16
"""Characters of a file of weights, at most."""

_LARGEST = 1e300
"""No sum of losses comes near it."""


class _Weights(Model):
    """A file of weights, as it is read."""

    weights: dict[Any, Any]
    at_step: int | None = None
    blend: str | None = None


_SCHEMA = TypeAdapter(_Weights)


class FollowedLoader(Protocol):
    """The part of a loader that a `Follower` uses."""

    @property
    def dataset(self) -> Dataset[Any]:
        """The dataset that is read."""

    @property
    def step(self) -> int:
        """The number of the next step."""

    @property
    def last_sources(self) -> list[str]:
        """The names of the sources of the samples of the last item."""

    def set_weights(
        self,
        weights: Mapping[str, float],
        at_step: int | None = None,
        *,
        blend: str | None = None,
    ) -> int:
        """Change the weights of a blend from a step on, and return the step."""


class Follower:
    """Passes the mean loss of each source to a policy, and its weights to a loader.

    `Loader.follow` creates followers. All ranks call `observe` once in each step. At
    every `every`-th call they exchange the losses in one collective, and call the
    policy.

    `state_dict` contains the state of the policy and the losses since its last call.
    All ranks call it at the same step, and any number of ranks resumes from it.

    Attributes:
        policy: The policy.
        weights: The last weights that the policy returned; None before.
    """

    def __init__(
        self,
        loader: FollowedLoader,
        policy: MixingPolicy,
        every: int,
        blend: str | None,
        *,
        ranks: Callable[[], Ranks],
        agreement: Callable[[], Agreement | None],
    ) -> None:
        self.policy = policy
        self.weights: dict[str, float] | None = None
        self._every = checked_whole(every, "follow: every", 1)
        self._loader = loader
        self._ranks = ranks
        self._agreement = agreement
        for method in ("observe", "state_dict", "load_state_dict"):
            if not callable(getattr(policy, method, None)):
                raise ConfigError(
                    f"follow: the policy {type(policy).__name__} has no {method}. "
                    "Define observe, state_dict and load_state_dict (see "
                    "energize.mixing.MixingPolicy)"
                )
        dataset = loader.dataset
        alone = blends_in(dataset) if blend is None else []
        named = alone[0] if len(alone) == 1 else blend_called(dataset, blend or "")
        named = named or chosen_blend(dataset, {}, blend)
        self._blend = named.name
        self._names: list[str] = list(named.blend.names)
        labels = dict(zip(dataset.sources, source_names(dataset), strict=True))
        self._by_source = {
            labels.get(source, source.name): name
            for name, dataset_input in zip(self._names, named.blend.inputs, strict=True)
            for source in dataset_input.sources
        }
        self._reset()

    def observe(
        self,
        losses: Mapping[str, float] | Iterable[Any],
        sources: Iterable[str] | None = None,
    ) -> Mapping[str, float] | None:
        """Record the losses of a step.

        Args:
            losses: One loss for each sample of the batch, such as a tensor of shape
                (batch,), or the mean loss of each source, which counts as one sample.
            sources: The source of each loss. By default the sources of the last item of
                the loader, without padding.

        Returns:
            The new weights if the policy changes them, else None.

        Raises:
            WeightError: If a source is not in the blend.
            ConfigError: If the lengths differ, or a loss is not a number.
        """
        for name, loss in self._named(losses, sources):
            self._sums[name] += loss
            self._counts[name] += 1
        world = self._ranks().world_size
        self._items += world
        if self._items < self._every * world:
            return None
        sums, counts = self._summed()
        self._reset()
        means = {name: sums[name] / count for name, count in counts.items() if count}
        seen = {name: count for name, count in counts.items() if count}
        answer = self.policy.observe(self._loader.step, means, seen)
        if answer is None:
            return None
        self.weights = dict(answer)
        self._loader.set_weights(self.weights, blend=self._blend)
        return self.weights

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, as plain JSON."""
        sums, counts = self._summed()
        policy = self.policy.state_dict()
        return {"policy": policy, "sums": sums, "counts": counts, "items": self._items}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a state.

        Raises:
            StateError: If it is not a state of a follower, or has other sources.
        """
        sums, counts = (
            state_field(state_dict, name, dict) for name in ("sums", "counts")
        )
        if set(sums) != set(self._names) or set(counts) != set(self._names):
            raise StateError(
                f"the state is of a policy over {', '.join(sums)}, and the blend has "
                f"{', '.join(self._names)}"
            )
        _check_sums(sums)
        counted = {name: counter_field(counts, name) for name in self._names}
        items = counter_field(state_dict, "items")
        self.policy.load_state_dict(state_field(state_dict, "policy", dict))
        self._items = items
        agreement = self._agreement()
        if agreement is None or agreement.first:  # it is the sum over all ranks
            self._sums = {name: float(sums[name]) for name in self._names}
            self._counts = counted

    def _reset(self) -> None:
        self._sums = dict.fromkeys(self._names, 0.0)
        self._counts = dict.fromkeys(self._names, 0)
        self._items = 0

    def _named(
        self, losses: Mapping[str, float] | Iterable[Any], sources: Iterable[str] | None
    ) -> Iterable[tuple[str, float]]:
        if isinstance(losses, Mapping):
            names: list[str] = [str(name) for name in losses]
            values = list(losses.values())
        else:
            values = _as_list(losses)
            names = list(self._loader.last_sources if sources is None else sources)
            if not names and sources is None:
                return  # padding
        if len(values) != len(names):
            raise ConfigError(
                f"observe: {len(values)} losses for {len(names)} samples. Pass one for "
                "each sample of the batch, before averaging, or a mean by source"
            )
        for name, value in zip(names, values, strict=True):
            number = real_number(value)
            called = self._called(name)
            if number is None:
                raise ConfigError(
                    f"observe: the loss of a sample of {name!r} must be a finite "
                    f"number, got {value!r}"
                )
            if called is not None:
                yield called, float(number)

    def _called(self, source: str) -> str | None:
        """Return the name of a source in the blend; None if it is not in it."""
        inner = source.removeprefix(f"{self._blend}/") if self._blend else source
        if inner in self._sums:
            return inner
        above = [name for name in self._names if inner.startswith(f"{name}/")]
        if above:
            return max(above, key=len)
        input_name: str | None = self._by_source.get(source)
        if input_name is None and not self._blend:
            raise WeightError(
                f"observe: {source!r} is not a source of the blend "
                f"({', '.join(self._names)}){nearest(source, self._names)}"
            )
        return input_name

    def _summed(self) -> tuple[dict[str, float], dict[str, int]]:
        """Return sums and counts over all ranks, added in the order of ranks."""
        agreement = self._agreement()
        mine = [self._sums, self._counts]
        purpose = "the losses that a policy follows"
        rows: list[Any] = (
            [mine] if agreement is None else agreement.trees(mine, purpose)
        )
        sums = {
            name: sum((part[name] for part, _ in rows), 0.0) for name in self._names
        }
        counts = {name: sum(part[name] for _, part in rows) for name in self._names}
        return sums, counts


def _check_sums(sums: Mapping[str, Any]) -> None:
    """Raise `StateError` unless all sums of losses are finite numbers."""
    for total in sums.values():
        if type(total) not in (int, float) or not abs(total) <= _LARGEST:
            raise StateError(f"the state has invalid sums of losses: {str(sums)[:80]}")


def _as_list(losses: Any) -> list[Any]:
    """Return a tensor, an array or an iterable of losses as a list."""
    to_list = getattr(losses, "tolist", None)
    values = list(losses) if to_list is None else to_list()
    return values if isinstance(values, list) else [values]


class WeightsFile:
    """A file of weights that an operator edits during a run.

    It is YAML or JSON: `{name: weight, ...}`, optionally with `at_step` and `blend`, or
    with the weights under `weights`. The file may appear later. The first rank reads it
    before the first step and then every `every` steps, and sends changes to the other
    ranks, which pass them to `Loader.set_weights`. Weights that the blend has already,
    or that a resumed run took from the file before, are skipped. Invalid content is
    logged as a warning and changes nothing. Write a new file and rename it to replace
    this one, so that it is never read half-written.

    Args:
        path: The file.
        every: Number of steps between two reads.
    """

    def __init__(self, path: str | os.PathLike[str], every: int = 50) -> None:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"the file of weights must be a path, got {path!r}")
        self.path = Path(path)
        self._every = checked_whole(every, "WeightsFile: every", 1)
        self._steps = 0
        self._seen: str | None = None

    def look(
        self,
        agreement: Agreement | None,
        changes: Sequence[Change],
        change_weights: Callable[..., int],
    ) -> None:
        """Apply new weights in the file, every few steps.

        All ranks call it before each step.

        Args:
            agreement: The agreement with other ranks; None if there is none.
            changes: The changes of weights in the run so far.
            change_weights: Changes weights: called with `weights`, `at_step`, `blend`
                and `of_file`.
        """
        self._steps += 1
        if (self._steps - 1) % self._every:
            return
        first = agreement is None or agreement.first
        news = self._news() if first else None
        if agreement is not None:
            news = agreement.broadcast(None, news, "the file of weights")
        if news is None:
            return
        if self._is_set(news, changes):
            return
        try:
            change_weights(**news, of_file=True)
        except (ConfigError, EmptyDatasetError) as reason:
            if first:
                self._warn(reason)

    def _is_set(self, request: dict[str, Any], changes: Sequence[Change]) -> bool:
        """Return whether an earlier change has set the weights of the file."""
        of_blend = [
            change for change in changes if request["blend"] in (None, change.blend)
        ]
        candidates = of_blend if request["at_step"] is not None else of_blend[-1:]
        if self._steps == 1:
            # Another change may follow the one that a resumed run took from the file.
            candidates += [change for change in of_blend if change.of_file][-1:]
        weights = request["weights"]
        return any(same_shares(change.weights, weights) for change in candidates)

    def _news(self) -> dict[str, Any] | None:
        """Return what is new in the file."""
        try:
            path = os.fspath(self.path)
            files = files_at(path)
            text = files.read(path, 0, min(files.size(path), _FILE_LENGTH + 1)).decode(
                "utf-8"
            )
            if text == self._seen:
                return None
            self._seen = text
            return read_weights(text)
        except FileNotFoundError:
            return None
        except EnergizeError as reason:
            self._warn(reason)
        except (
            OSError,
            ValueError,
        ) as reason:  # ValueError: of a name with NUL, and no UTF-8
            if str(reason) != self._seen:
                self._seen = str(reason)
                self._warn(f"it cannot be read ({reason})")
        return None

    def _warn(self, reason: object) -> None:
        _log.warning("%s: %s. The weights are unchanged", self.path, reason)


class _OnceLoader(safe_loader()):  # type: ignore[misc]  # of two, by what is installed
    """Refuses a mapping with a key that is given twice, of which YAML keeps the
    last.
    """

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name = str(key.value)
            line = key.start_mark.line + 1
            if name in lines:
                raise ConfigError(
                    f"{short(name)} is set twice, in lines {lines[name]} and {line}. "
                    "Remove one"
                )
            lines[name] = line
        return cast("dict[Any, Any]", super().construct_mapping(node, deep))


def read_weights(text: str) -> dict[str, Any]:
    r"""Return the `weights`, `at_step` and `blend` of a file; raise `ConfigError` for
    another one.

    >>> read_weights("web: 3\ncode: 1\nat_step: 2000")
    {'weights': {'web': 3, 'code': 1}, 'at_step': 2000, 'blend': None}
    """
    if len(text) > _FILE_LENGTH:
        raise ConfigError(
            f"a file of weights must have at most {_FILE_LENGTH} characters"
        )
    try:
        content = load_yaml(text, _OnceLoader)
    except yaml.YAMLError as reason:
        mark = getattr(reason, "problem_mark", None)
        last = text.rstrip().count("\n")
        line = "" if mark is None else f" in line {min(mark.line, last) + 1}"
        problem = getattr(reason, "problem", None) or type(reason).__name__
        raise ConfigError(f"it is not valid YAML{line}: {problem}") from reason
    except ValueError as reason:  # too deep, or aliases that stand for too much
        raise ConfigError(f"it is not a file of weights: {reason}") from reason
    if not isinstance(content, dict):
        raise ConfigError(
            "it must have a line `name: weight` for each source, got "
            f"{str(content)[:80]!r}"
        )
    if not isinstance(content.get("weights"), dict):
        named = {
            name: content.pop(name) for name in ("at_step", "blend") if name in content
        }
        content = {"weights": content, **named}
    held = validated(_SCHEMA, content, ConfigError, "a file of weights", text)
    weights, at_step, blend = checked_request(held.weights, held.at_step, held.blend)
    return {"weights": weights, "at_step": at_step, "blend": blend}
