"""What an HTML report consists of, as a browser would see it: to be compared with that of a harmless one."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from fuzzing.target import check

_TAGS = """
html head meta link title style body main header h1 h2 p dl dt dd div section ul li button table thead tbody tr th td
span b details summary noscript figure figcaption pre code script br a svg line text path circle
"""
_ATTRIBUTES = """
lang charset http-equiv content name rel href class data-marker data-dash aria-hidden aria-labelledby id tabindex role
aria-describedby hidden type aria-live aria-label scope title data-key data-place colspan viewbox x y x1 x2 y1 y2
cx cy r d text-anchor
"""
TAGS = frozenset(_TAGS.split())
ATTRIBUTES = frozenset(_ATTRIBUTES.split())


class Page(HTMLParser):
    """The elements of a page, their attributes, and the content of its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.scripts: list[str] = []
        self.strange: list[str] = []
        self._inside = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(attributes)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data

    def handle_comment(self, data: str) -> None:
        self.strange.append(data)

    def unknown_decl(self, data: str) -> None:
        self.strange.append(data)

    def handle_pi(self, data: str) -> None:
        self.strange.append(data)


def check_page(html: str) -> Page:
    """The laws of every report: only our elements and attributes, two scripts, nothing that leads or runs elsewhere."""
    page = Page(html)
    check(not page.strange, f"comments or declarations: {page.strange[:2]}")
    check(len(page.scripts) == 2, f"{len(page.scripts)} scripts")
    check("Content-Security-Policy" in html.split("<title>")[0], "no policy before the first foreign text")
    for tag, attributes in page.elements:
        check(tag in TAGS, f"an element {tag!r}")
        names = [name for name, _ in attributes]
        check(set(names) <= ATTRIBUTES and len(set(names)) == len(names), f"attributes {names} of {tag}")
        for name, value in attributes:
            below = tag == "a" and re.fullmatch(r"\./[\w%./-]+", value or "") and ".." not in (value or "")
            check(name != "href" or value == "data:," or bool(below), f"a link to {value!r}")
    return page
