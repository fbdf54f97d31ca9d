"""The ways to call a user's function: by batch, record, key, stream or columns."""
