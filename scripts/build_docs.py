"""Builds the documentation as a site, and fails if anything is wrong with it.

``zensical build --strict`` fails for links and anchors that lead nowhere. It only prints errors of the API reference,
so this program looks for them, and for every public name.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import holdfast
from holdfast import testing

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site"


def build_site() -> str:
    """Build the site and return what was printed; exit if that failed."""
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nthe documentation is not sound")
    return done.stdout


def find_missing_names() -> list[str]:
    """Return the public names that the API reference does not show."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (SITE / "reference" / "api").rglob("*.html"))
    shown = set(re.findall(r'<h\d id="([\w.]+)"', pages))
    wanted = [f"{module.__name__}.{name}" for module in (holdfast, testing) for name in module.__all__]
    return [name for name in wanted if name not in shown]


def main() -> None:
    printed = build_site()
    if re.search(r"\b(ERROR|WARNING)\b", printed):
        sys.exit(f"{printed}\nthe API reference is not sound")
    if missing := find_missing_names():
        sys.exit(
            f"the API reference shows nothing of {', '.join(missing)}: add them to a page in docs/reference/api/"
        )
    print(f"{SITE.relative_to(ROOT)}/index.html")


if __name__ == "__main__":
    main()
