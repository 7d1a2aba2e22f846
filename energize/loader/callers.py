"""Who iterates a loader: what training frameworks do that an iterator is not told."""

from __future__ import annotations

import sys
import weakref
from typing import Any, NamedTuple

from energize.errors import LoaderError


class Caller(NamedTuple):
    """What the loop around an iterator does with it.

    `begins_anew`: it wants the first items each time, as evaluation does. `fetcher`: what takes
    items for the loop; without a length it takes each before the loop is done with the one before.
    `resumed`: it goes on with a run that it has a checkpoint of. `skips`: what was trained on then
    it reads again, and leaves out.
    """

    begins_anew: bool = False
    fetcher: Any = None
    resumed: bool = False
    skips: bool = False

    def check(self, *, loaded: bool, begun: bool) -> None:
        """Raise `LoaderError` where a run that goes on would get other items, from a loader that a
        state was loaded into, or that has begun to read.
        """
        if self.resumed and (loaded if self.skips else not (loaded or begun)):
            raise _composer()

    @property
    def takes_ahead(self) -> bool:
        """Whether the last item that was taken has not come to the loop yet."""
        fetcher = None if self.fetcher is None else self.fetcher()
        return fetcher is not None and fetcher.length is None


def _composer() -> LoaderError:
    return LoaderError(
        "Composer goes on with a run, and leaves out what was trained on by reading it again, or "
        "not at all: other batches would come. Keep the loader's state in the checkpoint, by a "
        "Callback whose state_dict() returns loader.state_dict() and whose load_state_dict(state) "
        "loads it, and give Trainer(spin_dataloaders=False)"
    )


def caller() -> Caller:
    """Return who is calling `iter(loader)`: the innermost loop of a framework that is known."""
    frame, fetcher = sys._getframe(1).f_back, None
    while frame is not None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        owner: Any = frame.f_locals.get("self")
        kind = type(owner).__name__
        if module.startswith(("lightning.", "pytorch_lightning.")):
            if kind == "_PrefetchDataFetcher":
                fetcher = weakref.ref(owner)
            elif kind in ("_EvaluationLoop", "_PredictionLoop"):
                return Caller(begins_anew=True, fetcher=fetcher)
            elif kind == "_FitLoop":
                return Caller(owner.trainer.overfit_batches > 0, fetcher)
        elif module == "composer.trainer.trainer" and function in _TRAINING:
            time, spins = owner.state.timestamp, owner.spin_dataloaders
            inside = int(time.batch_in_epoch) > 0
            if int(time.batch) and function != "_train_loop":
                raise _composer()
            return Caller(resumed=int(time.batch) > 0, skips=spins and inside)
        elif (module, function) in _EVALUATIONS:
            return Caller(begins_anew=True)
        frame = frame.f_back
    return Caller(fetcher=fetcher)


_EVALUATIONS = {
    ("transformers.trainer", "evaluation_loop"),
    ("composer.trainer.trainer", "_eval_loop"),
}
"""Functions that evaluate over a loader that they are given."""

_TRAINING = ("_train_loop", "_spin_dataloaders_to_cur_epoch")
