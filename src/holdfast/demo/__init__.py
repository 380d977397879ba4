"""The demo: an agent triages an incident from a 50 MB log, in a process that is killed inside its tool loop.

Read ``workflow`` first, then ``triage_agent``. ``model_server`` is a model that needs no network. ``supervisor`` starts
it and the process (``worker``) that drives the run, tells of its death and lists what it left; ``view`` and
``live_view`` show a run as lines and as a picture.
"""
