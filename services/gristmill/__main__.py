"""``python -m gristmill``."""

from gristmill.startup import heavy_imports

with heavy_imports():
    from gristmill.cli import main

main()
