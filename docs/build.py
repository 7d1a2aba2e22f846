"""Generate files from the pages, and build the site.

`python docs/build.py` writes `docs/llms.txt`, `docs/skill.md` and the table of packages
in `ARCHITECTURE.md`; a test fails if they are out of date. With `--site`, used by
`make docs`, all pages are collected in build/docs, with the pages beside docs/ and the
reference, and Zensical builds the site. A broken link or anchor is an error.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # scripts of this folder

import message_list

ROOT = Path(__file__).parents[1]
DOCS, LAID_OUT, SITE = ROOT / "docs", ROOT / "build" / "docs", ROOT / "site"
SETTINGS = tomllib.loads((ROOT / "zensical.toml").read_text())
UNLISTED = ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "skill.md"]
"""Pages of the site outside the navigation; other pages link to them."""


def flat(entries: list[Any]) -> list[str]:
    """Return the written pages of a group of the navigation and of its sections."""
    pages = []
    for entry in entries:
        if isinstance(entry, dict):
            pages += [page for section in entry.values() for page in flat(section)]
        elif not entry.startswith("reference/"):
            pages.append(entry)
    return pages


NAV = {
    title: flat(entries)
    for group in SETTINGS["project"]["nav"]
    for title, entries in group.items()
}
"""Written pages of each group of the navigation."""

GROUPS = {
    "loading": "metadataset loader report core.failures core.lanes core.restoring",
    "sources": "data",
    "datasets": "datasets core.dataset",
    "samples": "core.samples core.turns",
    "encoders": "task packing",
    "mixing": "mixing order core.costs core.loss_weights core.means core.padding",
    "preparing": "preparation inference",
    "errors": "errors",
    "energon": "energon",
}
"""Pages of the reference, with the modules that define their names of `energize`."""

MODULES = {
    "sources": "sources",
    "datasets": "nodes experimental",
    "samples": "samples stores",
    "encoders": "encoders packing",
    "mixing": "order mixing",
    "preparing": "preparation",
    "errors": "errors",
    "energon": "energon",
}
"""Pages of the reference, with the public modules whose other names they list."""


TABLE = "| package | job |\n|---|---|\n"
JOBS = {
    "core": "nodes, trees of nodes, the walk, readers, streams, users' functions",
    "order": "which source and sample has a slot: schemes, schedules, permutations",
    "data": "bytes to raw samples: files, tar, MDS, JSON, Parquet, media, columns",
    "packing": "samples to packs",
    "datasets": "the nodes of a mix",
    "task": "raw samples to typed samples and batches",
    "preparation": "`.nv-meta` folders",
    "inference": "loose data",
    "report": "what was requested, delivered and planned",
    "mixing": "policies that change weights",
    "loader": "ranks, workers, states, weights that change",
    "metadataset": "YAML to datasets",
    "recipes": "mixture files of other projects to metadatasets",
    "extras": "transforms, caches, plots, monitors",
    "integrations": "adapters for training frameworks",
    "energon": "names of Megatron-Energon",
    "compat": "names of other libraries",
    "cli": "commands",
}
"""The jobs of packages, without modules of the root that only export names."""


def pages() -> list[str]:
    """Return the hand-written pages of docs/, in the order of the site."""
    named = [name for names in NAV.values() for name in names if (DOCS / name).exists()]
    return [name for name in named if name != "skill.md"]


def reference() -> dict[str, str]:
    """Return the pages of the reference, with a directive for each public name."""
    names: dict[str, list[str]] = {title: [] for title in GROUPS}
    listed = set[str]()
    for node in ast.parse((ROOT / "energize" / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            titles = [
                part
                for part in GROUPS
                if set(_above(node.module)) & set(GROUPS[part].split())
            ]
            listed.update(alias.name for alias in node.names)
            names[titles[0]] += [f"energize.{alias.name}" for alias in node.names]
    for title, modules in MODULES.items():
        for module in modules.split():
            public = [name for name in _public(module) if name not in listed]
            names[title] += [f"energize.{module}.{name}" for name in public]
            if module != "energon":
                listed.update(public)
    return {
        title: f"# {title.capitalize()}\n\n"
        + "\n\n".join(f"::: {name}" for name in sorted(public, key=str.lower))
        for title, public in names.items()
    }


def _above(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


def _public(module: str) -> list[str]:
    """Return the names in `__all__` of a public module."""
    path = ROOT / "energize" / f"{module}.py"
    if not path.exists():
        path = ROOT / "energize" / module / "__init__.py"
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def layers() -> list[list[str]]:
    """Return the packages of each layer, the lowest first, by the contract."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [contract] = [
        contract
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    ]
    return [layer.split(" | ") for layer in reversed(contract["layers"])]


def architecture() -> str:
    """Return ARCHITECTURE.md with the table of packages in the order of the layers."""
    head, _, rest = (ROOT / "ARCHITECTURE.md").read_text().partition(TABLE)
    _, _, tail = rest.partition("\n\n")
    rows = []
    for layer in layers():
        described = [name for name in layer if name in JOBS]
        rows += [f"| `{name}` | {JOBS[name]} |" for name in described]
    return head + TABLE + "\n".join(rows) + "\n\n" + tail


def generated() -> dict[Path, str]:
    """Return the texts of the generated files, by path."""
    lines = ["# energize", f"\n> {_lead('index.md')}"]
    for title, names in NAV.items():
        written = [name for name in names if name in pages()]
        lines += [f"\n## {title}\n"] if written else []
        lines += [f"- [{_title(name)}]({name}): {_lead(name)}" for name in written]
    skill = [
        "---\nname: energize\ndescription: Write, review and debug PyTorch data "
        "loading with energize, from loose files or shards, mixes by weight and task "
        "encoders to loaders that resume.\n---",
        "# Using energize",
        "Generated from the other pages; the tests run their examples.",
        "## Quick start\n\n" + _block("index.md", "get_loader"),
        _section("model.md", "Rules"),
        "## A mix\n\n" + _block("tutorial.md", "MetadatasetV2"),
        "## A training loop that resumes\n\n" + _block("tutorial.md", "class Encoder"),
        _block("tutorial.md", "load_state_dict"),
        _section("debugging.md", "Look before you train"),
        _section("messages.md", "Questions"),
        "## All pages\n\n[llms.txt](llms.txt) lists all pages with a sentence each.",
    ]
    return {
        ROOT / "ARCHITECTURE.md": architecture(),
        DOCS / "llms.txt": "\n".join(lines) + "\n",
        DOCS / "skill.md": "\n\n".join(skill) + "\n",
    }


def _read(name: str) -> str:
    return (DOCS / name).read_text()


def _title(name: str) -> str:
    return _read(name).partition("\n")[0].removeprefix("# ")


def _lead(name: str) -> str:
    """Return the first sentence of prose on a page, without markup."""
    prose = re.search(r"^(?!```)(?=[A-Za-z*`])(?:.+\n)+", _read(name), re.M)
    text = re.sub(
        r"\[([^]]*)\]\([^)]*\)|\*\*", r"\1", " ".join(prose[0].split()) if prose else ""
    )
    return re.split(r"(?<=[.:])\s", text)[0].rstrip(":") if text else ""


def _section(name: str, title: str) -> str:
    [text] = re.findall(rf"^## {title}\n.*?(?=^## |\Z)", _read(name), re.M | re.S)
    return str(text).strip()


def _block(name: str, word: str) -> str:
    blocks = re.findall(r"```.*?\n```", _read(name), re.S)
    return next(block for block in blocks if word in block)


def fenced(text: str) -> str:
    """Put examples of `>>>` that have no fence into fences, at their indentation."""
    lines: list[str] = []
    in_fence = False
    opened: str | None = None  # the indentation of the fence that was opened here
    for line in [*text.split("\n"), ""]:
        bare = line.lstrip()
        in_fence ^= bare.startswith("```")
        indent = line[: len(line) - len(bare)]
        if opened is not None and (not bare or len(indent) < len(opened)):
            lines.append(f"{opened}```")
            opened = None
        elif opened is None and not in_fence and bare.startswith(">>> "):
            lines.append(f"{indent}```python")
            opened = indent
        lines.append(line)
    return "\n".join(lines[:-1])


def lay_out() -> None:
    """Write all pages to build/docs, with links adapted to their paths there."""
    shutil.rmtree(LAID_OUT, ignore_errors=True)
    shutil.copytree(
        DOCS, LAID_OUT, ignore=shutil.ignore_patterns("*.py", "*.md", "__pycache__")
    )
    written = [name for names in NAV.values() for name in names] + UNLISTED
    placed = {
        (DOCS / n if (DOCS / n).exists() else ROOT / n): LAID_OUT / n for n in written
    }

    def relink(link: re.Match[str], source: Path, page: Path) -> str:
        target = (source.parent / link[2]).resolve()
        to = placed.get(target, LAID_OUT / target.relative_to(ROOT))
        if DOCS in target.parents:
            to = LAID_OUT / target.relative_to(DOCS)
        elif target == ROOT / "README.md":
            return "](index.md)"
        elif target not in placed:  # a program or a mix: a page shows its text
            to = to.with_name(f"{to.name}.md")
            to.parent.mkdir(parents=True, exist_ok=True)
            text = target.read_text()
            to.write_text(
                f"# {target.relative_to(ROOT)}\n\n```{target.suffix[1:]}\n{text}```\n"
            )
        up = "../" * (len(page.relative_to(LAID_OUT).parts) - 1)
        return f"]({up}{to.relative_to(LAID_OUT)}{link[3] or ''})"

    for source, page in placed.items():
        text = re.sub(
            r"(\]\()([^)#\s:]+)(#[^)\s]*)?\)",
            lambda link, source=source, page=page: relink(link, source, page),  # type: ignore[misc]
            fenced(source.read_text()),
        )
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
    (LAID_OUT / "reference").mkdir()
    for title, text in reference().items():
        (LAID_OUT / "reference" / f"{title}.md").write_text(text)
    (LAID_OUT / "reference" / "all-messages.md").write_text(message_list.page())


def main() -> None:
    """Write the generated files and, with --site, the site."""
    for path, text in generated().items():
        path.write_text(text)
    if "--site" not in sys.argv:
        return
    lay_out()
    program = Path(sys.executable).with_name("zensical")
    subprocess.run([program, "build", "--strict", "--clean"], cwd=ROOT, check=True)  # noqa: S603
    for page in LAID_OUT.rglob("*.md"):  # llms.txt names them
        shutil.copyfile(page, SITE / page.relative_to(LAID_OUT))


if __name__ == "__main__":
    main()
