"""What functions are given beside their records: resources, a context; and the middleware around calls."""
