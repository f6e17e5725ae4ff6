"""A node's memory between messages: a text in its Flower context."""

from __future__ import annotations

from flwr.app import ConfigRecord, Context


class NodeContext(Context):
    """A context of the in-process engine.

    It keeps the client's text as it is: records cost as much as a client.
    """

    text: str | None = None


def read_state(context: Context) -> str | None:
    """Returns the JSON text that a client left in its context.

    None if it left none.
    """
    if isinstance(context, NodeContext) and context.text is not None:
        return context.text
    record = context.state.get("fedsyn")
    return str(record["state"]) if record is not None and "state" in record else None


def write_state(context: Context, text: str) -> None:
    if isinstance(context, NodeContext):
        context.text = text
        return
    context.state["fedsyn"] = ConfigRecord({"state": text})
