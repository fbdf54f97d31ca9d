"""Programs that are compared with streamworker on the same entries: one module and process for each."""
