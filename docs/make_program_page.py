"""Writes docs/programs.md: what each program does with the rotary fields of a config, from the tables in the code.

python docs/make_program_page.py
"""

from __future__ import annotations

from pathlib import Path

from whorl.bridge.programs import markdown, versions_markdown

PAGE = Path(__file__).parent / "programs.md"


def page() -> str:
    """The text of the page."""
    return f"""# Programs

What each program does with the rotary fields of a `config.json`, with the version it was read in and the file where.
`whorl diff --as` reads a config by these rows. They are about the code that all families share: where a family has
code of its own in a program, that was read for DeepSeek-V2, V3 and V3.2 alone, and others with latent attention are
refused. Nothing here was run beside transformers 5: the sources were read.

{versions_markdown()}

`whorl export` writes for these and for four more, which read no `config.json`: Megatron-LM d98e8a6 (NVIDIA/Megatron-LM,
`megatron/training/arguments.py`), the code of Llama at a9c89c4 (meta-llama/llama-models), Ollama fb30760
(ollama/ollama, `docs/modelfile.mdx` and `api/types.go`), and ONNX 1.18, opset 23.

{markdown()}

`whorl.bridge.facts()` gives the rows. The page is made by `make docs`.
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}")
