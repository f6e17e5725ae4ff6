"""Between Flower's message API and a `NumPyClient`; what a node remembers."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client import Client, NumPyClient
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays

from fedsyn.wire.refusals import refusal_of


def bridge(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Client mod that presents a message to `NumPyClient.fit`.

    The result leaves as a reply.

    Flower's message API has the records `arrays` and `config`; the client API behind `NumPyClient` names the
    same two records `fitins.*` on the way in and `fitres.*` on the way out.
    """
    try:
        records = message.content
        message.content = RecordDict({"fitins.parameters": records["arrays"], "fitins.config": records["config"]})
        reply = call_next(message, context)
        result = reply.content
        reply.content = RecordDict({"arrays": result["fitres.parameters"], "config": result["fitres.metrics"]})
    except Exception as error:  # Flower would send its text to the server
        content = {"arrays": ArrayRecord(), "config": ConfigRecord(dict(refusal_of(error).scalars))}
        return Message(RecordDict(content), reply_to=message)
    return reply


class FitClient(Client):
    """A `NumPyClient` as Flower's `Client`, for `fit` alone.

    `NumPyClient.to_client` does the same with a class that it makes anew on every call. A new abstract class empties
    Python's caches of type checks, which makes every message of an in-process federation about twice as costly.
    """

    def __init__(self, numpy_client: NumPyClient) -> None:
        self.numpy_client = numpy_client

    def fit(self, ins: FitIns) -> FitRes:
        received = parameters_to_ndarrays(ins.parameters)
        for array in received:  # on every engine: one process of clients shares what it received
            array.flags.writeable = False
        arrays, examples, metrics = self.numpy_client.fit(received, ins.config)
        return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), examples, metrics)


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
