"""Writes the policy of notebooks/write_a_policy.ipynb into a folder, for the build.

    policy_notebook.py NOTEBOOK FOLDER
"""

import json
import sys
from pathlib import Path


def policy(notebook):
    """Returns the name and the source text of the policy, which one cell of the notebook defines."""
    names = {}
    for cell in json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if text.startswith("POLICY_NAME"):
            exec(compile(text, str(notebook), "exec"), names)
    return names["POLICY_NAME"], names["POLICY"]


if __name__ == "__main__":
    name, text = policy(sys.argv[1])
    Path(sys.argv[2], f"{name}.cpp").write_text(text, encoding="utf-8")
