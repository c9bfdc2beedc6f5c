"""Folders of models: which file is read, and what stands beside it.

A config goes before weights, and GGUF files, which say what positions do, before safetensors, which do not. A model in
several GGUF files is read by the first; files that are no model of their own (a projector of images, an adapter, an
importance matrix) are named, and so are other quantisations of the same model. Models that differ are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whorl.dialects.documents import check_inside, kind_of, names_in
from whorl.dialects.gguf_file import read_gguf
from whorl.errors import WhorlError, shown

CONFIG_FILES = ("config.json", "params.json", "model_index.json", "adapter_config.json")
MOST_FILES = 256
SHARD = re.compile(r"(?P<model>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
# What general.type calls files that are no model of their own; older projectors have the architecture clip.
APART = {"mmproj": "a projector of images or sound", "adapter": "an adapter", "imatrix": "an importance matrix"}


@dataclass(frozen=True, kw_only=True)
class Found:
    """The file of a folder that is read, and sentences on what stands beside it."""

    path: Path
    notes: tuple[str, ...] = ()


def find_document(path: Path) -> Found:
    """The file to read: ``path`` itself, or that of the folder it names."""
    kind = kind_of(path)
    if kind == "folder":
        return find_in_folder(path)
    if kind is None:
        raise WhorlError(
            f"read: there is no {shown(str(path))}. Pass a config.json, a folder with one, or '-' for a pipe."
        )
    if kind == "other":
        raise WhorlError(f"read: {shown(str(path))} is neither a file nor a folder. Pass a config.json.")
    return Found(path=path)


def find_in_folder(folder: Path) -> Found:
    """The file that says what the model of a folder does with positions."""
    for name in CONFIG_FILES:
        found = folder / name
        if kind_of(found) == "file":
            check_inside(folder, found)
            return Found(path=found)
    names = names_in(folder)
    for ending in (".gguf", ".safetensors"):
        weights = [folder / name for name in names if name.endswith(ending) and kind_of(folder / name) == "file"]
        if len(weights) > MOST_FILES:
            raise WhorlError(f"read: {shown(str(folder))} holds {len(weights)} {ending} files. Pass one of them.")
        for one in weights:
            check_inside(folder, one)
        if weights:
            return _of_gguf(folder, weights) if ending == ".gguf" and len(weights) > 1 else Found(path=weights[0])
    raise WhorlError(
        f"read: the folder {shown(str(folder))} has none of: {', '.join(CONFIG_FILES)}, *.gguf, *.safetensors. "
        "Pass the file itself."
    )


def _of_gguf(folder: Path, files: list[Path]) -> Found:
    """The model of several GGUF files."""
    first, notes = _first_files(files)
    fields = {path: read_gguf(path).metadata for path in first}
    apart = {path: kind for path in first if (kind := _apart(fields[path]))}
    models = [path for path in first if path not in apart]
    if not models:
        kinds = ", ".join(f"{path.name} ({kind})" for path, kind in apart.items())
        raise WhorlError(f"read: no file in {shown(str(folder))} is a model: {kinds}. Pass the file itself.")
    if any(_positional(fields[path]) != _positional(fields[models[0]]) for path in models[1:]):
        names = ", ".join(path.name for path in models)
        raise WhorlError(f"read: {shown(str(folder))} holds several models that differ: {names}. Pass one of them.")
    notes += [f"Beside it: {path.name}, {kind}, which was not read." for path, kind in apart.items()]
    if len(models) > 1:
        names = ", ".join(path.name for path in models[1:])
        notes.append(f"This is {models[0].name}. Other files state the same of their positions: {names}.")
    return Found(path=models[0], notes=tuple(notes))


def _first_files(files: list[Path]) -> tuple[list[Path], list[str]]:
    """The files without those that go on where another ends, and a note on each model that is in several."""
    shards: dict[tuple[str, str], dict[int, Path]] = {}
    alone, notes = [], []
    for path in files:
        part = SHARD.fullmatch(path.name)
        if part is None:
            alone.append(path)
        else:
            shards.setdefault((part["model"], part["count"]), {})[int(part["index"])] = path
    for (model, count), parts in shards.items():
        if 1 not in parts:
            raise WhorlError(
                f"read: {model}-00001-of-{count}.gguf is missing, the first of {int(count)} files, in which the "
                "metadata stand. Fetch it."
            )
        missing = int(count) - len(parts)
        notes.append(
            f"{parts[1].name} is the first of {int(count)} files of one model"
            + (f", of which {missing} are missing here." if missing else ".")
        )
        alone.append(parts[1])
    return sorted(alone), notes


def _apart(metadata: dict[str, Any]) -> str | None:
    """What a file is that is no model of its own; None for a model."""
    kind = metadata.get("general.type")
    if metadata.get("general.architecture") == "clip":
        kind = "mmproj"
    return APART.get(kind) if isinstance(kind, str) else None


def _positional(metadata: dict[str, Any]) -> dict[str, Any]:
    """The fields of a model that a quantisation leaves as they are."""
    architecture = metadata.get("general.architecture")
    own = f"{architecture}."
    return {key: value for key, value in metadata.items() if key == "general.architecture" or key.startswith(own)}
