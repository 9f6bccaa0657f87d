"""For mkdocs: files outside docs/ that pages link to (examples, changes) become part of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
OUTSIDE = re.compile(
    r"\]\(((?:\.\./)+)((?:examples|benchmarks|tools)/[\w./-]+|CHANGELOG\.md|CONTRIBUTING\.md|README\.md)"
)


def on_files(files: Files, config: Any) -> Files:
    """Add what is linked; scripts are served as they are."""
    paths = [*ROOT.glob("examples/*.py"), *ROOT.glob("examples/*.ipynb"), *ROOT.glob("benchmarks/*.py")]
    paths += [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that lead out of docs/ in the repository lead to these files on the site."""
    depth = page.file.src_uri.count("/")

    def inside(found: re.Match[str]) -> str:
        ups = found.group(1).count("../")
        return found.group(0) if ups != depth + 1 else f"]({'../' * depth}{found.group(2)}"

    return OUTSIDE.sub(inside, markdown)
