"""The documentation: links lead somewhere, README leads to every page, and no page is crowded."""

import re
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
#: `docs/planner/auto.md, "Relief"`, as docstrings and comments name a page and perhaps a section of it.
MENTION = re.compile(r'(docs/[\w/]+\.md)(?:, "([^"]+)")?')

#: A path from the root, as pages name files and folders: `tests/oracle.py`, `tests/unit/kernels/`.
OF_THE_REPOSITORY = re.compile(
    r"(bench|docker|docs|migrations|scripts|sql|tensile_db|tests)/(?!\.)[a-z0-9_/.*]*"
)


def tokens(page):
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


def links(page):
    """Return the relative links of a page as (page, anchor or empty), by files that they lead to."""
    children = [child for token in tokens(page) for child in token.children or ()]
    hrefs = [str(child.attrs["href"]) for child in children if child.type == "link_open"]
    parts = [href.partition("#") for href in hrefs if "://" not in href]
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in parts]


def headings(page):
    return [text.content for token, text in pairwise(tokens(page)) if token.type == "heading_open"]


def anchors(page):
    """Return the anchors that GitHub gives a page's headings."""
    kept = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(page)]
    assert len(set(kept)) == len(kept), f"two headings of {page} have the same anchor"
    return kept


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_to_what_is_there(page):
    for target, anchor in links(page):
        assert target.exists(), f"{page.name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {target.name}#{anchor}"


def test_readme_leads_to_every_page():
    reached, new = set(), {README}
    while new:
        reached |= new
        new = {target for page in new for target, _ in links(page) if target.suffix == ".md"} - reached
    assert set(PAGES) - reached == set()


def test_no_page_that_is_written_by_hand_is_longer_than_a_file_of_code_may_be():
    lengths = {name: len(page.read_text().splitlines()) for name, page in zip(NAMES, PAGES, strict=True)}
    assert {name: length for name, length in lengths.items() if length > 400 and name != GENERATED} == {}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_and_folders_that_pages_name_are_there(page):
    spans = {
        child.content
        for token in tokens(page)
        for child in token.children or ()
        if child.type == "code_inline"
    }
    named = {span for span in spans if OF_THE_REPOSITORY.fullmatch(span)}
    assert {path for path in named if not any(ROOT.glob(path.rstrip("/")))} == set()


def test_pages_and_sections_that_code_names_are_there():
    files = [file for folder in ("tensile_db", "tests", "bench") for file in (ROOT / folder).rglob("*.py")]
    texts = [" ".join(re.sub(r"(?m)^\s*#:? ?", "", file.read_text()).split()) for file in files]
    mentions = {mention for text in texts for mention in MENTION.findall(text)}
    assert len(mentions) > 20
    for name, section in mentions:
        # PyTorch's own documentation is named as a source, by its path in PyTorch's repository.
        if not name.startswith("docs/source/"):
            assert (ROOT / name).exists(), name
            assert not section or section in headings(ROOT / name), f'{name}, "{section}"'


def test_every_function_that_users_call_is_in_the_reference():
    sources = [file.read_text() for file in (ROOT / "sql/functions").glob("*.sql")]
    functions = {name for text in sources for name in re.findall(r"FUNCTION tensile\.(tensile_\w+)\(", text)}
    reference = (ROOT / "docs/sql.md").read_text()
    assert "tensile_train" in functions
    assert {name for name in functions if f"`{name}`" not in reference} == set()
