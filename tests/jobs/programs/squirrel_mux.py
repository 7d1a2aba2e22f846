"""Sources of drivers multiplexed by probabilities, mapped and batched: squirrel."""

from __future__ import annotations

from torch.utils.data import DataLoader

from energize.compat.squirrel import IterableSource, Multiplexer, MultiplexingStrategy

PEER = "squirrel"
SIZES = {"web": 301, "books": 97, "code": 55}


def prepare(folder):
    folder.mkdir()
    for name, size in SIZES.items():
        (folder / f"{name}.txt").write_text(
            "\n".join(f"{name} {k}" for k in range(size))
        )


class LinesDriver:
    """A driver as a catalog gives it."""

    def __init__(self, path):
        self.path = path

    def get_iter(self):
        return IterableSource(self.path.read_text().splitlines())


def parsed(line, max_length):
    name, number = line.split()
    return {"source": name, "number": int(number), "text": line[:max_length]}


class Training:
    def __init__(self, folder):
        drivers = [LinesDriver(folder / f"{name}.txt") for name in SIZES]
        self.mux = Multiplexer(
            [driver.get_iter() for driver in drivers],
            mux_strategy=MultiplexingStrategy.SAMPLING,
            sampling_probas=[0.5, 0.3, 0.2],
            max_reinits=6,
            seed=42,
        )
        self.stream = (
            self.mux.split_by_rank_pytorch()
            .split_by_worker_pytorch()
            .filter(lambda line: line)
            .map(parsed, max_length=12)
            .batched(3)
            .to_torch_iterable()
        )
        self.taken = 0

    def __iter__(self):
        self.taken = 0
        for batch in DataLoader(self.stream, batch_size=None, num_workers=2):
            self.taken += 1
            yield batch


def loader(folder):
    return Training(folder)


# squirrel has no states: who resumes reads the epoch from its front, and leaves out
# what was read.


def save(training):
    return {"batches": training.taken}


class Resumed:
    def __init__(self, training, batches):
        self.training, self.batches = training, batches

    def __iter__(self):
        for number, batch in enumerate(self.training):
            if number >= self.batches:
                yield batch
        self.batches = 0


def restore(training, state):
    return Resumed(training, state["batches"])


SAME_RANKS = True


def ids(batch):
    return [f"{each['source']} {each['number']}" for each in batch]


def check(ranks):
    names = [each.split()[0] for rank in ranks for batch in rank for each in batch]
    assert abs(names.count("web") / len(names) - 0.5) < 0.15
    assert not {each for batch in ranks[0] for each in batch} & {
        each for batch in ranks[1] for each in batch if each.startswith("web")
    }
