"""What streams, acked logs, dead letters and state hold, and the scripts that write them."""
