"""What tests of several packages share. Importable as ``support`` (``tests/conftest.py`` puts it on the path)."""
