"""Jobs that run without a terminal: in the background on this machine, or where a back end supervises them itself.

Start with `background_jobs.py`, then `job_folder.py`.
"""
