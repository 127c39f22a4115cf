"""Starting the tasks of a cluster and looking after them: `python -m tfdist.launch --help`."""
