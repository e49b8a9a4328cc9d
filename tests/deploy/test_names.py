"""What nodes say of themselves is text: HTML and scripts in their names and errors do nothing in a page."""

from pathlib import Path

from browser import Page, without_scripts
from federations import InMemory, network_lines, run_in_memory, small_deployment
from fedoptax.deploy.server import RawReply
from fedoptax.report.page import render
from fedoptax.report.report import load_report
from refusals import refused
from run_folders import HOSTILE

TEXT = f'{HOSTILE}<b onclick="x()">&lt;a&gt;\x1b[31m\n<!--'


class Named(InMemory):
    """Nodes that all have this name and, from the second round on, answer with this error."""

    text = "name"

    def change(self, partition: int, reply: RawReply) -> RawReply:
        return reply if len(self.orders) <= 2 else RawReply(b"", {}, self.text)


def report_page(folder: Path, text: str) -> Page:
    """The report on a run that ended without a quorum, with this text in names and errors."""
    given = small_deployment(folder / "run")
    network = Named(given, folder / "nodes")
    network.text, network.names = text, dict.fromkeys(network.names, text)
    refused(lambda: run_in_memory(given, network), "no quorum")
    assert len(network_lines(folder / "run")) == 1
    return Page(without_scripts(render(load_report(folder / "run"), {}, folder)))


def test_markup_in_names_and_errors_of_nodes_is_text(tmp_path):
    harmless, hostile = report_page(tmp_path / "harmless", "name"), report_page(tmp_path / "hostile", TEXT)
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in harmless.elements]
    said = "".join(hostile.texts)
    assert HOSTILE in said and "&lt;a&gt;" in said and "\x1b" not in said
