"""Scores programs: takes the code from a completion and runs it against its tests in a Docker sandbox.

The service is :mod:`code_verifier.service`; what runs inside the containers is :mod:`code_verifier.inside`.
"""
