"""What operators need: the server's health, repairs of keys, and rights of roles."""
