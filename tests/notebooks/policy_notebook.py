"""The cells of notebooks/write_a_policy.ipynb; as a program (NOTEBOOK FOLDER) it writes the policy that the notebook
writes into FOLDER, for the build."""

import json
import sys
from pathlib import Path


def code_cells(notebook):
    """(source without Jupyter's % lines, tags, outputs, execution count) of each."""
    found = []
    for cell in json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            text = "".join(line for line in cell["source"] if not line.startswith("%"))
            found.append((text, cell["metadata"].get("tags", []), cell["outputs"], cell["execution_count"]))
    return found


def policy(notebook):
    """Its name and text: what the one cell that defines them says."""
    names = {}
    for text, _, _, _ in code_cells(notebook):
        if text.startswith("POLICY_NAME"):
            exec(compile(text, str(notebook), "exec"), names)
    return names["POLICY_NAME"], names["POLICY"]


if __name__ == "__main__":
    name, text = policy(sys.argv[1])
    Path(sys.argv[2], f"{name}.cpp").write_text(text, encoding="utf-8")
