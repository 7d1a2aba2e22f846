"""A policy that follows the loss: what ranks saw of it together, and what it answers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from energize.core.blends import FoundBlend, blends_in, chosen_blend
from energize.core.checks import checked_whole, real_number
from energize.core.dataset import Dataset
from energize.core.stream import counter_field, state_field
from energize.errors import ConfigError, StateError, WeightError, nearest
from energize.loader.agreement import Agreement

_WHAT = "the losses that a policy follows"


_LARGEST = 1e300
"""No sum of losses comes near it."""


class Policy(Protocol):
    """See `energize.mixing.MixingPolicy`."""

    def observe(
        self, step: int, losses: Mapping[str, float], counts: Mapping[str, int]
    ) -> Mapping[str, float] | None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class Followed(Protocol):
    """The loader that a policy is for."""

    dataset: Dataset[Any]

    @property
    def step(self) -> int: ...

    @property
    def last_sources(self) -> list[str]: ...

    def set_weights(
        self, weights: Mapping[str, float], at_step: int | None = None, *, blend: str | None = None
    ) -> None: ...

    def talking(self) -> Agreement | None: ...


class Follower:
    """Hands a policy the mean loss of each source, and the loader the weights that it answers; made
    by `Loader.follow`.

    `observe` is called once a step, on all ranks. At every `every`-th call the ranks tell each
    other what they saw, in one collective, and ask the policy. `weights` are the last ones that it
    answered, None before.

    `state_dict` has what the policy remembers and what was observed since it was asked last; all
    ranks call it at the same step, and any number of ranks goes on from it.
    """

    def __init__(self, loader: Followed, policy: Policy, every: int, blend: str | None) -> None:
        self.policy = policy
        self.weights: dict[str, float] | None = None
        self._loader, self._every = loader, checked_whole(every, "follow: every", 1)
        for method in ("observe", "state_dict", "load_state_dict"):
            if not callable(getattr(policy, method, None)):
                raise ConfigError(
                    f"follow: a policy has observe, state_dict and load_state_dict (see "
                    f"energize.mixing.MixingPolicy); {type(policy).__name__} has no {method}"
                )
        found = self._found(blend)
        self._blend = found.name
        self._names: list[str] = list(found.blend.names)
        self._by_source = {
            source.name: name
            for name, each in zip(self._names, found.blend.inputs, strict=True)
            for source in each.sources
        }
        self._sums = dict.fromkeys(self._names, 0.0)
        self._counts = dict.fromkeys(self._names, 0)
        self._calls = 0

    def _found(self, blend: str | None) -> FoundBlend:
        found = blends_in(self._loader.dataset)
        if blend is not None or len(found) != 1:
            names = [each for each in found if each.name == (blend or "")]
            if names:
                return names[0]
        return found[0] if len(found) == 1 else chosen_blend(self._loader.dataset, {}, blend)

    def observe(
        self,
        losses: Mapping[str, float] | Iterable[Any],
        sources: Iterable[str] | None = None,
    ) -> Mapping[str, float] | None:
        """Note the losses of a step; the new weights, where there are any.

        `losses` is one for each sample of the batch, a tensor of shape (batch,) say, whose
        `sources` are by default those of the loader's last item; or the mean loss of each source,
        which then counts as one. Padding is left out by leaving `sources` to the loader. Raises
        `WeightError` for a source that is not in the blend, and `ConfigError` for other lengths
        and for a loss that is no number.
        """
        for name, loss in self._named(losses, sources):
            self._sums[name] += loss
            self._counts[name] += 1
        self._calls += 1
        if self._calls < self._every:
            return None
        sums, counts = self._summed()
        self._begin_anew()
        means = {name: sums[name] / count for name, count in counts.items() if count}
        seen = {name: count for name, count in counts.items() if count}
        answer = self.policy.observe(self._loader.step, means, seen)
        if answer is None:
            return None
        self.weights = dict(answer)
        self._loader.set_weights(self.weights, blend=self._blend)
        return self.weights

    def state_dict(self) -> dict[str, Any]:
        """What a run goes on from, as plain JSON."""
        sums, counts = self._summed()
        return {
            "policy": self.policy.state_dict(),
            "sums": sums,
            "counts": counts,
            "calls": self._calls,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from it; `StateError` for what is no such state, or is over other sources."""
        sums, counts = (state_field(state_dict, name, dict) for name in ("sums", "counts"))
        if set(sums) != set(self._names) or set(counts) != set(self._names):
            raise StateError(
                f"the state is of a policy over {', '.join(sums)}, and the blend is over "
                f"{', '.join(self._names)}"
            )
        if not all(type(each) in (int, float) and abs(each) <= _LARGEST for each in sums.values()):
            raise StateError(f"the state has sums of losses that are none: {str(sums)[:80]}")
        counted = {name: counter_field(counts, name) for name in self._names}
        calls = counter_field(state_dict, "calls")
        self.policy.load_state_dict(state_field(state_dict, "policy", dict))
        self._calls = calls
        agreement = self._loader.talking()
        if agreement is None or agreement.first:  # it is the sum over all ranks
            self._sums = {name: float(sums[name]) for name in self._names}
            self._counts = counted

    def _begin_anew(self) -> None:
        self._sums = dict.fromkeys(self._names, 0.0)
        self._counts = dict.fromkeys(self._names, 0)
        self._calls = 0

    def _named(
        self, losses: Mapping[str, float] | Iterable[Any], sources: Iterable[str] | None
    ) -> Iterable[tuple[str, float]]:
        if isinstance(losses, Mapping):
            names: list[str] = [str(name) for name in losses]
            values = list(losses.values())
        else:
            listed: Any = getattr(losses, "tolist", None)  # of a tensor, or an array
            found = list(losses) if listed is None else listed()
            values = found if isinstance(found, list) else [found]
            names = list(self._loader.last_sources if sources is None else sources)
            if not names and sources is None:
                return  # padding
        if len(values) != len(names):
            raise ConfigError(
                f"observe: {len(values)} losses are given for {len(names)} samples; give one for "
                "each sample of the batch, before they are averaged, or a mean by source"
            )
        for name, value in zip(names, values, strict=True):
            number, called = real_number(value), self._called(name)
            if number is None:
                raise ConfigError(f"observe: the loss of a sample of {name!r} is {value!r}")
            if called is not None:
                yield called, float(number)

    def _called(self, source: str) -> str | None:
        """What the blend calls what a sample is of; None for one that is not of this blend."""
        inner = source.removeprefix(f"{self._blend}/") if self._blend else source
        if inner in self._sums:
            return inner
        above = [name for name in self._names if inner.startswith(f"{name}/")]
        if above:
            return max(above, key=len)
        found: str | None = self._by_source.get(source)
        if found is None and not self._blend:
            raise WeightError(
                f"observe: {source!r} is none of what the blend is over"
                f"{nearest(source, self._names)} It is over {', '.join(self._names)}"
            )
        return found

    def _summed(self) -> tuple[dict[str, float], dict[str, int]]:
        """Sums and counts over all ranks: exact, and added up in the order of ranks."""
        agreement = self._loader.talking()
        if agreement is None:
            return dict(self._sums), dict(self._counts)
        mine = [_as_bits(self._sums[name]) for name in self._names]
        told = agreement.numbers([*mine, *self._counts.values()], _WHAT)
        many = len(self._names)
        sums = {n: sum(_as_float(each[i]) for each in told) for i, n in enumerate(self._names)}
        counts = {n: sum(each[many + i] for each in told) for i, n in enumerate(self._names)}
        return sums, counts


def _as_bits(number: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def _as_float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
