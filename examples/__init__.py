"""Programs that show Holdfast; the numbered ones are read in order, ``incident_triage`` is the demo."""
