"""The variables by which the launcher asks a task for a backup. Importing this file does not import TensorFlow."""

FOLDER = "TFDIST_BACKUP_DIR"
"""The folder of the backup, on the machine of the chief."""

FREQUENCY = "TFDIST_BACKUP_FREQ"
"""How often the backup is written: `epoch` (default), or a number of batches."""
