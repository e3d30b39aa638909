"""What runs inside the sandbox's containers. Standard library only, Python 3.11 or newer; imports nothing of the rest.

Entry: ``python3 -B /opt/gristmill/inside/warden.py`` as PID 1 (this folder copied to ``/opt/gristmill/inside``), the
same in both containers, standard input and output attached, no TTY. Its first frame is the hello.

Modules:
    warden       boot script: refuses to run unless it is PID 1, starts itself again with a clean environment
    supervisor   the loop of PID 1: forks a child per run, relays bytes, enforces limits, kills, empties, reports
    preload      modules that PID 1 imports for all its children
    cleaning     what a program can leave behind, and how it is removed
    child        what a forked child becomes
    limits       rlimits, cgroup counters, prctl
    frames       framing, also used by the host
    values       plain data: bounds, contents of containers; :mod:`.encoding` writes it, :mod:`.decoding` reads it
    peer         calls between the judge's child and the candidate's child
    candidate    the child that holds the program's functions; :mod:`.given` what the tests pass it
    program      the child that is the program (standard input and output)
    judge        the child that runs the tests; :mod:`.asserts`, :mod:`.foresight`, :mod:`.collecting`,
                 :mod:`.compare` and :mod:`.reporting` are its parts
    judge_peer   the judge's side of the calls: what it believes, what it allows
    remote       its stand-ins for the program's functions and objects; :mod:`.mirrors` for its exceptions

Invariants: the candidate's container gets no test and no expected value; the verdict comes from the judge's child (or,
for standard output, from the host); what the candidate's side says is data, read strictly, and nothing else.
"""
