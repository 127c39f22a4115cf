"""When groups synchronize, how late they pull, and how long a round waits for the others. Nothing here holds parameters."""
