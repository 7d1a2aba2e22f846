"""Functions that a dataset.yaml names: given by the program, or run where it trusts the folder."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from energize.errors import ConfigError, DatasetError, UntrustedCodeError
from energize.storage.nv_meta import META_FOLDER

FolderPath = str | os.PathLike[str]
LoadFunction = Callable[[dict[str, Any]], Mapping[str, Any]]
PartFilter = Callable[[str], bool] | Collection[str]


@dataclass(frozen=True, slots=True)
class FolderFunction:
    """A function of a file of a data folder, which the program has trusted.

    The file is run when the function is first called in a process.
    """

    file: Path
    name: str

    def __call__(self, argument: Any) -> Any:
        return self.function(argument)

    @property
    def function(self) -> Callable[..., Any]:
        """The function; `DatasetError` when the file cannot be run or does not have it."""
        found = getattr(_module(self.file), self.name, None)
        if not callable(found):
            raise DatasetError(f"{self.file} has no function {self.name!r}")
        return found  # type: ignore[no-any-return]

    def describe(self) -> str:
        """File and function, wherever the folder is mounted."""
        return f"{self.file.name}:{self.name}"


@dataclass(frozen=True)
class LoadingCode:
    """What a program allows in place of field maps.

    `sample_loader` makes the values of a sample's fields, by name, of a dict of its decoded parts;
    `part_filter` says which parts it is given: names, or a function of a name. Both stand for what
    dataset.yaml says, for all folders, or, as dicts, for the folders that they name. `trust_code`
    names folders whose own files may be run, and with them all folders below; none is by default.

    Raises `ConfigError` for values that are neither.

    >>> LoadingCode(trust_code=["/data/cats"]).trusts(Path("/data/cats/2024"))
    True
    """

    sample_loader: LoadFunction | Mapping[FolderPath, LoadFunction] | None = None
    part_filter: PartFilter | Mapping[FolderPath, PartFilter] | None = None
    trust_code: Collection[FolderPath] = ()

    def __post_init__(self) -> None:
        if isinstance(self.trust_code, str | os.PathLike):
            raise ConfigError(
                f"trust_code is a list of folders, [{os.fspath(self.trust_code)!r}] for one"
            )
        loaders = self.sample_loader
        for each in loaders.values() if isinstance(loaders, Mapping) else [loaders]:
            if each is not None and not callable(each):
                raise ConfigError(f"sample_loader is a function of a dict of parts; got {each!r}")
        filters = self.part_filter
        for given in filters.values() if isinstance(filters, Mapping) else [filters]:
            if isinstance(given, str):
                raise ConfigError(f"part_filter is a list of parts, [{given!r}], or a function")

    def trusts(self, folder: Path) -> bool:
        """Whether code of this folder may be run."""
        own = folder.resolve()
        return any(own.is_relative_to(Path(each).resolve()) for each in self.trust_code)

    def of(
        self, folder: Path, code: Mapping[str, Any], *, crude: bool = False
    ) -> tuple[LoadFunction | None, PartFilter | None]:
        """The sample loader and the part filter of a folder whose dataset.yaml names `code`.

        Samples that are `crude` have no loader; one that the file names all the same is an error.

        Raises `UntrustedCodeError` when it names a file that the program says nothing of, and
        `DatasetError` for files that are not there or cannot be run.
        """
        if crude and "sample_loader" in code:
            raise DatasetError(
                f"{folder}: sample_loader in dataset.yaml makes the fields of a sample, and crude "
                "samples have none; remove it, or give a sample_type"
            )
        loader = None if crude else _given(self.sample_loader, folder)
        if loader is None:
            loader = self._named(folder, "sample_loader", code)
        parts = _given(self.part_filter, folder)
        return loader, self._named(folder, "part_filter", code) if parts is None else parts

    def _named(self, folder: Path, key: str, code: Mapping[str, Any]) -> Any:
        value = code.get(key)
        if not isinstance(value, str):
            return value
        if not self.trusts(folder):
            raise UntrustedCodeError(_refusal(folder, key, value))
        file, _, name = value.partition(":")
        path = (folder / META_FOLDER / file).resolve()
        if not self.trusts(path):
            raise UntrustedCodeError(
                f"{folder}: {key}: {value!r} leads out of the folder, to {path}, which trust_code "
                "does not name"
            )
        if not path.is_file():
            raise DatasetError(f"{folder}: {key}: there is no file {path}")
        made = FolderFunction(path, name or key)
        _ = made.function  # what is wrong with it is said now, not at the first sample
        return made


NO_CODE = LoadingCode()
"""Field maps only, and nothing of a folder is run."""


def loading_code(arguments: dict[str, Any]) -> LoadingCode:
    """What the `sample_loader`, `part_filter` and `trust_code` among these say, taken out of them.

    >>> arguments = {"part_filter": ["jpg"], "handler": None}
    >>> loading_code(arguments).part_filter, arguments
    (['jpg'], {'handler': None})
    """
    names = [each.name for each in fields(LoadingCode)]
    return LoadingCode(**{name: arguments.pop(name) for name in names if name in arguments})


def _given(value: Any, folder: Path) -> Any:
    """What the program gives for a folder."""
    if not isinstance(value, Mapping):
        return value
    own = folder.resolve()
    return next((each for key, each in value.items() if Path(key).resolve() == own), None)


def _refusal(folder: Path, key: str, value: str) -> str:
    return (
        f"{folder}: {key}: {value!r} in dataset.yaml names code of the data folder, which is run "
        f"only where the program says so. Import the function in your program and give it, "
        f"{key}=...; or, if you trust the folder, let its files be run: "
        f"trust_code=[{str(folder)!r}]. Or do without: say in field_map which part each field "
        "comes from, or build the samples in your task encoder (CrudeWebdataset)"
    )


@lru_cache(maxsize=64)
def _module(file: Path) -> ModuleType:
    """The module that a trusted file is; run once in a process."""
    name = f"energize_folder_code_{hashlib.blake2b(str(file).encode(), digest_size=8).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise DatasetError(f"{file} is no Python file: its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses in it look themselves up there
    try:
        spec.loader.exec_module(module)
    except Exception as reason:
        del sys.modules[name]
        raise DatasetError(f"{file} cannot be run: {type(reason).__name__}: {reason}") from reason
    return module
