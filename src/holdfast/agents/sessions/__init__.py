"""Sessions: conversations of agents that outlive their runs, in stores of their own."""
