"""The trainer's weight source: published versions on their device, for engines that take weights without a disk.

Imported by a running trainer only, since it needs torch and FastAPI.
"""
