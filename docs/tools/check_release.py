"""Check dist/ from an environment that has only the wheel: `python docs/tools/check_release.py dist [TAG]`.

The wheel holds the library, with its completions, alone; the README's code and the demo run with
it.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import scdro

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def main(dist: str, tag: str = "") -> None:
    if Path(scdro.__file__).is_relative_to(ROOT / "src"):
        raise SystemExit("expected the installed wheel, got the sources")
    if tag and tag != f"v{scdro.__version__}":
        raise SystemExit(
            f"expected the tag v{scdro.__version__}, the version of the package, got {tag}"
        )
    (wheel,) = Path(dist).glob("*.whl")
    name = f"scdro-{scdro.__version__}"
    own = (
        "scdro/",
        f"{name}.dist-info/",
        f"{name}.data/data/share/",
    )  # the last: completions of the shells
    others = [file for file in zipfile.ZipFile(wheel).namelist() if not file.startswith(own)]
    if others:
        raise SystemExit(f"expected the library alone in the wheel, got {others[:5]}")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "readme.py")
        script.write_text("\n".join(CODE.findall((ROOT / "README.md").read_text())))
        runpy.run_path(str(script))
        print("README: its code runs")
        demo = ROOT / "examples" / "audit_and_fix.py"
        subprocess.run([sys.executable, str(demo)], cwd=folder, check=True)
        subprocess.run(
            [str(Path(sys.executable).with_name("scdro")), "doctor"], cwd=folder, check=True
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
