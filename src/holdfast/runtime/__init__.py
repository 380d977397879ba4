"""WHO drives a run: tasks, contexts and events. asyncio lives here."""
