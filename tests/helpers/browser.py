"""A page opened in headless Chromium, and its elements."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on the PATH")

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--enable-logging=stderr", "--v=0", "--virtual-time-budget=3000", "--window-size=1200,1600",
]  # fmt: skip


class Page(HTMLParser):
    """The elements of a page as (tag, attributes), and its texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def body(self) -> dict[str, str | None]:
        return next(attrs for tag, attrs in self.elements if tag == "body")


def open_page(path: Path, profile: Path) -> tuple[str, list[str]]:
    """The page's DOM after its scripts, and the lines of its console."""
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE:" in line]


def open_and_use(path: Path, profile: Path, script: str) -> tuple[Page, list[str]]:
    """As `open_page`, after a script of the test, for which the page's policy is taken away."""
    text, policies = re.subn(
        r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text(encoding="utf-8"), count=1
    )
    assert policies == 1
    used = path.with_name("used.html")
    used.write_text(text.replace("</body>\n</html>", f"<script>{script}</script></body></html>"), encoding="utf-8")
    dom, console = open_page(used, profile)
    return Page(without_scripts(dom)), console


def without_scripts(html: str) -> str:
    """The page without its scripts, which are long."""
    return re.sub(r"<script(?![^>]*application/json)[^>]*>.*?</script>", "", html, flags=re.DOTALL)
