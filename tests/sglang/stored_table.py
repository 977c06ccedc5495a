"""Compares a stored table with the one that a program prints with the installed SGLang, or writes it."""

import subprocess
import sys


def compare(program, file, what, renew):
    """Prints the differences. Returns their number, or 0 after the file was written. `what`: "pools"."""
    run = subprocess.run([sys.executable, "-W", "ignore", program], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr)
    if renew:
        file.write_text(run.stdout)
        print(f"wrote {file}")
        return 0
    old, new = file.read_text().splitlines(), run.stdout.splitlines()
    different = [f"stored: {was}\nnow:    {now}" for was, now in zip(old, new, strict=False) if was != now]
    print("\n".join(different) or f"the stored {what} are this SGLang's")
    return len(different) + abs(len(old) - len(new))
