"""What nodes say of themselves is text: HTML and scripts in their names and errors do nothing in a page."""

import pytest

from browser import Page, without_scripts
from federations import InMemory, network_lines, run_in_memory, small_deployment
from fedoptax.deploy.server import RawReply
from fedoptax.errors import RunError
from fedoptax.report.page import render
from fedoptax.report.report import load_report
from run_folders import HOSTILE

TEXT = f'{HOSTILE}<b onclick="x()">&lt;a&gt;\x1b[31m\n<!--'


class Named(InMemory):
    """Nodes that all have this name and, from the second round on, answer with this error."""

    text = "name"

    def change(self, partition: int, reply: RawReply) -> RawReply:
        return reply if len(self.orders) <= 2 else RawReply(b"", {}, self.text)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Reports of runs that ended without a quorum, with a harmless text and a hostile one in names and errors."""
    made = []
    for text in ("name", TEXT):
        folder = tmp_path_factory.mktemp("named")
        given = small_deployment(folder / "run")
        network = Named(given, folder / "nodes")
        network.text, network.names = text, dict.fromkeys(network.names, text)
        with pytest.raises(RunError, match="no quorum"):
            run_in_memory(given, network)
        assert len(network_lines(folder / "run")) == 1
        made.append(folder / "report.html")
        made[-1].write_text(render(load_report(folder / "run"), {}, folder), encoding="utf-8")
    return made


def test_markup_in_names_and_errors_of_nodes_is_text(pages):
    harmless, hostile = (Page(without_scripts(page.read_text(encoding="utf-8"))) for page in pages)
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in harmless.elements]
    said = "".join(hostile.texts)
    assert HOSTILE in said and "&lt;a&gt;" in said and "\x1b" not in said
