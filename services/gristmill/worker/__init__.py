"""The worker loop that every consuming service runs on; see ``docs/delivery.md``."""

from gristmill.worker.dead_letters import dead_letter_headers
from gristmill.worker.loop import Handler, Worker
from gristmill.worker.outbox import OnDeadLetter
from gristmill.worker.ownership import only_while_owned
from gristmill.worker.records import Headers, Incoming, Outgoing, RawRecord
from gristmill.worker.retry import RetryPolicy

__all__ = [
    "Handler",
    "Headers",
    "Incoming",
    "OnDeadLetter",
    "Outgoing",
    "RawRecord",
    "RetryPolicy",
    "Worker",
    "dead_letter_headers",
    "only_while_owned",
]
