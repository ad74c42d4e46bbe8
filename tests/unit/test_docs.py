"""The documentation: links and names lead somewhere, README leads to every page, and no page is crowded."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted([README, *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
#: It is made from results (`tensile-db bench docs`), and has as many tables as there are.
GENERATED = "docs/results.md"
#: A page, and perhaps a section of it, as docstrings, comments and hints name them.
MENTION = re.compile(r'(docs/[\w/]+\.md)(?:, "([^"]+)")?')
#: A path from the root, as pages name files and folders: `tests/plans/oracle.py`, `tests/unit/kernels/`.
#: Names in capitals stand for others: `bench/results/gpu/SECTION.json`.
OF_THE_REPOSITORY = re.compile(
    r"(bench|docker|docs|migrations|scripts|sql|tensile_db|tests)/(?!\.)[a-z0-9_/.*]*"
)
#: A module, as pages name those of tensile_db: `choosing/gaps.py`.
OF_THE_PACKAGE = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)+\.py")
#: A file, as docstrings and comments name it.
NAMED_IN_CODE = re.compile(r"\b(?:docker|migrations|scripts|tests)/[\w/]+\.(?:py|yaml|sql)\b")


def tokens(page):
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


def inline(page):
    return [child for token in tokens(page) for child in token.children or ()]


def links(page):
    """Return the relative links of a page as (file, anchor or empty)."""
    hrefs = [str(child.attrs["href"]) for child in inline(page) if child.type == "link_open"]
    parts = [href.partition("#") for href in hrefs if "://" not in href]
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in parts]


def headings(page):
    return [text.content for token, text in pairwise(tokens(page)) if token.type == "heading_open"]


def anchors(page):
    """Return the anchors that GitHub gives a page's headings."""
    found, times = set(), Counter()
    for heading in headings(page):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{anchor}-{times[anchor]}" if times[anchor] else anchor)
        times[anchor] += 1
    return found


def code():
    """Return the text of every module but this one, a line each, comments without their signs."""
    folders = [ROOT / folder for folder in ("tensile_db", "tests", "bench")]
    files = [file for folder in folders for file in folder.rglob("*.py") if file != Path(__file__)]
    return [" ".join(re.sub(r"(?m)^\s*#:? ?", "", file.read_text()).split()) for file in files]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_to_what_is_there(page):
    for target, anchor in links(page):
        assert target.exists(), f"{page.name} links to {target}, which is not there"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} links to {target.name}#{anchor}"


@pytest.mark.slow
def test_readme_leads_to_every_page():
    reached, new = set(), {README}
    while new:
        reached |= new
        found = {target for page in new for target, _ in links(page)}
        new = {target for target in found if target.suffix == ".md" and target.exists()} - reached
    assert set(PAGES) - reached == set()


def test_no_page_that_is_written_by_hand_is_longer_than_a_file_of_code_may_be():
    lengths = {name: len(page.read_text().splitlines()) for name, page in zip(NAMES, PAGES, strict=True)}
    assert {name: length for name, length in lengths.items() if length > 400 and name != GENERATED} == {}


@pytest.mark.slow
def test_files_and_folders_that_pages_name_are_there():
    spans = {child.content for page in PAGES for child in inline(page) if child.type == "code_inline"}
    paths = {span for span in spans if OF_THE_REPOSITORY.fullmatch(span)}
    modules = {span for span in spans if OF_THE_PACKAGE.fullmatch(span)} - paths
    assert "tests/plans/oracle.py" in paths
    assert "choosing/gaps.py" in modules
    assert {path for path in paths if not any(ROOT.glob(path.rstrip("/")))} == set()
    assert {module for module in modules if not any((ROOT / "tensile_db").rglob(module))} == set()


def test_files_that_code_names_are_there():
    named = {name for text in code() for name in NAMED_IN_CODE.findall(text)}
    assert "tests/e2e/test_networks_bitwise.py" in named
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.slow
def test_pages_and_sections_that_code_names_are_there():
    mentions = {mention for text in code() for mention in MENTION.findall(text)}
    # PyTorch's own documentation is named as a source, by its path in PyTorch's repository.
    ours = {(page, section) for page, section in mentions if not page.startswith("docs/source/")}
    assert ("docs/planner.md", "Two peaks") in ours
    assert {page for page, _ in ours if not (ROOT / page).exists()} == set()
    assert {
        (page, section) for page, section in ours if section and section not in headings(ROOT / page)
    } == set()


def test_the_reference_has_every_function_that_users_call_and_pages_call_no_other():
    sources = [file.read_text() for file in (ROOT / "sql/functions").glob("*.sql")]
    functions = {name for text in sources for name in re.findall(r"FUNCTION tensile\.(tensile_\w+)\(", text)}
    reference = (ROOT / "docs/sql.md").read_text()
    called = {name for page in PAGES for name in re.findall(r"\b(tensile_\w+)\(", page.read_text())}
    assert {name for name in functions if f"`{name}`" not in reference} == set()
    assert called - functions == set()
