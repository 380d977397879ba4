"""The run, workflow and executor for which code runs, as fields of log records.

A context variable says for which executor the current code runs: handlers, the tasks that they start and the threads of
plain functions inherit it. ``RunLogFilter`` writes it into every record that passes, whoever logs it.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TypeAlias

LogFields: TypeAlias = tuple[str, str, str]
"""A run id, the name of its workflow, and the address of an executor; each may be empty."""

NO_FIELDS: LogFields = ("", "", "")
log_fields: ContextVar[LogFields] = ContextVar("holdfast_log_fields", default=NO_FIELDS)
"""The run, workflow and executor for which the current code runs."""
_NAMES = ("holdfast_run_id", "holdfast_workflow", "holdfast_executor")


def extra_fields(run_id: str, workflow: str, executor: str = "") -> dict[str, str]:
    """Return what a log record of Holdfast has as ``extra``."""
    return dict(zip(_NAMES, (run_id, workflow, executor), strict=True))


class RunLogFilter(logging.Filter):
    """Gives log records the fields ``holdfast_run_id``, ``holdfast_workflow`` and ``holdfast_executor``.

    Add it to the handlers of ``logging`` that write records, so that it sees those of every logger: records that
    handlers of executors log, and the libraries that these call, have the run for which they were logged. Outside of
    runs the fields are empty. Records that have them already keep them, as those of Holdfast itself do.

    >>> import logging, sys
    >>> from holdfast import RunLogFilter, WorkflowBuilder, executor
    >>> output = logging.StreamHandler(sys.stdout)
    >>> output.addFilter(RunLogFilter())
    >>> output.setFormatter(logging.Formatter("%(holdfast_workflow)s/%(holdfast_executor)s: %(message)s"))
    >>> logger = logging.getLogger("billing")
    >>> logger.addHandler(output)
    >>> @executor
    ... def charge(amount: int) -> None:
    ...     logger.warning("charged %d", amount)
    >>> _ = WorkflowBuilder(name="Billing").set_start_executor(charge).build().run_sync(7)
    Billing/charge: charged 7
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Give the record its fields; every record passes."""
        for name, value in zip(_NAMES, log_fields.get(), strict=True):
            if not hasattr(record, name):
                setattr(record, name, value)
        return True
