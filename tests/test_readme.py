"""The Python of the README and of the pages of ``docs/`` runs as it stands."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


def run_blocks(page: Path) -> tuple[int, dict]:
    """Number of blocks, and what they define together."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)
    plt.close("all")
    return len(blocks), namespace


@pytest.mark.filterwarnings("ignore::pyrograph.errors.ConvergenceWarning")
def test_the_code_blocks_of_the_readme_run_in_order(capsys):
    count, namespace = run_blocks(ROOT / "README.md")
    assert count == 6
    assert namespace["posterior"].marginal("x").mean.shape == (100, 2)
    assert "100 nodes" in capsys.readouterr().out


def test_the_code_blocks_of_the_pages_run_in_order():
    counts = {page.stem: run_blocks(page)[0] for page in PAGES}
    assert counts["choosing_dpvi"] == 2


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_links_to_files_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    for link in links:
        assert link.startswith("http") or (page.parent / link).exists(), link
