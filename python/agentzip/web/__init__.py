"""
HTTP over Unix sockets, with nothing but the standard library.

    serving     connections: bounded in number, size and time
    answers     requests and answers as values, errors as problem documents
    routes      one table that answers and is documented
    schema      dataclasses read from JSON and described as JSON Schema
    openapi     the document of a table
    host        what the host's people may ask, and their server
    inside      what a sandbox may ask about itself
"""

from agentzip.web.host import HTTP_SOCKET_NAME, WebServer, host_document
from agentzip.web.inside import inside_document

__all__ = ["HTTP_SOCKET_NAME", "WebServer", "host_document", "inside_document"]
