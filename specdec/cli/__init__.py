"""The command line: one module per command, dispatched by `main`."""
