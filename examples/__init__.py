"""Programs that show Holdfast; the numbered ones are read in order."""
