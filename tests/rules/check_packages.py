"""Checks that tools/packages lists every package that a CMakeLists.txt requires.  check_packages.py SOURCE_DIR"""

import re
import subprocess
import sys
from pathlib import Path


def main():
    root = Path(sys.argv[1])
    cmake = [*root.glob("CMakeLists.txt"), *root.glob("*/CMakeLists.txt"), *root.glob("cmake/*.cmake")]
    asked = set().union(*(re.findall(r"kvtwin_require\(PACKAGE ([\w.+-]+)", file.read_text()) for file in cmake))
    listed = subprocess.run([root / "tools/packages", "list", "build", "test"], check=True, capture_output=True, text=True)
    absent = sorted(asked - set(listed.stdout.split()))
    print(f"{len(asked)} packages asked for" + (f"; not in tools/packages: {' '.join(absent)}" if absent else ""))
    sys.exit(1 if absent or not asked else 0)


if __name__ == "__main__":
    main()
