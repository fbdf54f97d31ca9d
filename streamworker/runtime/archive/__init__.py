"""Archives of a worker: whose they are, and the archiver of acked logs.

Workers import it once they have something to archive: others load nothing of ``streamworker.archive``.
"""
