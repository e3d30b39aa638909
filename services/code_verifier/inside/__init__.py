"""What runs inside the sandbox's containers. Standard library only, Python 3.11 or newer; imports nothing of the rest.

Entry: ``python3 -B /opt/gristmill/inside/warden.py`` as PID 1 (this folder copied to ``/opt/gristmill/inside``), the
same in both containers, standard input and output attached, no TTY. The host speaks first only after the hello frame.

Modules:
    warden      boot script: refuses to run unless it is PID 1, starts itself again with a clean environment
    supervisor  the loop of PID 1: forks a child per run, relays bytes, enforces limits, kills, empties, reports
    cleaning    what a program can leave behind, and how it is removed
    limits      rlimits, cgroup counters, prctl
    frames      framing, also used by the host
    values      plain data: bounds, contents of containers; encoding writes it, decoding reads it
    peer        calls between the judge's child and the candidate's child
    candidate   the child that holds the program's functions
    program     the child that is the program (standard input and output)
    remote      the judge's stand-ins for what stays in the candidate
    judge       the child that runs the tests

Invariants: the candidate's container gets no test and no expected value; the verdict comes from the judge's child (or,
for standard output, from the host); what the candidate's side says is data, read strictly, and nothing else.
"""
