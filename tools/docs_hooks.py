"""For mkdocs: files outside docs/ that pages link to, and a page of all stored runs, become part of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from synflow.experiments.results import collect
from synflow.experiments.results_page import page_of

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
    rows, problems = collect(ROOT / "docs" / "results" / "data")
    if problems:
        raise SystemExit("\n".join(problems))
    files.append(File.generated(config, "results/runs.html", content=page_of(rows)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that lead out of docs/ in the repository lead to these files on the site."""
    depth = page.file.src_uri.count("/")

    def inside(found: re.Match[str]) -> str:
        ups = found.group(1).count("../")
        return found.group(0) if ups != depth + 1 else f"]({'../' * depth}{found.group(2)}"

    return OUTSIDE.sub(inside, markdown)
