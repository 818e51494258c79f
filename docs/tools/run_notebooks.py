"""Run the notebooks of docs/notebooks; an error is an error: `python docs/tools/run_notebooks.py [--save] [NAME ...]`.

With --save, the outputs go into the files, without times and counters, so that a file changes only
if an output does.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", default=sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    )
    parser.add_argument("--save", action="store_true", help="keep the outputs")
    args = parser.parse_args()
    for name in args.names:
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(
                notebook, timeout=300, resources={"metadata": {"path": folder}}
            ).execute()
        print(f"{name}: runs", flush=True)
        if args.save:
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)
                if cell.cell_type == "code":
                    cell.execution_count = None
                    cell.outputs = [
                        output for output in cell.outputs if output.get("name") != "stderr"
                    ]
                    for output in cell.outputs:
                        if "execution_count" in output:
                            output.execution_count = None
            nbformat.write(notebook, FOLDER / f"{name}.ipynb")


if __name__ == "__main__":
    main()
