"""Models in GGUF files: the fields of a file beside what its architecture fixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whorl.dialects.gguf_architectures import Architecture
from whorl.dialects.gguf_file import GgufFile
from whorl.dialects.reading import FILE, Source, Value
from whorl.dialects.stated import Stated
from whorl.errors import WhorlError


@dataclass(frozen=True, kw_only=True)
class GgufModel:
    """A file, its fields, its architecture, and who settles what the file leaves open."""

    file: GgufFile
    stated: Stated
    row: Architecture
    name: str
    code: Source

    def settled(self, value: Any) -> Value:
        """What the code of the architecture settles."""
        return Value(value=value, source=self.code)

    def layer_count(self) -> Value | None:
        """The layers of the model itself: those that predict further tokens stand after them."""
        count = self.stated.whole("block_count")
        further = self.stated.whole("nextn_predict_layers", least=0)
        if count is None or further is None or not 0 < further.value < count.value:
            return count
        return Value(value=count.value - further.value, source=FILE, field=count.field)

    def heads(self) -> Value:
        """The number of heads, that of the first layer with any where a file lists them."""
        listed, field = self.stated.listed("attention.head_count"), f"{self.name}.attention.head_count"
        if listed is None:
            return self.stated.needed("attention.head_count")
        return Stated({field: next((one for one in listed if one), None)}).needed(field)

    def original_length(self) -> Value:
        """The length before any extension, that of the file where it names no other."""
        found = self.stated.whole("rope.scaling.original_context_length", "context_length")
        if found is None:
            raise WhorlError(f"read: {self.name}.context_length is missing. Download the file again.")
        return found
