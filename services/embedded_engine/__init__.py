"""The embedded engine: SGLang's HTTP API over a small continuous-batching server, for laptops and tests."""
