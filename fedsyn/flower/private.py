"""Flower's private names, all that fedsyn imports.

A minor of Flower may break this file.

What `superlink` and `guard` put in place of parts of the SuperLink, or read of its requests, is no import and not here.

Other imports are of Flower's public interface: `flwr.app`, `flwr.clientapp`, `flwr.serverapp`, `flwr.client` and
`flwr.common`. That interface has a SuperNode that runs the submitted app, a SuperLink that reads whatever a stranger
sends, and a Grid that sleeps three seconds between two looks; it has no name for the calls beneath. Each name of
`NAMES` stands beside its module, with what it is and why nothing public does. It is imported when it is first asked
for: `from fedsyn.flower.private import X` at once, `private.X` where the line runs.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

NAMES: dict[str, str] = {
    # A node's calls, signed with its key. Publicly only `flower-supernode` makes them, which runs the submitted app.
    "FleetHttpClient": "flwr.supernode.fleet_http_client",  # the Fleet API: a method for each call below
    "NodeAuthHttpInterceptor": "flwr.supernode.node_auth_http_interceptor",  # signs a call with the node's key
    "RuntimeVersionHttpInterceptor": "flwr.supercore.interceptors",  # says Flower's version, which the SuperLink checks
    "SYSTEM_TIME_TOLERANCE": "flwr.common.constant",  # seconds by which a signature may be early
    "TIMESTAMP_TOLERANCE": "flwr.common.constant",  # seconds by which it may be late, beside the above
    "Node": "flwr.proto.node_pb2",  # who calls
    "RegisterNodeFleetRequest": "flwr.proto.fleet_pb2",  # a node's first call, with its public key
    "ActivateNodeRequest": "flwr.proto.fleet_pb2",  # it is online, under this number
    "DeactivateNodeRequest": "flwr.proto.fleet_pb2",  # it says goodbye
    "SendNodeHeartbeatRequest": "flwr.proto.heartbeat_pb2",  # it is still online
    "PullMessagesRequest": "flwr.proto.fleet_pb2",  # asks for its messages
    "PushMessagesRequest": "flwr.proto.fleet_pb2",  # announces its replies
    "GetRunRequest": "flwr.proto.run_pb2",  # asks what was submitted with a run
    # A message is a tree of objects, sent one by one. Publicly a Message arrives whole, after Flower's own waits.
    "ObjectTree": "flwr.proto.message_pb2",  # names of the objects of an announced message
    "PullObjectRequest": "flwr.proto.message_pb2",  # asks for one of them
    "PushObjectRequest": "flwr.proto.message_pb2",  # sends one
    "ConfirmMessageReceivedRequest": "flwr.proto.message_pb2",  # all have come: the SuperLink may forget them
    "get_all_nested_objects": "flwr.supercore.inflatable.inflatable_object",  # a Message's objects by name
    "get_object_tree": "flwr.supercore.inflatable.inflatable_object",  # their ObjectTree
    "no_object_id_recompute": "flwr.supercore.inflatable.inflatable_object",  # hashes each object once
    "inflate_object_from_contents": "flwr.supercore.inflatable.inflatable_utils",  # a Message from its objects' bytes
    "remove_content_from_message": "flwr.app.message",  # the announcement of a Message, as Flower writes it
    "message_from_proto": "flwr.common.serde",  # announcement to Message
    "message_to_proto": "flwr.common.serde",  # Message to announcement
    "metadata_from_proto": "flwr.common.serde_utils",  # whose reply did not arrive whole
    "user_config_from_proto": "flwr.common.serde",  # a run's settings, as they were submitted
    # A ServerApp's calls. Publicly `Grid.send_and_receive` makes them, which takes any word of the SuperLink as final.
    "HttpGrid": "flwr.superlink.grid.http_grid",  # the Grid of a deployment, told apart from a simulation's
    "PullAppMessagesRequest": "flwr.proto.runtime_pb2",  # asks for replies, without waiting for their objects
    "PushLogsRequest": "flwr.proto.log_pb2",  # lines of a run's log; printed ones may be lost when a process ends
    "ErrorCode": "flwr.common.constant",  # why there is no reply: the node is gone, or the message expired
    # An operator's calls. Publicly the command `flwr` makes them, at two CPU seconds each, and prints a table.
    "ControlHttpClient": "flwr.supercore.control",  # the Control API at an address
    "init_http_client_from_connection": "flwr.cli.utils",  # the same by a connection of the user's configuration
    "read_flower_config": "flwr.cli.flower_config",  # the user's configuration, with the names of its connections
    "read_superlink_connection": "flwr.cli.flower_config",  # one of them
    "FlowerError": "flwr.supercore.error",  # a refusal's code and sentence
    "ApiErrorCode": "flwr.supercore.error",  # tells an unknown run from other refusals
    "ListNodesRequest": "flwr.proto.control_pb2",  # who is registered, and online
    "RegisterNodeRequest": "flwr.proto.control_pb2",  # a holder joins the federation
    "UnregisterNodeRequest": "flwr.proto.control_pb2",  # a holder leaves it
    "ListRunsRequest": "flwr.proto.control_pb2",  # which runs there are, and how they ended
    "StopRunRequest": "flwr.proto.control_pb2",  # ends one
    "StreamLogsRequest": "flwr.proto.control_pb2",  # its log
    # The SuperLink's own parts, which our gate is put before. Publicly `flower-superlink` has no place for a gate.
    "superlink_command": "flwr.superlink.cli.flower_superlink:",  # `flower-superlink`, which serves it by uvicorn
    "update_console_handler": "flwr.supercore.logger",  # the console shows warnings only; the log file has the rest
    "authenticate_node": "flwr.superlink.routers.fleet.node_auth",  # Flower's own check of a node's signature
    "get_linkstate": "flwr.superlink.dependencies.linkstate",  # the database that knows the nodes' keys
    "FLEET_HTTP_PUBLIC_KEY_HEADER": "flwr.supercore.constant",  # the header in which a node says its key
}


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, colon, _ = NAMES[name].partition(":")  # a colon: the module itself is meant
    try:
        imported = import_module(module)
        value = imported if colon else getattr(imported, name)
    except ImportError as error:
        raise ImportError(f"Flower {version('flwr')} has no {module} ({error})") from None
    except AttributeError:
        raise ImportError(f"Flower {version('flwr')} has no {module}.{name}") from None
    globals()[name] = value
    return value


def missing() -> list[str]:
    """Returns a sentence for each name that this Flower lacks."""
    lines = []
    for name in NAMES:
        try:
            __getattr__(name)
        except ImportError as error:
            lines.append(str(error))
    return lines


def name_message(message: Any, message_id: str) -> None:
    """Gives a Message its id, which has no public setter.

    Flower's Grids do the same.
    """
    message.metadata.__dict__["_message_id"] = message_id


def runtime_client(grid: Any) -> Any:
    """Returns the client behind a deployment's Grid, whose calls wait for nothing."""
    return grid._runtime_client
