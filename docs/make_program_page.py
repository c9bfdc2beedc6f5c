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

What each program does with the rotary fields of a `config.json`, the version of the program, and the source file where
it was read. `whorl diff --as` reads a config by these rows. Only transformers 5 was also run; of the others the source
code was read. The rows are about code that all families of a program share, and about those families that a row names.
Other code that a program has for one family alone was read for DeepSeek-V2, V3 and V3.2 only; `whorl diff` refuses
other families with latent attention.

{versions_markdown()}

`whorl export` writes for these but mlx-lm, and for three more, which read no `config.json`: Megatron-LM d98e8a6
(NVIDIA/Megatron-LM, `megatron/training/arguments.py`), the code of Llama at a9c89c4 (meta-llama/llama-models), and ONNX
1.18, opset 23. What it says of Ollama was read at fb30760 (ollama/ollama, `docs/modelfile.mdx` and `api/types.go`).

{markdown()}

`whorl.bridge.facts()` gives the rows. The page is made by `make docs`.
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}")
