"""The local runner: the whole line as processes of this machine, supervised."""
