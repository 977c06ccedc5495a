"""Reads the cells of notebooks/write_a_policy.ipynb. As a program, with the arguments NOTEBOOK FOLDER, it writes the
policy of the notebook into FOLDER, for the build."""

import json
import sys
from pathlib import Path


def code_cells(notebook):
    """Returns (source without Jupyter's % lines, tags, outputs, execution count) of each code cell."""
    found = []
    for cell in json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            text = "".join(line for line in cell["source"] if not line.startswith("%"))
            found.append((text, cell["metadata"].get("tags", []), cell["outputs"], cell["execution_count"]))
    return found


def policy(notebook):
    """Returns the name and the source text of the policy, which one cell of the notebook defines."""
    names = {}
    for text, _, _, _ in code_cells(notebook):
        if text.startswith("POLICY_NAME"):
            exec(compile(text, str(notebook), "exec"), names)
    return names["POLICY_NAME"], names["POLICY"]


if __name__ == "__main__":
    name, text = policy(sys.argv[1])
    Path(sys.argv[2], f"{name}.cpp").write_text(text, encoding="utf-8")
