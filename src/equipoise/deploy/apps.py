"""The two Flower apps. One ServerApp and one ClientApp serve every method: they pass messages on and know
nothing of what is in them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from equipoise.deploy import flower
from equipoise.deploy.coordinator import coordinate
from equipoise.deploy.site import SiteClient
from equipoise.engine.flower.wire import array, unwrap, wrap
from equipoise.exchange.codec import CodecError


@cache
def desk(folder: str) -> SiteClient:
    """The desk of a site's folder, one per process."""
    return SiteClient(Path(folder))


def respond(message: Message, desk: SiteClient) -> Message:
    """A site's reply to one message."""
    try:
        table, data = unwrap(message.content)
    except CodecError as error:
        desk.journal.write("refused", reason=str(error))
        return Message(wrap({"refused": str(error)}), reply_to=message)
    table, answer = desk.reply(message.metadata.message_type, table, data)
    return Message(wrap(table, None if answer is None else {"answer": array(answer)}), reply_to=message)


class SiteApp(ClientApp):
    """Answers every message type: a method may ask questions of any name, and the desk knows which there
    are."""

    def __call__(self, message: Message, context: Context) -> Message:
        return respond(message, desk(str(context.node_config["folder"])))


client, server = SiteApp(), ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation whose folder the run's config names."""
    coordinate(flower.Grid(grid), Path(str(context.run_config["folder"])))
